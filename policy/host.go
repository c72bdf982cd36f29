package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// host is a network target in its one canonical form: a name or an address, never both.
type host struct {
	name string // lower case ASCII, no trailing dot; "" when it is an address
	addr netip.Addr
}

// String returns the canonical spelling, addresses without brackets.
func (h host) String() string {
	if h.name == "" {
		return h.addr.String()
	}
	return h.name
}

// parseHost reads a host as clients write it and refuses what two programs could read differently.
// What inet_aton takes for an IPv4 address ("0x7f.1", "2130706433") is that address; an IPv6
// address that maps an IPv4 one is the IPv4 one.
func parseHost(s string) (host, error) {
	if i := strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`@/\?#%`, r) }); i >= 0 {
		return host{}, fmt.Errorf("host %q holds %q: names are written in ASCII (xn-- for others), without user, path or zone", s, s[i])
	}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		if !ok || !strings.Contains(inner, ":") {
			return host{}, fmt.Errorf("host %q is not an address in brackets", s)
		}
		s = inner
	}
	if strings.Contains(s, ":") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return host{}, fmt.Errorf("host %q is not an IPv6 address", s)
		}
		return host{addr: a.Unmap()}, nil
	}
	s = strings.TrimSuffix(strings.ToLower(s), ".")
	if looksNumeric(s) {
		a, err := parseIPv4(s)
		return host{addr: a}, err
	}
	return host{name: s}, checkName(s)
}

// checkName refuses what cannot be a DNS name.
func checkName(s string) error {
	if s == "" {
		return errors.New("empty host")
	}
	if len(s) > 253 {
		return fmt.Errorf("host %q is longer than 253 bytes", s[:32]+"…")
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 {
			return fmt.Errorf("host %q has an empty label or one over 63 bytes", s)
		}
		if i := strings.IndexFunc(label, func(r rune) bool { return !isNameRune(r) }); i >= 0 {
			return fmt.Errorf("host %q holds %q", s, label[i])
		}
	}
	return nil
}

func isNameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_'
}

// looksNumeric reports whether the last label is a number, so that the whole must be an IPv4
// address (WHATWG URL, "ends in a number").
func looksNumeric(s string) bool {
	last := s[strings.LastIndexByte(s, '.')+1:]
	if last == "" {
		return false
	}
	if strings.Trim(last, "0123456789") == "" {
		return true
	}
	hex, ok := strings.CutPrefix(last, "0x")
	return ok && strings.Trim(hex, "0123456789abcdef") == ""
}

// parseIPv4 reads an address as inet_aton(3) does: one to four parts, each decimal, octal or hex,
// the last filling what is left.
func parseIPv4(s string) (netip.Addr, error) {
	bad := fmt.Errorf("host %q is not an IPv4 address", s)
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return netip.Addr{}, bad
	}
	var sum uint64
	for i, part := range parts {
		n, err := parseIPv4Part(part)
		if err != nil {
			return netip.Addr{}, bad
		}
		room := 1
		if i == len(parts)-1 {
			room = 4 - i
		}
		if n >= 1<<(8*room) {
			return netip.Addr{}, bad
		}
		sum = sum<<(8*room) | n
	}
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}), nil
}

func parseIPv4Part(s string) (uint64, error) {
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		if hex == "" {
			return 0, nil // as WHATWG reads a bare "0x"
		}
		return strconv.ParseUint(hex, 16, 33)
	}
	if len(s) > 1 && s[0] == '0' {
		return strconv.ParseUint(s, 8, 33)
	}
	return strconv.ParseUint(s, 10, 33)
}

// isLocalhost reports whether h is the one name that stands for the loopback addresses.
func (h host) isLocalhost() bool { return h.name == "localhost" }

// special are the address ranges that no name and no wide range opens: a rule must name them.
// Loopback, private, shared, link-local with cloud metadata, multicast, reserved.
var special = mustPrefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
	"::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2002::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

func mustPrefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// nat64 holds IPv4 addresses in the last four bytes (RFC 6052); networks without IPv4 reach
// everything through it.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// specialRange returns the special range a lies in.
func specialRange(a netip.Addr) (netip.Prefix, bool) {
	if nat64.Contains(a) {
		b := a.As16()
		_, ok := specialRange(netip.AddrFrom4([4]byte(b[12:])))
		return nat64, ok
	}
	i := slices.IndexFunc(special, func(p netip.Prefix) bool { return p.Contains(a) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return special[i], true
}

// HostRule is a host pattern with its ports.
type HostRule struct {
	Host  string   // canonical: name, "*.suffix", address or range
	Ports []uint16 // sorted; empty is every port
	Rule  Rule

	suffix string       // ".example.org" for "*.example.org"
	prefix netip.Prefix // for addresses and ranges
}

// parseHostRule reads HOST, HOST:PORT, HOST:PORT,PORT or HOST:*, where HOST is a name, *.suffix, an
// address or a range. Without ports it takes those of def; nil is every port.
func parseHostRule(s string, def []uint16) (HostRule, error) {
	pattern, ports, err := splitHostPorts(s, def)
	if err != nil {
		return HostRule{}, err
	}
	r := HostRule{Ports: ports}
	if suffix, ok := strings.CutPrefix(pattern, "*."); ok {
		h, err := parseHost(suffix)
		if err != nil || h.name == "" {
			return HostRule{}, fmt.Errorf("host %q: what follows *. is not a name", s)
		}
		r.Host, r.suffix = "*."+h.name, "."+h.name
		return r, nil
	}
	if strings.Contains(pattern, "/") {
		r.prefix, err = netip.ParsePrefix(strings.Trim(pattern, "[]"))
		if err != nil || r.prefix.Addr().Is4In6() {
			return HostRule{}, fmt.Errorf("host %q is not an address range", s)
		}
		r.prefix = r.prefix.Masked()
		r.Host = r.prefix.String()
		return r, nil
	}
	h, err := parseHost(pattern)
	if err != nil {
		return HostRule{}, err
	}
	if h.name == "" {
		r.prefix = netip.PrefixFrom(h.addr, h.addr.BitLen())
	}
	r.Host = h.String()
	return r, nil
}

// splitHostPorts cuts the ports off. A bare IPv6 address has no brackets and therefore no ports.
func splitHostPorts(s string, def []uint16) (string, []uint16, error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.HasSuffix(s, "]") || strings.Count(s, ":") > 1 && s[i-1] != ']' {
		return s, def, nil
	}
	if s[i+1:] == "*" {
		return s[:i], nil, nil
	}
	var ports []uint16
	for text := range strings.SplitSeq(s[i+1:], ",") {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return "", nil, fmt.Errorf("host %q: %q is not a port", s, text)
		}
		ports = append(ports, uint16(n))
	}
	slices.Sort(ports)
	return s[:i], slices.Compact(ports), nil
}

// String returns the rule in the form that parseHostRule reads, always with ports.
func (r HostRule) String() string {
	h := r.Host
	if strings.Contains(h, ":") {
		h = "[" + h + "]"
	}
	if len(r.Ports) == 0 {
		return h + ":*"
	}
	var ports []string
	for _, p := range r.Ports {
		ports = append(ports, strconv.Itoa(int(p)))
	}
	return h + ":" + strings.Join(ports, ",")
}

func (r *HostRule) hasPort(port uint16) bool {
	return len(r.Ports) == 0 || slices.Contains(r.Ports, port)
}

// matches reports whether the rule's pattern holds h.
func (r *HostRule) matches(h host) bool {
	switch {
	case r.prefix.IsValid():
		return h.name == "" && r.prefix.Contains(h.addr)
	case r.suffix != "":
		return strings.HasSuffix(h.name, r.suffix) && len(h.name) > len(r.suffix)
	default:
		return h.name != "" && h.name == r.Host
	}
}

// names reports whether the rule holds h and, where h is a special address, is no wider than the
// special range: "10.0.0.0/8" names 10.1.2.3, "0.0.0.0/0" does not.
func (r *HostRule) names(h host) bool {
	if !r.matches(h) {
		return false
	}
	s, ok := specialRange(h.addr)
	return h.name != "" || !ok || r.prefix.Bits() >= s.Bits()
}

// isLoopback reports whether the rule is one exact loopback address, or localhost.
func (r *HostRule) isLoopback() bool {
	if r.Host == "localhost" {
		return true
	}
	return r.prefix.IsValid() && r.prefix.IsSingleIP() && r.prefix.Addr().IsLoopback()
}
