// A small TLS origin without any of weir's code: HTTP/1.1 and HTTP/2 by Go's own server, as
// kube-apiserver has it.
//
//	GET /api/v1/...          1 KiB of JSON, after burning -cpu of CPU time
//	GET /api/v1/.../pods     370 KB of JSON, after burning -list-cpu of CPU time
//	GET /api/v1/...?watch=1  an event at once, then one for each POST /event
//	POST /event              sends an event to all watches; answers with how many there are
//	GET /watches             how many watches are open, and how many were started
//	GET /count               how many answers of /api/ there were so far
//
// With -filters it does what kube-apiserver's filter chain does around an answer: the handler runs in a
// goroutine of its own (the time-out filter), the answer has kube-apiserver's headers, each request makes
// 60 KB of garbage, and an audit event of it is encoded.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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
	all     map[chan []byte]struct{}
	started int
}

func (w *watches) add() chan []byte {
	events := make(chan []byte, 16)
	w.Lock()
	defer w.Unlock()
	w.all[events] = struct{}{}
	w.started++
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

// The answers of /api/ so far.
var answered atomic.Int64

// The bytes that kube-apiserver 1.36 allocates for a small GET, in pieces.
const (
	garbagePieces = 120
	garbagePiece  = 512
)

// Keeps the compiler from leaving the garbage out.
var garbage atomic.Pointer[[]byte]

func makeGarbage() {
	for i := 0; i < garbagePieces; i++ {
		piece := make([]byte, garbagePiece)
		garbage.Store(&piece)
	}
}

// An audit event, as far as its size and its encoding matter.
type auditEvent struct {
	Kind, APIVersion, Level, AuditID, Stage, RequestURI, Verb string
	User                                                      map[string]any
	SourceIPs                                                 []string
	UserAgent                                                 string
	RequestReceivedTimestamp, StageTimestamp                  time.Time
	Annotations                                               map[string]string
}

// Collects an answer for the goroutine that waits for it, under a lock, as the time-out filter's writer does.
type guardedWriter struct {
	http.ResponseWriter
	lock sync.Mutex
}

func (w *guardedWriter) Write(part []byte) (int, error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.ResponseWriter.Write(part)
}

func (w *guardedWriter) WriteHeader(status int) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.ResponseWriter.WriteHeader(status)
}

// What kube-apiserver's filters do around a request that ends.
func filtered(handler http.HandlerFunc) http.HandlerFunc {
	audit := json.NewEncoder(io.Discard)
	var auditLock sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		received := time.Now()
		if r.URL.Query().Get("watch") != "" {
			handler(w, r)
			return
		}
		var id [16]byte
		rand.Read(id[:])
		auditID := hex.EncodeToString(id[:])
		headers := w.Header()
		headers.Set("Audit-Id", auditID)
		headers.Set("Cache-Control", "no-cache, private")
		headers.Set("X-Kubernetes-Pf-Flowschema-Uid", "4b1b0f5e-3a5c-4e6e-9d3c-0f6f1a2b3c4d")
		headers.Set("X-Kubernetes-Pf-Prioritylevel-Uid", "5c2c1f6f-4b6d-4f7f-8e4d-1f7f2b3c4d5e")
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		r = r.WithContext(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			makeGarbage()
			handler(&guardedWriter{ResponseWriter: w}, r)
		}()
		select {
		case <-done:
		case <-ctx.Done():
			<-done
		}
		event := auditEvent{
			Kind: "Event", APIVersion: "audit.k8s.io/v1", Level: "Metadata", AuditID: auditID,
			Stage: "ResponseComplete", RequestURI: r.RequestURI, Verb: "get", UserAgent: r.UserAgent(),
			User:      map[string]any{"username": "bench", "groups": []string{"system:authenticated"}},
			SourceIPs: []string{r.RemoteAddr}, RequestReceivedTimestamp: received, StageTimestamp: time.Now(),
			Annotations: map[string]string{"authorization.k8s.io/decision": "allow"},
		}
		auditLock.Lock()
		audit.Encode(event)
		auditLock.Unlock()
	}
}

func main() {
	listen := flag.String("listen", "127.0.0.1:18443", "address")
	cert := flag.String("cert", "tls.crt", "certificate")
	key := flag.String("key", "tls.key", "its key")
	cpu := flag.Duration("cpu", 0, "CPU time for each answer")
	listCPU := flag.Duration("list-cpu", 0, "CPU time for a list")
	http1 := flag.Bool("http1", false, "speak HTTP/1.1 only")
	filters := flag.Bool("filters", false, "do what kube-apiserver's filters do around an answer")
	flag.Parse()

	body := bytes.Repeat([]byte("x"), 1024)
	// 50 Pods of a real cluster.
	list := bytes.Repeat([]byte("x"), 370_000)
	// 300 bytes: an update of a small object.
	event := append(bytes.Repeat([]byte("e"), 300), '\n')
	open := &watches{all: map[chan []byte]struct{}{}}

	http.HandleFunc("/event", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, open.send(event))
	})
	http.HandleFunc("/watches", func(w http.ResponseWriter, r *http.Request) {
		open.Lock()
		defer open.Unlock()
		fmt.Fprint(w, len(open.all), open.started)
	})
	http.HandleFunc("/count", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, answered.Load())
	})
	api := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			if strings.HasSuffix(r.URL.Path, "/pods") {
				burn(*listCPU)
				w.Write(list)
			} else {
				burn(*cpu)
				w.Write(body)
			}
			answered.Add(1)
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
	}
	if *filters {
		api = filtered(api)
	}
	http.HandleFunc("/api/", api)
	server := &http.Server{Addr: *listen}
	if *http1 {
		server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	log.Fatal(server.ListenAndServeTLS(*cert, *key))
}
