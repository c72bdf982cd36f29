// Package mockmodel is a scripted stand-in for a model API. It listens on loopback, plays scripts as
// "the model" and records every request.
//
// It speaks the Responses API as far as the Codex CLI needs it:
//
//	client                                    mock
//	POST /s/NAME/v1/responses  ───────────▶   next turn of script NAME, for this thread
//	  {tools, input: whole history}
//	◀───────────  event: response.created
//	◀───────────  event: response.output_item.done   (message, shell call, patch …)
//	◀───────────  event: response.completed
//
// A position in a script is kept for each thread (the Thread-Id header), so that clients running at
// the same time do not disturb each other.
package mockmodel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Config is what a Server is started with. The zero Config serves the built-in scripts on a free
// port.
type Config struct {
	Listen  string            // address, which must be loopback; "" is 127.0.0.1 with a free port
	Scripts map[string]Script // besides the built-in ones, or instead of those of the same name
	Vars    map[string]string // values of script variables
	Record  io.Writer         // gets one JSON line for each request; nil for none
}

// Server plays scripts until Close.
type Server struct {
	scripts map[string]Script
	vars    map[string]string
	addr    string
	http    *http.Server
	served  chan error

	mu       sync.Mutex
	threads  map[string]*thread // by script name and thread id; guarded by mu, like all below
	requests []Request
	record   io.Writer
}

// New starts a server.
func New(c Config) (*Server, error) {
	scripts, err := Builtin()
	if err != nil {
		return nil, err
	}
	maps.Copy(scripts, c.Scripts)
	for name, s := range scripts {
		if err := s.check(); err != nil {
			return nil, fmt.Errorf("script %q: %w", name, err)
		}
	}
	l, err := listen(c.Listen)
	if err != nil {
		return nil, err
	}
	s := &Server{scripts: scripts, vars: c.Vars, addr: l.Addr().String(), served: make(chan error, 1), threads: map[string]*thread{}, record: c.Record}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 30 * time.Second}
	go func() { s.served <- s.http.Serve(l) }()
	return s, nil
}

// listen refuses addresses that other machines could reach.
func listen(addr string) (net.Listener, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("listen on %s: not a loopback address", addr)
	}
	return net.Listen("tcp", addr)
}

// TB is the part of testing.TB that Start uses, so that the command does not link package testing.
type TB interface {
	Helper()
	Fatal(args ...any)
	Error(args ...any)
	Cleanup(func())
}

// Start is New for tests: the server ends with the test.
func Start(t TB, c Config) *Server {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Addr is the address the server listens on, "127.0.0.1:40001".
func (s *Server) Addr() string { return s.addr }

// URL is the base URL under which script plays, "http://127.0.0.1:40001/s/edit/v1".
func (s *Server) URL(script string) string { return "http://" + s.addr + "/s/" + script + "/v1" }

// Close ends the server and every stream, and waits for it.
func (s *Server) Close() error {
	err := s.http.Close()
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// Wait serves until ctx is done or the listener fails, then closes.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return s.Close()
	case err := <-s.served:
		return err
	}
}

// ServeHTTP answers one request of a client.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 64<<20))
	r := newRequest(req, body)
	rest, isScript := strings.CutPrefix(req.URL.Path, "/s/")
	name, endpoint, _ := strings.Cut(rest, "/")
	switch {
	case err != nil:
		s.refuse(w, r, http.StatusBadRequest, err.Error())
	case strings.EqualFold(req.Header.Get("Upgrade"), "websocket"):
		s.refuse(w, r, http.StatusUpgradeRequired, "no websocket transport") // Codex falls back to POST
	case isScript && req.Method == http.MethodPost && endpoint == "v1/responses":
		r.Script = name
		s.responses(w, req, r)
	default:
		s.refuse(w, r, http.StatusNotFound, "no such endpoint: "+req.Method+" "+req.URL.Path)
	}
}

// refuse records r and answers with an error.
func (s *Server) refuse(w http.ResponseWriter, r Request, status int, why string) {
	r.Error = why
	s.add(r)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"message": "mock: " + why, "type": "invalid_request_error"}})
}
