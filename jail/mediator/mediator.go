// Package mediator is the only way out of a Job's network namespace: an HTTP proxy and plain
// forwarders that run outside it, ask the policy about every target and count what passes.
package mediator

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// Decider is the policy the mediator asks.
type Decider interface {
	// Canonical returns the one spelling of a host name or address.
	Canonical(host string) (string, error)
	// Decide says whether host may be contacted at port.
	Decide(host string, port uint16) (allowed bool, rule string)
	// DecideAddr says whether addr, which host resolved to, may be contacted on its behalf.
	DecideAddr(host, addr string, port uint16) (allowed bool, rule string)
}

// Dial opens a connection to an address whose host part is always an IP address.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// HostStats counts what one host and port saw.
type HostStats struct {
	Host        string
	Port        uint16
	Connections uint64
	Requests    uint64
	BytesIn     uint64 // from the host to the Job
	BytesOut    uint64
	Denied      uint64
	Reason      string // of the last denial
	Rule        string // that denied last
}

// Proxy is an HTTP/1.1 forward proxy. Set its fields before Serve.
type Proxy struct {
	Lookup        func(ctx context.Context, host string) ([]netip.Addr, error)
	HeaderTimeout time.Duration
	IdleTimeout   time.Duration
	MaxConns      int
}

// NewProxy returns a proxy that asks d and connects by dial; nil dial is net.Dialer.
func NewProxy(d Decider, dial Dial) *Proxy { return &Proxy{} }

// Serve answers on l until Close. It returns nil after Close.
func (p *Proxy) Serve(l net.Listener) error { return errors.New("not built yet") }

// Close stops the proxy, ends its connections and waits for its goroutines.
func (p *Proxy) Close() error { return nil }

// Stats returns the counts by host and port, ordered.
func (p *Proxy) Stats() []HostStats { return nil }

// Forwarder copies connections to one service of the host.
type Forwarder struct{}

// Forward serves l by connecting each connection to addr by dial; nil dial is net.Dialer.
// It returns at once.
func Forward(l net.Listener, addr string, dial Dial) *Forwarder { return &Forwarder{} }

// Close stops the forwarder, ends its connections and waits for its goroutines.
func (f *Forwarder) Close() error { return nil }

// Stats returns what the service saw.
func (f *Forwarder) Stats() HostStats { return HostStats{} }
