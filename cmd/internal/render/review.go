package render

import (
	"context"

	"stage/bundle"
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
	// WalkRemoved calls f for everything the workspace has below the directory that c, a Subtree
	// change, deleted or moved away.
	WalkRemoved(c tree.Change, f func(p tree.Path, n tree.Node) error) error
}

// Entry is one change with what was found out about it.
type Entry struct {
	tree.Change
	Flags   []bundle.Flag
	Verdict bundle.Verdict
	Drift   bool   // the workspace no longer has this path as the base has it
	Why     string // the reason for the verdict, "" for none
}

// ReadDrift is what the workspace has no more as the Job read it.
type ReadDrift struct {
	Paths []tree.Path // files that the Job read and did not change
	More  uint64      // files that the Job read and of which no account was kept
}

// Review is what the review verb shows: the changes of one root of a Job.
type Review struct {
	Job      bundle.ID
	Root     string
	Outcome  string  // one phrase, from OutcomeText
	Changes  []Entry // sorted by path
	Contents Contents
	Walker   Walker
	// Tracked tells whether git tracks a path; tracked files are never collapsed as build output.
	// nil: nothing is known to be tracked.
	Tracked func(tree.Path) bool
	Reads   ReadDrift
	// Git is what git would say of the changes below .git, one line each.
	Git []string
	// RawGit shows the paths below .git as they are. Without it only those with a risk flag are
	// shown, and Git speaks for the rest.
	RawGit bool
}

// HasChanges reports whether the review shows any change: --exit-code.
func HasChanges(r *Review) bool { return len(r.Changes) > 0 }

// drifted reports whether somebody else changed a path that the Job changed.
func (r *Review) drifted() bool {
	for i := range r.Changes {
		if r.Changes[i].Drift {
			return true
		}
	}
	return false
}

// Format is one form of a review.
type Format uint8

// The forms of a review. The zero Format is the default.
const (
	FormatList        Format = iota // header, collapsed list, risk flags
	FormatDiff                      // --diff
	FormatPatch                     // --patch
	FormatStat                      // --stat
	FormatNameStatus                // --name-status
	FormatNameStatusZ               // -z
	FormatJSON                      // --json
	FormatJSONL                     // --jsonl
)

// Write writes the review in the form f. An unknown form writes nothing and is an error.
func Write(ctx context.Context, s *Screen, r *Review, f Format) error {
	switch f {
	case FormatList:
		return List(ctx, s, r)
	case FormatDiff:
		return Diff(ctx, s, r)
	case FormatPatch:
		return Patch(ctx, s, r)
	case FormatStat:
		return Stat(ctx, s, r)
	case FormatNameStatus:
		return NameStatus(ctx, s, r, false)
	case FormatNameStatusZ:
		return NameStatus(ctx, s, r, true)
	case FormatJSON:
		return ReviewJSON(s, r)
	case FormatJSONL:
		return ReviewJSONL(s, r)
	default:
		return errFormat
	}
}
