package policy

import "slices"

// ControlNeed is a control that bears on a run.
type ControlNeed struct {
	ID              string
	Required        bool   // without it the run must not start
	DegradedAllowed bool   // … unless the user said --allow-degraded
	Rules           []Rule // the rules that ask for it; none for those of every run
	Mechanism       string // how it is meant to be enforced
}

// controlKind is a control as every plan knows it. needed says whether this plan cannot do without
// it, rules which rules it carries out; nil is "always" and "none".
type controlKind struct {
	id        string
	mechanism string
	needed    func(*Plan) bool
	rules     func(*Plan) []Rule
}

func never(*Plan) bool { return false }

// Controls returns the controls that bear on the plan by dimension, with the ids of the evidence
// records. All ids are there: one that is not Required is reported, not insisted upon.
func (p *Plan) Controls() map[Dimension][]ControlNeed {
	needs := map[Dimension][]ControlNeed{}
	for _, d := range Dimensions() {
		for _, k := range controlsOf(d) {
			n := ControlNeed{ID: k.id, Mechanism: k.mechanism, DegradedAllowed: slices.Contains(p.AllowDegraded, k.id)}
			if k.id == "net.netns" && p.Net.Mode == NetHost {
				n.DegradedAllowed = true // the user asked for the host's network: it goes on without, and says so
			}
			n.Required = k.needed == nil || k.needed(p)
			if k.rules != nil {
				n.Rules = k.rules(p)
			}
			needs[d] = append(needs[d], n)
		}
	}
	return needs
}

func isControl(id string) bool {
	return slices.ContainsFunc(Dimensions(), func(d Dimension) bool {
		return slices.ContainsFunc(controlsOf(d), func(k controlKind) bool { return k.id == id })
	})
}

func controlsOf(d Dimension) []controlKind {
	switch d {
	case FileReads:
		return fileReadControls()
	case FileWrites:
		return fileWriteControls()
	case Network:
		return networkControls()
	case Subprocesses:
		return subprocessControls()
	case Credentials:
		return credentialControls()
	case Resources:
		return resourceControls()
	default:
		return nil
	}
}

func fileReadControls() []controlKind {
	hides := func(p *Plan) []Rule { return globRules(p.Hide, p.DenyRead) }
	fsRules := func(p *Plan) []Rule { return stagedRules(p) }
	return []controlKind{
		{"mount.root", "private mount namespace with a root of its own", nil, func(p *Plan) []Rule { return pathRules(p.Reads) }},
		{"mount.home", "empty home directory with the readable roots bound into it", func(p *Plan) bool { return !p.ReadHost }, nil},
		{"mask.secrets", "secrets are not mounted, or covered by an empty mount", nil, hides},
		{"fs.rules", "the overlay answers lookups and modes by rule", func(p *Plan) bool { return len(fsRules(p)) > 0 }, fsRules},
		{"landlock.fs", "Landlock file rules", func(p *Plan) bool { return p.Strict }, nil},
	}
}

func fileWriteControls() []controlKind {
	shares := func(p *Plan) []Rule { return pathRules(p.Shares, p.Scratch) }
	return []controlKind{
		{"fs.staged", "FUSE overlay: writes go to the Job's upper", nil, func(p *Plan) []Rule { return append(pathRules(p.StageRoots), globRules(p.DenyWrite)...) }},
		{"mount.readonly", "everything else is mounted read-only", nil, nil},
		{"mount.shares", "shared and scratch directories are bound writable", func(p *Plan) bool { return len(shares(p)) > 0 }, shares},
		{"fs.quota", "the overlay counts the bytes of the upper", func(p *Plan) bool { return insisted(p.Disk) }, func(p *Plan) []Rule { return limitRules(p.Disk) }},
	}
}

func networkControls() []controlKind {
	mode := func(p *Plan) []Rule {
		if p.Net.Rule.Source.File == notRequested(target{Network, "mode"}).Source.File {
			return nil
		}
		return []Rule{p.Net.Rule}
	}
	return []controlKind{
		{"net.netns", "network namespace of its own with nothing but lo", nil, mode},
		{"net.mediator", "proxy and forwarders outside the namespace decide on each target", func(p *Plan) bool { return p.Net.Mode == NetAllow }, netRules},
		{"net.dns", "no resolver is reachable; the mediator resolves allowed names", never, nil},
		{"net.families", "seccomp: only unix, inet, inet6 and route netlink sockets", nil, nil},
		{"net.unix", "unix sockets of the host are not mounted", never, nil},
	}
}

func subprocessControls() []controlKind {
	execs := func(p *Plan) []Rule { return globRules(p.DenyExec) }
	return []controlKind{
		{"ns.pid", "process namespace of its own", nil, nil},
		{"ns.user", "user namespace of its own", never, nil},
		{"ns.mount", "mount namespace of its own", nil, nil},
		{"ns.ipc", "IPC namespace of its own", nil, nil},
		{"ns.uts", "host name namespace of its own", nil, nil},
		{"seccomp.filter", "seccomp filter loaded before exec", nil, nil},
		{"caps.none", "all capability sets empty, the bounding set too", nil, nil},
		{"nnp", "no_new_privs", nil, nil},
		{"exec.rules", "no x bits in staged roots, Landlock outside", func(p *Plan) bool { return len(p.DenyExec) > 0 }, execs},
		{"pids.limit", "pids cgroup, else RLIMIT_NPROC", func(p *Plan) bool { return insisted(p.Pids) }, func(p *Plan) []Rule { return limitRules(p.Pids) }},
	}
}

func credentialControls() []controlKind {
	env := func(p *Plan) []Rule { return p.rulesOf(Credentials) }
	return []controlKind{
		{"env.allowlist", "the environment is built from the names allowed", nil, env},
		{"mask.secrets", "secrets are not mounted, or covered by an empty mount", nil, func(p *Plan) []Rule { return globRules(p.Hide) }},
		{"sockets.agents", "agent, bus and container sockets are not mounted", nil, nil},
		{"keyring", "seccomp: no keyring calls", nil, nil},
		{"core", "core dumps off", nil, nil},
	}
}

func resourceControls() []controlKind {
	count := func(f func(*Plan) Max[uint64]) (func(*Plan) bool, func(*Plan) []Rule) {
		return func(p *Plan) bool { return insisted(f(p)) }, func(p *Plan) []Rule { return limitRules(f(p)) }
	}
	kind := func(id, mechanism string, f func(*Plan) Max[uint64]) controlKind {
		needed, rules := count(f)
		return controlKind{id, mechanism, needed, rules}
	}
	return []controlKind{
		kind("res.memory", "memory cgroup", func(p *Plan) Max[uint64] { return p.Memory }),
		{"res.cpu", "cpu cgroup", func(p *Plan) bool { return insisted(p.CPU) }, func(p *Plan) []Rule { return limitRules(p.CPU) }},
		kind("res.pids", "pids cgroup, else RLIMIT_NPROC", func(p *Plan) Max[uint64] { return p.Pids }),
		{"res.wall", "the supervisor ends the Job", func(p *Plan) bool { return insisted(p.Timeout) }, func(p *Plan) []Rule { return limitRules(p.Timeout) }},
		kind("res.disk", "the overlay counts the bytes of the upper", func(p *Plan) Max[uint64] { return p.Disk }),
		kind("res.nofile", "RLIMIT_NOFILE", func(p *Plan) Max[uint64] { return p.Nofile }),
		kind("res.output", "the supervisor counts what passes", func(p *Plan) Max[uint64] { return p.MaxOutput }),
	}
}

// insisted reports whether a person asked for the limit: one that a preset brings along is a
// precaution, and a machine that cannot enforce it may still run the Job.
func insisted[T limited](m Max[T]) bool { return m.Set && m.Rule.Source.Layer != FromPreset }

func limitRules[T limited](m Max[T]) []Rule {
	if !m.Set {
		return nil
	}
	return []Rule{m.Rule}
}

func globRules(lists ...[]GlobRule) []Rule {
	var out []Rule
	for _, l := range lists {
		for _, g := range l {
			out = append(out, g.Rule)
		}
	}
	return out
}

func pathRules(lists ...[]PathRule) []Rule {
	var out []Rule
	for _, l := range lists {
		for _, r := range l {
			out = append(out, r.Rule)
		}
	}
	return out
}

// stagedRules are the path rules that can match in a staged root.
func stagedRules(p *Plan) []Rule {
	var out []Rule
	for _, r := range p.hidden {
		if r.bit != VerdictDenyExec && slices.ContainsFunc(p.StageRoots, func(s PathRule) bool { return r.glob.overlaps(s.Path) }) {
			out = append(out, r.glob.Rule)
		}
	}
	return out
}

func netRules(p *Plan) []Rule {
	var out []Rule
	for _, r := range slices.Concat(p.Net.Allow, p.Net.Deny) {
		out = append(out, r.Rule)
	}
	return out
}

// rulesOf returns everything that was asked for and restricted in a dimension.
func (p *Plan) rulesOf(d Dimension) []Rule {
	var out []Rule
	for _, t := range allowed() {
		if t.dimension != d {
			continue
		}
		for _, l := range p.grant.allow[t] {
			out = append(out, l.rules...)
		}
	}
	for _, r := range p.grant.restrict {
		if r.Dimension == d {
			out = append(out, r)
		}
	}
	return canonical(out, Rule.compare)
}
