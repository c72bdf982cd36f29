package policy

import (
	"cmp"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

type limited interface {
	uint64 | float64 | time.Duration
}

// Max is a limit: Set is false where nobody limits.
type Max[T limited] struct {
	Set  bool
	Max  T
	Rule Rule
}

// PathRule is a directory or file, absolute, with everything below it.
type PathRule struct {
	Path     string
	Optional bool // a missing path is no error: no flag named it
	Rule     Rule
}

// NetMode is how much network a run has.
type NetMode string

// The modes, from less to more.
const (
	NetNone  NetMode = "none"
	NetAllow NetMode = "allow"
	NetHost  NetMode = "host"
)

// Service is a named loopback service of the host: Listen is its address inside the job's network
// namespace, Dial on the host.
type Service struct {
	Listen, Dial string
	Rule         Rule
}

// Net is the network part of a Plan. Hosts decides; Allow and Deny are there to be shown.
type Net struct {
	Mode     NetMode
	Rule     Rule       // what set Mode
	Allow    []HostRule // requested, less what a layer excludes as a whole
	Deny     []HostRule
	Loopback []Service
}

// Refusal is something requested that a layer took away as a whole.
type Refusal struct {
	Want, By Rule
}

// Plan is what is left of a request after every layer: what a run may do. It comes from Narrow; the
// zero Plan permits nothing.
type Plan struct {
	Workspace, Home string

	ReadHost  bool       // Reads holds "/"
	Reads     []PathRule // readable outside the roots below; no path is below another
	Hide      []GlobRule
	DenyRead  []GlobRule
	DenyWrite []GlobRule
	DenyExec  []GlobRule

	StageRoots []PathRule // the workspace first, when it may be staged
	Shares     []PathRule
	Scratch    []PathRule

	Net Net

	SetEnv map[string]string // variables the request sets and every layer permits
	Userns bool

	Disk, Memory, Nofile, Pids, MaxOutput Max[uint64]
	CPU                                   Max[float64]
	Timeout                               Max[time.Duration]

	Refused       []Refusal
	AllowDegraded []string
	Strict        bool

	grant   grant
	resolve func(string) string
	hosts   Hosts
	hidden  []verdictRule
}

// Narrow takes the request through the layers and returns what is left of it, or an *Error for a
// rule that could not do what it says.
func Narrow(req Request, layers ...Layer) (Plan, error) {
	g := req.grant()
	for _, l := range layers {
		g = g.meet(newGrant(l.Rules))
	}
	p := Plan{Workspace: req.Workspace, Home: req.Home, AllowDegraded: req.AllowDegraded, Strict: req.Strict, grant: g, resolve: req.Resolve}
	steps := []func() error{p.planLimits, p.planRestrictions, p.planPaths, p.planHosts, p.checkInert}
	for _, step := range steps {
		if err := step(); err != nil {
			return Plan{}, err
		}
	}
	p.planEnv(req)
	slices.SortFunc(p.Refused, func(a, b Refusal) int { return cmp.Or(a.Want.compare(b.Want), a.By.compare(b.By)) })
	return p, nil
}

func (p *Plan) anchors() anchors { return anchors{p.Workspace, p.Home} }

func (p *Plan) planLimits() error {
	p.Disk = p.count(FileWrites, "disk")
	p.Pids = p.count(Subprocesses, "pids")
	p.Memory = p.count(Resources, "memory")
	p.Nofile = p.count(Resources, "nofile")
	p.MaxOutput = p.count(Resources, "max_output")
	t := p.count(Resources, "timeout")
	p.Timeout = Max[time.Duration]{t.Set, time.Duration(t.Max), t.Rule}
	if r, ok := p.grant.limits[target{Resources, "cpu"}]; ok {
		f, err := parseCPU(r.Value)
		if err != nil {
			return r.Source.errorf("see docs/policy.md", "cpu: %v", err)
		}
		p.CPU = Max[float64]{true, f, r}
	}
	mode := p.grant.limits[target{Network, "mode"}]
	p.Net.Mode, p.Net.Rule = NetMode(mode.Value), mode
	p.Userns = p.grant.limits[target{Subprocesses, "userns"}].Value == "true"
	return nil
}

// count returns a limit that is a whole number. A value that is none is the tightest limit.
func (p *Plan) count(d Dimension, object string) Max[uint64] {
	r, ok := p.grant.limits[target{d, object}]
	if !ok {
		return Max[uint64]{}
	}
	n, err := strconv.ParseUint(r.Value, 10, 63)
	if err != nil {
		n = 0
	}
	return Max[uint64]{true, n, r}
}

// planRestrictions compiles the hide and deny rules.
func (p *Plan) planRestrictions() error {
	for _, r := range p.grant.restrict {
		if r.Dimension != FileReads && r.Dimension != FileWrites && r.Dimension != Subprocesses {
			continue
		}
		g, err := newGlob(p.anchors(), r)
		if err != nil {
			return r.Source.errorf("correct the pattern", "%v", err)
		}
		p.restrict(g)
		if real, ok := g.resolved(p.resolve); ok {
			p.restrict(real)
		}
	}
	p.hidden = slices.Concat(verdictRules(VerdictHide, p.Hide), verdictRules(VerdictDenyRead, p.DenyRead),
		verdictRules(VerdictDenyWrite, p.DenyWrite), verdictRules(VerdictDenyExec, p.DenyExec))
	return nil
}

// restrict adds one hide or deny rule.
func (p *Plan) restrict(g GlobRule) {
	switch r := g.Rule; {
	case r.Verb == Hide:
		p.Hide = append(p.Hide, g)
	case r.Dimension == FileReads:
		p.DenyRead = append(p.DenyRead, g)
	case r.Dimension == FileWrites:
		p.DenyWrite = append(p.DenyWrite, g)
	default:
		p.DenyExec = append(p.DenyExec, g)
	}
}

// planPaths narrows the roots. Readable roots shrink to what every layer allows of them; a root that
// can be written is given as a whole or not at all.
func (p *Plan) planPaths() error {
	reads, err := p.requested(FileReads, "read")
	if err != nil {
		return err
	}
	for _, want := range reads {
		if err := p.planRead(want); err != nil {
			return err
		}
	}
	p.Reads = topmost(p.Reads)
	p.ReadHost = len(p.Reads) > 0 && p.Reads[0].Path == "/"
	for _, k := range []struct {
		object string
		to     *[]PathRule
	}{{"stage", &p.StageRoots}, {"share", &p.Shares}, {"scratch", &p.Scratch}} {
		if *k.to, err = p.planWritable(k.object); err != nil {
			return err
		}
	}
	slices.SortStableFunc(p.StageRoots, func(a, b PathRule) int { return cmp.Compare(p.rootRank(a), p.rootRank(b)) })
	return nil
}

// rootRank puts the workspace first.
func (p *Plan) rootRank(r PathRule) int {
	if r.Path == p.Workspace {
		return 0
	}
	return 1
}

// requested returns the request's own list of an object.
func (p *Plan) requested(d Dimension, object string) ([]PathRule, error) {
	return p.pathList(p.grant.allow[target{d, object}][0])
}

func (p *Plan) pathList(l allowList) ([]PathRule, error) {
	var out []PathRule
	for _, r := range l.rules {
		g, err := newGlob(p.anchors(), r)
		if err != nil || g.Literal == "" {
			return nil, r.Source.errorf("use a directory, or DIR/**", "%q does not name one directory", r.Value)
		}
		out = append(out, PathRule{g.Literal, r.Source.Layer != FromFlag, r})
	}
	return out, nil
}

// planRead narrows one readable root through every list.
func (p *Plan) planRead(want PathRule) error {
	if r, ok := p.covered(want.Path); ok {
		p.Refused = append(p.Refused, Refusal{want.Rule, r})
		return nil
	}
	left := []PathRule{want}
	for _, l := range p.grant.allow[target{FileReads, "read"}][1:] {
		allow, err := p.pathList(l)
		if err != nil {
			return err
		}
		if left = intersect(left, allow); len(left) == 0 {
			p.Refused = append(p.Refused, Refusal{want.Rule, l.opinion})
			return nil
		}
	}
	for _, r := range left {
		if _, ok := p.covered(r.Path); !ok {
			p.Reads = append(p.Reads, r)
		}
	}
	return nil
}

// intersect returns what lies below a path of both lists, in the name of the rules of a.
func intersect(a, b []PathRule) []PathRule {
	var out []PathRule
	for _, x := range a {
		for _, y := range b {
			if within(x.Path, y.Path) {
				out = append(out, x)
			} else if within(y.Path, x.Path) {
				out = append(out, PathRule{y.Path, true, x.Rule})
			}
		}
	}
	return topmost(out)
}

// topmost sorts the list and drops what lies below another path of it.
func topmost(list []PathRule) []PathRule {
	slices.SortFunc(list, func(a, b PathRule) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), boolRank(a.Optional)-boolRank(b.Optional), a.Rule.compare(b.Rule))
	})
	var out []PathRule
	for _, r := range list {
		if !slices.ContainsFunc(out, func(o PathRule) bool { return within(r.Path, o.Path) }) {
			out = append(out, r)
		}
	}
	return out
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// planWritable returns the requested roots of one kind that every layer allows.
func (p *Plan) planWritable(object string) ([]PathRule, error) {
	wants, err := p.requested(FileWrites, object)
	if err != nil {
		return nil, err
	}
	var out []PathRule
	for _, want := range wants {
		by, ok, err := p.writable(object, want.Path)
		if err != nil {
			return nil, err
		}
		if !ok {
			p.Refused = append(p.Refused, Refusal{want.Rule, by})
			continue
		}
		if !slices.ContainsFunc(out, func(o PathRule) bool { return o.Path == want.Path }) {
			out = append(out, want)
		}
	}
	slices.SortFunc(out, func(a, b PathRule) int { return cmp.Compare(a.Path, b.Path) })
	return out, nil
}

func (p *Plan) writable(object, dir string) (Rule, bool, error) {
	if r, ok := p.covered(dir); ok {
		return r, false, nil
	}
	for _, l := range p.grant.allow[target{FileWrites, object}][1:] {
		allow, err := p.pathList(l)
		if err != nil {
			return Rule{}, false, err
		}
		if !slices.ContainsFunc(allow, func(a PathRule) bool { return within(dir, a.Path) }) {
			return l.opinion, false, nil
		}
	}
	return Rule{}, true, nil
}

// covered returns the hide or deny-read rule that a whole root falls under.
func (p *Plan) covered(dir string) (Rule, bool) {
	for i := range p.hidden {
		r := &p.hidden[i]
		if r.bit&(VerdictHide|VerdictDenyRead) != 0 && r.glob.Covers(dir, true) {
			return r.glob.Rule, true
		}
	}
	return Rule{}, false
}

// planHosts compiles the host rules. Without the mediator nothing decides, so nothing is kept.
func (p *Plan) planHosts() error {
	if p.Net.Mode != NetAllow {
		p.refuseHosts()
		return nil
	}
	var err error
	if p.hosts, err = newHosts(p.grant); err != nil {
		return err
	}
	p.Net.Deny = p.hosts.deny
	for _, want := range p.hosts.lists[0].rules {
		if by, ok := p.hosts.excluded(want); ok {
			p.Refused = append(p.Refused, Refusal{want.Rule, by})
			continue
		}
		p.Net.Allow = append(p.Net.Allow, want)
		p.addServices(want)
	}
	return nil
}

// refuseHosts records the hosts that were requested and are out of reach because a layer lowered the mode.
func (p *Plan) refuseHosts() {
	if p.Net.Mode != NetNone || p.Net.Rule.Source.Layer == FromFlag {
		return
	}
	for _, want := range p.grant.allow[target{Network, "host"}][0].rules {
		p.Refused = append(p.Refused, Refusal{want, p.Net.Rule})
	}
}

// addServices lists the loopback services that a rule names.
func (p *Plan) addServices(r HostRule) {
	if !r.isLoopback() {
		return
	}
	listen := r.Host
	if r.Host == "localhost" {
		listen = "127.0.0.1"
	}
	for _, port := range r.Ports {
		if ok, _ := p.hosts.Decide(r.Host, port); !ok {
			continue
		}
		text := strconv.Itoa(int(port))
		s := Service{Listen: net.JoinHostPort(listen, text), Dial: net.JoinHostPort(r.Host, text), Rule: r.Rule}
		if !slices.ContainsFunc(p.Net.Loopback, func(o Service) bool { return o.Listen == s.Listen }) {
			p.Net.Loopback = append(p.Net.Loopback, s)
		}
	}
}

// planEnv keeps the variables the request sets as far as every layer permits, and says what was
// asked for by name and refused.
func (p *Plan) planEnv(req Request) {
	p.SetEnv = maps.Clone(req.SetEnv)
	maps.DeleteFunc(p.SetEnv, func(name, _ string) bool { ok, _ := p.Env(name); return !ok })
	for _, want := range p.grant.allow[target{Credentials, "env"}][0].rules {
		if strings.ContainsAny(want.Value, "*?") {
			continue
		}
		if ok, by := p.Env(want.Value); !ok {
			p.Refused = append(p.Refused, Refusal{want, by})
		}
	}
}

// checkInert refuses rules that could not do what they say.
func (p *Plan) checkInert() error {
	if p.Userns && len(p.DenyExec) > 0 {
		return p.DenyExec[0].Rule.Source.errorf("leave one of the two out",
			"exec rules cannot hold together with user namespaces (%s)", p.grant.limits[target{Subprocesses, "userns"}])
	}
	if p.Net.Mode == NetHost {
		if r, ok := p.hostOpinion(); ok {
			return r.Source.errorf("use --net allow", "host rules need the mediator, which --net host goes around")
		}
	}
	for _, rules := range [][]GlobRule{p.Hide, p.DenyRead} {
		for i := range rules {
			if err := p.checkEnforceable(&rules[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// hostOpinion returns a rule of a layer about hosts.
func (p *Plan) hostOpinion() (Rule, bool) {
	for _, r := range p.grant.restrict {
		if r.Dimension == Network {
			return r, true
		}
	}
	if lists := p.grant.allow[target{Network, "host"}]; len(lists) > 1 {
		return lists[1].opinion, true
	}
	return Rule{}, false
}

// checkEnforceable refuses a pattern that reaches into a readable root or share to any depth: there
// mounts enforce it, and they take paths.
func (p *Plan) checkEnforceable(g *GlobRule) error {
	if g.bounded() || slices.ContainsFunc(p.StageRoots, func(r PathRule) bool { return within(g.base, r.Path) }) {
		return nil
	}
	for _, r := range slices.Concat(p.Reads, p.Shares) {
		if within(r.Path, g.base) || within(g.base, r.Path) {
			return g.Rule.Source.errorf("name the directories, with * for one level",
				"pattern %q cannot be enforced below %s, which is not staged", g.Rule.Value, path.Clean(r.Path))
		}
	}
	return nil
}
