package render

import (
	"context"
	"errors"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Contents opens what a change holds; *staged.Reader is one.
type Contents interface {
	// OpenNew opens the staged content of a regular file.
	OpenNew(tree.Path) (hostfs.File, error)
	// OpenBase opens the workspace's content of a regular file.
	OpenBase(tree.Path) (hostfs.File, error)
}

// Walker lists what one change of a whole directory stands for.
type Walker interface {
	// WalkMoved calls f for everything below the directory that c, a Moved change, moved.
	WalkMoved(c tree.Change, f func(from, to tree.Path, n tree.Node) error) error
	// WalkRemoved calls f for everything below the directory that c, a Subtree change, removed.
	WalkRemoved(c tree.Change, f func(p tree.Path, n tree.Node) error) error
}

// Flag is a risk class of a change and why it has it.
type Flag struct {
	Class, Reason string
	Gated         bool // apply needs --allow
}

// Entry is one change with what was found out about it.
type Entry struct {
	tree.Change
	Flags   []Flag
	Verdict string // clean, applied, conflict, unknown_base; "" when it was not checked
	Drift   string // how the workspace moved on since; "" when it did not
}

// Review is what the review verb shows: all changes of one root of a Job, sorted by path.
type Review struct {
	Job, Root string
	Outcome   string // one phrase, from OutcomeText
	Drifted   bool
	Changes   []Entry
	Contents  Contents
	Walker    Walker
	// Tracked tells whether git tracks a path; tracked files are never collapsed as build output.
	// nil: nothing is known to be tracked.
	Tracked func(tree.Path) bool
}

var errUnbuilt = errors.New("not built")

// HasChanges reports whether the review shows any change: --exit-code.
func HasChanges(r *Review) bool { return len(r.Changes) > 0 }

// List writes the default review: header, collapsed list with risk flags, the next command.
func List(ctx context.Context, s *Screen, r *Review) error { return errUnbuilt }

// Diff writes a unified diff with git's headers, for reading.
func Diff(ctx context.Context, s *Screen, r *Review) error { return errUnbuilt }

// Patch writes a patch that `git apply --binary` accepts.
func Patch(ctx context.Context, s *Screen, r *Review) error { return errUnbuilt }

// Stat writes git's --stat.
func Stat(ctx context.Context, s *Screen, r *Review) error { return errUnbuilt }

// NameStatus writes git's --name-status, with z its -z form.
func NameStatus(ctx context.Context, s *Screen, r *Review, z bool) error { return errUnbuilt }

// ReviewJSON writes the review as one JSON object, SPEC §3.
func ReviewJSON(ctx context.Context, s *Screen, r *Review) error { return errUnbuilt }

// ReviewJSONL writes one JSON object per change and line.
func ReviewJSONL(ctx context.Context, s *Screen, r *Review) error { return errUnbuilt }
