package staged

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"stage/fs/hostfs"
	"stage/fs/judge"
	"stage/fs/overlay"
	"stage/fs/tree"
)

// viewDir is a directory as the Job sees it.
type viewDir struct {
	path  tree.Path
	up    hostfs.Reader // nil: the upper has nothing here
	mark  *overlay.Mark // never nil
	lower *tree.Path    // the workspace directory that shows here, nil for none
	lost  bool          // nothing vouches for what is here (overlay.OpLost)
}

// entry is a name in a viewDir.
type entry struct {
	node  tree.Node
	up    bool // the upper has it
	mark  *overlay.Mark
	lower *tree.Path // for a directory, or for what only the workspace has: where it is there
}

var noMark = &overlay.Mark{}

func markOf(m *overlay.Mark, name string) *overlay.Mark {
	if c := m.Children[name]; c != nil {
		return c
	}
	return noMark
}

func (r *Reader) root() viewDir {
	return viewDir{up: r.cfg.Upper, mark: r.log.Root, lower: &tree.Path{}}
}

// childLower returns the workspace path that directory or lower entry name of v, of which m is said,
// shows.
func (r *Reader) childLower(v viewDir, name string, m *overlay.Mark) (*tree.Path, error) {
	switch {
	case m.Opaque:
		return nil, nil
	case m.Lower != nil:
		return r.moved(v, name, *m.Lower)
	case v.lower == nil || v.mark.White[name]:
		return nil, nil
	}
	p, err := v.lower.Child(name)
	return &p, err
}

// moved returns where the workspace has a displaced directory: where it always was, or in its new
// place once that is published.
func (r *Reader) moved(v viewDir, name string, from tree.Path) (*tree.Path, error) {
	p, err := v.path.Child(name)
	if err == nil && r.published(move{from, p}) {
		return &p, nil
	}
	return &from, err
}

// entry returns name in v; ok is false when the view has no such name.
func (r *Reader) entry(v viewDir, name string) (e entry, ok bool, err error) {
	e = entry{mark: noMark}
	if v.up != nil {
		if e.node, err = r.upperNode(v.up, name); err != nil {
			return e, false, fmt.Errorf("look at %q in %q of the upper: %w", name, v.path, err)
		}
	}
	if e.up = e.node.Kind != tree.Absent; e.up { // else a mark is left of what was removed
		e.mark = markOf(v.mark, name)
	}
	if e.lower, err = r.childLower(v, name, e.mark); err != nil {
		return e, false, err
	}
	if e.up {
		return e, true, nil
	}
	if e.lower == nil || v.mark.White[name] {
		return e, false, nil
	}
	e.node, err = r.lowerNode(*e.lower)
	return e, e.node.Kind != tree.Absent, err
}

// child opens directory e, the entry name of v. close must be called.
func (r *Reader) child(v viewDir, name string, e entry) (c viewDir, done func(), err error) {
	c = viewDir{mark: e.mark, lower: e.lower, lost: v.lost || e.mark.LostTree}
	if c.path, err = v.path.Child(name); err != nil || !e.up {
		return c, func() {}, err
	}
	up, err := v.up.OpenDir(name)
	if err != nil {
		return c, nil, fmt.Errorf("open %q in the upper: %w", c.path, err)
	}
	c.up = up
	return c, func() { up.Close() }, nil
}

// names returns the sorted names of d.
func names(d hostfs.Reader) ([]string, error) {
	entries, err := d.ReadDir()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name)
	}
	slices.Sort(out)
	return out, nil
}

// lowerNames returns the sorted names of workspace directory p, none if it is no directory now.
func (r *Reader) lowerNames(p tree.Path) ([]string, error) {
	n, err := r.lowerNode(p)
	if err != nil || n.Kind != tree.Dir {
		return nil, err
	}
	d, err := r.cfg.Lower.OpenDirAt(p, false)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return names(d)
}

// lowerNode returns what the workspace has at p now.
func (r *Reader) lowerNode(p tree.Path) (tree.Node, error) {
	n, _, _, err := judge.Look(r.cfg.Lower, p)
	return n, err
}

// upperNode returns name in directory d of the upper as the Job sees it.
func (r *Reader) upperNode(d hostfs.Reader, name string) (tree.Node, error) {
	n, err := d.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return tree.Node{}, nil
	}
	if err != nil {
		return tree.Node{}, err
	}
	x, err := d.Xattrs(name)
	if err != nil {
		return tree.Node{}, err
	}
	n.Xattrs = x.Own()
	if attr, ok := x[overlay.AttrXattr]; ok && r.cfg.Rootless {
		n.Mode, n.UID, n.GID, err = overlay.DecodeAttr(attr)
	}
	return n, err
}

// place is where the view has its content of a path from.
type place struct {
	upper bool
	path  tree.Path // in the upper or in the workspace
}

// locate finds where view path p comes from; ok is false when the view has no such path.
func (r *Reader) locate(p tree.Path) (at place, ok bool, err error) {
	if alias, aliased := r.aliases[p]; aliased {
		p = alias
	}
	v, at := r.root(), place{upper: true}
	for i, name := range p.Names() {
		e, ok, err := r.entry(v, name)
		if err != nil || !ok {
			return at, false, err
		}
		at = place{path: p, upper: e.up}
		if !e.up {
			at.path = *e.lower
		}
		if i == len(p.Names())-1 {
			return at, true, nil
		}
		if e.node.Kind != tree.Dir {
			return at, false, nil
		}
		next, done, err := r.child(v, name, e)
		if err != nil {
			return at, false, err
		}
		defer done()
		v = next
	}
	return at, true, nil
}

// OpenNew opens the staged content of the regular file that the Job sees at p.
func (r *Reader) OpenNew(p tree.Path) (hostfs.File, error) {
	at, ok, err := r.locate(p)
	switch {
	case err != nil:
		return nil, fmt.Errorf("open staged %q: %w", p, err)
	case !ok:
		return nil, fmt.Errorf("open staged %q: %w", p, fs.ErrNotExist)
	case at.upper:
		return open(r.cfg.Upper, at.path)
	}
	return open(r.cfg.Lower, at.path)
}

// OpenBase opens the workspace's content of the regular file p, as it is now.
func (r *Reader) OpenBase(p tree.Path) (hostfs.File, error) { return open(r.cfg.Lower, p) }

// StatBase returns what the workspace has at p now, Absent for nothing; digests are left empty.
func (r *Reader) StatBase(p tree.Path) (tree.Node, error) { return r.lowerNode(p) }

// Untouched reports whether the Job changed nothing at or above the workspace path p.
func (r *Reader) Untouched(p tree.Path) bool {
	_, _, ok := r.log.BaseOf(p)
	return !ok
}

// OpenPreimage opens what the base of workspace path p held; fs.ErrNotExist where that was not kept.
func (r *Reader) OpenPreimage(p tree.Path) (hostfs.File, error) {
	b, err := r.baseAt(p)
	if err != nil {
		return nil, err
	}
	name, ok := strings.CutPrefix(string(b.node.Digest), "sha256:")
	if !ok || r.cfg.Preimages == nil || b.lost {
		return nil, fmt.Errorf("preimage of %q: %w", p, fs.ErrNotExist)
	}
	return r.cfg.Preimages.Open(name)
}

func open(root hostfs.Reader, p tree.Path) (hostfs.File, error) {
	dir, err := root.OpenDirAt(p.Parent(), false)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Open(p.Base())
}
