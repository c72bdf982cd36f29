package session

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// program is a command on the host: the path by which it was found and, free of links, what it is.
// Both are empty where there is none.
type program struct{ path, real string }

func lookProgram(argv0 string) program {
	p, err := exec.LookPath(argv0)
	if err != nil {
		return program{}
	}
	if p, err = filepath.Abs(p); err != nil {
		return program{}
	}
	real, err := filepath.EvalSymlinks(p)
	if err != nil {
		return program{}
	}
	return program{p, real}
}

// programReads are the paths that must be readable for the command to be found and to find what it
// brings along: itself, and the directory it lies in. It is the user who named it. A directory that
// holds the workspace or the home directory is never opened by this, nor one that is readable anyway.
func (a *Admission) programReads(readable []string) []string {
	var reads []string
	shows := func(path string) bool {
		return within(a.Workspace, path) || slices.ContainsFunc(readable, func(r string) bool { return within(r, path) })
	}
	p := a.program
	if p.real == "" || shows(p.real) && shows(p.path) {
		return nil
	}
	if !shows(p.real) {
		dir := filepath.Dir(p.real)
		if within(dir, a.Workspace) || within(dir, a.Home) || strings.Count(dir, "/") < 2 {
			dir = p.real // the file alone
		}
		reads = append(reads, dir)
	}
	if p.path != p.real && !shows(p.path) && !within(filepath.Dir(p.real), p.path) {
		reads = append(reads, p.path)
	}
	return reads
}
