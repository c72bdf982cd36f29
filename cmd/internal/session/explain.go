package session

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"stage/bundle"
	"stage/cmd/internal/render"
	"stage/cmd/internal/store"
	"stage/fs/tree"
	"stage/jail"
	"stage/policy"
)

// Explain says what the run would be allowed to do with each of objects: a path, HOST[:PORT], $NAME,
// or a command. It decides by the code of the run: of the rules, of the mounts and of the mediator.
// Permissions that the host's files have anyway are not looked at.
func (a *Admission) Explain(objects []string) ([]render.Decision, error) {
	m, err := a.explainMounts()
	if err != nil {
		return nil, err
	}
	var all []render.Decision
	for _, o := range objects {
		d, err := a.explain(m, o)
		if err != nil {
			return nil, err
		}
		all = append(all, d...)
	}
	return all, nil
}

// explainMounts are the mounts of a run that has no Job yet.
func (a *Admission) explainMounts() ([]jail.Mount, error) {
	dir, err := store.DefaultPath(os.Getenv)
	if err != nil {
		return nil, err
	}
	return a.jailMounts(places{
		home: "home", cache: "cache", store: resolveLinks(dir), own: "own",
		trash: func(int) (string, error) { return "scratch", nil },
	})
}

func (a *Admission) explain(m []jail.Mount, object string) ([]render.Decision, error) {
	name, isVar := strings.CutPrefix(object, "$")
	switch {
	case object == "":
		return nil, invalidf("empty object: name a path, HOST[:PORT], $NAME or a command")
	case isVar:
		return []render.Decision{a.explainEnv(name)}, nil
	case strings.ContainsRune(object, '/') || object == "." || object == "..":
		return a.explainPath(m, object)
	}
	if _, err := os.Lstat(object); err == nil {
		return a.explainPath(m, object)
	}
	if p := lookProgram(object); p.real != "" {
		return a.explainPath(m, p.path)
	}
	d, err := a.explainHost(object)
	if err != nil {
		return nil, invalidf("%s is no path here, no command and no host: %w", object, err)
	}
	return []render.Decision{d}, nil
}

func (a *Admission) explainEnv(name string) render.Decision {
	d := render.Decision{Object: "$" + name, Act: "pass"}
	allowed, rule := a.Plan.Env(name)
	d.Allowed, d.Rule = allowed, ruleOrNil(rule)
	switch {
	case d.Allowed:
		d.Why = "passed where the caller has it"
	case rule.Verb == "" || rule.Verb == policy.Allow && rule.Source.Layer == policy.FromPreset:
		d.Why, d.Fix = "not requested", "--env "+name
	default:
		d.Why = "taken away"
	}
	return d
}

func (a *Admission) explainHost(object string) (render.Decision, error) {
	host, port := object, uint16(443)
	if h, p, err := net.SplitHostPort(object); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return render.Decision{}, fmt.Errorf("port %q is not a number from 1 to 65535", p)
		}
		host, port = h, uint16(n)
	}
	name, err := a.Plan.Hosts().Canonical(host)
	if err != nil {
		return render.Decision{}, err
	}
	d := render.Decision{Object: net.JoinHostPort(name, strconv.Itoa(int(port))), Act: "connect"}
	allowed, rule := a.Plan.Host(name, port)
	d.Allowed, d.Rule = allowed, ruleOrNil(rule)
	switch {
	case d.Allowed && a.Plan.Net.Mode == policy.NetHost:
		d.Why = "the host's network, where nothing decides"
	case d.Allowed:
		d.Why = "through the mediator, if its address is none that must be named itself"
	case a.Plan.Net.Mode == policy.NetNone:
		d.Why, d.Fix = "no network", "--allow-host "+d.Object
	case rule.Verb == policy.Deny:
		d.Why = "taken away"
	default:
		d.Why, d.Fix = "not requested", "--allow-host "+d.Object
	}
	return d, nil
}

// explainPath decides over the object that a path leads to.
func (a *Admission) explainPath(m []jail.Mount, object string) ([]render.Decision, error) {
	path, err := filepath.Abs(expandHome(object, a.Home))
	if err != nil {
		return nil, err
	}
	path = resolveLinks(path)
	fi, err := os.Lstat(path)
	isDir := err == nil && fi.IsDir()
	if a.staged(path) {
		return a.explainStaged(path, isDir)
	}
	return a.explainMounted(m, path, isDir), nil
}

// acts returns the three decisions over a path.
func acts(path, why string, rule policy.Rule, read, write, exec bool) []render.Decision {
	r := ruleOrNil(rule)
	return []render.Decision{
		{Object: path, Act: "read", Allowed: read, Why: why, Rule: r},
		{Object: path, Act: "write", Allowed: write, Why: why, Rule: r},
		{Object: path, Act: "exec", Allowed: exec, Why: why, Rule: r},
	}
}

// explainStaged decides by the rules that the overlay asks: those of the path and of the directories
// it lies in.
func (a *Admission) explainStaged(path string, isDir bool) ([]render.Decision, error) {
	i := slices.IndexFunc(a.Plan.StageRoots, func(r policy.PathRule) bool { return within(r.Path, path) })
	root := a.Plan.StageRoots[i].Path
	rel, err := tree.ParsePath(strings.TrimPrefix(strings.TrimPrefix(path, root), "/"))
	if err != nil {
		return nil, invalidf("%s: %w", path, err)
	}
	verdict, by := policy.Verdict(0), map[policy.Verdict]policy.Rule{}
	if rules := a.Plan.RulesBelow(root); rules != nil {
		for q := rel; ; q = q.Parent() {
			v, rule := rules.Explain(q, isDir || q != rel)
			for _, bit := range []policy.Verdict{policy.VerdictHide, policy.VerdictDenyRead, policy.VerdictDenyWrite, policy.VerdictDenyExec} {
				if v&bit != 0 && verdict&bit == 0 {
					by[bit] = rule
				}
			}
			if verdict |= v; q.IsRoot() {
				break
			}
		}
	}
	why := "staged: what the run changes here is reviewed before it is applied"
	d := acts(path, why, policy.Rule{}, true, true, true)
	for i, bit := range []policy.Verdict{policy.VerdictDenyRead, policy.VerdictDenyWrite, policy.VerdictDenyExec} {
		deny(&d[i], verdict&policy.VerdictHide, by, "hidden")
		deny(&d[i], verdict&bit, by, "denied")
	}
	deny(&d[2], verdict&policy.VerdictDenyRead, by, "denied")
	return d, nil
}

// deny takes the act away if bit, one of a verdict, is set.
func deny(d *render.Decision, bit policy.Verdict, by map[policy.Verdict]policy.Rule, why string) {
	if bit != 0 && d.Allowed {
		d.Allowed, d.Why, d.Rule = false, why, ruleOrNil(by[bit])
	}
}

// ruleOrNil is the record of a rule, nil of the zero Rule.
func ruleOrNil(r policy.Rule) *bundle.Rule {
	if r == (policy.Rule{}) {
		return nil
	}
	record := ruleRecord(r)
	return &record
}

// explainMounted decides by the mount that shows the path: the deepest, and of those the last.
func (a *Admission) explainMounted(mounts []jail.Mount, path string, isDir bool) []render.Decision {
	best := -1
	for i, m := range mounts {
		if within(m.Dest, path) && (best < 0 || len(m.Dest) >= len(mounts[best].Dest)) {
			best = i
		}
	}
	switch {
	case best < 0 && slices.Contains(kernelDirs, topOf(path)):
		return acts(path, "every Job has its own "+topOf(path), policy.Rule{}, true, topOf(path) != "/proc" && topOf(path) != "/sys", true)
	case best < 0:
		d := acts(path, "not requested: it does not show", policy.Rule{}, false, false, false)
		d[0].Fix, d[1].Fix, d[2].Fix = "--read "+path, "--share "+path, "--read "+path
		return d
	}
	switch m := mounts[best]; {
	case m.Kind == jail.Mask:
		_, rule := a.Plan.PathVerdict(path, isDir)
		return acts(path, "hidden", rule, false, false, false)
	case m.Kind == jail.Kept:
		return a.explainPrivate(m.Dest, path, isDir)
	case m.ReadOnly:
		d := acts(path, "readable", a.ruleOf(m.Dest), true, false, true)
		d[1].Why, d[1].Rule, d[1].Fix = "read-only", nil, "--share "+path
		return d
	default:
		return acts(path, "shared: written directly, never undone", a.ruleOf(m.Dest), true, true, true)
	}
}

// explainPrivate decides over a path in a directory of which the Job has its own.
func (a *Admission) explainPrivate(dest, path string, isDir bool) []render.Decision {
	if path == dest {
		return acts(path, "private to the Job, never applied", a.ruleOf(dest), true, true, true)
	}
	verdict, rule := a.Plan.PathVerdict(path, isDir)
	d := acts(path, "the Job has its own "+dest+", in which the host's does not show", rule, false, true, false)
	d[1].Why, d[1].Rule = "private to the Job, never applied", ruleOrNil(a.ruleOf(dest))
	if verdict&policy.VerdictHide == 0 {
		d[0].Fix, d[2].Fix = "--read "+path, "--read "+path
	}
	return d
}

// ruleOf returns the rule that asked for the root shown at dest, the zero Rule if none did.
func (a *Admission) ruleOf(dest string) policy.Rule {
	for _, r := range slices.Concat(a.Plan.Reads, a.Plan.Shares, a.Plan.Scratch) {
		if r.Path == dest {
			return r.Rule
		}
	}
	return policy.Rule{}
}
