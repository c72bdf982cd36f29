package bundle

import (
	"encoding/json"
	"errors"
	"fmt"

	"stage/fs/tree"
)

// ReviewReport is what `review --json` prints: the net changes of one root of a Job.
type ReviewReport struct {
	Version V1     `json:"version"`
	Job     ID     `json:"job"`
	Root    string `json:"root"`
	// Drifted: a path that the Job changed was changed in the workspace too, by somebody else.
	Drifted bool               `json:"drifted"`
	Changes List[ReviewChange] `json:"changes"`
	// ReadDrift are files that the Job read and did not change, which are others in the workspace now.
	ReadDrift []tree.Path `json:"read_drift,omitempty"`
}

// ReviewChange is one changed path. Base is nil where it is unknown (VerdictUnknownBase).
type ReviewChange struct {
	Path       tree.Path  `json:"path"`
	Base       *NodeState `json:"base"`
	New        NodeState  `json:"new"`
	RenameFrom *tree.Path `json:"rename_from"`
	LinkGroup  *int       `json:"link_group"`
	Flags      List[Flag] `json:"flags"`
	// CollapsedIn is the directory under whose line the short list counts this change.
	CollapsedIn *tree.Path `json:"collapsed_in"`
	Verdict     Verdict    `json:"verdict"`
	// Drift: the workspace no longer has this path as the base has it.
	Drift bool `json:"drift"`
}

// Flag is one reason to look twice at a change.
type Flag struct {
	Class  Class  `json:"class"`
	Reason string `json:"reason"`
}

// ApplyReport is what `apply --json` prints.
type ApplyReport struct {
	Version V1                          `json:"version"`
	Job     ID                          `json:"job"`
	Batch   *int                        `json:"batch"` // the n of apply/<n>/; nil when nothing was written
	Result  ApplyResult                 `json:"result"`
	Paths   List[ApplyPath]             `json:"paths"`
	Gated   Map[Class, List[tree.Path]] `json:"gated"`
}

// ApplyPath is the verdict over one selected path. Found is what the workspace holds there now; nil
// when it was not looked at.
type ApplyPath struct {
	Path    tree.Path  `json:"path"`
	Verdict Verdict    `json:"verdict"`
	Why     *string    `json:"why"`
	Base    *NodeState `json:"base"`
	Found   *NodeState `json:"found"`
}

// Verdict is what apply would do, or did, with a change.
type Verdict string

// The verdicts.
const (
	VerdictClean       Verdict = "clean"        // the workspace has the base: can be applied
	VerdictApplied     Verdict = "applied"      // the workspace has the new state already
	VerdictConflict    Verdict = "conflict"     // the workspace has something else
	VerdictUnknownBase Verdict = "unknown_base" // the record of the base was lost
)

var verdicts = []Verdict{VerdictClean, VerdictApplied, VerdictConflict, VerdictUnknownBase}

// MarshalText refuses to write an unknown verdict.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v), oneOf("verdict", v, verdicts) }

// UnmarshalText refuses to read an unknown verdict.
func (v *Verdict) UnmarshalText(text []byte) error {
	*v = Verdict(text)
	return oneOf("verdict", *v, verdicts)
}

// ApplyResult is how an apply ended.
type ApplyResult string

// The results of an apply.
const (
	ResultApplied  ApplyResult = "applied"
	ResultConflict ApplyResult = "conflict"
	ResultGated    ApplyResult = "gated"
	ResultNothing  ApplyResult = "nothing"
)

var applyResults = []ApplyResult{ResultApplied, ResultConflict, ResultGated, ResultNothing}

// MarshalText refuses to write an unknown result.
func (r ApplyResult) MarshalText() ([]byte, error) {
	return []byte(r), oneOf("apply result", r, applyResults)
}

// UnmarshalText refuses to read an unknown result.
func (r *ApplyResult) UnmarshalText(text []byte) error {
	*r = ApplyResult(text)
	return oneOf("apply result", *r, applyResults)
}

// Class is a risk class of changes.
type Class string

// The risk classes. Those up to ClassMassDelete gate apply; the rest only mark a change.
const (
	ClassGitHook       Class = "git-hook"
	ClassGitConfig     Class = "git-config"
	ClassGitAttributes Class = "git-attributes"
	ClassEnvrc         Class = "envrc"
	ClassEditorTask    Class = "editor-task"
	ClassAgentConfig   Class = "agent-config"
	ClassSetuid        Class = "setuid"
	ClassSymlinkOut    Class = "symlink-out"
	ClassMassDelete    Class = "mass-delete"

	ClassCI      Class = "ci"
	ClassScript  Class = "script"
	ClassExecBit Class = "exec-bit"
	ClassSecret  Class = "secret"
)

var gatedClasses = []Class{
	ClassGitHook, ClassGitConfig, ClassGitAttributes, ClassEnvrc, ClassEditorTask,
	ClassAgentConfig, ClassSetuid, ClassSymlinkOut, ClassMassDelete,
}

var flaggedClasses = []Class{ClassCI, ClassScript, ClassExecBit, ClassSecret}

// Classes returns all risk classes, the gated ones first.
func Classes() []Class { return append(append([]Class{}, gatedClasses...), flaggedClasses...) }

// Gated reports whether apply of a change of this class needs --allow.
func (c Class) Gated() bool { return oneOf("class", c, gatedClasses) == nil }

// MarshalText refuses to write an unknown class.
func (c Class) MarshalText() ([]byte, error) { return []byte(c), oneOf("class", c, Classes()) }

// UnmarshalText refuses to read an unknown class.
func (c *Class) UnmarshalText(text []byte) error {
	*c = Class(text)
	return oneOf("class", *c, Classes())
}

// NodeState is a tree.Node as reports show it: what a reader can compare, without the numbers that
// only this machine understands. It converts from and to tree.Node.
type NodeState tree.Node

// StateOf returns n as reports show it.
func StateOf(n tree.Node) *NodeState {
	s := NodeState(n)
	return &s
}

type stateJSON struct {
	Kind   *tree.Kind          `json:"kind"`
	Mode   tree.Mode           `json:"mode"`
	UID    uint32              `json:"uid"`
	GID    uint32              `json:"gid"`
	Size   int64               `json:"size"`
	Mtime  tree.Time           `json:"mtime"`
	Xattrs Map[string, []byte] `json:"xattrs"`
	Digest tree.Digest         `json:"digest"`
	Target *RawPath            `json:"target"`
}

// MarshalJSON writes {"kind":"absent"} for an absent path, every key otherwise. target is null for
// what is not a link.
func (s NodeState) MarshalJSON() ([]byte, error) {
	if s.Kind == tree.Absent {
		return json.Marshal(struct {
			Kind tree.Kind `json:"kind"`
		}{})
	}
	j := stateJSON{&s.Kind, s.Mode, s.UID, s.GID, s.Size, s.Mtime, Map[string, []byte](s.Xattrs), s.Digest, nil}
	if s.Kind == tree.Symlink {
		t := RawPath(s.Target)
		j.Target = &t
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *NodeState) UnmarshalJSON(data []byte) error {
	var j stateJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	if j.Kind == nil {
		return errors.New("node without a kind")
	}
	*s = NodeState{Kind: *j.Kind, Mode: j.Mode, UID: j.UID, GID: j.GID, Size: j.Size, Mtime: j.Mtime,
		Xattrs: tree.Xattrs(j.Xattrs), Digest: j.Digest}
	if j.Target != nil {
		s.Target = string(*j.Target)
	}
	return nil
}

// Check reports the first rule that r breaks.
func (r *ReviewReport) Check() error {
	if r.Root == "" {
		return errors.New("no root name")
	}
	for _, c := range r.Changes {
		if (c.Base == nil) != (c.Verdict == VerdictUnknownBase) {
			return fmt.Errorf("change of %q: the base is null exactly where it is unknown", c.Path)
		}
	}
	return nil
}

// Check reports the first rule that r breaks.
func (r *ApplyReport) Check() error {
	if r.Result == ResultGated && len(r.Gated) == 0 {
		return errors.New("gated, but by no class")
	}
	return nil
}
