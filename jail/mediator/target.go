package mediator

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Decider is the policy the mediator asks. Its methods are called from many goroutines.
type Decider interface {
	// Canonical returns the one spelling of a host name or address, or an error for what is neither.
	Canonical(host string) (string, error)
	// Decide says whether a host may be contacted at a port, and the rule that decides.
	Decide(host string, port uint16) (allowed bool, rule string)
	// DecideAddr says whether addr, which the host resolved to, may be contacted on its behalf.
	DecideAddr(host, addr string, port uint16) (allowed bool, rule string)
}

// target is a canonical host and a port.
type target struct {
	host string
	port uint16
}

// String returns host:port, with brackets where they are needed.
func (t target) String() string { return net.JoinHostPort(t.host, strconv.Itoa(int(t.port))) }

// authority is what a Host header says for plain HTTP.
func (t target) authority() string {
	switch {
	case t.port != 80:
		return t.String()
	case strings.Contains(t.host, ":"):
		return "[" + t.host + "]"
	default:
		return t.host
	}
}

// parseTarget reads HOST or HOST:PORT; port is the one it has without, 0 that there must be one.
func parseTarget(d Decider, s string, port uint16) (target, error) {
	host := s
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		n, err := strconv.ParseUint(s[i+1:], 10, 16)
		if err != nil || n == 0 {
			return target{}, fmt.Errorf("%q has no valid port", s)
		}
		host, port = s[:i], uint16(n)
	}
	if port == 0 {
		return target{}, fmt.Errorf("%q has no port", s)
	}
	host, err := d.Canonical(host)
	return target{host, port}, err
}

// denial is a target that the policy refuses.
type denial struct {
	target target
	addr   string // the address it resolved to, when that is what was refused
	rule   string
}

// Error says what was refused, by which rule, and what would allow it.
func (e *denial) Error() string {
	if e.addr != "" {
		return fmt.Sprintf("%s resolves to %s, which is not allowed (%s)", e.target, e.addr, e.rule)
	}
	return fmt.Sprintf("%s is not allowed (%s); allow it with --allow-host %s", e.target, e.rule, e.target)
}

// reason is the denial's short name in the records.
func (e *denial) reason() string {
	if e.addr != "" {
		return "address not allowed: " + e.addr
	}
	return "host not allowed"
}

// connect resolves a target, has each address judged, and connects to the first that is allowed and
// answers. The address that was judged is the one that is dialled.
func (p *Proxy) connect(ctx context.Context, t target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addrs, err := p.resolve(ctx, t.host)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", t.host, err)
	}
	err = fmt.Errorf("resolve %s: no address", t.host)
	for _, a := range addrs {
		if ok, rule := p.decider.DecideAddr(t.host, a.String(), t.port); !ok {
			err = &denial{t, a.String(), rule}
			continue
		}
		c, derr := p.dial(ctx, "tcp", netip.AddrPortFrom(a, t.port).String())
		if derr == nil {
			return c, nil
		}
		err = fmt.Errorf("connect to %s: %w", t, derr)
	}
	return nil, err
}

// resolve returns the addresses of a canonical host.
func (p *Proxy) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	found, err := p.Lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	for i, a := range found {
		found[i] = a.Unmap()
	}
	return found, nil
}
