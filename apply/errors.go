package apply

import (
	"errors"
	"fmt"

	"stage/fs/tree"
)

// ErrBusy is the cause when another apply holds the target.
var ErrBusy = errors.New("another apply is at work on this workspace")

// ConflictError says that targets are not what the changes were made from. Nothing was written.
type ConflictError struct {
	Paths []PathResult // the conflicting ones, UnknownBase among them
}

// Error names how many paths conflict.
func (e *ConflictError) Error() string {
	if len(e.Paths) == 1 {
		return fmt.Sprintf("%q: %s", e.Paths[0].Path, e.Paths[0].Why)
	}
	return fmt.Sprintf("%d paths changed since the run", len(e.Paths))
}

// GatedError says that changes need to be allowed by class. Nothing was written.
type GatedError struct {
	Paths map[Class][]tree.Path
}

// Error names how many classes need to be allowed.
func (e *GatedError) Error() string {
	return fmt.Sprintf("changes of %d risk classes need --allow", len(e.Paths))
}

// NoMatchError says that a path or pattern selects no change. Nothing was written.
type NoMatchError struct {
	Pattern string
	Within  *tree.Path // the change that Pattern is only a part of: it can be selected as a whole
}

// Error names the pattern.
func (e *NoMatchError) Error() string {
	if e.Within != nil {
		return fmt.Sprintf("%q is part of the change of %q, which can only be applied as a whole", e.Pattern, e.Within)
	}
	return fmt.Sprintf("%q matches no change", e.Pattern)
}

// UnfinishedError says that a batch is published, or undone, but what is left to do after that failed:
// originals may stand beside what replaced them, and times may not be set. Recover does the rest.
type UnfinishedError struct {
	Err error
}

// Error tells what failed.
func (e *UnfinishedError) Error() string { return "all is written, but not finished: " + e.Err.Error() }

// Unwrap returns what failed.
func (e *UnfinishedError) Unwrap() error { return e.Err }

// RecoveryNeededError says that an interrupted batch met something in the target that neither it
// nor its base put there: a person has to look.
type RecoveryNeededError struct {
	Path tree.Path
	Why  string
}

// Error names the path and the reason.
func (e *RecoveryNeededError) Error() string {
	return fmt.Sprintf("interrupted apply cannot be recovered at %q: %s", e.Path, e.Why)
}

// quote makes a path safe to stand in a sentence.
func quote(p tree.Path) string { return fmt.Sprintf("%q", p.String()) }
