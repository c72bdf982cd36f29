package apply

import (
	"path"
	"slices"
	"strings"

	"stage/fs/tree"
)

// places says what else a path counts as: what a link at a gated place leads to lies at that place,
// and so does what a git configuration names.
type places struct {
	r     *result
	links []placed
	as    map[tree.Path][]tree.Path // a path, and where what is at and below it also lies
	runs  map[tree.Path]string      // files that the values of a git configuration name: its key
	depth map[tree.Path]int         // by directory: names of the outermost git directory it is or lies in, else -1
	named map[tree.Path]bool        // git directories that a .git elsewhere leads to
}

type placed struct {
	path   tree.Path
	target string
}

const (
	maxHops   = 40 // MAXSYMLINKS in the kernel's include/linux/namei.h
	maxRounds = 3  // links below what links lead to
	// maxPlaces bounds the work for many links to one place. Each of them is flagged itself.
	maxPlaces = 16
)

func findPlaces(r *result) (*places, error) {
	s := &places{
		r: r, as: map[tree.Path][]tree.Path{}, runs: map[tree.Path]string{}, depth: map[tree.Path]int{}, named: map[tree.Path]bool{},
	}
	for _, find := range []func() error{s.findRepositories, s.findLinks, s.follow} {
		if err := find(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// of returns p and what it counts as.
func (s *places) of(p tree.Path) []tree.Path {
	out := []tree.Path{p}
	if len(s.as) == 0 {
		return out
	}
	for d := p; ; d = d.Parent() {
		for _, as := range s.as[d] {
			out = append(out, p.Rebase(d, as))
		}
		if d.IsRoot() {
			return out
		}
	}
}

// put lets what is at and below p count as as.
func (s *places) put(p, as tree.Path) (isNew bool) {
	if p == as || len(s.as[p]) >= maxPlaces || slices.Contains(s.as[p], as) {
		return false
	}
	s.as[p] = append(s.as[p], as)
	return true
}

// findLinks collects the links that changes make, and those that the workspace has at its top where
// name rules look.
func (s *places) findLinks() error {
	for _, n := range s.r.nodes {
		if n.New.Kind == tree.Symlink {
			s.links = append(s.links, placed{n.Path, n.New.Target})
		}
	}
	for _, r := range nameRules {
		for _, name := range r.fixed() {
			if err := s.baseLink(tree.Path{}, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// baseLink collects name in d if it is a link that no change made.
func (s *places) baseLink(d tree.Path, names string) error {
	p := d
	for name := range strings.SplitSeq(names, "/") {
		var err error
		if p, err = p.Child(name); err != nil {
			return err
		}
	}
	if _, ok := s.r.now[p]; ok {
		return nil
	}
	n, err := s.r.look(p)
	if err == nil && n.Kind == tree.Symlink {
		s.links = append(s.links, placed{p, n.Target})
	}
	return err
}

// follow finds what the links at gated places lead to.
func (s *places) follow() error {
	for range maxRounds {
		more := false
		for _, l := range s.links {
			found, err := s.followLink(l)
			if err != nil {
				return err
			}
			more = more || found
		}
		if !more {
			return nil
		}
	}
	return nil
}

func (s *places) followLink(l placed) (found bool, err error) {
	for _, as := range s.of(l.path) {
		gated, err := s.gated(as)
		if err != nil {
			return false, err
		}
		if !gated {
			continue
		}
		targets, err := s.resolve(l.path.Parent(), l.target)
		if err != nil {
			return false, err
		}
		for _, t := range targets {
			found = s.put(t, as) || found
		}
	}
	return found, nil
}

// gated reports whether some rule is about p, or would be about what is below it.
func (s *places) gated(p tree.Path) (bool, error) {
	for _, r := range nameRules {
		if r.match(p) || r.leadsTo(p) {
			return true, nil
		}
	}
	_, ok, err := s.gitDir(p)
	return ok, err
}

// resolve returns where target, seen from directory d, leads in the result: one path, or where an
// absolute target, or one that leaves the workspace and comes back, may lead, as nothing here knows
// the absolute path of the workspace.
func (s *places) resolve(d tree.Path, target string) ([]tree.Path, error) {
	for hops := 0; ; hops++ {
		at, rest, err := s.step(d, target)
		if err != nil || hops == maxHops {
			return nil, err
		}
		switch {
		case path.IsAbs(rest):
			return suffixes(rest)
		case rest == "":
			return []tree.Path{at}, nil
		}
		d, target = at, rest
	}
}

// step goes from d along target to the first link, which it replaces in what is left to go.
func (s *places) step(d tree.Path, target string) (at tree.Path, rest string, err error) {
	if path.IsAbs(target) {
		return d, target, nil
	}
	for target != "" {
		name, after, _ := strings.Cut(target, "/")
		target = after
		switch name {
		case "", ".":
			continue
		case "..":
			if d.IsRoot() {
				return d, "/" + target, nil
			}
			d = d.Parent()
			continue
		}
		p, err := d.Child(name)
		if err != nil {
			return d, "", nil // no such file can be
		}
		n, err := s.r.look(p)
		if err != nil {
			return d, "", err
		}
		if n.Kind == tree.Symlink {
			return d, n.Target + "/" + target, nil
		}
		d = p
	}
	return d, "", nil
}

// suffixes returns each path that an absolute one may be in a workspace that lies somewhere above it.
func suffixes(target string) ([]tree.Path, error) {
	var out []tree.Path
	for rest := path.Clean(target); rest != "" && rest != "/"; {
		_, rest, _ = strings.Cut(rest, "/")
		p, err := tree.ParsePath(rest)
		if err != nil {
			return nil, nil // holds a NUL: no such file can be
		}
		if !p.IsRoot() {
			out = append(out, p)
		}
	}
	return out, nil
}
