package session

import (
	"os"
	"path/filepath"
	"slices"

	"stage/cmd/internal/store"
)

// kernelDirs are the top-level directories that every jail has its own of.
var kernelDirs = []string{"/dev", "/proc", "/run", "/sys", "/tmp"}

// resolveFlags makes the paths of the command line absolute and free of links, and refuses those
// that do not exist or cannot be what is asked of them.
func (a *Admission) resolveFlags() error {
	f := &a.Options.Flags
	reads, err := resolvePaths("--read", f.Read)
	if err != nil {
		return err
	}
	f.Read = nil
	for _, p := range reads {
		switch {
		case p == "/":
			f.ReadHost = true
		case within(a.Workspace, p): // it is there already, staged
		default:
			f.Read = append(f.Read, p)
		}
	}
	if f.Share, err = resolvePaths("--share", f.Share); err != nil {
		return err
	}
	if f.Scratch, err = resolvePaths("--scratch", f.Scratch); err != nil {
		return err
	}
	return a.checkPlaces()
}

func resolvePaths(flag string, paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		abs, err := filepath.Abs(p)
		if err != nil {
			return nil, err
		}
		real, err := filepath.EvalSymlinks(abs)
		if err != nil {
			return nil, invalidf("%s %s: %w", flag, p, err)
		}
		out = append(out, real)
	}
	return out, nil
}

// checkPlaces refuses places that a jail has its own of, and writable places that hold what must
// not be written directly.
func (a *Admission) checkPlaces() error {
	f := &a.Options.Flags
	if err := a.checkStore(); err != nil {
		return err
	}
	for _, p := range f.Read {
		if fi, err := os.Stat(p); err != nil || !fi.IsDir() && !fi.Mode().IsRegular() {
			return invalidf("--read %s: only directories and regular files can be read", p)
		}
		if slices.Contains(kernelDirs, p) || within("/proc", p) || within("/dev", p) || within("/sys", p) {
			return invalidf("--read %s: every Job has its own %s", p, topOf(p))
		}
	}
	for flag, paths := range map[string][]string{"--share": f.Share, "--scratch": f.Scratch} {
		for _, p := range paths {
			switch {
			case p == "/" || slices.Contains(kernelDirs, p) || within("/proc", p) || within("/dev", p) || within("/sys", p) || within("/run/stage", p):
				return invalidf("%s %s: every Job has its own %s: name a directory elsewhere", flag, p, topOf(p))
			case within(p, a.Home):
				return invalidf("%s %s: it holds your home directory: name a directory below it", flag, p)
			case within(p, a.Workspace):
				return invalidf("%s %s: it holds the workspace, whose changes are staged: name a directory that does not", flag, p)
			}
		}
	}
	return nil
}

// checkStore refuses to open stage's own store, or a part of it, to a Job.
func (a *Admission) checkStore() error {
	dir, err := store.DefaultPath(os.Getenv)
	if err != nil {
		return err
	}
	dir = resolveLinks(dir)
	f := &a.Options.Flags
	for flag, paths := range map[string][]string{"--read": f.Read, "--share": f.Share, "--scratch": f.Scratch} {
		for _, p := range paths {
			if within(dir, p) || flag != "--read" && within(p, dir) {
				return invalidf("%s %s: stage's own store is there, which no Job may see", flag, p)
			}
		}
	}
	return nil
}

// checkShares refuses a share in which something is hidden or denied: a Job that may write a
// directory could rename what is in it out of the rule's reach.
func (a *Admission) checkShares() error {
	for _, s := range a.Plan.Shares {
		for _, g := range slices.Concat(a.Plan.Hide, a.Plan.DenyRead, a.Plan.DenyWrite) {
			for _, p := range expandGlob(g) {
				if within(s.Path, p) || within(p, s.Path) {
					return invalidf("--share %s: %s (%s) cannot be kept from a Job that writes there directly: share a directory without it",
						s.Path, p, g.Rule)
				}
			}
		}
	}
	return nil
}

// resolveLinks returns path free of links as far as it is there; what is not there stays as written.
func resolveLinks(path string) string { return newResolver()(path) }

// newResolver returns resolveLinks for many paths, which have most of their parents in common: each
// directory is looked at once.
func newResolver() func(string) string {
	known := map[string]string{"/": "/"}
	var resolve func(path string) string
	resolve = func(path string) string {
		if real, ok := known[path]; ok {
			return real
		}
		real := filepath.Join(resolve(filepath.Dir(path)), filepath.Base(path))
		if fi, err := os.Lstat(real); err == nil && fi.Mode()&os.ModeSymlink != 0 {
			if to, err := filepath.EvalSymlinks(real); err == nil {
				real = to
			}
		}
		known[path] = real
		return real
	}
	return resolve
}

// topOf is the top-level directory that path lies in.
func topOf(path string) string {
	for dir := path; ; dir = filepath.Dir(dir) {
		if up := filepath.Dir(dir); up == "/" {
			return dir
		}
	}
}
