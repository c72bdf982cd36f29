package staged

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"stage/fs/tree"
)

// WalkMoved calls f for all that is no directory below the directory that c, a Moved change, moved,
// as far as no other change is about it. Paths are in order. What the caller may not look at is left
// out.
func (r *Reader) WalkMoved(c tree.Change, f func(from, to tree.Path, n tree.Node) error) error {
	if !c.Moved || c.RenameFrom == nil {
		return fmt.Errorf("walk %q: was not moved as a whole", c.Path)
	}
	if err := r.walk(context.Background()); err != nil {
		return err
	}
	changed := map[tree.Path]bool{}
	for _, x := range r.changes {
		changed[x.Path] = true
	}
	v, done, err := r.viewDirAt(c.Path)
	if err != nil {
		return err
	}
	defer done()
	return r.walkMoved(v, *c.RenameFrom, changed, f)
}

func (r *Reader) walkMoved(v viewDir, from tree.Path, changed map[tree.Path]bool, f func(from, to tree.Path, n tree.Node) error) error {
	list, err := r.lowerNames(from)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range list {
		src, err := from.Child(name)
		if err != nil {
			return err
		}
		if err := r.walkMovedName(v, name, src, changed, f); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reader) walkMovedName(v viewDir, name string, src tree.Path, changed map[tree.Path]bool, f func(from, to tree.Path, n tree.Node) error) error {
	e, ok, err := r.entry(v, name)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil || !ok {
		return err
	}
	to, err := v.path.Child(name)
	if err != nil {
		return err
	}
	if e.node.Kind != tree.Dir {
		if changed[to] {
			return nil
		}
		return f(src, to, e.node)
	}
	if e.lower == nil || *e.lower != src {
		return nil
	}
	c, done, err := r.child(v, name, e)
	if err != nil {
		return err
	}
	defer done()
	return r.walkMoved(c, src, changed, f)
}

// viewDirAt opens directory p of the view.
func (r *Reader) viewDirAt(p tree.Path) (v viewDir, done func(), err error) {
	v, done = r.root(), func() {}
	for _, name := range p.Names() {
		e, ok, err := r.entry(v, name)
		if err == nil && (!ok || e.node.Kind != tree.Dir) {
			err = fmt.Errorf("%q is no directory", p)
		}
		if err != nil {
			done()
			return v, nil, err
		}
		next, nextDone, err := r.child(v, name, e)
		done()
		if err != nil {
			return v, nil, err
		}
		v, done = next, nextDone
	}
	return v, done, nil
}

// WalkRemoved calls f for all that is no directory in the workspace below the directory that c, a
// Subtree change, deleted or moved away. Paths are in order. What the caller may not look at is left
// out.
func (r *Reader) WalkRemoved(c tree.Change, f func(p tree.Path, n tree.Node) error) error {
	if !c.Subtree {
		return fmt.Errorf("walk %q: was not removed as a whole", c.Path)
	}
	return r.walkLower(c.Path, f)
}

func (r *Reader) walkLower(p tree.Path, f func(p tree.Path, n tree.Node) error) error {
	list, err := r.lowerNames(p)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read directory %q: %w", p, err)
	}
	for _, name := range list {
		q, err := p.Child(name)
		if err != nil {
			return err
		}
		n, err := r.lowerNode(q)
		if errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return err
		}
		if n.Kind == tree.Dir {
			err = r.walkLower(q, f)
		} else if n.Kind != tree.Absent {
			err = f(q, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
