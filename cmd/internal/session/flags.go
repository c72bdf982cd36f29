package session

import (
	"path/filepath"
	"slices"
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
	for _, p := range f.Read {
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

// topOf is the top-level directory that path lies in.
func topOf(path string) string {
	for dir := path; ; dir = filepath.Dir(dir) {
		if up := filepath.Dir(dir); up == "/" {
			return dir
		}
	}
}
