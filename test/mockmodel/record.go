package mockmodel

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

// Request is one request of a client and what became of it. Its JSON form is one line of
// Config.Record.
type Request struct {
	Time   time.Time       `json:"time"`
	Method string          `json:"method"`
	Path   string          `json:"path"`
	Header http.Header     `json:"header"` // credentials redacted
	Body   json.RawMessage `json:"body"`   // null when it is not JSON

	Script  string   `json:"script"`  // "" for what is no model request
	Thread  string   `json:"thread"`  // the client's thread id
	Turn    int      `json:"turn"`    // the turn of the script that was played
	Prompt  string   `json:"prompt"`  // newest message of the user
	Tools   []string `json:"tools"`   // what the client offers
	Outputs []string `json:"outputs"` // every tool output of the thread so far, oldest first
	Error   string   `json:"error"`   // why the mock refused it, "" when it did not
}

func newRequest(req *http.Request, body []byte) Request {
	r := Request{Time: time.Now().UTC(), Method: req.Method, Path: req.URL.RequestURI(), Header: req.Header.Clone()}
	for _, name := range []string{"Authorization", "Proxy-Authorization", "X-Api-Key", "Cookie"} {
		if r.Header.Get(name) != "" {
			r.Header.Set(name, "redacted")
		}
	}
	if json.Valid(body) {
		r.Body = body
	}
	return r
}

func (r *Request) lastOutput() string {
	if len(r.Outputs) == 0 {
		return ""
	}
	return r.Outputs[len(r.Outputs)-1]
}

func (s *Server) add(r Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	if s.record != nil {
		// A Request always has a JSON form, and a record nobody can write is the reader's loss.
		text, _ := json.Marshal(r)
		_, _ = s.record.Write(append(text, '\n'))
	}
}

// Requests returns all requests so far, oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Outputs returns what the tools of the newest client of script printed, oldest first. A client
// sends its whole history each time, so the newest request tells all but the last turn's.
func (s *Server) Outputs(script string) []string {
	for _, r := range slices.Backward(s.Requests()) {
		if r.Script == script {
			return r.Outputs
		}
	}
	return nil
}
