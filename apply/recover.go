package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"stage/fs/hostfs"
	"stage/fs/judge"
	"stage/fs/tree"
	"stage/journal"
)

// RecoverResult is what Recover did.
type RecoverResult string

// The results of Recover.
const (
	RecoveredNothing RecoverResult = ""            // the batch was finished or never began
	RolledBack       RecoverResult = "rolled_back" // the target is as before the batch
	RolledForward    RecoverResult = "finished"    // the batch is published
)

// Recover finishes or undoes what a killed apply or undo left behind in target; batch is its
// directory. It may be called any number of times. It takes the lock of target. With an
// *UnfinishedError the batch is published, or undone, but something is still left to do.
func Recover(ctx context.Context, target, batch hostfs.Dir) (RecoverResult, error) {
	unlock, err := lock(target)
	if err != nil {
		return RecoveredNothing, err
	}
	defer unlock()
	return recoverBatch(ctx, target, batch, func(string) {})
}

// recoverBatch is Recover under the lock.
func recoverBatch(ctx context.Context, target, store hostfs.Dir, point func(string)) (RecoverResult, error) {
	if needed, err := NeedsRecovery(store); err == nil && !needed {
		return RecoveredNothing, nil
	}
	l, err := openLedger(store, false)
	if errors.Is(err, journal.ErrCorrupt) {
		return RecoveredNothing, &RecoveryNeededError{Why: err.Error()}
	}
	if err != nil || l == nil {
		return RecoveredNothing, err
	}
	e := newEngine(target, store, l, l.story.batch, point)
	res, err := e.recover(ctx)
	return res, errors.Join(err, l.close())
}

func newEngine(target, store hostfs.Dir, l *ledger, b *batch, point func(string)) *engine {
	if point == nil {
		point = func(string) {}
	}
	return &engine{
		target: target, store: store, ledger: l, b: b, point: point,
		links: map[int]tree.Path{}, ours: map[uint64]bool{}, left: func(tree.Path, tree.Node) bool { return false },
		kept: map[uint64]tree.Path{}, fetched: map[uint64]tree.Path{},
	}
}

func (e *engine) recover(ctx context.Context) (RecoverResult, error) {
	if !e.ledger.story.active() {
		return RecoveredNothing, nil
	}
	forward := e.ledger.story.phase == committed
	if e.ledger.story.phase == prepared {
		all, err := e.allDone()
		if err != nil {
			return RecoveredNothing, err
		}
		forward = all
	}
	if !forward {
		return RolledBack, e.rollBack(ctx)
	}
	if e.ledger.story.phase == prepared {
		if err := e.mark("sync steps", e.sync); err != nil {
			return RecoveredNothing, err
		}
		if err := e.commit(); err != nil {
			return RecoveredNothing, err
		}
	}
	if err := e.finish(ctx); err != nil {
		return RolledForward, &UnfinishedError{err}
	}
	return RolledForward, nil
}

// allDone reports whether every step has been done.
func (e *engine) allDone() (bool, error) {
	for i := range e.b.Steps {
		ok, err := e.stepDone(&e.b.Steps[i])
		if !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// stepDone tells from inode numbers whether s is done, given that all other steps are.
func (e *engine) stepDone(s *step) (bool, error) {
	at, err := nodeAt(e.target, s.End)
	if err != nil {
		return false, err
	}
	switch s.Act {
	case place:
		return at.Kind == s.In.Kind && at.Ino == s.In.Ino, nil
	case move:
		return at.Kind == s.Out.Kind && at.Ino == s.Out.Ino, nil
	case meta:
		return metaDone(at, s), nil
	case swap, away:
		temp, err := nodeAt(e.target, s.Rest)
		return temp.Kind == s.Out.Kind && temp.Ino == s.Out.Ino, err
	default:
		return false, fmt.Errorf("unknown step %q", s.Act)
	}
}

// rollBack makes the target what it was before the batch. It may be interrupted and begun again.
func (e *engine) rollBack(ctx context.Context) error {
	if err := e.unlock(); err != nil {
		return err
	}
	for i := len(e.b.Steps) - 1; i >= 0 && e.ledger.story.phase != planned; i-- {
		s := &e.b.Steps[i]
		if err := e.mark(fmt.Sprintf("take back %d", i+1), func() error { return e.takeBack(s) }); err != nil {
			return fmt.Errorf("take back %q: %w", s.End, err)
		}
	}
	for i := range e.b.Steps {
		s := &e.b.Steps[i]
		if !s.fills() {
			continue
		}
		if err := e.mark(fmt.Sprintf("clean %d", i+1), func() error { return e.clean(ctx, s) }); err != nil {
			return fmt.Errorf("remove temporary file of %q: %w", s.End, err)
		}
	}
	if err := e.mark("old directories", func() error { return e.closeDirs(false, nil) }); err != nil {
		return err
	}
	if err := e.mark("sync old", e.sync); err != nil {
		return err
	}
	r, err := e.unharmed(ctx)
	if err != nil {
		return fmt.Errorf("look at the old tree: %w", err)
	}
	return e.mark("rolled back", func() error { return e.ledger.write(r) })
}

// unharmed looks at what the batch touched and put back. Only ctimes differ; where they do, the
// path has a new base that says so. What differs in more is somebody else's and has none.
func (e *engine) unharmed(ctx context.Context) (record, error) {
	r := record{Phase: rolledBack}
	known := map[tree.Path]bool{}
	add := func(p tree.Path, before tree.Node) error {
		now, err := nodeAt(e.target, p)
		if err == nil && unchanged(now, before) && !known[p] {
			known[p], now.Digest = true, before.Digest
			r.Base = append(r.Base, published{Path: p, Node: now})
		}
		return err
	}
	shared := map[uint64]tree.Node{}
	for _, n := range e.b.Linked {
		shared[n.Ino] = n
	}
	for i := range e.b.Steps {
		s := &e.b.Steps[i]
		if s.Out == nil {
			continue
		}
		if s.Out.Nlink > 1 && s.Out.Kind != tree.Dir {
			shared[s.Out.Ino] = *s.Out
		}
		if err := add(s.Known, *s.Out); err != nil {
			return r, err
		}
	}
	for _, d := range e.b.Dirs {
		now, err := nodeAt(e.target, d.Path)
		if err != nil {
			return r, err
		}
		if !unchanged(now, d.Old) {
			continue
		}
		r.Dirs = append(r.Dirs, published{Path: d.Path, Node: now})
		if d.Covered {
			err = add(d.Path, d.Old)
		}
		if err != nil {
			return r, err
		}
	}
	if len(shared) == 0 {
		return r, nil
	}
	wanted := func(ino uint64) bool { return shared[ino].Ino == ino }
	return r, judge.Names(ctx, e.target, wanted, func(p tree.Path, n tree.Node) (bool, error) { return true, add(p, shared[n.Ino]) })
}

// clean removes what is at the temporary name of s, or gives a fetched original back.
func (e *engine) clean(ctx context.Context, s *step) error {
	if s.Fetch != 0 {
		return e.keep(ctx, s.Made, s.Fetch)
	}
	n, err := nodeAt(e.target, s.Made)
	if err != nil || n.Kind == tree.Absent {
		return err
	}
	return within(e.target, s.Made, removeTree)
}

// takeBack reverts s if it was done, which inode numbers tell. Nothing that somebody else put there
// is touched: where it stands in the way, a person has to look.
func (e *engine) takeBack(s *step) error {
	switch s.Act {
	case place:
		return e.takeBackPlace(s)
	case swap:
		return e.takeBackSwap(s)
	case away:
		return e.takeBackRename(s, s.Temp, s.Path)
	case move:
		return e.takeBackRename(s, s.Path, s.From)
	case meta:
		return e.takeBackMeta(s)
	default:
		return fmt.Errorf("unknown step %q", s.Act)
	}
}

func (e *engine) takeBackPlace(s *step) error {
	if s.In == nil {
		return nil // the batch was never prepared
	}
	n, err := nodeAt(e.target, s.Path)
	if err != nil || n.Kind != s.In.Kind || n.Ino != s.In.Ino {
		return err
	}
	if err := e.stillOurs(s, s.Path); err != nil {
		return err
	}
	return e.back(s.Path, s.Temp, hostfs.NoReplace)
}

func (e *engine) takeBackSwap(s *step) error {
	if s.In == nil {
		return nil
	}
	temp, err := nodeAt(e.target, s.Temp)
	if err != nil || temp.Kind != s.Out.Kind || temp.Ino != s.Out.Ino {
		return err
	}
	n, err := nodeAt(e.target, s.Path)
	switch {
	case err != nil:
		return err
	case n.Kind == tree.Absent:
		return e.back(s.Temp, s.Path, hostfs.NoReplace)
	case n.Kind != s.In.Kind || n.Ino != s.In.Ino:
		return &RecoveryNeededError{Path: s.Path, Why: fmt.Sprintf("replaced since; the original is at %q", s.Temp)}
	}
	if err := e.stillOurs(s, s.Path); err != nil {
		return err
	}
	return e.back(s.Temp, s.Path, hostfs.Exchange)
}

// takeBackRename renames s.Out from where a step brought it back to where it was.
func (e *engine) takeBackRename(s *step, from, to tree.Path) error {
	n, err := nodeAt(e.target, from)
	if err != nil || n.Kind != s.Out.Kind || n.Ino != s.Out.Ino {
		return err
	}
	return e.back(from, to, hostfs.NoReplace)
}

func (e *engine) back(from, to tree.Path, flags uint) error {
	err := e.rename(from, to, flags, fmt.Sprintf("in the way of the original, which is at %q", from))
	if c := new(conflict); errors.As(err, &c) {
		return &RecoveryNeededError{Path: c.path, Why: c.why}
	}
	return err
}

// whileOpen returns n, if it is a directory with its owner's permissions: what it ends with is set
// when nothing in it changes any more.
func whileOpen(n tree.Node) tree.Node {
	if n.Kind == tree.Dir {
		n.Mode |= 0o700
	}
	return n
}

func (e *engine) takeBackMeta(s *step) error {
	return ignoreAbsent(within(e.target, s.Path, func(d hostfs.Dir, name string) error {
		n, err := judge.Node(d, name)
		if err != nil || n.Ino != s.Out.Ino || n.Kind != s.Out.Kind {
			return err
		}
		old := whileOpen(*s.Out)
		if n.Mtime != s.New.Mtime { // not set by the batch, or by somebody else after it
			old.Mtime = n.Mtime
		}
		if n.SameMeta(old) && n.Mtime == old.Mtime || !between(n, *s.Out, *s.New) {
			return nil
		}
		return writeMeta(d, name, old)
	}))
}

// between reports whether every attribute of n is that of a or of b: what a change from a to b that
// was cut short leaves. Anything else somebody else has set.
func between(n, a, b tree.Node) bool {
	owned := (n.UID == a.UID || n.UID == b.UID) && (n.GID == a.GID || n.GID == b.GID)
	// A chown takes setuid and setgid away, and write permission may have been added for a while.
	const passing = 0o6200
	moded := n.Mode == a.Mode || n.Mode == b.Mode || n.Mode&^passing == a.Mode&^passing || n.Mode|0o700 == a.Mode|0o700
	return owned && moded && mixed(n.Xattrs, a.Xattrs, b.Xattrs)
}

// mixed reports whether x has each attribute as a or as b has it, or lacks it as one of them does.
func mixed(x, a, b tree.Xattrs) bool {
	for _, names := range []tree.Xattrs{x, a, b} {
		for name := range names {
			if !alike(name, x, a) && !alike(name, x, b) {
				return false
			}
		}
	}
	return true
}

func alike(name string, x, y tree.Xattrs) bool {
	v, inX := x[name]
	w, inY := y[name]
	return inX == inY && string(v) == string(w)
}

// ignoreAbsent makes nothing of a missing file: what is not there cannot be taken back.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// stillOurs makes sure that what the batch put at p is as it was put there, so that taking it away
// loses nobody's bytes. What an undo put there is only moved back, and needs no look.
func (e *engine) stillOurs(s *step, p tree.Path) error {
	if s.Fetch != 0 {
		return nil
	}
	want := map[tree.Path]tree.Node{}
	for _, b := range e.b.Base {
		want[b.Path] = b.Node
	}
	return within(e.target, p, func(d hostfs.Dir, name string) error { return sameTree(d, name, p, s.End, want) })
}

// sameTree compares name in d, the path p of the target, with want, which has it as path view.
func sameTree(d hostfs.Dir, name string, p, view tree.Path, want map[tree.Path]tree.Node) error {
	n, err := d.Stat(name)
	if err != nil {
		return err
	}
	w, ok := want[view]
	if !ok || n.Kind != w.Kind || n.Kind != tree.Dir && (n.Size != w.Size || n.Mtime != w.Mtime) {
		return &RecoveryNeededError{Path: p, Why: "changed after it was published"}
	}
	if n.Kind != tree.Dir {
		return nil
	}
	sub, err := d.OpenDir(name)
	if errors.Is(err, fs.ErrPermission) {
		return nil // made closed by the Job, and closed since
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	entries, err := sub.ReadDir()
	if err != nil {
		return err
	}
	for _, x := range entries {
		q, err := p.Child(x.Name)
		if err != nil {
			return err
		}
		if err := sameTree(sub, x.Name, q, q.Rebase(p, view), want); err != nil {
			return err
		}
	}
	return nil
}
