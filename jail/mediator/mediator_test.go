package mediator_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"stage/jail/mediator"
)

// rules is a policy for tests: the targets it allows, and the addresses names may resolve to.
type rules struct {
	hosts map[string]bool // "host:port"
	addrs map[string]bool
}

func (r rules) Canonical(host string) (string, error) {
	if strings.ContainsAny(host, "@%") || host == "" {
		return "", fmt.Errorf("host %q is not a host", host)
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), "."), nil
}

func (r rules) Decide(host string, port uint16) (bool, string) {
	if r.hosts[fmt.Sprintf("%s:%d", host, port)] {
		return true, "allow " + host
	}
	return false, "not requested"
}

func (r rules) DecideAddr(host, addr string, _ uint16) (bool, string) {
	if host == addr || r.addrs[addr] {
		return true, ""
	}
	return false, addr + " must be named"
}

// loop allows the given host:port targets, which all resolve to loopback, and loopback for them.
func loop(targets ...string) rules {
	r := rules{map[string]bool{}, map[string]bool{"127.0.0.1": true}}
	for _, t := range targets {
		r.hosts[t] = true
	}
	return r
}

// start runs a proxy whose names all resolve to 127.0.0.1 and returns its URL.
func start(t *testing.T, d mediator.Decider, set func(*mediator.Proxy)) (*mediator.Proxy, *url.URL) {
	t.Helper()
	l := listen(t)
	p := mediator.NewProxy(d, nil)
	p.Lookup = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	if set != nil {
		set(p)
	}
	served := make(chan error, 1)
	go func() { served <- p.Serve(l) }()
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return p, &url.URL{Scheme: "http", Host: l.Addr().String()}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// client sends everything through the proxy.
func client(t *testing.T, proxy *url.URL) *http.Client {
	t.Helper()
	tr := &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// origin is a web server that answers with what it saw; the returned port is its own.
func origin(t *testing.T) (port string, s *httptest.Server) {
	t.Helper()
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("X-Host", r.Host)
		for name, v := range r.Header {
			w.Header()["Saw-"+name] = v
		}
		fmt.Fprintf(w, "%s %s %s", r.Method, r.RequestURI, body)
	}))
	t.Cleanup(s.Close)
	return portOf(t, s.Listener.Addr()), s
}

func portOf(t *testing.T, a net.Addr) string {
	t.Helper()
	_, port, err := net.SplitHostPort(a.String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// get returns status and body.
func get(t *testing.T, c *http.Client, u string) (int, string) {
	t.Helper()
	r, err := c.Get(u)
	if err != nil {
		t.Fatalf("get %s: %v", u, err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("get %s: %v", u, err)
	}
	return r.StatusCode, string(b)
}

// statsOf returns the proxy's counts for a host.
func statsOf(p *mediator.Proxy, host string) mediator.HostStats {
	for _, s := range p.Stats() {
		if s.Host == host {
			return s
		}
	}
	return mediator.HostStats{}
}

// send writes raw bytes to the proxy and returns the connection with a reader on it.
func send(t *testing.T, proxy *url.URL, text string) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", proxy.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn), bufio.NewReader(c)
}

// answer reads one response and its body.
func answer(t *testing.T, r *bufio.Reader) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatalf("read response: %v", err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read body: %v", err)
	}
	return resp, string(b)
}

func TestAllowedHostIsReachedAndCounted(t *testing.T) {
	port, _ := origin(t)
	p, u := start(t, loop("api.test:"+port), nil)
	status, body := get(t, client(t, u), "http://API.test.:"+port+"/a//b?x=1;y")
	if status != 200 || body != "GET /a//b?x=1;y " {
		t.Errorf("got %d %q", status, body)
	}
	s := statsOf(p, "api.test")
	if s.Connections != 1 || s.Requests != 1 || s.Denied != 0 || s.BytesIn == 0 || s.BytesOut == 0 {
		t.Errorf("got %+v", s)
	}
}

func TestDeniedHostGets403NamingHostAndFlag(t *testing.T) {
	port, _ := origin(t)
	p, u := start(t, loop(), nil)
	status, body := get(t, client(t, u), "http://evil.test:"+port+"/")
	if status != 403 || !strings.Contains(body, "evil.test") || !strings.Contains(body, "--allow-host evil.test:"+port) {
		t.Errorf("got %d %q", status, body)
	}
	s := statsOf(p, "evil.test")
	if s.Denied != 1 || s.Rule != "not requested" || s.Reason == "" || s.Connections != 0 || s.Requests != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestOtherPortOfAllowedHostIsDenied(t *testing.T) {
	port, _ := origin(t)
	_, u := start(t, loop("api.test:443"), nil)
	if status, _ := get(t, client(t, u), "http://api.test:"+port+"/"); status != 403 {
		t.Errorf("got %d, want 403", status)
	}
}

func TestNameThatResolvesToLoopbackIsRefused(t *testing.T) {
	port, _ := origin(t)
	d := loop("rebind.test:" + port)
	d.addrs = nil
	p, u := start(t, d, func(p *mediator.Proxy) {
		p.Lookup = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1"), netip.MustParseAddr("169.254.169.254")}, nil
		}
	})
	status, body := get(t, client(t, u), "http://rebind.test:"+port+"/")
	if status != 403 || !strings.Contains(body, "169.254.169.254") {
		t.Errorf("got %d %q", status, body)
	}
	if s := statsOf(p, "rebind.test"); s.Denied != 1 || s.Connections != 0 || !strings.HasPrefix(s.Reason, "address not allowed") {
		t.Errorf("got %+v", s)
	}
	c, r := send(t, u, "CONNECT rebind.test:"+port+" HTTP/1.1\r\nHost: rebind.test\r\n\r\n")
	defer c.Close()
	if resp, _ := answer(t, r); resp.StatusCode != 403 {
		t.Errorf("CONNECT got %d, want 403", resp.StatusCode)
	}
}

// The name resolves differently each time; only the address that was judged may be dialled.
func TestJudgedAddressIsTheOneDialled(t *testing.T) {
	var mu sync.Mutex
	var judged, dialled []string
	d := spy{loop("flip.test:80"), func(addr string) { mu.Lock(); judged = append(judged, addr); mu.Unlock() }}
	n := 0
	dial := func(_ context.Context, _, addr string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dialled = append(dialled, addr)
		return nil, errors.New("refused")
	}
	p := mediator.NewProxy(d, dial)
	p.Lookup = func(context.Context, string) ([]netip.Addr, error) {
		n++
		return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n))}, nil
	}
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- p.Serve(l) }()
	_, r := send(t, &url.URL{Host: l.Addr().String()}, "GET http://flip.test/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if resp, _ := answer(t, r); resp.StatusCode != 502 {
		t.Errorf("got %d, want 502", resp.StatusCode)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	<-served
	if len(judged) != 1 || len(dialled) != 1 || dialled[0] != judged[0]+":80" {
		t.Errorf("judged %v, dialled %v", judged, dialled)
	}
}

type spy struct {
	rules
	saw func(addr string)
}

func (s spy) DecideAddr(_, addr string, _ uint16) (bool, string) { s.saw(addr); return true, "" }

func TestEachRequestOnAKeptConnectionIsJudged(t *testing.T) {
	port, _ := origin(t)
	p, u := start(t, loop("good.test:"+port), nil)
	req := func(host string) string {
		return "GET http://" + host + ":" + port + "/ HTTP/1.1\r\nHost: good.test\r\n\r\n"
	}
	_, r := send(t, u, req("good.test")+req("evil.test")+req("good.test"))
	for i, want := range []int{200, 403, 200} {
		if resp, _ := answer(t, r); resp.StatusCode != want {
			t.Errorf("request %d: got %d, want %d", i, resp.StatusCode, want)
		}
	}
	if g, e := statsOf(p, "good.test"), statsOf(p, "evil.test"); g.Requests != 2 || e.Denied != 1 {
		t.Errorf("got %+v %+v", g, e)
	}
}

// A request for an allowed host cannot carry another one's Host to a shared server.
func TestHostHeaderIsTheTarget(t *testing.T) {
	port, _ := origin(t)
	_, u := start(t, loop("good.test:"+port), nil)
	_, r := send(t, u, "GET http://GOOD.test.:"+port+"/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
	resp, _ := answer(t, r)
	if got := resp.Header.Get("X-Host"); got != "good.test:"+port {
		t.Errorf("origin saw Host %q", got)
	}
}

func TestHopByHopHeadersStay(t *testing.T) {
	port, _ := origin(t)
	_, u := start(t, loop("good.test:"+port), nil)
	_, r := send(t, u, "GET http://good.test:"+port+"/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: secret\r\nProxy-Connection: keep-alive\r\n"+
		"Connection: X-Private\r\nX-Private: 1\r\nX-Forwarded-For: 1.2.3.4\r\nX-Public: 2\r\n\r\n")
	resp, _ := answer(t, r)
	for _, name := range []string{"Proxy-Authorization", "Proxy-Connection", "X-Private"} {
		if v := resp.Header.Get("Saw-" + name); v != "" {
			t.Errorf("%s reached the host: %q", name, v)
		}
	}
	for name, want := range map[string]string{"X-Public": "2", "X-Forwarded-For": "1.2.3.4", "User-Agent": ""} {
		if got := resp.Header.Get("Saw-" + name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestUnusableTargetsAreBadRequests(t *testing.T) {
	p, u := start(t, loop(), nil)
	for _, line := range []string{
		"GET /path HTTP/1.1", "GET http://user:pw@good.test/ HTTP/1.1", "GET ftp://good.test/ HTTP/1.1", "GET https://good.test/ HTTP/1.1",
		"CONNECT good.test HTTP/1.1", "CONNECT good.test:0 HTTP/1.1", "CONNECT good.test:99999 HTTP/1.1", "CONNECT a@good.test:443 HTTP/1.1", "CONNECT /x HTTP/1.1",
		"GET http://good.test:x/ HTTP/1.1", "GET http:///x HTTP/1.1",
	} {
		_, r := send(t, u, line+"\r\nHost: good.test\r\n\r\n")
		if resp, _ := answer(t, r); resp.StatusCode != 400 {
			t.Errorf("%s: got %d, want 400", line, resp.StatusCode)
		}
	}
	if s := statsOf(p, mediator.Invalid); s.Denied == 0 {
		t.Errorf("not counted: %+v", s)
	}
}

func TestConnectTunnelsTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "secure") }))
	t.Cleanup(s.Close)
	port := portOf(t, s.Listener.Addr())
	p, u := start(t, loop("api.test:"+port), nil)
	c := client(t, u)
	if status, body := get(t, c, "https://api.test:"+port+"/"); status != 200 || body != "secure" {
		t.Errorf("got %d %q", status, body)
	}
	if _, err := c.Get("https://evil.test:" + port + "/"); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("denied host: got %v", err)
	}
	if s := statsOf(p, "api.test"); s.Requests != 1 || s.BytesIn == 0 || s.BytesOut == 0 {
		t.Errorf("got %+v", s)
	}
}

// echo is a TCP server that sends back what it gets and passes half-closes on.
func echo(t *testing.T) string {
	t.Helper()
	l := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return portOf(t, l.Addr())
}

// What the client sends together with CONNECT, and what comes after the client's half-close, arrives.
func TestTunnelKeepsEarlyBytesAndHalfClose(t *testing.T) {
	port := echo(t)
	p, u := start(t, loop("echo.test:"+port), nil)
	c, r := send(t, u, "CONNECT echo.test:"+port+" HTTP/1.1\r\nHost: echo.test\r\n\r\nearly ")
	if resp, err := http.ReadResponse(r, &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
		t.Fatalf("got %v %v", resp, err)
	}
	late := strings.Repeat("x", 300<<10)
	go func() {
		_, _ = io.WriteString(c, late)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(r)
	if err != nil || string(got) != "early "+late {
		t.Errorf("got %d bytes, %v; want %d", len(got), err, len(late)+6)
	}
	if s := statsOf(p, "echo.test"); s.BytesIn != uint64(len(late)+6) || s.BytesOut != s.BytesIn {
		t.Errorf("got %+v", s)
	}
}

// upgrader answers a WebSocket handshake with status, and then echoes.
func upgrader(t *testing.T, status int) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status != http.StatusSwitchingProtocols {
			http.Error(w, "no", status)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Host: %s\r\n\r\nhello ", r.Header.Get("Upgrade"), r.Host)
		_ = rw.Flush()
		_, _ = io.Copy(c, rw)
	}))
	t.Cleanup(s.Close)
	return portOf(t, s.Listener.Addr())
}

const handshake = "HTTP/1.1\r\nHost: evil.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"

func TestWebSocketUpgradePasses(t *testing.T) {
	port := upgrader(t, 101)
	_, u := start(t, loop("ws.test:"+port), nil)
	c, r := send(t, u, "GET http://ws.test:"+port+"/chat "+handshake)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 101 || resp.Header.Get("X-Host") != "ws.test:"+port {
		t.Fatalf("got %+v %v", resp, err)
	}
	if _, err := io.WriteString(c, "frames"); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "hello frames" {
		t.Errorf("got %q %v", got, err)
	}
}

func TestRefusedUpgradeIsAnOrdinaryAnswer(t *testing.T) {
	port := upgrader(t, 426)
	_, u := start(t, loop("ws.test:"+port), nil)
	_, r := send(t, u, "GET http://ws.test:"+port+"/ "+handshake+"GET http://evil.test:"+port+"/ HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp, body := answer(t, r); resp.StatusCode != 426 || body != "no\n" {
		t.Errorf("got %d %q", resp.StatusCode, body)
	}
	if resp, _ := answer(t, r); resp.StatusCode != 403 {
		t.Errorf("request after it: got %d, want 403", resp.StatusCode)
	}
}

func TestUpgradeToDeniedHostIsRefused(t *testing.T) {
	port := upgrader(t, 101)
	_, u := start(t, loop(), nil)
	_, r := send(t, u, "GET http://ws.test:"+port+"/ "+handshake)
	if resp, _ := answer(t, r); resp.StatusCode != 403 {
		t.Errorf("got %d, want 403", resp.StatusCode)
	}
}

func TestSlowHeaderIsCutOff(t *testing.T) {
	_, u := start(t, loop(), func(p *mediator.Proxy) { p.HeaderTimeout = 50 * time.Millisecond })
	_, r := send(t, u, "GET http://good.test/ HTTP/1.1\r\nHost:")
	if b, err := io.ReadAll(r); err != nil && !errors.Is(err, net.ErrClosed) && errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("still open: %q %v", b, err)
	}
}

func TestIdleTunnelIsCutOff(t *testing.T) {
	port := echo(t)
	_, u := start(t, loop("echo.test:"+port), func(p *mediator.Proxy) { p.TunnelIdle = 50 * time.Millisecond })
	_, r := send(t, u, "CONNECT echo.test:"+port+" HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp, err := http.ReadResponse(r, &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
		t.Fatalf("got %v %v", resp, err)
	}
	if _, err := r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("still open: %v", err)
	}
}

func TestOversizedHeaderIsRefused(t *testing.T) {
	_, u := start(t, loop(), nil)
	_, r := send(t, u, "GET http://good.test/ HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("a", 80<<10)+"\r\n\r\n")
	if resp, err := http.ReadResponse(r, nil); err == nil && resp.StatusCode != 431 {
		t.Errorf("got %d, want 431", resp.StatusCode)
	}
}

func TestMoreConnectionsThanAllowedWait(t *testing.T) {
	port := echo(t)
	_, u := start(t, loop("echo.test:"+port), func(p *mediator.Proxy) { p.MaxConns = 2 })
	connect := "CONNECT echo.test:" + port + " HTTP/1.1\r\nHost: x\r\n\r\n"
	var open []*net.TCPConn
	for range 2 {
		c, r := send(t, u, connect)
		if resp, err := http.ReadResponse(r, &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
			t.Fatalf("got %v %v", resp, err)
		}
		open = append(open, c)
	}
	third, r := send(t, u, connect)
	if err := third.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("third connection was served: %v", err)
	}
	_ = open[0].Close()
	if err := third.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	r.Reset(third)
	if resp, err := http.ReadResponse(r, &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
		t.Errorf("after one ended: got %v %v", resp, err)
	}
}

func TestManyConnectionsCountExactly(t *testing.T) {
	port, _ := origin(t)
	p, u := start(t, loop("good.test:"+port), nil)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			host := "good.test"
			if i%2 == 1 {
				host = "evil.test"
			}
			c := client(t, u)
			r, err := c.Get("http://" + host + ":" + port + "/")
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_ = r.Body.Close()
		})
	}
	wg.Wait()
	if g, e := statsOf(p, "good.test"), statsOf(p, "evil.test"); g.Requests != 100 || e.Denied != 100 {
		t.Errorf("got %+v %+v", g, e)
	}
}

func TestInventedHostsDoNotFillMemory(t *testing.T) {
	p, u := start(t, loop(), nil)
	var b strings.Builder
	const n = 5000
	for i := range n {
		fmt.Fprintf(&b, "GET http://h%d.test/ HTTP/1.1\r\nHost: x\r\n\r\n", i)
	}
	c, r := send(t, u, "")
	go func() { _, _ = io.WriteString(c, b.String()) }()
	for range n {
		if resp, _ := answer(t, r); resp.StatusCode != 403 {
			t.Fatalf("got %d", resp.StatusCode)
		}
	}
	var sum uint64
	stats := p.Stats()
	for _, s := range stats {
		sum += s.Denied
	}
	if sum != n || len(stats) > 4097 || statsOf(p, mediator.Overflow).Denied == 0 {
		t.Errorf("%d denials in %d entries, want %d in at most 4097", sum, len(stats), n)
	}
}

func TestStatsAreOrdered(t *testing.T) {
	p, u := start(t, loop(), nil)
	c := client(t, u)
	for _, h := range []string{"b.test:81", "a.test:80", "b.test:80"} {
		get(t, c, "http://"+h+"/")
	}
	var got []string
	for _, s := range p.Stats() {
		got = append(got, fmt.Sprintf("%s:%d", s.Host, s.Port))
	}
	if want := "a.test:80 b.test:80 b.test:81"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestUploadAndStreamedAnswerPass(t *testing.T) {
	step := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d\n", n)
		_ = http.NewResponseController(w).Flush()
		<-step
		fmt.Fprintln(w, "end")
	}))
	t.Cleanup(s.Close)
	port := portOf(t, s.Listener.Addr())
	_, u := start(t, loop("good.test:"+port), nil)
	r, err := client(t, u).Post("http://good.test:"+port+"/", "x", strings.NewReader(strings.Repeat("y", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	in := bufio.NewReader(r.Body)
	if line, err := in.ReadString('\n'); err != nil || line != "1048576\n" {
		t.Errorf("first event: %q %v", line, err)
	}
	close(step)
	if line, err := in.ReadString('\n'); err != nil || line != "end\n" {
		t.Errorf("second event: %q %v", line, err)
	}
}

func TestUnreachableHostIs502AndCountedAsFailed(t *testing.T) {
	l := listen(t)
	port := portOf(t, l.Addr())
	_ = l.Close()
	p, u := start(t, loop("down.test:"+port), nil)
	if status, _ := get(t, client(t, u), "http://down.test:"+port+"/"); status != 502 {
		t.Errorf("got %d, want 502", status)
	}
	if s := statsOf(p, "down.test"); s.Failed != 1 || s.Denied != 0 {
		t.Errorf("got %+v", s)
	}
}

// Close ends open tunnels and leaves no goroutine.
func TestCloseEndsTunnelsAndGoroutines(t *testing.T) {
	port := echo(t)
	before := runtime.NumGoroutine()
	l := listen(t)
	p := mediator.NewProxy(loop("127.0.0.1:"+port), nil)
	served := make(chan error, 1)
	go func() { served <- p.Serve(l) }()
	u := &url.URL{Host: l.Addr().String()}
	_, r := send(t, u, "CONNECT 127.0.0.1:"+port+" HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp, err := http.ReadResponse(r, &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
		t.Fatalf("got %v %v", resp, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if _, err := r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("tunnel survived: %v", err)
	}
	if n := settle(before + 1); n > before+1 { // one for the echo server's side, which ends by itself
		t.Errorf("%d goroutines, had %d", n, before)
	}
}

// settle yields until at most want goroutines are left, or long enough.
func settle(want int) int {
	for range 100000 {
		if runtime.NumGoroutine() <= want {
			break
		}
		runtime.Gosched()
	}
	return runtime.NumGoroutine()
}

func TestForwarderCopiesAndCounts(t *testing.T) {
	port := echo(t)
	l := listen(t)
	f := mediator.Forward(l, "127.0.0.1:"+port, nil)
	t.Cleanup(func() { _ = f.Close() })
	c, r := send(t, &url.URL{Host: l.Addr().String()}, "ping")
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "ping" {
		t.Errorf("got %q %v", got, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	s := f.Stats()
	if s.Host != "127.0.0.1" || fmt.Sprint(s.Port) != port || s.Connections != 1 || s.BytesIn != 4 || s.BytesOut != 4 {
		t.Errorf("got %+v", s)
	}
}

func TestForwarderWithoutServiceResets(t *testing.T) {
	dead := listen(t)
	addr := dead.Addr().String()
	_ = dead.Close()
	l := listen(t)
	f := mediator.Forward(l, addr, nil)
	c, err := net.Dial("tcp", l.Addr().String()) // the reset may be faster than the end of connect(2)
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if s := f.Stats(); s.Failed != 1 || s.Connections != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestForwarderCloseEndsConnections(t *testing.T) {
	port := echo(t)
	l := listen(t)
	f := mediator.Forward(l, "127.0.0.1:"+port, nil)
	c, r := send(t, &url.URL{Host: l.Addr().String()}, "x")
	defer c.Close()
	if _, err := r.ReadByte(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connection survived: %v", err)
	}
}
