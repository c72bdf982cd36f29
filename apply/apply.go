// Package apply publishes the changes of a Job to its workspace: all of those selected or none.
package apply

import (
	"context"
	"errors"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Contents opens and lists what changes stand for; *staged.Reader is one.
type Contents interface {
	OpenNew(p tree.Path) (hostfs.File, error)
	OpenBase(p tree.Path) (hostfs.File, error)
	WalkMoved(c tree.Change, f func(from, to tree.Path, n tree.Node) error) error
	WalkRemoved(c tree.Change, f func(p tree.Path, n tree.Node) error) error
}

// Source yields the changes of a Job; *staged.Reader is one.
type Source interface {
	Contents
	Changes(ctx context.Context) ([]tree.Change, error)
	DirTimes(p tree.Path) (base, view tree.Time, ok bool)
	LinkAnchor(group int) (tree.Path, bool)
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

	Paths            []tree.Path // the changes at or below these; none: all
	Include, Exclude []string    // doublestar patterns over whole paths
	CheckOnly        bool        // verdicts only
	KeepGoing        bool        // leave conflicting changes out instead of refusing all

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
// or *NoMatchError nothing was written.
func Apply(ctx context.Context, o Options) (*Result, error) { return &Result{}, errors.ErrUnsupported }

// RecoverResult is what Recover did.
type RecoverResult string

// The results of Recover.
const (
	RecoveredNothing RecoverResult = ""            // the batch was finished or never began
	RolledBack       RecoverResult = "rolled_back" // the target is as before the batch
	RolledForward    RecoverResult = "finished"    // the batch is published
)

// Recover finishes or undoes what a killed apply or undo left behind in target; batch is its
// directory. It may be called any number of times.
func Recover(ctx context.Context, target, batch hostfs.Dir) (RecoverResult, error) {
	return "", errors.ErrUnsupported
}

// UndoOptions is what Undo works on.
type UndoOptions struct {
	Job       string
	Target    hostfs.Dir
	Batch     hostfs.Dir // the batch to revert
	Pending   []hostfs.Dir
	KeepGoing bool // leave out what changed since instead of refusing all
	Point     func(name string)
}

// Undo reverts a published batch where the target is still as the batch left it.
func Undo(ctx context.Context, o UndoOptions) (*Result, error) {
	return &Result{}, errors.ErrUnsupported
}

// State is where a batch stands.
type State string

// The states of a batch.
const (
	BatchEmpty      State = "empty"      // nothing was published, nothing is to be done
	BatchUnfinished State = "unfinished" // needs Recover
	BatchPublished  State = "published"
	BatchUndone     State = "undone"
)

// Read returns where batch stands and the states it made the new base of their paths: what it
// published, or after an undo what it restored. Nothing is written.
func Read(batch hostfs.Reader) (State, map[tree.Path]tree.Node, error) {
	return "", nil, errors.ErrUnsupported
}
