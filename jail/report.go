package jail

import (
	"fmt"
	"strings"
)

// Level says how far a control is in force.
type Level string

const (
	// Unenforced means the control is not installed.
	Unenforced Level = "unenforced"
	// Cooperative means the control depends on the command's good will.
	Cooperative Level = "cooperative"
	// Enforced means the kernel confirmed the control.
	Enforced Level = "enforced"
)

// ReadBack is one value that the kernel gave back, beside the one wanted.
type ReadBack struct {
	Source, Want, Got string
}

// Canary is one forbidden act that the jail's first process tried after installation.
type Canary struct {
	Act       string
	WantErrno string
	GotErrno  string
	Passed    bool
}

// ControlReport is what was installed for one control.
type ControlReport struct {
	ID       string
	Level    Level
	ReadBack []ReadBack
	Canary   *Canary
	Reason   string // why the level is not Enforced, or what limits it; empty: nothing to say
}

// Installed is the report on all controls of a jail.
type Installed struct {
	Controls []ControlReport
}

// Control returns the report of a control, or false when the jail says nothing of it.
func (in *Installed) Control(id string) (ControlReport, bool) {
	for _, c := range in.Controls {
		if c.ID == id {
			return c, true
		}
	}
	return ControlReport{}, false
}

// InstallError says that a control is not in force although it was asked for.
type InstallError struct {
	Control string
	Detail  []string
}

func (e *InstallError) Error() string {
	return fmt.Sprintf("install %s: %s", e.Control, strings.Join(e.Detail, "; "))
}
