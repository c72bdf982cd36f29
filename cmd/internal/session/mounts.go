package session

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"stage/jail"
	"stage/policy"
)

// places are the Job's own directories that mounts show in the jail.
type places struct {
	home  string // the private home, kept with the Job
	cache string // the per-workspace scratch cache
	store string // the store, which is hidden from every view
	own   string // the Job's directory, hidden too (it may lie outside the store)
	trash func(i int) (string, error)
}

// cacheDirs are the build caches below the home directory that outlive a Job but are never applied.
var cacheDirs = []string{".cache", ".npm"}

// jailMounts lists what the command sees besides the staged views, the covering entries after the
// covered ones.
func (a *Admission) jailMounts(p places) ([]jail.Mount, error) {
	m := mountList{}
	for _, r := range a.Plan.Reads {
		if !within(a.Workspace, r.Path) && !a.shared(r.Path) {
			m.read(r.Path, r.Optional)
		}
	}
	m.readLinks()
	if !a.homeShown() {
		m.add(jail.Mount{Kind: jail.Kept, Source: p.home, Dest: a.Home})
		for _, dir := range cacheDirs {
			if dest := filepath.Join(a.Home, dir); !m.has(dest) {
				m.add(jail.Mount{Kind: jail.Kept, Source: filepath.Join(p.cache, dir), Dest: dest})
			}
		}
	}
	if a.Plan.Net.Mode == policy.NetHost {
		m.addResolver()
	}
	for _, h := range a.Agents {
		m.add(jail.Mount{Kind: jail.Kept, Source: h.dir, Dest: h.path})
	}
	for _, s := range a.Plan.Shares {
		m.add(jail.Mount{Kind: jail.Bind, Source: s.Path, Dest: s.Path})
	}
	for i, s := range a.Plan.Scratch {
		dir, err := p.trash(i)
		if err != nil {
			return nil, err
		}
		m.add(jail.Mount{Kind: jail.Kept, Source: dir, Dest: s.Path})
	}
	for _, s := range slices.DeleteFunc(a.secrets(), func(s string) bool { return !m.shows(s) }) {
		m.add(jail.Mount{Kind: jail.Mask, Dest: s, Optional: true})
	}
	for _, dir := range []string{p.store, p.own} {
		if m.shows(dir) {
			m.add(jail.Mount{Kind: jail.Mask, Dest: dir, Optional: true})
		}
	}
	return m.list, nil
}

type mountList struct{ list []jail.Mount }

func (m *mountList) add(e jail.Mount) { m.list = append(m.list, e) }

// read shows a path of the host. The root directory stands for everything in it that no jail has
// its own of.
func (m *mountList) read(path string, optional bool) {
	if path != "/" {
		m.add(jail.Mount{Kind: jail.Bind, Source: path, Dest: path, ReadOnly: true, Optional: optional})
		return
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return // nothing of it shows
	}
	for _, e := range entries {
		if p := "/" + e.Name(); !slices.Contains(kernelDirs, p) {
			m.add(jail.Mount{Kind: jail.Bind, Source: p, Dest: p, ReadOnly: true, Optional: true})
		}
	}
}

// readLinks adds the top-level links into what shows (/bin to usr/bin, as merged systems have it):
// programs name the interpreter and each other by them.
func (m *mountList) readLinks() {
	for _, p := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		real, err := filepath.EvalSymlinks(p)
		if err == nil && real != p && m.shows(real) && !m.has(p) {
			m.add(jail.Mount{Kind: jail.Bind, Source: p, Dest: p, ReadOnly: true, Optional: true})
		}
	}
}

func (m *mountList) has(dest string) bool {
	return slices.ContainsFunc(m.list, func(e jail.Mount) bool { return e.Dest == dest })
}

// homeShown reports whether the home directory itself was asked to be read: then it is the host's,
// and there is no private one.
func (a *Admission) homeShown() bool {
	return slices.ContainsFunc(a.Plan.Reads, func(r policy.PathRule) bool { return within(r.Path, a.Home) })
}

// shared reports whether a path is a share or scratch directory itself, which covers a read.
func (a *Admission) shared(path string) bool {
	is := func(r policy.PathRule) bool { return r.Path == path }
	return slices.ContainsFunc(a.Plan.Shares, is) || slices.ContainsFunc(a.Plan.Scratch, is)
}

// shows reports whether a host directory shows below some bind mount at its own place.
func (m *mountList) shows(path string) bool {
	return slices.ContainsFunc(m.list, func(e jail.Mount) bool {
		return e.Kind == jail.Bind && e.Source == e.Dest && within(e.Dest, path)
	})
}

// addResolver makes /etc/resolv.conf work where it is a link into /run, which is private.
func (m *mountList) addResolver() {
	real, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err == nil && strings.HasPrefix(real, "/run/") {
		m.add(jail.Mount{Kind: jail.Bind, Source: real, Dest: real, ReadOnly: true, Optional: true})
	}
}

// secrets are the hidden paths that a mount can hide: literal ones outside the staged roots. What
// lies inside staged roots the overlay hides.
func (a *Admission) secrets() []string {
	var list []string
	for _, g := range slices.Concat(a.Plan.Hide, a.Plan.DenyRead) {
		for _, path := range expandGlob(g) {
			if !a.staged(path) {
				list = append(list, path)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// expandGlob returns what a rule's pattern names on this host: at the start of a run, not later.
func expandGlob(g policy.GlobRule) []string {
	if g.Literal != "" {
		if _, err := os.Lstat(g.Literal); err != nil {
			return nil
		}
		return []string{g.Literal}
	}
	return globHost(g.Pattern)
}

// staged reports whether path lies in a root that the overlay serves.
func (a *Admission) staged(path string) bool {
	return slices.ContainsFunc(a.Plan.StageRoots, func(r policy.PathRule) bool { return within(r.Path, path) })
}

// globHost expands a wildcard pattern on the host.
func globHost(pattern string) []string {
	matches, err := doublestar.FilepathGlob(pattern, doublestar.WithNoFollow(), doublestar.WithFailOnIOErrors())
	if err != nil {
		matches, _ = doublestar.FilepathGlob(pattern, doublestar.WithNoFollow()) // what this user cannot read, the Job cannot
	}
	return matches
}
