package staged

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"stage/fs/judge"
	"stage/fs/tree"
)

// spot is the workspace side of a directory that is compared.
type spot struct {
	path  tree.Path
	dir   bool // the base has a directory here
	moved bool // path is where a directory moved as a whole came from
}

func (r *Reader) walkRoot(ctx context.Context) error {
	v := r.root()
	if err := r.rootItself(ctx, v); err != nil {
		return err
	}
	return r.compareDir(ctx, v, spot{dir: true})
}

// rootItself compares the top directory, once the log has its base.
func (r *Reader) rootItself(ctx context.Context, v viewDir) error {
	b, err := r.baseAt(v.path)
	if err != nil || b.lost || !r.log.HasRoot() {
		return err
	}
	b.lost = v.mark.Lost
	n, err := r.upperNode(v.up, ".")
	if err != nil {
		return err
	}
	return r.compare(ctx, v.path, entry{node: n, up: true, mark: v.mark, lower: v.lower}, b, spot{dir: true})
}

// compareDir adds the changes below v, whose own state is compared already.
func (r *Reader) compareDir(ctx context.Context, v viewDir, o spot) error {
	list, err := r.namesOf(v, o)
	if errors.Is(err, fs.ErrPermission) {
		return r.unreadable(v)
	}
	if err != nil {
		return fmt.Errorf("list %q: %w", v.path, err)
	}
	for _, name := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.compareName(ctx, v, name, o); err != nil {
			return err
		}
	}
	return nil
}

// unreadable adds, as one whose base is not known, the change of a directory that would have to be
// compared name by name but may not be read.
func (r *Reader) unreadable(v viewDir) error {
	for i := range r.changes {
		if r.changes[i].Path == v.path {
			r.changes[i].UnknownBase = true
			return nil
		}
	}
	n, err := tree.Node{}, error(nil)
	if v.up != nil {
		n, err = r.upperNode(v.up, ".")
	} else if v.lower != nil {
		n, err = r.lowerNode(*v.lower)
	}
	r.changes = append(r.changes, tree.Change{Path: v.path, New: n, UnknownBase: true})
	return err
}

// namesOf returns the names in v that can differ from those at o, sorted.
func (r *Reader) namesOf(v viewDir, o spot) ([]string, error) {
	set := map[string]bool{}
	add := func(list []string, err error) error {
		for _, name := range list {
			set[name] = true
		}
		return err
	}
	if v.up != nil {
		if err := add(names(v.up)); err != nil {
			return nil, err
		}
	}
	if v.lower != nil && *v.lower == o.path {
		for name := range v.mark.White {
			set[name] = true
		}
		return slices.Sorted(maps.Keys(set)), nil
	}
	if v.lower != nil {
		if err := add(r.lowerNames(*v.lower)); err != nil {
			return nil, err
		}
	}
	if o.dir {
		err := add(r.lowerNames(o.path))
		if _, ours := r.cfg.Rebased[o.path]; ours && errors.Is(err, fs.ErrPermission) {
			err = nil // the Job closed it, and what is in it was published with it
		}
		if err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(set)), nil
}

func (r *Reader) compareName(ctx context.Context, v viewDir, name string, o spot) error {
	p, err := v.path.Child(name)
	if err != nil {
		return err
	}
	op, err := o.path.Child(name)
	if err != nil {
		return err
	}
	e, ok, err := r.entry(v, name)
	if err != nil {
		return err
	}
	var b base
	if o.dir {
		if b, err = r.baseAt(op); err != nil {
			return err
		}
	}
	b.lost = b.lost || v.lost || e.mark.Lost
	if !ok {
		return r.remove(op, b)
	}
	if from, whole := r.moves[p]; whole {
		return r.compareMoved(ctx, v, name, e, from)
	}
	if err := r.compare(ctx, p, e, b, spot{path: op, moved: o.moved}); err != nil || e.node.Kind != tree.Dir {
		return err
	}
	c, done, err := r.child(v, name, e)
	if err != nil {
		return err
	}
	defer done()
	return r.compareDir(ctx, c, spot{path: op, dir: b.node.Kind == tree.Dir, moved: o.moved})
}

// compareMoved adds the move of the workspace directory from to name in v, and what changed below.
func (r *Reader) compareMoved(ctx context.Context, v viewDir, name string, e entry, from tree.Path) error {
	c, done, err := r.child(v, name, e)
	if err != nil {
		return err
	}
	defer done()
	if r.published(move{from, c.path}) {
		return r.compareDir(ctx, c, spot{path: c.path, dir: true}) // it is in place now
	}
	b, err := r.baseAt(from)
	if err != nil {
		return err
	}
	r.times[c.path] = dirTimes{b.node.Mtime, e.node.Mtime}
	r.changes = append(r.changes, tree.Change{
		Path: c.path, New: e.node, RenameFrom: &from, Moved: true, TimesSet: e.mark.Times,
	})
	return r.compareDir(ctx, c, spot{path: from, dir: true, moved: true})
}

// remove adds the deletion of what was at workspace path p.
func (r *Reader) remove(p tree.Path, b base) error {
	if b.node.Kind == tree.Absent {
		return nil
	}
	c := tree.Change{Path: p, Base: b.node, UnknownBase: b.lost, SubtreeTime: b.since}
	if b.node.Kind == tree.Dir {
		c.Subtree = true
		if b.since == 0 {
			c.SubtreeTime = b.node.Ctime
		}
	}
	r.changes = append(r.changes, c)
	r.removed[p] = true
	if !c.Subtree || c.UnknownBase {
		return nil
	}
	return r.strayBelow(p)
}

// strayBelow adds the paths below the removed directory p whose own record does not agree with
// what the workspace has: somebody changed them between the Job's change of the path and its
// removal of the directory, which the directory's one instant cannot tell.
func (r *Reader) strayBelow(p tree.Path) error {
	for _, q := range r.basesBelow(p) {
		if _, ok := r.cfg.Rebased[q]; ok {
			continue
		}
		if _, ok, err := r.rebased(q); ok || err != nil {
			continue // undo put it back
		}
		rec := r.log.Bases[q]
		if rec.Lost {
			r.changes = append(r.changes, tree.Change{Path: q, UnknownBase: true})
			continue
		}
		now, err := r.lowerNode(q)
		if errors.Is(err, fs.ErrPermission) {
			continue // in a directory that goes as it is
		}
		if err != nil {
			return err
		}
		if now.Kind == tree.Absent || now.Kind == tree.Dir && rec.Node.Kind == tree.Dir {
			continue
		}
		c := tree.Change{Path: q, Base: ownBase(rec.Node, false, 0).node}
		if c.Judge(now).Verdict == tree.Conflict {
			r.changes = append(r.changes, c)
		}
	}
	return nil
}

// compare adds the change of view path p, if it is one. o.path is where b is the base of.
func (r *Reader) compare(ctx context.Context, p tree.Path, e entry, b base, o spot) error {
	c := tree.Change{Path: p, Base: b.node, New: e.node, TimesSet: e.mark.Times}
	if err := r.digests(ctx, &c, e, o.path); err != nil {
		return err
	}
	same := unchanged(c) || r.isMerged(c, o.path)
	if e.node.Kind == tree.Dir && b.node.Kind == tree.Dir && e.up {
		r.times[p] = dirTimes{b.node.Mtime, e.node.Mtime}
	}
	d := described(c, b, o)
	if !same || e.mark.LostTree { // what is no change now may have been one
		r.changes = append(r.changes, d)
	}
	if e.node.Kind != tree.Dir && (e.node.Nlink > 1 || e.mark.Link != nil) {
		k := inode{e.node.Dev, e.node.Ino}
		r.links[k] = append(r.links[k], member{d, c.Base, same, !e.up, e.mark.Link})
	}
	return nil
}

// described completes c with what the record of its base says.
func described(c tree.Change, b base, o spot) tree.Change {
	switch {
	case b.lost:
		c.UnknownBase = true
	case o.moved:
		if b.node.Kind != tree.Absent {
			c.RenameFrom = &o.path
		}
		c.Base = tree.Node{}
	case b.node.Kind == tree.Dir && c.New.Kind != tree.Dir:
		c.Subtree, c.SubtreeTime = true, b.since
		if b.since == 0 {
			c.SubtreeTime = b.node.Ctime
		}
	case b.node.Kind != tree.Dir:
		c.SubtreeTime = b.since
	}
	return c
}

// unchanged reports whether c leaves its path as it was.
func unchanged(c tree.Change) bool {
	return c.Base.SameMeta(c.New) && c.Base.SameContent(c.New) == tree.Same && !(c.TimesSet && c.Base.Mtime != c.New.Mtime)
}

// isMerged reports whether c is what the Job had at path p when that was published merged.
func (r *Reader) isMerged(c tree.Change, p tree.Path) bool {
	m, ok := r.cfg.Merged[p]
	return ok && m.SameMeta(c.New) && m.SameContent(c.New) == tree.Same
}

// digests fills in the digest of the new file, and of its base where content has to be compared
// and the workspace at op still holds it.
func (r *Reader) digests(ctx context.Context, c *tree.Change, e entry, op tree.Path) error {
	if c.New.Kind != tree.File {
		return nil
	}
	at := place{upper: e.up, path: c.Path}
	if !e.up {
		at.path = *e.lower
	}
	var err error
	if c.New.Digest, err = r.digestAt(ctx, at); err != nil {
		return fmt.Errorf("read staged %q: %w", c.Path, err)
	}
	if c.Base.Kind != tree.File || c.Base.Digest != "" || c.Base.Size != c.New.Size {
		return nil
	}
	if c.Base.Digest, err = r.baseDigest(ctx, c.Base, op); c.Base.Digest != "" || err != nil {
		return err
	}
	// Touched since, or another name of its inode was removed. What is in the workspace already is
	// no change, whoever made it.
	now, err := r.lowerNode(op)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil || !now.SameMeta(c.New) || now.Size != c.New.Size {
		return err
	}
	d, err := r.readLower(ctx, op)
	if d == c.New.Digest {
		c.Base.Digest = d
	}
	return err
}

// baseDigest returns the digest of b, the base of workspace path p, if the workspace still has it.
func (r *Reader) baseDigest(ctx context.Context, b tree.Node, p tree.Path) (tree.Digest, error) {
	now, err := r.lowerNode(p)
	if errors.Is(err, fs.ErrPermission) {
		return "", nil // as in readLower
	}
	if err != nil || !now.SameIdentity(b) {
		return "", err
	}
	return r.readLower(ctx, p)
}

// readLower returns the digest of workspace file p, "" if that cannot be known.
func (r *Reader) readLower(ctx context.Context, p tree.Path) (tree.Digest, error) {
	d, err := r.digestAt(ctx, place{path: p})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return "", nil // gone meanwhile, or never the Job's to read: not known
	}
	if err != nil {
		return "", fmt.Errorf("read %q: %w", p, err)
	}
	return d, nil
}

func (r *Reader) digestAt(ctx context.Context, at place) (tree.Digest, error) {
	root := r.cfg.Lower
	if at.upper {
		root = r.cfg.Upper
	}
	f, err := open(root, at.path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return judge.DigestFile(ctx, f)
}
