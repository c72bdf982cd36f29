package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"stage/fs/hostfs"
	"stage/fs/judge"
	"stage/fs/tree"
)

// engine carries one batch through its phases. What it does to the target is in the ledger before.
type engine struct {
	target hostfs.Dir
	store  hostfs.Dir // the directory of the batch
	source Source     // of an apply
	ledger *ledger
	b      *batch
	point  func(name string)

	links map[int]tree.Path // link group, a name of its inode in the target
	ours  map[uint64]bool   // inodes of the target that the batch itself made or touched
	left  func(tree.Path, tree.Node) bool
	// Copies of files with several names, by the inode of the original: in displaced/ and in the
	// target.
	kept, fetched map[uint64]tree.Path
}

// conflict is a target that turned out not to be what was checked.
type conflict struct {
	path tree.Path
	why  string
}

func (c *conflict) Error() string { return fmt.Sprintf("%q: %s", c.path, c.why) }

// mark names the two points around the durable step f.
func (e *engine) mark(name string, f func() error) error {
	e.point("before " + name)
	if err := f(); err != nil {
		return err
	}
	e.point("after " + name)
	return nil
}

// run does the whole batch, beginning with the plan in the ledger. After an error the target is as before, or Recover makes it so, or
// the batch is published and Recover finishes it.
func (e *engine) run(ctx context.Context) error {
	err := e.mark("planned", func() error { return e.ledger.write(record{Phase: planned, Batch: e.b}) })
	if err != nil {
		return err
	}
	err = e.prepare(ctx)
	if err == nil {
		err = e.doSteps(ctx)
	}
	if err == nil {
		err = e.mark("sync steps", e.sync)
	}
	if err != nil {
		return errors.Join(err, e.rollBack(context.WithoutCancel(ctx)))
	}
	if err := e.commit(); err != nil {
		return err
	}
	if err := e.finish(context.WithoutCancel(ctx)); err != nil {
		return &UnfinishedError{err}
	}
	return nil
}

func (e *engine) commit() error {
	return e.mark("committed", func() error { return e.ledger.write(record{Phase: committed}) })
}

// prepare writes everything new under temporary names, and the ledger's word that all is there.
func (e *engine) prepare(ctx context.Context) error {
	if err := e.mark("unlock", e.unlock); err != nil {
		return err
	}
	for i := range e.b.Steps {
		s := &e.b.Steps[i]
		if !s.fills() {
			continue
		}
		if err := e.mark(fmt.Sprintf("temp %d", i+1), func() error { return e.fill(ctx, s) }); err != nil {
			return fmt.Errorf("prepare %q: %w", s.End, err)
		}
	}
	if err := e.mark("sync temps", e.sync); err != nil {
		return err
	}
	return e.mark("prepared", func() error { return e.ledger.write(record{Phase: prepared, Batch: e.b}) })
}

// unlock opens the directories of the batch for their owner; finish and rollBack close them again.
func (e *engine) unlock() error {
	for _, d := range e.b.Dirs {
		for _, p := range []tree.Path{d.Path, d.Rest} {
			if err := e.unlockAt(p); err != nil {
				return err
			}
			if d.Path == d.Rest {
				break
			}
		}
	}
	return nil
}

func (e *engine) unlockAt(p tree.Path) error {
	n, err := nodeAt(e.target, p)
	if err != nil || n.Kind != tree.Dir {
		return err
	}
	e.ours[n.Ino] = true
	if n.Mode&0o300 == 0o300 || !mayChange(n) {
		return nil
	}
	return within(e.target, p, func(d hostfs.Dir, name string) error { return d.Chmod(name, n.Mode|0o700) })
}

// sync makes the target durable.
func (e *engine) sync() error {
	devs := map[uint64]tree.Path{}
	for _, d := range e.b.Dirs {
		if _, ok := devs[d.Old.Dev]; !ok && d.Old.Kind == tree.Dir {
			devs[d.Old.Dev] = d.Path
		}
	}
	top, err := e.target.Stat(".")
	if err != nil {
		return err
	}
	delete(devs, top.Dev)
	for _, p := range devs {
		if err := e.syncMount(p); err != nil {
			return err
		}
	}
	return e.target.Syncfs()
}

// syncMount syncs the file system of directory p, which is mounted somewhere in the target.
func (e *engine) syncMount(p tree.Path) error {
	n, err := nodeAt(e.target, p)
	if err != nil || n.Kind != tree.Dir {
		return err
	}
	d, err := e.target.OpenDirAt(p, false)
	if err != nil {
		return err
	}
	return errors.Join(d.Syncfs(), d.Close())
}

// fill puts the node of s at its temporary name.
func (e *engine) fill(ctx context.Context, s *step) error {
	err := within(e.target, s.Made, func(d hostfs.Dir, name string) error {
		var err error
		if s.Fetch != 0 {
			err = e.fetch(ctx, s)
		} else {
			err = e.build(ctx, d, name, s.Made, *s.change, s.members)
		}
		if err != nil {
			return err
		}
		n, err := judge.Node(d, name)
		s.In = &n
		e.ours[n.Ino] = true
		return err
	})
	return err
}

// build makes what c and the changes below it, sorted, say at made, which is name in d.
func (e *engine) build(ctx context.Context, d hostfs.Dir, name string, made tree.Path, c tree.Change, below []tree.Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if first, ok := e.links[c.LinkGroup]; ok && c.LinkGroup != 0 {
		return e.linkTo(first, made)
	}
	if err := e.buildNode(ctx, d, name, made, c, below); err != nil {
		return err
	}
	if err := setAttrs(d, name, e.builtAs(c)); err != nil {
		return err
	}
	if err := d.SetMtime(name, c.New.Mtime); err != nil {
		return err
	}
	n, err := d.Stat(name)
	e.ours[n.Ino] = true
	if c.LinkGroup != 0 {
		e.links[c.LinkGroup] = made
	}
	return err
}

// builtAs returns the node c is built as: open, if something is still to be moved into it.
func (e *engine) builtAs(c tree.Change) tree.Node {
	_, found := slices.BinarySearchFunc(e.b.Dirs, c.Path, func(d dir, p tree.Path) int { return d.Path.Compare(p) })
	if found { // a directory that is built has the same path before and after
		return whileOpen(c.New)
	}
	return c.New
}

func (e *engine) linkTo(first, made tree.Path) error {
	n, err := nodeAt(e.target, first)
	if err != nil {
		return err
	}
	e.ours[n.Ino] = true
	return link(e.target, first, made)
}

func (e *engine) buildNode(ctx context.Context, d hostfs.Dir, name string, made tree.Path, c tree.Change, below []tree.Change) error {
	switch c.New.Kind {
	case tree.File:
		return e.buildFile(d, name, c)
	case tree.Dir:
		return e.buildDir(ctx, d, name, made, below)
	default:
		return makeNode(d, name, c.New)
	}
}

func (e *engine) buildFile(d hostfs.Dir, name string, c tree.Change) error {
	in, err := e.source.OpenNew(c.Path)
	if err != nil {
		return err
	}
	defer in.Close()
	return writeFile(d, name, in, func(got tree.Digest) error {
		if got != c.New.Digest {
			return errors.New("staged content changed while it was applied")
		}
		return nil
	})
}

func (e *engine) buildDir(ctx context.Context, d hostfs.Dir, name string, made tree.Path, below []tree.Change) error {
	if err := d.Mkdir(name, 0o700); err != nil {
		return err
	}
	sub, err := d.OpenDir(name)
	if err != nil {
		return err
	}
	defer sub.Close()
	for i := 0; i < len(below); {
		c, j := below[i], i+1
		for j < len(below) && c.Path.Contains(below[j].Path) {
			j++
		}
		q, err := made.Child(c.Path.Base())
		if err != nil {
			return err
		}
		if err := e.build(ctx, sub, c.Path.Base(), q, c, below[i+1:j]); err != nil {
			return fmt.Errorf("prepare %q: %w", c.Path, err)
		}
		i = j
	}
	return nil
}

// finish does what is left once the steps are durable: the displaced nodes leave the target,
// directories get their modes and mtimes back, and the ledger is told what the result is.
func (e *engine) finish(ctx context.Context) error {
	if err := e.mark("reopen", e.unlock); err != nil {
		return err
	}
	cleared := e.clear(ctx)
	r, err := e.result(ctx)
	if err != nil {
		return errors.Join(cleared, fmt.Errorf("look at the result: %w", err))
	}
	err = e.mark("directories", func() error { return e.closeDirs(true, r) })
	if err := errors.Join(cleared, err); err != nil {
		return err
	}
	if err := e.mark("sync result", e.sync); err != nil {
		return err
	}
	return e.mark("done", func() error { return e.ledger.write(*r) })
}

// closeDirs gives the directories of the batch the modes and mtimes they end with: after the steps,
// or as they were before. Children come first: a parent may be closed to its owner then. What they
// become is noted in r, if it is not nil. One that fails does not keep the others open.
func (e *engine) closeDirs(after bool, r *record) error {
	var errs []error
	for i := len(e.b.Dirs) - 1; i >= 0; i-- {
		d := e.b.Dirs[i]
		p, mode, mtime := d.Path, d.Old.Mode, d.Old.Mtime
		if after {
			p, mode, mtime = d.Rest, d.Mode, d.Mtime
		}
		if after && d.Gone || !after && d.Old.Kind != tree.Dir {
			continue
		}
		err := e.closeDir(p, d.Old, mode, mtime)
		if err == nil && r != nil {
			err = e.noteDir(r, p)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("set mode and mtime of %q: %w", p, err))
		}
	}
	if r != nil {
		r.settle()
	}
	return errors.Join(errs...)
}

// noteDir looks at directory p again, after it was closed.
func (e *engine) noteDir(r *record, p tree.Path) error {
	n, err := nodeAt(e.target, p)
	r.Until = max(r.Until, n.Ctime)
	for _, list := range [][]published{r.Base, r.Dirs} {
		for i := range list {
			if list[i].Path == p {
				list[i].Node = n
			}
		}
	}
	return err
}

// settle makes directories as late as the end of the batch: what lies below one is part of it.
func (r *record) settle() {
	for i := range r.Base {
		if n := &r.Base[i].Node; n.Kind == tree.Dir {
			n.Ctime = r.Until
		}
	}
}

func (e *engine) closeDir(p tree.Path, old tree.Node, mode tree.Mode, mtime tree.Time) error {
	n, err := nodeAt(e.target, p)
	if err != nil || n.Kind != tree.Dir || old.Kind == tree.Dir && n.Ino != old.Ino {
		return err
	}
	if !mayChange(n) {
		return nil // its mode is what it was, and nobody set its time: judge refuses what would need that
	}
	return within(e.target, p, func(d hostfs.Dir, name string) error {
		if n.Mode != mode {
			if err := d.Chmod(name, mode); err != nil {
				return err
			}
		}
		if mtime == 0 || n.Mtime == mtime {
			return nil
		}
		return d.SetMtime(name, mtime)
	})
}

// result looks at every path of the batch as it is now.
func (e *engine) result(ctx context.Context) (*record, error) {
	r := &record{Phase: done}
	add := func(list []published, p published) ([]published, error) {
		n, err := nodeAt(e.target, p.Path)
		if n.Kind == tree.File {
			n.Digest = p.Node.Digest
		}
		r.Until = max(r.Until, n.Ctime)
		p.Node = n
		return append(list, p), err
	}
	var err error
	for _, b := range e.b.Base {
		if r.Base, err = add(r.Base, b); err != nil {
			return r, err
		}
	}
	for _, d := range e.b.Dirs {
		if d.Gone {
			continue
		}
		if r.Dirs, err = add(r.Dirs, published{Path: d.Rest}); err != nil {
			return r, err
		}
	}
	return r, e.otherNames(ctx, r)
}

// otherNames adds to the new bases all names of inodes that got or lost one in the batch: that
// changed their ctime, and nothing else.
func (e *engine) otherNames(ctx context.Context, r *record) error {
	wanted := e.severalNames()
	if len(wanted) == 0 {
		return nil
	}
	known := map[tree.Path]bool{}
	for _, b := range r.Base {
		known[b.Path] = true
	}
	return judge.Names(ctx, e.target, func(ino uint64) bool { return wanted[ino] }, func(p tree.Path, _ tree.Node) (bool, error) {
		if known[p] {
			return true, nil
		}
		n, err := nodeAt(e.target, p)
		r.Until = max(r.Until, n.Ctime)
		r.Base = append(r.Base, published{Path: p, Node: n})
		return true, err
	})
}

// severalNames returns the inodes with several names that the steps touched.
func (e *engine) severalNames() map[uint64]bool {
	inodes := map[uint64]bool{}
	for _, n := range e.b.Linked {
		inodes[n.Ino] = true
	}
	for i := range e.b.Steps {
		for _, n := range []*tree.Node{e.b.Steps[i].In, e.b.Steps[i].Out} {
			if n != nil && n.Nlink > 1 && n.Kind != tree.Dir {
				inodes[n.Ino] = true
			}
		}
	}
	return inodes
}
