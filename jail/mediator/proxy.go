package mediator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"sync"
	"time"
)

// Proxy is an HTTP/1.1 forward proxy: CONNECT for anything, absolute-form for http URLs, WebSocket
// upgrades over both. Each request is judged by itself, also on a kept connection. What leaves has
// the target as its Host, whatever the request said (RFC 9112, 3.2.2). Set its fields before Serve.
type Proxy struct {
	Lookup        func(ctx context.Context, host string) ([]netip.Addr, error)
	HeaderTimeout time.Duration // for a request's header, and an upgrade's answer
	IdleTimeout   time.Duration // between requests
	TunnelIdle    time.Duration // of a tunnel in which nothing moves
	MaxConns      int           // from the Job; what is more waits

	decider Decider
	dial    Dial
	counts  counters
	conns   connSet
	server  http.Server
	up      *http.Transport
	ctx     context.Context // ends with the Proxy, not with a request
	cancel  context.CancelFunc
	slots   func() chan struct{}
}

// NewProxy returns a proxy that asks d and connects by dial; nil dial is net.Dialer. dial is only
// given addresses, never names.
func NewProxy(d Decider, dial Dial) *Proxy {
	p := &Proxy{
		Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		HeaderTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, TunnelIdle: tunnelIdle, MaxConns: defaultMaxConns,
		decider: d, dial: dialer(dial),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.slots = sync.OnceValue(func() chan struct{} { return make(chan struct{}, max(p.MaxConns, 1)) })
	p.up = &http.Transport{ // no Proxy: the supervisor's own variables are none of the Job's business
		DialContext: p.dialForward, DisableCompression: true,
		MaxIdleConns: 64, MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second,
	}
	silent := log.New(io.Discard, "", 0)
	p.server = http.Server{Handler: http.HandlerFunc(p.handle), MaxHeaderBytes: 64 << 10, ErrorLog: silent,
		DisableGeneralOptionsHandler: true, BaseContext: func(net.Listener) context.Context { return p.ctx }}
	return p
}

// Serve answers on l until Close, and returns nil then.
func (p *Proxy) Serve(l net.Listener) error {
	p.server.ReadHeaderTimeout, p.server.IdleTimeout = p.HeaderTimeout, p.IdleTimeout
	err := p.server.Serve(&boundedListener{l, p})
	if errors.Is(err, http.ErrServerClosed) || p.ctx.Err() != nil {
		return nil
	}
	return err
}

// Close stops the proxy, ends its connections and waits for its goroutines.
func (p *Proxy) Close() error {
	p.cancel()
	err := p.server.Close()
	p.conns.close()
	p.up.CloseIdleConnections()
	p.conns.wg.Wait()
	return err
}

// Stats returns the counts by host and port, ordered.
func (p *Proxy) Stats() []HostStats { return p.counts.stats() }

// boundedListener takes a slot before it takes a connection.
type boundedListener struct {
	net.Listener
	p *Proxy
}

// Accept waits for a slot, then for a connection.
func (l *boundedListener) Accept() (net.Conn, error) {
	slots := l.p.slots()
	select {
	case slots <- struct{}{}:
	case <-l.p.ctx.Done():
		return nil, net.ErrClosed
	}
	release := func() { <-slots }
	c, err := l.Listener.Accept()
	if err != nil {
		release()
		return nil, err
	}
	return l.p.conns.track(c, nil, nil, release)
}

// handle judges one request and passes it on.
func (p *Proxy) handle(w http.ResponseWriter, r *http.Request) {
	if !p.conns.enter() {
		return
	}
	defer p.conns.leave()
	t, err := p.target(r)
	if err != nil {
		p.counts.of(target{host: Invalid}).deny("not a target", err.Error())
		http.Error(w, "stage: "+err.Error(), http.StatusBadRequest)
		return
	}
	if ok, rule := p.decider.Decide(t.host, t.port); !ok {
		p.fail(w, r, t, &denial{target: t, rule: rule})
		return
	}
	switch {
	case r.Method == http.MethodConnect:
		p.serveConnect(w, r, t)
	case isWebSocket(r):
		p.serveUpgrade(w, r, t)
	default:
		p.serveForward(w, r, t)
	}
}

// Invalid is the Host under which requests without a usable target are counted.
const Invalid = "(invalid)"

// target returns what a request is for.
func (p *Proxy) target(r *http.Request) (target, error) {
	switch {
	case r.URL.Host == "":
		return target{}, errors.New("this is a proxy: it takes CONNECT and http:// URLs")
	case r.URL.User != nil:
		return target{}, errors.New("user names in URLs are not accepted")
	case r.Method == http.MethodConnect:
		return parseTarget(p.decider, r.URL.Host, 0)
	case r.URL.Scheme != "http":
		return target{}, fmt.Errorf("%q URLs go through CONNECT", r.URL.Scheme)
	default:
		return parseTarget(p.decider, r.URL.Host, 80)
	}
}

// fail answers a request that did not get through, and counts it.
func (p *Proxy) fail(w http.ResponseWriter, r *http.Request, t target, err error) {
	status := http.StatusBadGateway
	if d := (*denial)(nil); errors.As(err, &d) {
		p.counts.of(t).deny(d.reason(), d.rule)
		status, err = http.StatusForbidden, d
	} else if r.Context().Err() == nil { // else it was the Job that went away
		p.counts.of(t).failed.Add(1)
	}
	if r.Method == http.MethodConnect {
		w.Header().Set("Connection", "close")
	}
	http.Error(w, "stage: "+err.Error(), status)
}

// open connects to a target. Closing the proxy ends the attempt.
func (p *Proxy) open(ctx context.Context, t target) (*trackedConn, error) {
	if !p.conns.enter() {
		return nil, errClosed
	}
	defer p.conns.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	c, err := p.connect(ctx, t)
	if err != nil {
		return nil, err
	}
	count := p.counts.of(t)
	count.connections.Add(1)
	return p.conns.track(c, &count.in, &count.out, func() {})
}

// dialForward connects for p.up, whose addresses serveForward has made.
func (p *Proxy) dialForward(ctx context.Context, _, addr string) (net.Conn, error) {
	t, err := parseTarget(p.decider, addr, 0)
	if err != nil {
		return nil, err
	}
	return p.open(ctx, t)
}

// serveConnect makes a tunnel.
func (p *Proxy) serveConnect(w http.ResponseWriter, r *http.Request, t target) {
	c, err := p.open(r.Context(), t)
	if err != nil {
		p.fail(w, r, t, err)
		return
	}
	p.counts.of(t).requests.Add(1)
	p.splice(w, c, []byte("HTTP/1.1 200 Connection Established\r\n\r\n"))
}

// splice takes the client's connection over, sends it head, and tunnels it to c.
func (p *Proxy) splice(w http.ResponseWriter, c *trackedConn, head []byte) {
	raw, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = c.Close() // the server answers: it still has the client's connection
		return
	}
	client, ok := raw.(halfCloser)
	if !ok {
		_, _ = raw.Close(), c.Close()
		return
	}
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered()) // never more than is there
	if _, err := client.Write(head); err != nil {
		_, _ = client.Close(), c.Close()
		return
	}
	tunnel(client, early, c, p.TunnelIdle)
}

// serveForward passes a request with an absolute URL on. What the target is was judged; its address
// is judged when the connection is made.
func (p *Proxy) serveForward(w http.ResponseWriter, r *http.Request, t target) {
	r.URL.Host, r.Host = t.String(), t.authority()
	r.Header.Del("Upgrade") // other protocols could not be judged
	forward := httputil.ReverseProxy{Transport: p.up, Rewrite: keepForwarded, FlushInterval: -1, ErrorLog: p.server.ErrorLog,
		ModifyResponse: func(*http.Response) error { p.counts.of(t).requests.Add(1); return nil },
		ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { p.fail(w, r, t, err) }}
	forward.ServeHTTP(w, r)
}

// keepForwarded puts back what ReverseProxy takes away because it is made for the other end.
func keepForwarded(r *httputil.ProxyRequest) {
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = v
		}
	}
}
