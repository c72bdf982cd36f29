package policy

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Flags are the permissions on the command line as the user wrote them; the zero value asks for
// nothing. Paths are absolute and free of links: the caller resolves them and refuses those that
// do not exist.
type Flags struct {
	Read, Hide, DenyRead      []string
	ReadHost                  bool
	StageRoot, Share, Scratch []string
	DenyWrite                 []string
	Disk                      string
	Net                       string // "" when not given
	AllowHost, DenyHost       []string
	Allow                     []string // "userns"
	DenyExec                  []string
	Pids                      uint64   // 0 when not given
	Env                       []string // NAME or NAME=V

	Memory, CPU, Timeout, Nofile, MaxOutput string

	AllowDegraded []string
	Strict        bool
}

// Agent is what the caller found out about the agent on this machine, beyond its preset's data.
type Agent struct {
	Hosts []string // from its configuration, in the place of the preset's; nil when it says nothing
	Env   []string // names its configuration refers to
	Reads []string // toolchain roots and the like, absolute
	// OwnSandbox: the agent keeps its own sandbox and needs user namespaces.
	OwnSandbox bool
}

// Request is what a run asks for: flags and preset together.
type Request struct {
	Workspace, Home string
	Rules           []Rule
	SetEnv          map[string]string
	AllowDegraded   []string
	Strict          bool
	// Resolve returns an absolute path free of the symbolic links that stand in it now. Hide and deny
	// rules hold for what their paths lead to as well as for what they say. nil resolves nothing.
	Resolve func(path string) string
}

// NewRequest unites flags, preset and what the caller found out about the agent.
//
// Preconditions: workspace and home are absolute, clean and free of links.
func NewRequest(workspace, home string, f Flags, p Preset, a Agent) (Request, error) {
	b := requestBuilder{preset: p, req: Request{Workspace: workspace, Home: home, SetEnv: maps.Clone(p.SetEnv),
		AllowDegraded: f.AllowDegraded, Strict: f.Strict}}
	if b.req.SetEnv == nil {
		b.req.SetEnv = map[string]string{}
	}
	steps := []func(Flags, Agent) error{b.anchors, b.reads, b.writes, b.network, b.subprocesses, b.credentials, b.resources, b.degraded}
	for _, step := range steps {
		if err := step(f, a); err != nil {
			return Request{}, err
		}
	}
	return b.req, nil
}

type requestBuilder struct {
	preset Preset
	req    Request
}

func (b *requestBuilder) add(d Dimension, v Verb, object, value string, from Source) {
	b.req.Rules = append(b.req.Rules, Rule{d, v, object, value, from})
}

func fromFlag(name string) Source { return Source{Layer: FromFlag, File: name} }

func (b *requestBuilder) fromPreset() Source { return Source{Layer: FromPreset, File: b.preset.Name} }

func (b *requestBuilder) anchors(Flags, Agent) error {
	for name, dir := range map[string]string{"--workspace": b.req.Workspace, "HOME": b.req.Home} {
		if !isAbsolute(dir) {
			return fromFlag(name).errorf("give an absolute path", "%q is not absolute and clean", dir)
		}
	}
	return nil
}

func isAbsolute(p string) bool {
	return strings.HasPrefix(p, "/") && path.Clean(p) == p && !strings.ContainsRune(p, 0)
}

// paths adds literal paths; as patterns they must say what they say as paths.
func (b *requestBuilder) paths(name string, d Dimension, object string, paths []string) error {
	for _, p := range paths {
		if !isAbsolute(p) {
			return fromFlag(name).errorf("give an absolute path", "%q is not absolute and clean", p)
		}
		b.add(d, Allow, object, escapeGlob(p), fromFlag(name))
	}
	return nil
}

func (b *requestBuilder) globs(name string, d Dimension, v Verb, object string, globs []string) error {
	for _, g := range globs {
		if err := checkGlob(g); err != nil {
			return fromFlag(name).errorf("patterns are those of doublestar, from the workspace, / or ~", "%v", err)
		}
		b.add(d, v, object, g, fromFlag(name))
	}
	return nil
}

func (b *requestBuilder) limit(name string, d Dimension, object, text string) error {
	if text == "" {
		return nil
	}
	value, err := canonicalLimit(object, text)
	if err != nil {
		return fromFlag(name).errorf("see stage run --help", "%v", err)
	}
	b.add(d, Limit, object, value, fromFlag(name))
	return nil
}

func (b *requestBuilder) reads(f Flags, a Agent) error {
	for _, p := range b.preset.Reads {
		b.add(FileReads, Allow, "read", p, b.fromPreset())
	}
	for _, p := range a.Reads {
		if !isAbsolute(p) {
			return b.fromPreset().errorf("give an absolute path", "%q is not absolute and clean", p)
		}
		b.add(FileReads, Allow, "read", escapeGlob(p), b.fromPreset())
	}
	if f.ReadHost {
		b.add(FileReads, Allow, "read", "/", fromFlag("--read-host"))
	}
	return firstError(
		b.paths("--read", FileReads, "read", f.Read),
		b.globs("--hide", FileReads, Hide, "path", f.Hide),
		b.globs("--deny-read", FileReads, Deny, "read", f.DenyRead),
	)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *requestBuilder) writes(f Flags, _ Agent) error {
	b.add(FileWrites, Allow, "stage", escapeGlob(b.req.Workspace), fromFlag("--workspace"))
	kinds := map[string]string{b.req.Workspace: "--workspace"}
	for _, k := range []struct {
		flag  string
		paths []string
	}{{"--stage-root", f.StageRoot}, {"--share", f.Share}, {"--scratch", f.Scratch}} {
		for _, p := range k.paths {
			if other, ok := kinds[p]; ok && other != k.flag {
				return fromFlag(k.flag).errorf("give one of the two", "%s is already %s", p, other)
			}
			kinds[p] = k.flag
		}
	}
	return firstError(
		b.paths("--stage-root", FileWrites, "stage", f.StageRoot),
		b.paths("--share", FileWrites, "share", f.Share),
		b.paths("--scratch", FileWrites, "scratch", f.Scratch),
		b.globs("--deny-write", FileWrites, Deny, "write", f.DenyWrite),
		b.limit("--disk", FileWrites, "disk", f.Disk),
	)
}

// network asks for the preset's hosts unless the user chose a mode without hosts.
func (b *requestBuilder) network(f Flags, a Agent) error {
	hosts := a.Hosts
	if hosts == nil {
		hosts = b.preset.Hosts
	}
	switch {
	case f.Net == "none" && len(f.AllowHost) > 0:
		return fromFlag("--allow-host").errorf("leave one of the two out", "--net none has no hosts")
	case f.Net == "host" && len(f.AllowHost)+len(f.DenyHost) > 0:
		return fromFlag("--net host").errorf("use --net allow", "nothing decides on hosts in this mode")
	case f.Net == "none" || f.Net == "host":
		return b.limit("--net", Network, "mode", f.Net)
	case f.Net == "" && len(f.AllowHost) > 0:
		b.add(Network, Limit, "mode", string(NetAllow), fromFlag("--allow-host"))
	case f.Net == "" && len(hosts) > 0:
		b.add(Network, Limit, "mode", string(NetAllow), b.fromPreset())
	}
	return firstError(
		b.limit("--net", Network, "mode", f.Net),
		b.hosts(b.fromPreset(), Allow, hosts, []uint16{443}),
		b.hosts(fromFlag("--allow-host"), Allow, f.AllowHost, []uint16{443}),
		b.hosts(fromFlag("--deny-host"), Deny, f.DenyHost, nil),
	)
}

func (b *requestBuilder) hosts(from Source, v Verb, texts []string, ports []uint16) error {
	for _, text := range texts {
		r, err := parseHostRule(text, ports)
		if err != nil {
			return from.errorf("write HOST[:PORT] with a name, *.name, an address or a range", "%v", err)
		}
		if v == Allow && r.isLoopback() && len(r.Ports) == 0 {
			return from.errorf("name its port: "+r.Host+":PORT", "a loopback service needs a port")
		}
		b.add(Network, v, "host", r.String(), from)
	}
	return nil
}

func (b *requestBuilder) subprocesses(f Flags, a Agent) error {
	for _, what := range f.Allow {
		if what != "userns" {
			return fromFlag("--allow").errorf("write --allow userns", "%q cannot be allowed", what)
		}
		b.add(Subprocesses, Limit, "userns", "true", fromFlag("--allow userns"))
	}
	if a.OwnSandbox && len(f.Allow) == 0 {
		b.add(Subprocesses, Limit, "userns", "true", fromFlag("--keep-agent-sandbox"))
	}
	pids, from := f.Pids, fromFlag("--pids")
	if pids == 0 {
		pids, from = b.preset.Pids, b.fromPreset()
	}
	if pids > 0 {
		b.add(Subprocesses, Limit, "pids", strconv.FormatUint(pids, 10), from)
	}
	return b.globs("--deny-exec", Subprocesses, Deny, "exec", f.DenyExec)
}

func (b *requestBuilder) credentials(f Flags, a Agent) error {
	for _, name := range slices.Concat(b.preset.Env, slices.Sorted(maps.Keys(b.preset.SetEnv)), a.Env) {
		if err := checkEnvName(name); err != nil {
			return b.fromPreset().errorf("correct the agent's configuration", "environment: %v", err)
		}
		b.add(Credentials, Allow, "env", name, b.fromPreset())
	}
	for _, e := range f.Env {
		name, value, set := strings.Cut(e, "=")
		if err := checkEnvName(name); err != nil || strings.ContainsRune(value, 0) {
			return fromFlag("--env").errorf("write NAME or NAME=VALUE", "%q is not a variable", name)
		}
		if set {
			b.req.SetEnv[name] = value
		}
		b.add(Credentials, Allow, "env", name, fromFlag("--env"))
	}
	return nil
}

func (b *requestBuilder) resources(f Flags, _ Agent) error {
	return firstError(
		b.limit("--memory", Resources, "memory", f.Memory),
		b.limit("--cpu", Resources, "cpu", f.CPU),
		b.limit("--timeout", Resources, "timeout", f.Timeout),
		b.limit("--nofile", Resources, "nofile", f.Nofile),
		b.limit("--max-output", Resources, "max_output", f.MaxOutput),
	)
}

func (b *requestBuilder) degraded(f Flags, _ Agent) error {
	for _, id := range f.AllowDegraded {
		if !isControl(id) {
			return fromFlag("--allow-degraded").errorf("run stage doctor for the names", "%q is no control", id)
		}
	}
	return nil
}

// String returns the request's rules, one a line, for messages and tests.
func (r Request) String() string {
	var b strings.Builder
	for _, rule := range r.Rules {
		fmt.Fprintln(&b, rule.Dimension, rule)
	}
	return b.String()
}
