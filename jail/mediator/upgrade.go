package mediator

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"strings"
	"time"
)

// isWebSocket reports whether a request without a body asks for the WebSocket protocol.
func isWebSocket(r *http.Request) bool {
	return r.ContentLength == 0 && strings.EqualFold(r.Header.Get("Upgrade"), "websocket") &&
		hasToken(r.Header["Connection"], "upgrade")
}

func hasToken(lines []string, token string) bool {
	for _, line := range lines {
		for word := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(word), token) {
				return true
			}
		}
	}
	return false
}

// serveUpgrade passes a WebSocket handshake on, and tunnels when the host agrees.
func (p *Proxy) serveUpgrade(w http.ResponseWriter, r *http.Request, t target) {
	c, err := p.open(r.Context(), t)
	if err != nil {
		p.fail(w, r, t, err)
		return
	}
	stop := context.AfterFunc(r.Context(), func() { _ = c.Close() })
	answer, in, err := p.handshake(c, upgradeRequest(r, t))
	if !stop() || err != nil {
		_ = c.Close()
		p.fail(w, r, t, cmp.Or(err, r.Context().Err()))
		return
	}
	p.counts.of(t).requests.Add(1)
	if answer.StatusCode != http.StatusSwitchingProtocols {
		copyAnswer(w, answer)
		_ = c.Close() // not kept: what comes next is judged again
		return
	}
	p.splice(w, c, switchingHead(answer, in))
}

// upgradeRequest is the handshake as it leaves.
func upgradeRequest(r *http.Request, t target) *http.Request {
	out := r.Clone(r.Context())
	removeHopByHop(out.Header)
	out.Header.Set("Connection", "Upgrade")
	out.Header.Set("Upgrade", "websocket")
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "") // else Write adds its own
	}
	out.Host, out.Body = t.authority(), nil
	return out
}

// handshake sends a request and reads the head of its answer.
func (p *Proxy) handshake(c net.Conn, r *http.Request) (*http.Response, *bufio.Reader, error) {
	if err := c.SetDeadline(time.Now().Add(p.HeaderTimeout)); err != nil {
		return nil, nil, err
	}
	if err := r.Write(c); err != nil {
		return nil, nil, err
	}
	bound := &io.LimitedReader{R: c, N: 1 << 20} // of the head
	in := bufio.NewReader(bound)
	for {
		answer, err := http.ReadResponse(in, r)
		if err != nil {
			return nil, nil, err
		}
		if answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols {
			bound.N = math.MaxInt64
			return answer, in, c.SetDeadline(time.Time{})
		}
	}
}

// switchingHead is the answer to the client, with what the host sent right after its own.
func switchingHead(answer *http.Response, in *bufio.Reader) []byte {
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = answer.Header.Write(&head) // a Buffer takes everything
	head.WriteString("\r\n")
	early, _ := in.Peek(in.Buffered())
	head.Write(early)
	return head.Bytes()
}

// copyAnswer passes a refused handshake on.
func copyAnswer(w http.ResponseWriter, answer *http.Response) {
	removeHopByHop(answer.Header)
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	_, err := io.Copy(w, answer.Body)
	_ = answer.Body.Close() // read only
	if err != nil {
		panic(http.ErrAbortHandler) // so that the client sees a break, not an end
	}
}

// removeHopByHop removes what is between two neighbours only (RFC 9110, 7.6.1).
func removeHopByHop(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade"} {
		h.Del(name)
	}
}
