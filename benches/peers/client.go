// The clients of the cases that no load generator has. Each prints JSON.
//
//	client handshakes -url URL -seconds N -clients N [-resume]
//	client idle       -url URL -count N [-http2] [-watch]   until its input ends; prints a line when all are open
//	client fanout     -url URL -count N [-http2] -trigger URL -events N
//	client come-back  -url URL -count N [-http2] -trigger URL -users N   for a line of its input: an event, the state
package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

var (
	address  = flag.String("url", "", "what to request")
	trigger  = flag.String("trigger", "", "where a POST sends an event to all watches")
	count    = flag.Int("count", 1000, "connections or watches")
	clients  = flag.Int("clients", 16, "handshakes at a time")
	events   = flag.Int("events", 5, "events")
	seconds  = flag.Float64("seconds", 2, "how long")
	resume   = flag.Bool("resume", false, "resume TLS sessions")
	useHTTP2 = flag.Bool("http2", false, "speak HTTP/2")
	users    = flag.Int("users", 20, "users, so that no bound for one user is measured; see peers.py")
	watch    = flag.Bool("watch", false, "open watches, not connections without a request")
)

func transport(cache tls.ClientSessionCache, keepAlive bool) *http.Transport {
	t := &http.Transport{
		// The proxies' certificate is not what is measured.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, ClientSessionCache: cache},
		ForceAttemptHTTP2: *useHTTP2,
		DisableKeepAlives: !keepAlive,
		MaxIdleConns:      0,
		// All of them stay open.
		MaxIdleConnsPerHost: 1 << 20,
	}
	if !*useHTTP2 {
		t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	return t
}

func get(client *http.Client, url string, user int) (*http.Response, error) {
	request, err := http.NewRequest("GET", url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", fmt.Sprintf("Bearer benchmark-%d", user%*users))
	response, err := client.Do(request)
	if err == nil && response.StatusCode != 200 {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 500))
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return response, err
}

// handshakes opens a connection for each request.
func handshakes() any {
	var done, resumed int64
	end := time.Now().Add(time.Duration(*seconds * float64(time.Second)))
	var all sync.WaitGroup
	for c := 0; c < *clients; c++ {
		all.Add(1)
		go func(user int) {
			defer all.Done()
			var cache tls.ClientSessionCache
			if *resume {
				cache = tls.NewLRUClientSessionCache(4)
			}
			client := &http.Client{Transport: transport(cache, false)}
			for time.Now().Before(end) {
				response, err := get(client, *address, user)
				if err != nil {
					log.Fatal(err)
				}
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
				atomic.AddInt64(&done, 1)
				if response.TLS.DidResume {
					atomic.AddInt64(&resumed, 1)
				}
			}
		}(c)
	}
	began := time.Now()
	all.Wait()
	return map[string]any{"count": done, "resumed": resumed, "seconds": time.Since(began).Seconds()}
}

// openAll opens `count` watches or keep-alive connections. Each calls `received` for an event.
func openAll(received func()) {
	client := &http.Client{Transport: transport(nil, true)}
	limit := make(chan struct{}, 64) // handshakes at a time
	var open, replied sync.WaitGroup
	replied.Add(*count)
	for n := 0; n < *count; n++ {
		open.Add(1)
		limit <- struct{}{}
		go func(user int) {
			response, err := get(client, *address, user)
			if err != nil {
				log.Fatal(err)
			}
			lines := bufio.NewReaderSize(response.Body, 512)
			if *watch {
				if _, err := lines.ReadString('\n'); err != nil {
					log.Fatal(err)
				}
			}
			<-limit
			replied.Done()
			if !*watch {
				// Kept until all have a connection, so that none is used twice.
				replied.Wait()
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
				open.Done()
				return
			}
			open.Done()
			for {
				if _, err := lines.ReadString('\n'); err != nil {
					log.Fatal(err)
				}
				received()
			}
		}(n)
	}
	open.Wait()
}

func idle() any {
	openAll(func() {})
	fmt.Println(`{"open": true}`)
	io.Copy(io.Discard, os.Stdin)
	return map[string]any{"count": *count}
}

// fanout measures from the request for an event until all watches have received it.
func fanout() any {
	*watch = true
	received := make(chan time.Time, *count)
	openAll(func() { received <- time.Now() })
	own := &http.Client{Transport: transport(nil, true)}
	first, median, last := []float64{}, []float64{}, []float64{}
	for e := 0; e < *events; e++ {
		began := time.Now()
		ms := func(at time.Time) float64 { return float64(at.Sub(began).Microseconds()) / 1000 }
		response, err := own.Post(*trigger, "text/plain", nil)
		if err != nil {
			log.Fatal(err)
		}
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
		for n := 0; n < *count; n++ {
			at := <-received
			switch n {
			case 0:
				first = append(first, ms(at))
			case *count / 2:
				median = append(median, ms(at))
			}
			if n == *count-1 {
				last = append(last, ms(at))
			}
		}
	}
	return map[string]any{"first_ms": first, "median_ms": median, "last_ms": last}
}

// The pauses of client-go's reflectors.
const (
	leastPause = 800 * time.Millisecond
	mostPause  = 30 * time.Second
)

// comeBack keeps `count` watches open: one that ends, or is rejected, comes back as client-go's reflectors do. For each
// line of its input it sends an event, if the line says so, and prints the state.
func comeBack() any {
	*watch = true
	received := make(chan time.Time, *count)
	var open atomic.Int64
	limit := make(chan struct{}, 64) // handshakes at a time
	for user := 0; user < *users; user++ {
		client := &http.Client{Transport: transport(nil, true)}
		for w := 0; w < *count / *users; w++ {
			go func(user int) {
				pause := leastPause
				for {
					limit <- struct{}{}
					response, err := get(client, *address, user)
					<-limit
					if err == nil {
						lines := bufio.NewReaderSize(response.Body, 512)
						for first := true; ; first = false {
							if _, err := lines.ReadString('\n'); err != nil {
								if !first {
									open.Add(-1)
									pause = leastPause
								}
								break
							}
							if first {
								open.Add(1)
								continue
							}
							received <- time.Now()
						}
						response.Body.Close()
					}
					time.Sleep(pause + time.Duration(rand.Int63n(int64(pause))))
					if pause *= 2; pause > mostPause {
						pause = mostPause
					}
				}
			}(user)
		}
	}
	own := &http.Client{Transport: transport(nil, true)}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		state := map[string]any{"open": open.Load()}
		if lines.Text() == "event" {
			began := time.Now()
			response, err := own.Post(*trigger, "text/plain", nil)
			if err != nil {
				log.Fatal(err)
			}
			response.Body.Close()
			for n := 0; n < *count; n++ {
				state["last_ms"] = (<-received).Sub(began).Milliseconds()
			}
		}
		json.NewEncoder(os.Stdout).Encode(state)
	}
	return nil
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("client handshakes|idle|fanout|come-back FLAG...")
	}
	if err := flag.CommandLine.Parse(os.Args[2:]); err != nil {
		log.Fatal(err)
	}
	kinds := map[string]func() any{"handshakes": handshakes, "idle": idle, "fanout": fanout, "come-back": comeBack}
	kind, known := kinds[os.Args[1]]
	if !known {
		log.Fatalf("%s: handshakes, idle, fanout or come-back", os.Args[1])
	}
	json.NewEncoder(os.Stdout).Encode(kind())
}
