package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"stage/fs/tree"
)

// Verdict is what path rules say about a path; the zero Verdict is no restriction.
type Verdict uint8

// The bits of a Verdict.
const (
	VerdictHide Verdict = 1 << iota
	VerdictDenyRead
	VerdictDenyWrite
	VerdictDenyExec
)

type verdictRule struct {
	bit  Verdict
	glob *GlobRule
}

func verdictRules(bit Verdict, rules []GlobRule) []verdictRule {
	var out []verdictRule
	for i := range rules {
		out = append(out, verdictRule{bit, &rules[i]})
	}
	return out
}

// PathVerdict says what the rules make of an absolute, resolved path, and the first rule that does.
func (p *Plan) PathVerdict(path string, isDir bool) (Verdict, Rule) {
	return judge(p.hidden, path, isDir)
}

func judge(rules []verdictRule, path string, isDir bool) (Verdict, Rule) {
	var v Verdict
	var first Rule
	for _, r := range rules {
		if v&r.bit != 0 || !r.glob.Covers(path, isDir) {
			continue
		}
		if v == 0 {
			first = r.glob.Rule
		}
		v |= r.bit
	}
	return v, first
}

// PathRules are the hide and deny rules that can match at or below one directory.
type PathRules struct {
	root  string
	rules []verdictRule
}

// RulesBelow returns the rules that can match at or below root, nil when there are none.
func (p *Plan) RulesBelow(root string) *PathRules {
	rules := slices.DeleteFunc(slices.Clone(p.hidden), func(r verdictRule) bool { return !r.glob.overlaps(root) })
	if len(rules) == 0 {
		return nil
	}
	return &PathRules{root, rules}
}

// Verdict says what the rules make of the path below their root.
func (r *PathRules) Verdict(path tree.Path, isDir bool) Verdict {
	v, _ := r.Explain(path, isDir)
	return v
}

// Explain is Verdict with the first rule that decides.
func (r *PathRules) Explain(path tree.Path, isDir bool) (Verdict, Rule) {
	p := r.root
	if !path.IsRoot() {
		if p != "/" {
			p += "/"
		}
		p += path.String()
	}
	return judge(r.rules, p, isDir)
}

// Env says whether an environment variable of the caller is passed, and the rule that decides.
func (p *Plan) Env(name string) (bool, Rule) {
	for _, r := range p.grant.restrict {
		if r.Dimension == Credentials && deniesName(r.Value, name) {
			return false, r
		}
	}
	var by Rule
	for i, l := range p.grant.allow[target{Credentials, "env"}] {
		j := slices.IndexFunc(l.rules, func(r Rule) bool { return matchName(r.Value, name) })
		if j < 0 {
			return false, l.opinion
		}
		if i == 0 {
			by = l.rules[j]
		}
	}
	return by.Verb == Allow, by
}

// Host says whether a host may be contacted at a port, and the rule that decides.
func (p *Plan) Host(host string, port uint16) (bool, Rule) {
	switch p.Net.Mode {
	case NetHost:
		return true, p.Net.Rule
	case NetAllow:
		return p.hosts.host(host, port)
	default:
		return false, p.Net.Rule
	}
}

// Hosts returns the plan's decisions on hosts, as the mediator asks for them.
func (p *Plan) Hosts() *Hosts { return &p.hosts }

// hostList is an allowList with its rules compiled.
type hostList struct {
	opinion Rule
	rules   []HostRule
}

// find returns the first rule that names h and has the port.
func (l *hostList) find(h host, port uint16) (Rule, bool) {
	for i := range l.rules {
		if l.rules[i].names(h) && l.rules[i].hasPort(port) {
			return l.rules[i].Rule, true
		}
	}
	return l.opinion, false
}

// Hosts decides on network targets. It is safe for concurrent use. The zero Hosts allows none.
type Hosts struct {
	lists []hostList // the request's first
	deny  []HostRule
}

func newHosts(g grant) (Hosts, error) {
	var h Hosts
	for _, l := range g.allow[target{Network, "host"}] {
		rules, err := compileHosts(l.rules)
		if err != nil {
			return Hosts{}, err
		}
		h.lists = append(h.lists, hostList{l.opinion, rules})
	}
	denials := slices.DeleteFunc(slices.Clone(g.restrict), func(r Rule) bool { return r.Dimension != Network })
	var err error
	h.deny, err = compileHosts(denials)
	return h, err
}

func compileHosts(rules []Rule) ([]HostRule, error) {
	var out []HostRule
	for _, r := range rules {
		h, err := parseHostRule(r.Value, nil)
		if err != nil {
			return nil, r.Source.errorf("use a name, *.name, an address or a range", "%v", err)
		}
		h.Rule = r
		out = append(out, h)
	}
	return out, nil
}

// Canonical returns the one spelling of a host name or address, or an error for what is neither.
func (h *Hosts) Canonical(text string) (string, error) {
	t, err := parseHost(text)
	if err != nil {
		return "", err
	}
	return t.String(), nil
}

// Decide says whether a host may be contacted at a port, with the rule that decides.
func (h *Hosts) Decide(text string, port uint16) (allowed bool, rule string) {
	ok, r := h.host(text, port)
	return ok, r.String()
}

func (h *Hosts) host(text string, port uint16) (bool, Rule) {
	t, err := parseHost(text)
	if err != nil {
		return false, Rule{Dimension: Network, Verb: Deny, Object: "host", Value: err.Error(), Source: Source{Layer: Executor, File: "host names"}}
	}
	return h.decide(t, port)
}

func (h *Hosts) decide(t host, port uint16) (bool, Rule) {
	if r, ok := h.denied(t, port); ok {
		return false, r
	}
	var by Rule
	for i := range h.lists {
		r, ok := h.lists[i].find(t, port)
		if !ok {
			return false, r
		}
		if i == 0 {
			by = r
		}
	}
	return len(h.lists) > 0, by
}

func (h *Hosts) denied(t host, port uint16) (Rule, bool) {
	for i := range h.deny {
		if h.deny[i].matches(t) && h.deny[i].hasPort(port) {
			return h.deny[i].Rule, true
		}
	}
	return Rule{}, false
}

// DecideAddr says whether addr, which a host resolved to, may be contacted on its behalf. A name
// opens no loopback, private, link-local or otherwise special address; a rule must name that.
func (h *Hosts) DecideAddr(text, addr string, port uint16) (allowed bool, rule string) {
	if ok, r := h.host(text, port); !ok {
		return false, r.String()
	}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return false, "not an address"
	}
	t, target := host{addr: a.Unmap().WithZone("")}, host{}
	if target, err = parseHost(text); err != nil {
		return false, err.Error()
	}
	if r, ok := h.denied(t, port); ok {
		return false, r.String()
	}
	s, isSpecial := specialRange(t.addr)
	if !isSpecial || target.isLocalhost() && t.addr.IsLoopback() {
		return true, ""
	}
	if ok, r := h.decide(t, port); ok {
		return true, r.String()
	}
	return false, fmt.Sprintf("%s is a special address (%s) and must be named itself: --allow-host %s", t, s, HostRule{Host: t.String(), Ports: []uint16{port}})
}

// excluded reports whether a requested rule is taken away as a whole: it names one host, and no
// port of it is allowed.
func (h *Hosts) excluded(want HostRule) (Rule, bool) {
	if want.suffix != "" || want.prefix.IsValid() && !want.prefix.IsSingleIP() || len(want.Ports) == 0 {
		return Rule{}, false
	}
	t, err := parseHost(want.Host)
	if err != nil {
		return want.Rule, true
	}
	var by Rule
	for _, port := range want.Ports {
		ok, r := h.decide(t, port)
		if ok {
			return Rule{}, false
		}
		by = r
	}
	return by, true
}
