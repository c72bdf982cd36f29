package apply

import (
	"errors"
	"io"
	"io/fs"
	"slices"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// result is the tree that changes make of the workspace. What they delete still counts as there: a
// risk is rather seen twice than not.
type result struct {
	c     Contents
	nodes []made
	now   map[tree.Path]tree.Change // nodes by path
	moves map[tree.Path]tree.Path   // directories moved as a whole: new path, origin
	bases map[tree.Path]tree.Node   // what base looked up
}

// made is something that changes make: at is the change that brings it.
type made struct {
	at tree.Path
	tree.Change
}

func newResult(c Contents) *result {
	return &result{c: c, now: map[tree.Path]tree.Change{}, moves: map[tree.Path]tree.Path{}, bases: map[tree.Path]tree.Node{}}
}

func (r *result) add(at tree.Path, c tree.Change) {
	r.nodes = append(r.nodes, made{at, c})
	r.now[c.Path] = c
}

// base returns what the workspace has at p. What the caller may not look at, git may not either.
func (r *result) base(p tree.Path) (tree.Node, error) {
	if n, ok := r.bases[p]; ok {
		return n, nil
	}
	n, err := r.c.StatBase(p)
	if errors.Is(err, fs.ErrPermission) {
		n, err = tree.Node{}, nil
	}
	if err == nil {
		r.bases[p] = n
	}
	return n, err
}

// origin returns where the workspace has what a moved directory shows at p.
func (r *result) origin(p tree.Path) (tree.Path, bool) {
	if len(r.moves) == 0 {
		return p, false
	}
	for d := p; ; d = d.Parent() {
		if from, ok := r.moves[d]; ok {
			return p.Rebase(d, from), true
		}
		if d.IsRoot() {
			return p, false
		}
	}
}

// look returns what is at p.
func (r *result) look(p tree.Path) (tree.Node, error) {
	if c, ok := r.now[p]; ok {
		return c.New, nil
	}
	if from, ok := r.origin(p); ok {
		if n, err := r.base(from); err != nil || n.Kind != tree.Absent {
			return n, err
		}
	}
	return r.base(p)
}

// there reports whether something is at name in directory d.
func (r *result) there(d tree.Path, name string) (bool, error) {
	p, err := d.Child(name)
	if err != nil {
		return false, err
	}
	n, err := r.look(p)
	return n.Kind != tree.Absent, err
}

// texts returns what file p holds and what the workspace had there, as far as each is a file of
// ordinary length.
func (r *result) texts(p tree.Path) ([][]byte, error) {
	var out [][]byte
	if c, ok := r.now[p]; ok && short(c.New) {
		text, err := readAll(r.c.OpenNew(p))
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	from, _ := r.origin(p) // p itself, if nothing was moved
	for _, q := range slices.Compact([]tree.Path{from, p}) {
		text, err := r.baseText(q)
		if err != nil {
			return nil, err
		}
		if text != nil {
			out = append(out, text)
		}
	}
	return out, nil
}

func (r *result) baseText(p tree.Path) ([]byte, error) {
	n, err := r.base(p)
	if err != nil || !short(n) {
		return nil, err
	}
	text, err := readAll(r.c.OpenBase(p))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	return text, err
}

// maxConfig is the longest git configuration that is looked into.
const maxConfig = 1 << 20

func short(n tree.Node) bool { return n.Kind == tree.File && n.Size <= maxConfig }

func readAll(f hostfs.File, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxConfig+1))
}
