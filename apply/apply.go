// Package apply publishes the changes of a Job to its workspace: all of those selected or none.
//
//	target                                   ledger, apply/<n>/ledger
//	────── lock, recover, select, compare, gate: nothing is written ──────
//	                                         planned      what will be made, and where
//	.stage.<job>.<n> beside each target
//	syncfs                                   prepared     steps, with the inodes they bring and expect
//	place  temp → path    (NOREPLACE)
//	swap   temp ↔ path    (EXCHANGE)         each step looks at what came out; if it is
//	away   path → temp    (NOREPLACE)        not what was compared, it is put back and
//	move   from → path    (NOREPLACE)        the batch is taken back: rolled_back
//	meta   attributes, in place
//	syncfs                                   committed
//	originals → apply/<n>/displaced/
//	modes and mtimes of directories
//	syncfs                                   done         the resulting states: the new bases
//
// Recovery tells from inode numbers which steps were done. All of them: it goes on from there; else
// it takes back those that were. An undo is a batch of the reversed steps in the same ledger.
package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Contents opens and lists what changes stand for; *staged.Reader is one.
type Contents interface {
	OpenNew(p tree.Path) (hostfs.File, error)
	OpenBase(p tree.Path) (hostfs.File, error)
	// StatBase returns what the workspace has at p now, Absent for nothing. It follows no link.
	StatBase(p tree.Path) (tree.Node, error)
	WalkMoved(c tree.Change, f func(from, to tree.Path, n tree.Node) error) error
	WalkRemoved(c tree.Change, f func(p tree.Path, n tree.Node) error) error
}

// Source yields the changes of a Job; *staged.Reader is one.
type Source interface {
	Contents
	Changes(ctx context.Context) ([]tree.Change, error)
	DirTimes(p tree.Path) (base, view tree.Time, ok bool)
	LinkAnchor(group int) (tree.Path, bool)
	Displaced() map[tree.Path]tree.Path
	Left(p tree.Path, n tree.Node) bool
}

// Preimages is what a Source may be besides: it opens what the base of a path held, fs.ErrNotExist
// where that was not kept.
type Preimages interface {
	OpenPreimage(p tree.Path) (hostfs.File, error)
}

// Options is what Apply works on.
type Options struct {
	Job    string     // id, part of the names of temporary files
	Source Source     // the changes
	Target hostfs.Dir // the workspace
	Batch  hostfs.Dir // apply/<n>/ of the Job, empty; may be nil with CheckOnly
	// Pending are batches of any Job on this target that may be unfinished, oldest first; they
	// are recovered before anything else. Finished ones cost one read.
	Pending []hostfs.Dir
	// Reopen makes a new Source after one of Pending was recovered: what that batch published, or
	// took back, is the new base of its paths. nil keeps Source, for which it must not matter.
	Reopen func() (Source, error)

	Paths            []tree.Path // the changes at or below these; none: all
	Include, Exclude []string    // doublestar patterns: what matches, and everything below
	CheckOnly        bool        // verdicts only
	// KeepGoing leaves conflicting changes out instead of refusing all, with those that cannot go
	// without them; what is in one git directory goes together.
	KeepGoing bool

	// Pick is asked what of the selected changes to publish; nil: all.
	Pick Picker

	// Merge is what becomes of text files that both the Job and somebody else changed. The base's
	// content has to be had from Source, as Preimages.
	Merge MergeMode

	// Alike is asked about a file of the target that has not the content of its base, if Source has
	// OpenPreimage and that opens the base's content; if it says yes, the file counts as unchanged.
	Alike func(p tree.Path, a, b func() (hostfs.File, error)) (bool, error)

	Allow   map[Class]bool // gated classes that may pass; All lets every class pass
	Gate    []Class        // classes that gate besides those that always do
	Tracked int            // number of files git tracks in the target, 0 if not known

	// Point is called before and after each durable step with its name ("before swap 1"); nil
	// calls nothing.
	Point func(name string)
}

// Outcome is how an apply or undo ended.
type Outcome string

// The outcomes.
const (
	Published Outcome = "applied"
	Conflicts Outcome = "conflict"
	Gated     Outcome = "gated"
	Nothing   Outcome = "nothing" // there was nothing to do
)

// PathResult is the verdict over one selected path.
type PathResult struct {
	Path    tree.Path
	Verdict tree.Verdict
	Why     string
	Base    tree.Node
	Found   tree.Node
	Marked  int // places of a merged file that are between conflict markers
}

// Result is what Apply and Undo did.
type Result struct {
	Outcome Outcome
	Paths   []PathResult // sorted by path
	Gated   map[Class][]tree.Path
	Wrote   bool // Batch holds a ledger now
	// Recovered tells what was done about each of Options.Pending.
	Recovered []RecoverResult
}

// Apply publishes the selected changes. The Result is never nil; with a *ConflictError, *GatedError
// or *NoMatchError nothing was written; with an *UnfinishedError all was.
func Apply(ctx context.Context, o Options) (*Result, error) {
	r := &Result{Outcome: Nothing}
	if o.CheckOnly {
		_, err := o.examine(ctx, r)
		return r, err
	}
	unlock, err := lock(o.Target)
	if err != nil {
		return r, err
	}
	defer unlock()
	if err := recoverAll(ctx, o.Target, o.Pending, o.Point, r); err != nil {
		return r, err
	}
	if err := o.reopen(r); err != nil {
		return r, err
	}
	p, err := o.examine(ctx, r)
	if err != nil || len(p.todo) == 0 {
		return r, err
	}
	return r, o.publish(ctx, p, r)
}

// lock takes the flock of the target for as long as the process lives or until unlock.
func lock(target hostfs.Dir) (unlock func(), err error) {
	h, err := target.OpenDir(".")
	if err != nil {
		return nil, err
	}
	if err := hostfs.Lock(h); err != nil {
		h.Close()
		if errors.Is(err, hostfs.ErrLocked) {
			return nil, fmt.Errorf("%w: %w", ErrBusy, err)
		}
		return nil, err
	}
	return func() { h.Close() }, nil
}

// recoverAll recovers the batches pending on target, under its lock.
func recoverAll(ctx context.Context, target hostfs.Dir, pending []hostfs.Dir, point func(string), r *Result) error {
	for _, b := range pending {
		res, err := recoverBatch(ctx, target, b, point)
		if err != nil {
			return fmt.Errorf("recover an interrupted apply: %w", err)
		}
		r.Recovered = append(r.Recovered, res)
	}
	return nil
}

func (o *Options) reopen(r *Result) error {
	recovered := slices.ContainsFunc(r.Recovered, func(x RecoverResult) bool { return x != RecoveredNothing })
	if !recovered || o.Reopen == nil {
		return nil
	}
	src, err := o.Reopen()
	if err != nil {
		return fmt.Errorf("read changes after recovery: %w", err)
	}
	o.Source = src
	return nil
}

// examine selects, compares and gates. What it returns may be published; in CheckOnly it is what
// could be.
func (o *Options) examine(ctx context.Context, r *Result) (*plan, error) {
	all, err := o.Source.Changes(ctx)
	if err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	sel, err := o.choose(all)
	if err != nil {
		return nil, err
	}
	p := newPlan(o, all)
	o.Source = p.texts
	if o.Pick != nil {
		if sel, err = p.pick(ctx, sel); err != nil {
			return nil, err
		}
	}
	if err := p.judge(ctx, sel, r); err != nil {
		return nil, err
	}
	if err := o.gate(ctx, p, r); err != nil {
		return nil, err
	}
	if len(p.todo) > 0 {
		r.Outcome = Published
	}
	return p, nil
}

// gate refuses changes of classes that nobody allowed.
func (o *Options) gate(ctx context.Context, p *plan, r *Result) error {
	flags, err := Classify(ctx, p.todo, o.Source, o.Tracked)
	if err != nil {
		return fmt.Errorf("classify changes: %w", err)
	}
	gates := map[Class]bool{}
	for _, c := range append(gatedClasses(), o.Gate...) {
		gates[c] = !o.Allow[c] && !o.Allow[All]
	}
	gated := map[Class][]tree.Path{}
	for _, c := range p.todo {
		for _, f := range flags[c.Path] {
			if l := gated[f.Class]; gates[f.Class] && (len(l) == 0 || l[len(l)-1] != c.Path) {
				gated[f.Class] = append(l, c.Path)
			}
		}
	}
	if len(gated) == 0 {
		return nil
	}
	r.Outcome, r.Gated = Gated, gated
	return &GatedError{gated}
}

func (o *Options) publish(ctx context.Context, p *plan, r *Result) error {
	b, links, err := p.batch()
	if err != nil {
		return err
	}
	e := newEngine(o.Target, o.Batch, nil, b, o.Point)
	e.source, e.links, e.left = o.Source, links, o.Source.Left
	err = e.mark("ledger", func() (err error) {
		e.ledger, err = openLedger(o.Batch, true)
		return err
	})
	if err != nil {
		return err
	}
	r.Wrote = true
	err = errors.Join(e.run(ctx), e.ledger.close())
	return r.refused(err)
}

// refused turns a conflict met while publishing into the Result it means.
func (r *Result) refused(err error) error {
	c := new(conflict)
	if !errors.As(err, &c) || errors.As(err, new(*RecoveryNeededError)) || errors.As(err, new(*UnfinishedError)) {
		return err
	}
	r.Outcome = Conflicts
	pr := PathResult{Path: c.path, Verdict: tree.Conflict, Why: c.why}
	for i := range r.Paths {
		if r.Paths[i].Path == c.path {
			r.Paths[i].Verdict, r.Paths[i].Why = tree.Conflict, c.why
			pr = r.Paths[i]
		}
	}
	return errors.Join(&ConflictError{[]PathResult{pr}}, err)
}
