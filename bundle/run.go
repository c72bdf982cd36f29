package bundle

import (
	"errors"
	"fmt"

	"stage/fs/tree"
)

// Run is run.json: who a Job is, what state it is in and what of this machine it uses. It never
// says that anything is enforced. It is the one record that is rewritten.
type Run struct {
	Version   V1         `json:"version"`
	Job       ID         `json:"job"`
	Session   ID         `json:"session"`
	Operation ID         `json:"operation"`
	Attempt   ID         `json:"attempt"`
	Parent    *Parent    `json:"parent"`
	Workspace Workspace  `json:"workspace"`
	Roots     List[Root] `json:"roots"`
	Argv      List[Word] `json:"argv"`
	Cwd       HostPath   `json:"cwd"`
	Preset    string     `json:"preset"`

	State       State       `json:"state"`
	Publication Publication `json:"publication"`
	CreatedAt   tree.Time   `json:"created_at"`
	EndedAt     *tree.Time  `json:"ended_at"` // nil until the end, and where the end was not seen

	// PID, PIDStart (field 22 of /proc/PID/stat, in clock ticks) and BootID name the supervisor.
	// They are witnesses beside the lock, never instead of it.
	PID      int    `json:"pid"`
	PIDStart uint64 `json:"pid_start"`
	BootID   string `json:"boot_id"`
	UID      uint32 `json:"uid"`

	StorePath    HostPath    `json:"store_path"` // the Job's directory
	BundleDigest tree.Digest `json:"bundle_digest"`
}

// Workspace is the identity of a workspace: the same path with another device or inode number is
// another workspace.
type Workspace struct {
	Path HostPath `json:"path"`
	Dev  uint64   `json:"dev"`
	Ino  uint64   `json:"ino"`
}

// Root is one tree the Job may write to.
type Root struct {
	Name string   `json:"name"`
	Path HostPath `json:"path"`
	Kind RootKind `json:"kind"`
}

// Parent is the Job this one was made from.
type Parent struct {
	Job  ID         `json:"job"`
	Kind ParentKind `json:"kind"`
}

// RootKind is what becomes of writes to a root.
type RootKind string

// The kinds of root.
const (
	RootStaged  RootKind = "staged"  // kept apart until applied
	RootScratch RootKind = "scratch" // thrown away
	RootShare   RootKind = "share"   // direct, never undone
)

var rootKinds = []RootKind{RootStaged, RootScratch, RootShare}

// MarshalText refuses to write an unknown kind.
func (k RootKind) MarshalText() ([]byte, error) { return []byte(k), oneOf("root kind", k, rootKinds) }

// UnmarshalText refuses to read an unknown kind.
func (k *RootKind) UnmarshalText(text []byte) error {
	*k = RootKind(text)
	return oneOf("root kind", *k, rootKinds)
}

// ParentKind is how a Job was made from its parent.
type ParentKind string

// The kinds of parent.
const (
	ResumedFrom ParentKind = "resumed_from" // the parent's upper was taken over
	On          ParentKind = "on"           // stacked on the parent with `run --on`
	Fork        ParentKind = "fork"         // stacked on the parent with `fork`
)

var parentKinds = []ParentKind{ResumedFrom, On, Fork}

// MarshalText refuses to write an unknown kind.
func (k ParentKind) MarshalText() ([]byte, error) {
	return []byte(k), oneOf("parent kind", k, parentKinds)
}

// UnmarshalText refuses to read an unknown kind.
func (k *ParentKind) UnmarshalText(text []byte) error {
	*k = ParentKind(text)
	return oneOf("parent kind", *k, parentKinds)
}

// State is where a Job is in its life.
type State string

// The states. Preparing and Running with nobody holding the Job's lock mean that its supervisor died.
const (
	Preparing   State = "preparing"
	Running     State = "running"
	Ended       State = "ended"
	Interrupted State = "interrupted" // the supervisor died; the outcome was lost
)

var states = []State{Preparing, Running, Ended, Interrupted}

// MarshalText refuses to write an unknown state.
func (s State) MarshalText() ([]byte, error) { return []byte(s), oneOf("state", s, states) }

// UnmarshalText refuses to read an unknown state.
func (s *State) UnmarshalText(text []byte) error {
	*s = State(text)
	return oneOf("state", *s, states)
}

// Over reports whether the Job runs no more, as its record says.
func (s State) Over() bool { return s == Ended || s == Interrupted }

// Publication is what became of a Job's changes.
type Publication string

// The publication states.
const (
	PublishedNone    Publication = "none"
	PublishedPartial Publication = "partial"
	PublishedAll     Publication = "all"
	Dropped          Publication = "dropped"
	RecoveryNeeded   Publication = "recovery_needed" // an apply was interrupted
)

var publications = []Publication{PublishedNone, PublishedPartial, PublishedAll, Dropped, RecoveryNeeded}

// MarshalText refuses to write an unknown publication state.
func (p Publication) MarshalText() ([]byte, error) {
	return []byte(p), oneOf("publication", p, publications)
}

// UnmarshalText refuses to read an unknown publication state.
func (p *Publication) UnmarshalText(text []byte) error {
	*p = Publication(text)
	return oneOf("publication", *p, publications)
}

// Check reports the first rule that r breaks.
func (r *Run) Check() error {
	names := map[string]bool{}
	for _, root := range r.Roots {
		if root.Name == "" || names[root.Name] {
			return fmt.Errorf("root name %q is empty or stands twice", root.Name)
		}
		names[root.Name] = true
	}
	switch {
	case len(r.Argv) == 0:
		return errors.New("no argv")
	case r.EndedAt != nil && !r.State.Over():
		return fmt.Errorf("state %s has an end", r.State)
	case r.State == Ended && r.EndedAt == nil:
		return errors.New("state ended has no end")
	case !r.State.Over() && r.Publication != PublishedNone:
		return fmt.Errorf("state %s has publication %s", r.State, r.Publication)
	case !r.State.Over() && r.BundleDigest != "":
		return fmt.Errorf("state %s has a bundle", r.State)
	}
	return nil
}
