package bundle

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"stage/fs/tree"
)

// Bundle is bundle.json, the Run Bundle: outcome, changes and controls of one Job, each judged by
// itself. It is written once, by the run or by recovery, and apply never touches it.
type Bundle struct {
	Version    V1                    `json:"version"`
	Job        ID                    `json:"job"`
	Session    ID                    `json:"session"`
	Operation  ID                    `json:"operation"`
	Attempt    ID                    `json:"attempt"`
	SealedAt   tree.Time             `json:"sealed_at"`
	SealedBy   SealedBy              `json:"sealed_by"`
	PlanDigest tree.Digest           `json:"plan_digest"` // "" when no plan was written before the run died
	Stage      Build                 `json:"stage"`
	Host       Host                  `json:"host"`
	Outcome    Outcome               `json:"outcome"`
	Changes    Changes               `json:"changes"`
	Controls   List[Control]         `json:"controls"`
	Dimensions PerDimension[Summary] `json:"dimensions"`
	Artifacts  List[Artifact]        `json:"artifacts"`
	Shares     List[HostPath]        `json:"shares"` // host paths the Job could write to directly
	Limits     List[string]          `json:"limits"` // what this evidence does not show, in words
}

// Build is the stage that made a record.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
}

// Host is the machine and the way the Job was confined on it.
type Host struct {
	Kernel string `json:"kernel"`
	UID    uint32 `json:"uid"`
	Mode   Mode   `json:"mode"`
	BootID string `json:"boot_id"`
}

// Outcome is how the command ended. Which fields are set follows from Kind; Check knows the rules.
type Outcome struct {
	Kind      OutcomeKind `json:"kind"`
	ExitCode  *int        `json:"exit_code"`
	Signal    *int        `json:"signal"`
	Reason    *string     `json:"reason"`
	StageExit *int        `json:"stage_exit"` // stage's own exit code; nil where stage was killed
	StartedAt *tree.Time  `json:"started_at"`
	EndedAt   *tree.Time  `json:"ended_at"`
	WallNs    *int64      `json:"wall_ns"`
}

// Changes counts the net changes. Complete is false when they could not all be determined.
type Changes struct {
	Complete bool              `json:"complete"`
	Roots    List[RootChanges] `json:"roots"`
}

// RootChanges counts the net changes of one root.
type RootChanges struct {
	Name        string          `json:"name"`
	Added       int             `json:"added"`
	Modified    int             `json:"modified"`
	Deleted     int             `json:"deleted"`
	Renamed     int             `json:"renamed"`
	TypeChanged int             `json:"type_changed"`
	Metadata    int             `json:"metadata"` // only mode, owner, xattrs or set times differ
	Bytes       int64           `json:"bytes"`    // size of all new content
	Flags       Map[Class, int] `json:"flags"`
	Drift       *int            `json:"drift"`  // changed paths that somebody else changed in the workspace
	Digest      tree.Digest     `json:"digest"` // over the list of changes
}

// Control is one control: requested, planned, installed and observed, never one for another.
type Control struct {
	ID        ControlID      `json:"id"`
	Dimension Dimension      `json:"dimension"` // the leading one of the control's dimensions
	Required  bool           `json:"required"`
	Degraded  bool           `json:"degraded"` // required and missing, and --allow-degraded let the run go on
	Requested bool           `json:"requested"`
	Planned   Planned        `json:"planned"`
	Installed Installed      `json:"installed"`
	Observed  List[Observed] `json:"observed"`
}

// Planned is what the plan intended of a control.
type Planned struct {
	Level     PlannedLevel `json:"level"`
	Mechanism string       `json:"mechanism"`
}

// Installed is what was read back of a control.
type Installed struct {
	Level    InstalledLevel `json:"level"`
	ReadBack List[ReadBack] `json:"read_back"`
	Canary   *Canary        `json:"canary"`
	Reason   Reason         `json:"reason"` // why the level is not enforced; "" (null) when it is
}

// ReadBack is one fact about a control, as the kernel told it. Want is the exact text that Got must
// be, or "not" and the words, parted by spaces, none of which it must be: another namespace than
// the host's.
type ReadBack struct {
	Source string `json:"source"`
	Want   string `json:"want"`
	Got    string `json:"got"`
}

// Holds reports whether what was read back is what was wanted.
func (r ReadBack) Holds() bool {
	if not, ok := strings.CutPrefix(r.Want, "not "); ok {
		return r.Got != "" && !slices.Contains(strings.Fields(not), r.Got)
	}
	return r.Got == r.Want
}

// Canary is one forbidden act that the jail tried before the command started.
type Canary struct {
	Act       string `json:"act"`
	WantErrno string `json:"want_errno"`
	GotErrno  string `json:"got_errno"`
	Passed    bool   `json:"passed"`
}

// Artifact is a file of the Job's directory that a reader may want.
type Artifact struct {
	Name   string      `json:"name"`
	Path   tree.Path   `json:"path"` // below the Job's directory
	Bytes  int64       `json:"bytes"`
	Digest tree.Digest `json:"digest"`
}

// SealedBy is who wrote a bundle.
type SealedBy string

// The sealers.
const (
	SealedByRun      SealedBy = "run"
	SealedByRecovery SealedBy = "recovery"
)

var sealers = []SealedBy{SealedByRun, SealedByRecovery}

// MarshalText refuses to write an unknown sealer.
func (s SealedBy) MarshalText() ([]byte, error) { return []byte(s), oneOf("sealer", s, sealers) }

// UnmarshalText refuses to read an unknown sealer.
func (s *SealedBy) UnmarshalText(text []byte) error {
	*s = SealedBy(text)
	return oneOf("sealer", *s, sealers)
}

// Mode is the way a Job is confined.
type Mode string

// The modes.
const (
	ModeRootless    Mode = "rootless"
	ModeRoot        Mode = "root"
	ModeRootDropped Mode = "root_dropped" // started by root, which became an ordinary user first
)

var modes = []Mode{ModeRootless, ModeRoot, ModeRootDropped}

// MarshalText refuses to write an unknown mode.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m), oneOf("mode", m, modes) }

// UnmarshalText refuses to read an unknown mode.
func (m *Mode) UnmarshalText(text []byte) error {
	*m = Mode(text)
	return oneOf("mode", *m, modes)
}

// OutcomeKind is how a command ended.
type OutcomeKind string

// The outcomes.
const (
	Exited             OutcomeKind = "exited"
	Signaled           OutcomeKind = "signaled"
	TimedOut           OutcomeKind = "timed_out"   // stage's wall-time limit
	Killed             OutcomeKind = "killed"      // stage killed it for another reason
	NotStarted         OutcomeKind = "not_started" // nothing of the command ever ran
	OutcomeInterrupted OutcomeKind = "interrupted" // the supervisor died; how the command ended was not seen
)

var outcomeKinds = []OutcomeKind{Exited, Signaled, TimedOut, Killed, NotStarted, OutcomeInterrupted}

// MarshalText refuses to write an unknown outcome.
func (k OutcomeKind) MarshalText() ([]byte, error) {
	return []byte(k), oneOf("outcome", k, outcomeKinds)
}

// UnmarshalText refuses to read an unknown outcome.
func (k *OutcomeKind) UnmarshalText(text []byte) error {
	*k = OutcomeKind(text)
	return oneOf("outcome", *k, outcomeKinds)
}

// Check reports the first rule of its kind that o breaks.
func (o *Outcome) Check() error {
	switch o.Kind {
	case Exited:
		return errors.Join(o.checkRan(), need("exit_code", o.ExitCode), refuse("signal", o.Signal), o.checkExit(o.ExitCode, 0))
	case Signaled:
		return errors.Join(o.checkRan(), need("signal", o.Signal), refuse("exit_code", o.ExitCode), o.checkExit(o.Signal, 128))
	case TimedOut, Killed:
		// The command may have answered the signal in its own way: code or signal, never both.
		if o.ExitCode != nil && o.Signal != nil {
			return fmt.Errorf("outcome %s has an exit code and a signal", o.Kind)
		}
		return errors.Join(o.checkRan(), need("reason", o.Reason))
	case NotStarted:
		return errors.Join(need("reason", o.Reason), need("stage_exit", o.StageExit), refuse("exit_code", o.ExitCode),
			refuse("signal", o.Signal), refuse("started_at", o.StartedAt), refuse("wall_ns", o.WallNs))
	case OutcomeInterrupted:
		return errors.Join(need("reason", o.Reason), refuse("exit_code", o.ExitCode), refuse("signal", o.Signal),
			refuse("stage_exit", o.StageExit), refuse("wall_ns", o.WallNs))
	default:
		return oneOf("outcome", o.Kind, outcomeKinds)
	}
}

// checkRan is the rules of a command that ran and was seen to end.
func (o *Outcome) checkRan() error {
	return errors.Join(need("stage_exit", o.StageExit), need("started_at", o.StartedAt),
		need("ended_at", o.EndedAt), need("wall_ns", o.WallNs))
}

// checkExit holds stage's exit code to the command's end.
func (o *Outcome) checkExit(end *int, plus int) error {
	if end == nil || o.StageExit == nil || *o.StageExit == *end+plus {
		return nil
	}
	return fmt.Errorf("stage_exit is %d, the command's end asks for %d", *o.StageExit, *end+plus)
}

func need[T any](key string, v *T) error {
	if v == nil {
		return fmt.Errorf("%s is null", key)
	}
	return nil
}

func refuse[T any](key string, v *T) error {
	if v != nil {
		return fmt.Errorf("%s is set", key)
	}
	return nil
}

// Check reports the first rule that i breaks: enforced needs a read-back that agrees and no canary
// that failed; everything less says why.
func (i *Installed) Check() error {
	if i.Level != Enforced {
		if i.Level == Unenforced && i.Reason == "" {
			return errors.New("unenforced without a reason")
		}
		return nil
	}
	if i.Reason != "" {
		return errors.New("enforced with a reason why not")
	}
	if len(i.ReadBack) == 0 {
		return errors.New("enforced without a read-back")
	}
	for _, r := range i.ReadBack {
		if !r.Holds() {
			return fmt.Errorf("enforced, but %s is %q, want %q", r.Source, r.Got, r.Want)
		}
	}
	if i.Canary != nil && !i.Canary.Passed {
		return fmt.Errorf("enforced, but canary %q failed", i.Canary.Act)
	}
	return nil
}

// Check reports the first rule that b breaks.
func (b *Bundle) Check() error {
	if err := b.Outcome.Check(); err != nil {
		return fmt.Errorf("outcome %s: %w", b.Outcome.Kind, err)
	}
	seen := map[ControlID]bool{}
	for i := range b.Controls {
		c := &b.Controls[i]
		if seen[c.ID] {
			return fmt.Errorf("control %s stands twice", c.ID)
		}
		seen[c.ID] = true
		if err := c.check(); err != nil {
			return fmt.Errorf("control %s: %w", c.ID, err)
		}
	}
	return b.checkDimensions()
}

func (c *Control) check() error {
	if ds := c.ID.Dimensions(); len(ds) == 0 || c.Dimension != ds[0] {
		return fmt.Errorf("dimension %q is not its leading one", c.Dimension)
	}
	if err := c.Installed.Check(); err != nil {
		return err
	}
	for _, o := range c.Observed {
		if err := o.Value.check(); err != nil {
			return fmt.Errorf("observed %s: %w", o.Name, err)
		}
	}
	return nil
}

func (b *Bundle) checkDimensions() error {
	want := Summarize(b.Controls)
	for _, d := range dimensions {
		got, want := b.Dimensions.At(d), want.At(d)
		if got.Planned != want.Planned || got.Installed != want.Installed {
			return fmt.Errorf("dimension %s is not as weak as its weakest required control", d)
		}
	}
	return nil
}
