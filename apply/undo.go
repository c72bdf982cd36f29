package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"stage/fs/hostfs"
	"stage/fs/judge"
	"stage/fs/tree"
)

// UndoOptions is what Undo works on.
type UndoOptions struct {
	Job     string
	Target  hostfs.Dir
	Batch   hostfs.Dir // the batch to revert
	Pending []hostfs.Dir
	// Later are the batches of the same Job that came after Batch, oldest first. What they, or
	// their undo, left behind is not somebody else's change.
	Later []hostfs.Reader
	// KeepGoing leaves out what changed since instead of refusing all, and what is in one git
	// directory with it.
	KeepGoing bool
	// Alike is asked about a file that has not the content the batch left, if OpenPublished opens
	// that; if it says yes, the file counts as unchanged. OpenPublished opens what the Job staged at a
	// path; its digest tells whether that is what the batch published. Both may be nil.
	Alike         func(p tree.Path, a, b func() (hostfs.File, error)) (bool, error)
	OpenPublished func(p tree.Path) (hostfs.File, error)
	Point         func(name string)
}

// ErrNotPublished is the cause when there is nothing to undo: the batch published nothing, or was
// undone already.
var ErrNotPublished = errors.New("batch is not published")

// Undo reverts a published batch where the target is still as the batch left it.
func Undo(ctx context.Context, o UndoOptions) (*Result, error) {
	r := &Result{Outcome: Nothing}
	unlock, err := lock(o.Target)
	if err != nil {
		return r, err
	}
	defer unlock()
	if err := recoverAll(ctx, o.Target, append(slices.Clone(o.Pending), o.Batch), o.Point, r); err != nil {
		return r, err
	}
	l, err := openLedger(o.Batch, false)
	if err != nil {
		return r, err
	}
	if l == nil {
		return r, ErrNotPublished
	}
	return r, errors.Join(o.undo(ctx, l, r), l.close())
}

func (o *UndoOptions) undo(ctx context.Context, l *ledger, r *Result) error {
	if l.story.state() != BatchPublished {
		return ErrNotPublished
	}
	u := &reversal{o: o, story: &l.story, now: map[tree.Path]tree.Node{}, after: map[tree.Path]tree.Node{}, skip: map[int]string{}}
	for _, p := range l.story.base {
		u.now[p.Path] = p.Node
	}
	if err := u.readLater(); err != nil {
		return err
	}
	if err := u.check(ctx, r); err != nil {
		return err
	}
	b := u.batch()
	if len(b.Steps) == 0 {
		return nil
	}
	e := newEngine(o.Target, o.Batch, l, b, o.Point)
	e.left = u.left
	r.Wrote, r.Outcome = true, Published
	return r.refused(e.run(ctx))
}

// reversal turns a finished batch round.
type reversal struct {
	o     *UndoOptions
	story *story
	now   map[tree.Path]tree.Node // what the batch left
	after map[tree.Path]tree.Node // what it or a later batch left last
	skip  map[int]string          // steps that are not reverted, and why
	found map[int]tree.Node       // what the target has now at the End of a step
}

// readLater notes what the batch and later ones left.
func (u *reversal) readLater() error {
	for _, p := range append(slices.Clone(u.story.base), u.story.dirs...) {
		u.after[p.Path] = p.Node
	}
	for _, b := range u.o.Later {
		s, err := readStory(b)
		if err != nil {
			return fmt.Errorf("read a later batch: %w", err)
		}
		for _, p := range append(slices.Clone(s.base), s.dirs...) {
			u.after[p.Path] = p.Node
		}
	}
	return nil
}

// left reports whether n at p is what a batch left there.
func (u *reversal) left(p tree.Path, n tree.Node) bool {
	left, ok := u.after[p]
	if n.Kind == tree.Dir && ok { // base has no ctime of directories
		return left.Kind == tree.Dir && left.Ino == n.Ino && n.Ctime <= max(left.Ctime, u.story.until)
	}
	return ok && left.SameIdentity(n)
}

// check compares what the batch left with what the target has now.
func (u *reversal) check(ctx context.Context, r *Result) error {
	u.found = map[int]tree.Node{}
	steps := u.story.finished.Steps
	for i := range steps {
		why, err := u.checkStep(ctx, i)
		if err != nil {
			return fmt.Errorf("compare %q with the workspace: %w", steps[i].End, err)
		}
		if why != "" {
			u.skip[i] = why
		}
	}
	u.spread()
	var bad []PathResult
	for i := range steps {
		pr := PathResult{Path: steps[i].End, Verdict: tree.Clean, Base: u.now[steps[i].End], Found: u.found[i]}
		if why, skipped := u.skip[i]; skipped {
			pr.Verdict, pr.Why = tree.Conflict, why
			bad = append(bad, pr)
		}
		r.Paths = append(r.Paths, pr)
	}
	slices.SortStableFunc(r.Paths, func(a, b PathResult) int { return a.Path.Compare(b.Path) })
	if len(bad) > 0 && (!u.o.KeepGoing || len(bad) == len(steps)) {
		r.Outcome = Conflicts
		return &ConflictError{bad}
	}
	return nil
}

// gone is why what is not there any more cannot be reverted.
const gone = "deleted in the workspace since"

// checkStep returns why step i cannot be reverted, "" if it can.
func (u *reversal) checkStep(ctx context.Context, i int) (string, error) {
	s := &u.story.finished.Steps[i]
	n, parent, _, err := judge.Look(u.o.Target, s.End)
	if err != nil {
		return "", err
	}
	u.found[i] = n
	if parent.Kind != tree.Dir {
		return "its directory is gone", nil
	}
	switch s.Act {
	case away:
		if n.Kind != tree.Absent {
			return "created in the workspace since", nil
		}
		return "", nil
	case meta:
		return u.checkMeta(s, n), nil
	case move:
		return u.checkMove(ctx, s, n)
	case place, swap:
		return u.checkNew(ctx, s, n)
	default:
		return "", fmt.Errorf("unknown step %q", s.Act)
	}
}

func (u *reversal) checkMeta(s *step, n tree.Node) string {
	left := u.now[s.End]
	if n.Kind == tree.Absent {
		return gone
	}
	if n.Ino != left.Ino || !n.SameMeta(left) || n.Kind != tree.Dir && (n.Mtime != left.Mtime || n.Size != left.Size) {
		return "changed in the workspace since"
	}
	return ""
}

func (u *reversal) checkMove(ctx context.Context, s *step, n tree.Node) (string, error) {
	if n.Kind == tree.Absent {
		return gone, nil
	}
	if n.Kind != tree.Dir || n.Ino != s.Out.Ino {
		return "moved or replaced in the workspace since", nil
	}
	src, err := nodeAt(u.o.Target, s.From)
	if err != nil || src.Kind != tree.Absent {
		return fmt.Sprintf("%s was created in the workspace since", quote(s.From)), err
	}
	return u.later(ctx, s.End)
}

func (u *reversal) later(ctx context.Context, p tree.Path) (string, error) {
	d, err := u.o.Target.OpenDirAt(p, false)
	if errors.Is(err, fs.ErrPermission) {
		return "", nil // as in judge.Later
	}
	if err != nil {
		return "", err
	}
	defer d.Close()
	late, ok, err := judge.Later(ctx, d, p, u.story.until, u.left)
	if err != nil || !ok {
		return "", err
	}
	return quote(late) + " changed in the workspace since", nil
}

// checkNew compares what a place or swap brought with what is there now, and if it is a directory
// everything below: a name the batch does not know is somebody else's.
func (u *reversal) checkNew(ctx context.Context, s *step, n tree.Node) (string, error) {
	left := u.now[s.End]
	if !n.SameIdentity(left) && !u.left(s.End, n) && !(n.Kind == tree.Dir && n.Ino == left.Ino && n.SameMeta(left)) {
		return u.alike(ctx, s.End, n, left)
	}
	if n.Kind != tree.Dir {
		return "", nil
	}
	why, err := u.checkBelow(ctx, s.End)
	if !errors.Is(err, fs.ErrPermission) {
		if why == "" && err == nil {
			u.after[s.End] = n // every name in it was looked at
		}
		return why, err
	}
	if u.left(s.End, n) {
		return "", nil // closed as the batch left it: nobody made or removed a name in it
	}
	return "cannot be looked into: permission denied", nil
}

// alike reports why n is not what the batch left at p, though it may have been touched since.
func (u *reversal) alike(ctx context.Context, p tree.Path, n, left tree.Node) (string, error) {
	if n.Kind == tree.Absent {
		return gone, nil
	}
	c := tree.Change{Path: p, Base: left}
	j := c.Judge(n)
	if j.NeedDigest {
		err := within(u.o.Target, p, func(d hostfs.Dir, name string) (err error) {
			n.Digest, err = judge.Digest(ctx, d, name)
			return err
		})
		if err != nil {
			return "", err
		}
		j = c.Judge(n)
	}
	if j.Why == "" {
		return "", nil
	}
	same, err := u.sameMeaning(ctx, p, n, left)
	if err != nil || !same {
		return j.Why, err
	}
	u.after[p] = n
	return "", nil
}

// sameMeaning reports whether the file n, which is at p, means what the batch left there.
func (u *reversal) sameMeaning(ctx context.Context, p tree.Path, n, left tree.Node) (bool, error) {
	if u.o.Alike == nil || u.o.OpenPublished == nil || n.Kind != tree.File || !n.SameMeta(left) {
		return false, nil
	}
	published := judge.Checked(ctx, func() (hostfs.File, error) { return u.o.OpenPublished(p) }, left.Digest)
	same, err := u.o.Alike(p, published, func() (f hostfs.File, err error) {
		err = within(u.o.Target, p, func(d hostfs.Dir, name string) (err error) {
			f, err = d.Open(name)
			return err
		})
		return f, err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return same, err
}

func (u *reversal) checkBelow(ctx context.Context, p tree.Path) (string, error) {
	d, err := u.o.Target.OpenDirAt(p, false)
	if err != nil {
		return "", err
	}
	defer d.Close()
	entries, err := d.ReadDir()
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		q, err := p.Child(e.Name)
		if err != nil {
			return "", err
		}
		if u.movedIn(q) {
			continue
		}
		if why, err := u.checkEntry(ctx, d, q); why != "" || err != nil {
			return why, err
		}
	}
	return "", nil
}

func (u *reversal) checkEntry(ctx context.Context, d hostfs.Dir, q tree.Path) (string, error) {
	n, err := judge.Node(d, q.Base())
	if err != nil {
		return "", err
	}
	left, known := u.now[q]
	why := quote(q) + " was created in the workspace since"
	if known {
		why, err = u.checkNew(ctx, &step{End: q}, n)
	}
	if why != "" && left.Kind != tree.Absent {
		why = quote(q) + ": " + why
	}
	return why, err
}

// movedIn reports whether a step moved a directory to path q of the result.
func (u *reversal) movedIn(q tree.Path) bool {
	for i := range u.story.finished.Steps {
		if s := &u.story.finished.Steps[i]; s.Act == move && s.End == q {
			return true
		}
	}
	return false
}

// spread leaves out what cannot be reverted without a step that is left out: what happened where
// a directory was before a move, and a new directory that something stays in.
func (u *reversal) spread() {
	steps := u.story.finished.Steps
	for again := true; again; {
		again = u.spreadGit()
		for i := range steps {
			if u.skip[i] == "" && u.blocked(i) {
				u.skip[i], again = "depends on what changed in the workspace since", true
			}
		}
	}
}

// spreadGit leaves out what is in one git directory with something that is left out. It reports
// whether there was any.
func (u *reversal) spreadGit() (any bool) {
	steps := u.story.finished.Steps
	out := map[tree.Path]tree.Path{}
	for i := range steps {
		if d, ok := gitDirOf(steps[i].End); ok && u.skip[i] != "" {
			if _, known := out[d]; !known {
				out[d] = steps[i].End
			}
		}
	}
	for i := range steps {
		d, ok := gitDirOf(steps[i].End)
		if with, bad := out[d]; ok && bad && u.skip[i] == "" {
			u.skip[i], any = "left out with "+quote(with), true
		}
	}
	return any
}

func (u *reversal) blocked(i int) bool {
	steps := u.story.finished.Steps
	s := &steps[i]
	for k := range steps {
		o := &steps[k]
		if u.skip[k] == "" {
			continue
		}
		inside := o.Act == move && s.Path != s.End && o.From.Contains(s.Path)
		holds := (s.Act == place || s.Act == swap) && s.End.Contains(o.End)
		if k != i && (inside || holds) {
			return true
		}
	}
	return false
}

// batch returns the steps that revert those not left out. An original that the batch displaced is
// fetched to a temporary name; what the batch brought is taken away.
func (u *reversal) batch() *batch {
	done := u.story.finished
	b := &batch{Undo: true}
	for i := len(done.Steps) - 1; i >= 0; i-- {
		s := &done.Steps[i]
		if _, skipped := u.skip[i]; skipped || s.Act == meta {
			continue
		}
		b.Steps = append(b.Steps, u.reverse(i, s))
	}
	for i := range done.Steps {
		s := &done.Steps[i]
		if _, skipped := u.skip[i]; !skipped && s.Act == meta {
			found, old := u.found[i], whileOpen(*s.Out)
			b.Steps = append(b.Steps, step{Act: meta, Path: s.From, From: s.End, Known: s.End, End: s.From, Out: &found, New: &old})
		}
	}
	b.Dirs = u.dirs()
	b.Base = u.base()
	return b
}

func (u *reversal) reverse(i int, s *step) step {
	found := u.found[i]
	r := step{Path: s.Path, Known: s.End, End: s.Path, Temp: s.Temp, Made: s.Rest, Rest: s.Temp, Since: u.story.until}
	switch s.Act {
	case place:
		r.Act, r.Out = away, &found
	case swap:
		r.Act, r.Out, r.Fetch, r.New = swap, &found, i+1, s.Out
	case away:
		r.Act, r.Fetch, r.New = place, i+1, s.Out
	default: // move
		r.Act, r.Path, r.From, r.End, r.Out = move, s.From, s.Path, s.From, &found
	}
	return r
}

// dirs returns the directories of the batch with the modes and mtimes they had before it. One whose
// mtime somebody changed since keeps what it gets.
func (u *reversal) dirs() []dir {
	left := map[tree.Path]tree.Node{}
	for _, d := range u.story.dirs {
		left[d.Path] = d.Node
	}
	var out []dir
	for _, d := range u.story.finished.Dirs {
		n, err := nodeAt(u.o.Target, d.Rest)
		if d.Old.Kind != tree.Dir { // the batch made it
			if err == nil && n.Kind == tree.Dir {
				out = append(out, dir{Path: d.Rest, Rest: d.Rest, Gone: true, Old: n})
			}
			continue
		}
		r := dir{Path: d.Rest, Rest: d.Path, Old: n, Mode: d.Old.Mode, Mtime: d.Old.Mtime}
		switch {
		case d.Gone || err != nil || n.Kind != tree.Dir:
			r.Path, r.Old = d.Path, tree.Node{}
		case n.Mode != left[d.Rest].Mode:
			r.Mode = n.Mode
		}
		if r.Old.Kind == tree.Dir && n.Mtime != left[d.Rest].Mtime {
			r.Mtime = 0
		}
		out = append(out, r)
	}
	return out
}

// base returns the paths that are given back. A directory is given back with all it held.
func (u *reversal) base() []published {
	kept := map[tree.Path]bool{}
	steps := u.story.finished.Steps
	for i := range steps {
		if _, skipped := u.skip[i]; skipped {
			kept[steps[i].End] = true
		}
	}
	files := map[tree.Path]tree.Node{}
	for i := range steps {
		if s := &steps[i]; s.displaces() && s.Out.Kind == tree.File {
			files[s.Path] = *s.Out
		}
	}
	var out []published
	for _, p := range u.story.base {
		below := false
		for q := range kept {
			below = below || q.Contains(p.Path)
		}
		if !below {
			out = append(out, published{Path: p.Path, Node: files[p.Path], From: &p.Path, Forget: p.Staged != nil})
		}
	}
	return out
}
