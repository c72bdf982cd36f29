package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"stage/fs/hostfs"
	"stage/fs/judge"
	"stage/fs/tree"
)

// doSteps does all steps in order. Each looks at what came out and puts it back if it is not what
// was checked before.
func (e *engine) doSteps(ctx context.Context) error {
	for i := range e.b.Steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		s := &e.b.Steps[i]
		if err := e.mark(fmt.Sprintf("%s %d", s.Act, i+1), func() error { return e.do(ctx, s) }); err != nil {
			return fmt.Errorf("publish %q: %w", s.End, err)
		}
	}
	return nil
}

func (e *engine) do(ctx context.Context, s *step) error {
	switch s.Act {
	case place:
		return e.rename(s.Temp, s.Path, hostfs.NoReplace, "created in the workspace meanwhile")
	case swap:
		return e.exchange(ctx, s)
	case away:
		return e.takeAway(ctx, s, s.Path, s.Temp)
	case move:
		return e.takeAway(ctx, s, s.From, s.Path)
	case meta:
		return e.setMeta(s)
	default:
		return fmt.Errorf("unknown step %q", s.Act)
	}
}

// rename is renameat2 between two paths of the target. What is missing or in the way is a conflict.
func (e *engine) rename(from, to tree.Path, flags uint, why string) error {
	err := within(e.target, from, func(src hostfs.Dir, old string) error {
		return within(e.target, to, func(dst hostfs.Dir, name string) error {
			return src.Rename(old, dst, name, flags)
		})
	})
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return &conflict{to, why}
	}
	return err
}

func (e *engine) exchange(ctx context.Context, s *step) error {
	if err := e.rename(s.Temp, s.Path, hostfs.Exchange, "deleted in the workspace meanwhile"); err != nil {
		return err
	}
	return e.verify(ctx, s, s.Temp, func() error {
		return e.rename(s.Temp, s.Path, hostfs.Exchange, "deleted in the workspace meanwhile")
	})
}

func (e *engine) takeAway(ctx context.Context, s *step, from, to tree.Path) error {
	if err := e.rename(from, to, hostfs.NoReplace, "changed in the workspace meanwhile"); err != nil {
		return err
	}
	return e.verify(ctx, s, to, func() error {
		return e.rename(to, from, hostfs.NoReplace, "created in the workspace meanwhile")
	})
}

// verify looks at what came out at p. If it is not s.Out it calls back, which puts it back.
func (e *engine) verify(ctx context.Context, s *step, p tree.Path, back func() error) error {
	why, err := e.cameOut(ctx, s, p)
	if err == nil && why == "" {
		e.ours[s.Out.Ino] = true
		return nil
	}
	if err == nil {
		err = &conflict{s.End, why}
	}
	return errors.Join(err, back())
}

// cameOut returns why the node at p is not s.Out, "" if it is.
func (e *engine) cameOut(ctx context.Context, s *step, p tree.Path) (why string, err error) {
	err = within(e.target, p, func(d hostfs.Dir, name string) error {
		n, err := judge.Node(d, name)
		if err != nil {
			return err
		}
		if !e.isOut(n, s) {
			why = "changed in the workspace meanwhile"
			return nil
		}
		if n.Kind != tree.Dir || s.Since == 0 {
			return nil
		}
		why, err = e.laterBelow(ctx, d, name, s)
		return err
	})
	return why, err
}

// isOut reports whether n is s.Out. The mode of a directory of the batch may have been opened.
func (e *engine) isOut(n tree.Node, s *step) bool {
	if n.Kind == tree.Dir && e.ours[n.Ino] {
		n.Mode = s.Out.Mode
	}
	return unchanged(n, *s.Out)
}

func (e *engine) laterBelow(ctx context.Context, d hostfs.Dir, name string, s *step) (string, error) {
	sub, err := d.OpenDir(name)
	if errors.Is(err, fs.ErrPermission) {
		return "", nil // as in judge.Later
	}
	if err != nil {
		return "", err
	}
	defer sub.Close()
	late, ok, err := judge.Later(ctx, sub, s.Known, s.Since, func(p tree.Path, n tree.Node) bool { return e.ours[n.Ino] || e.left(p, n) })
	if err != nil || !ok {
		return "", err
	}
	return fmt.Sprintf("%q changed in the workspace meanwhile", late), nil
}

func (e *engine) setMeta(s *step) error {
	return within(e.target, s.Path, func(d hostfs.Dir, name string) error {
		n, err := judge.Node(d, name)
		if err != nil {
			return err
		}
		if n.Kind == tree.Dir && e.ours[n.Ino] {
			n.Mode = s.Out.Mode
		}
		if !unchanged(n, *s.Out) && !metaDone(n, s) {
			return &conflict{s.End, "changed in the workspace meanwhile"}
		}
		return writeMeta(d, name, *s.New)
	})
}

// writeMeta gives name the attributes of n and, unless it is a directory, its mtime: those of
// directories are set when nothing in them changes any more.
func writeMeta(d hostfs.Dir, name string, n tree.Node) error {
	if err := setAttrs(d, name, n); err != nil || n.Kind == tree.Dir {
		return err
	}
	return d.SetMtime(name, n.Mtime)
}

// metaDone reports whether n is what the meta step s makes.
func metaDone(n tree.Node, s *step) bool {
	return n.Ino == s.Out.Ino && n.SameMeta(*s.New) && (n.Kind == tree.Dir || n.Mtime == s.New.Mtime)
}

// clear takes the displaced nodes out of the target. Those an apply displaced are kept with the
// batch for undo; those an undo displaced are what the apply published, and go. One that fails does
// not keep the others.
func (e *engine) clear(ctx context.Context) error {
	var errs []error
	for i := range e.b.Steps {
		s := &e.b.Steps[i]
		if !s.displaces() {
			continue
		}
		if err := e.mark(fmt.Sprintf("displace %d", i+1), func() error { return e.displace(ctx, s, i+1) }); err != nil {
			errs = append(errs, fmt.Errorf("keep the original of %q: %w", s.End, err))
		}
	}
	if !e.b.Undo || len(errs) > 0 {
		return errors.Join(errs...)
	}
	return e.mark("forget copies", e.forgetCopies)
}

func (e *engine) displace(ctx context.Context, s *step, n int) error {
	if e.b.Undo {
		return within(e.target, s.Rest, removeTree)
	}
	return e.keep(ctx, s.Rest, n)
}

// keep moves what is at p in the target to displaced/<n>.
func (e *engine) keep(ctx context.Context, p tree.Path, n int) error {
	if now, err := nodeAt(e.target, p); err != nil || now.Kind == tree.Absent {
		return err // kept before an interruption
	}
	if err := e.store.Mkdir(displacedName, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	kept, err := e.store.OpenDir(displacedName)
	if err != nil {
		return err
	}
	defer kept.Close()
	return within(e.target, p, func(d hostfs.Dir, name string) error {
		c := &copier{root: kept, links: e.kept, made: map[uint64]bool{}}
		return c.transfer(ctx, d, name, displacedAt(n))
	})
}

func displacedAt(n int) string { return fmt.Sprint(n) }

// transfer moves name in src to to in c.root: by a rename, or to another file system by a copy
// that is durable and in its place before the original is removed.
func (c *copier) transfer(ctx context.Context, src hostfs.Dir, name, to string) error {
	if _, err := c.root.Stat(to); err == nil {
		return removeTree(src, name) // copied before an interruption
	}
	if err := renameOut(src, name, c.root, to); !errors.Is(err, hostfs.ErrCrossDevice) {
		return err
	}
	if err := c.copyDurably(ctx, src, name, to); err != nil {
		return err
	}
	return removeTree(src, name)
}

// copyDurably copies under a partial name first: what has its final name is complete.
func (c *copier) copyDurably(ctx context.Context, src hostfs.Dir, name, to string) error {
	part, err := tree.ParsePath(to + ".part")
	if err != nil {
		return err
	}
	final, err := tree.ParsePath(to)
	if err != nil {
		return err
	}
	if err := removeTree(c.root, part.String()); err != nil {
		return err
	}
	if err := c.copy(ctx, src, name, part); err != nil {
		return err
	}
	if err := c.root.Syncfs(); err != nil {
		return err
	}
	if err := c.root.Rename(part.String(), c.root, to, hostfs.NoReplace); err != nil {
		return err
	}
	for ino, p := range c.links {
		if part.Contains(p) {
			c.links[ino] = p.Rebase(part, final)
		}
	}
	return c.root.Syncfs()
}

// renameOut renames name into another directory. A directory needs write permission on itself for
// that, to have its ".." changed (rename(2), EACCES).
func renameOut(src hostfs.Dir, name string, dst hostfs.Dir, to string) error {
	n, err := src.Stat(name)
	if err != nil {
		return err
	}
	if n.Kind != tree.Dir || n.Mode&0o200 != 0 {
		return src.Rename(name, dst, to, hostfs.NoReplace)
	}
	if err := src.Chmod(name, n.Mode|0o200); err != nil {
		return err
	}
	if err := src.Rename(name, dst, to, hostfs.NoReplace); err != nil {
		return errors.Join(err, src.Chmod(name, n.Mode))
	}
	return dst.Chmod(to, n.Mode)
}

// fetch puts displaced/<Fetch> at the temporary name of s. A copy leaves the original until the
// undo is done.
func (e *engine) fetch(ctx context.Context, s *step) error {
	kept, err := e.store.OpenDir(displacedName)
	if err != nil {
		return err
	}
	defer kept.Close()
	name := displacedAt(s.Fetch)
	return within(e.target, s.Made, func(d hostfs.Dir, to string) error {
		err := renameOut(kept, name, d, to)
		if err == nil {
			return refit(d, to, *s.New)
		}
		if !errors.Is(err, hostfs.ErrCrossDevice) {
			return err
		}
		c := &copier{root: e.target, links: e.fetched, made: e.ours}
		return c.copy(ctx, kept, name, s.Made)
	})
}

// refit gives a fetched directory the mode it had in the target: it may have been opened to be
// moved.
func refit(d hostfs.Dir, name string, want tree.Node) error {
	n, err := d.Stat(name)
	if err != nil || want.Kind != tree.Dir || n.Mode == want.Mode {
		return err
	}
	return d.Chmod(name, want.Mode)
}

// forgetCopies removes the kept originals that an undo copied back.
func (e *engine) forgetCopies() error {
	kept, err := e.store.OpenDir(displacedName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer kept.Close()
	for i := range e.b.Steps {
		if n := e.b.Steps[i].Fetch; n != 0 {
			if err := removeTree(kept, displacedAt(n)); err != nil {
				return err
			}
		}
	}
	return nil
}
