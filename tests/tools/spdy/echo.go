// An upstream for tests that speaks SPDY/3.1, which the playground does not: exec, attach and port-forward
// repeat what they are sent. Everything else goes on to the playground's API server.
//
// Usage: echo DIR, where DIR is the folder of `weir playground --apiserver-only`. The address it listens on is
// written to DIR/spdy-address, the heads of upgraded requests to DIR/spdy-requests.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/moby/spdystream"
)

const success = `{"metadata":{},"status":"Success"}`

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	dir := os.Args[1]
	file := func(name string) string { return filepath.Join(dir, name) }
	read := func(name string) string {
		text, err := os.ReadFile(file(name))
		must(err)
		return string(text)
	}
	pair := func(name string) tls.Certificate {
		made, err := tls.LoadX509KeyPair(file(name+".crt"), file(name+".key"))
		must(err)
		return made
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(read("ca.crt")))
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: strings.TrimSpace(read("address"))})
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs:      roots,
		Certificates: []tls.Certificate{pair("front-proxy-client")},
	}}
	requests, err := os.Create(file("spdy-requests"))
	must(err)
	var writing sync.Mutex
	handler := func(w http.ResponseWriter, r *http.Request) {
		if !strings.EqualFold(r.Header.Get("Upgrade"), "SPDY/3.1") {
			proxy.ServeHTTP(w, r)
			return
		}
		writing.Lock()
		err := json.NewEncoder(requests).Encode(map[string]any{
			"method": r.Method, "target": r.RequestURI, "version": r.Proto, "headers": r.Header,
		})
		writing.Unlock()
		must(err)
		upgrade(w, r)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair("apiserver")},
		NextProtos:   []string{"http/1.1"},
	})
	must(err)
	must(os.WriteFile(file("spdy-address"), []byte(listener.Addr().String()), 0o600))
	must(http.Serve(listener, http.HandlerFunc(handler)))
}

// Answers 101, the first protocol that the client offers, and serves the streams that it opens.
func upgrade(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", "SPDY/3.1")
	if offered := r.Header.Values("X-Stream-Protocol-Version"); len(offered) > 0 {
		w.Header().Set("X-Stream-Protocol-Version", offered[0])
	}
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		log.Print(err)
		return
	}
	defer conn.Close()
	conn = &hijacked{conn, buffered}
	if strings.HasSuffix(r.URL.Path, "/portforward") {
		forward(conn)
	} else {
		run(conn, r.URL.Query())
	}
}

// A connection whose first bytes the HTTP server may have read already.
type hijacked struct {
	net.Conn
	reader io.Reader
}

func (h *hijacked) Read(into []byte) (int, error) {
	return h.reader.Read(into)
}

func serve(conn net.Conn, each func(*spdystream.Stream)) *spdystream.Connection {
	connection, err := spdystream.NewConnection(conn, true)
	if err != nil {
		log.Print(err)
		return nil
	}
	go connection.Serve(func(stream *spdystream.Stream) {
		if err := stream.SendReply(http.Header{}, false); err != nil {
			log.Print(err)
			return
		}
		each(stream)
	})
	return connection
}

// exec and attach: standard input comes back as standard output, and then all is well.
func run(conn net.Conn, query url.Values) {
	wanted := []string{"error"}
	for _, name := range []string{"stdin", "stdout", "stderr"} {
		if query.Get(name) == "true" || query.Get(name) == "1" {
			wanted = append(wanted, name)
		}
	}
	opened := make(chan *spdystream.Stream, len(wanted))
	connection := serve(conn, func(stream *spdystream.Stream) { opened <- stream })
	if connection == nil {
		return
	}
	streams := map[string]*spdystream.Stream{}
	for range wanted {
		select {
		case stream := <-opened:
			streams[stream.Headers().Get("streamType")] = stream
		case <-connection.CloseChan():
			return
		}
	}
	if stdin, stdout := streams["stdin"], streams["stdout"]; stdin != nil && stdout != nil {
		io.Copy(stdout, stdin)
	} else if stdout != nil {
		io.WriteString(stdout, "nothing runs here: "+strings.Join(query["command"], " ")+"\n")
	}
	io.WriteString(streams["error"], success)
	for _, stream := range streams {
		stream.Close()
	}
	// The client hangs up once it has everything.
	<-connection.CloseChan()
}

// port-forward: each connection has a stream for data, which comes back, and one for errors, of which there are none.
func forward(conn net.Conn) {
	connection := serve(conn, func(stream *spdystream.Stream) {
		go func() {
			if stream.Headers().Get("streamType") == "data" {
				io.Copy(stream, stream)
			}
			stream.Close()
		}()
	})
	if connection != nil {
		<-connection.CloseChan()
	}
}
