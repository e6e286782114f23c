// A small TLS origin without any of weir's code: HTTP/1.1 and HTTP/2 by Go's own server, as
// kube-apiserver has it.
//
//	GET /api/v1/...          1 KiB of JSON, after burning -cpu of CPU time
//	GET /api/v1/...?watch=1  an event at once, then one for each POST /event
//	POST /event              sends an event to all watches; answers with how many there are
package main

import (
	"bytes"
	"crypto/tls"
	"flag"
	"fmt"
	"log"
	"net/http"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// The clock of the thread's own CPU time (time.h): a wall clock would burn less while others run.
const clockThreadCPU = 3

func threadCPU() time.Duration {
	var t syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockThreadCPU, uintptr(unsafe.Pointer(&t)), 0)
	return time.Duration(t.Nano())
}

func burn(amount time.Duration) {
	if amount <= 0 {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for end := threadCPU() + amount; threadCPU() < end; {
		for i := 0; i < 200; i++ { // between two looks at the clock
			runtime.KeepAlive(i)
		}
	}
}

// The watches, each with a channel of events.
type watches struct {
	sync.Mutex
	all map[chan []byte]struct{}
}

func (w *watches) add() chan []byte {
	events := make(chan []byte, 16)
	w.Lock()
	defer w.Unlock()
	w.all[events] = struct{}{}
	return events
}

func (w *watches) remove(events chan []byte) {
	w.Lock()
	defer w.Unlock()
	delete(w.all, events)
}

func (w *watches) send(event []byte) int {
	w.Lock()
	defer w.Unlock()
	for events := range w.all {
		select {
		case events <- event:
		default: // a watch that does not read loses the event
		}
	}
	return len(w.all)
}

func main() {
	listen := flag.String("listen", "127.0.0.1:18443", "address")
	cert := flag.String("cert", "tls.crt", "certificate")
	key := flag.String("key", "tls.key", "its key")
	cpu := flag.Duration("cpu", 0, "CPU time for each answer")
	http1 := flag.Bool("http1", false, "speak HTTP/1.1 only")
	flag.Parse()

	body := bytes.Repeat([]byte("x"), 1024)
	// 300 bytes: an update of a small object.
	event := append(bytes.Repeat([]byte("e"), 300), '\n')
	open := &watches{all: map[chan []byte]struct{}{}}

	http.HandleFunc("/event", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, open.send(event))
	})
	http.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			burn(*cpu)
			w.Write(body)
			return
		}
		events := open.add()
		defer open.remove(events)
		for {
			if _, err := w.Write(event); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-events:
			}
		}
	})
	server := &http.Server{Addr: *listen}
	if *http1 {
		server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	log.Fatal(server.ListenAndServeTLS(*cert, *key))
}
