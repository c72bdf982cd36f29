package bundle

import (
	"fmt"
	"slices"
)

// Dimension is one of the six things a Job's permissions are about.
type Dimension string

// The dimensions.
const (
	FileReads    Dimension = "file_reads"
	FileWrites   Dimension = "file_writes"
	Network      Dimension = "network"
	Subprocesses Dimension = "subprocesses"
	Credentials  Dimension = "credentials"
	Resources    Dimension = "resources"
)

var dimensions = []Dimension{FileReads, FileWrites, Network, Subprocesses, Credentials, Resources}

// Dimensions returns the six dimensions in the order of every document.
func Dimensions() []Dimension { return slices.Clone(dimensions) }

// MarshalText refuses to write an unknown dimension.
func (d Dimension) MarshalText() ([]byte, error) { return []byte(d), oneOf("dimension", d, dimensions) }

// UnmarshalText refuses to read an unknown dimension.
func (d *Dimension) UnmarshalText(text []byte) error {
	*d = Dimension(text)
	return oneOf("dimension", *d, dimensions)
}

// PerDimension holds one T for each dimension, so that none can be left out.
type PerDimension[T any] struct {
	FileReads    T `json:"file_reads"`
	FileWrites   T `json:"file_writes"`
	Network      T `json:"network"`
	Subprocesses T `json:"subprocesses"`
	Credentials  T `json:"credentials"`
	Resources    T `json:"resources"`
}

// At returns the place of dimension d. It panics on a Dimension that is none.
func (p *PerDimension[T]) At(d Dimension) *T {
	switch d {
	case FileReads:
		return &p.FileReads
	case FileWrites:
		return &p.FileWrites
	case Network:
		return &p.Network
	case Subprocesses:
		return &p.Subprocesses
	case Credentials:
		return &p.Credentials
	case Resources:
		return &p.Resources
	default:
		panic(fmt.Sprintf("unknown dimension %q", d))
	}
}

// ControlID names a control: one mechanism that restricts or measures a Job.
type ControlID string

// The controls.
const (
	MountRoot   ControlID = "mount.root"
	MountHome   ControlID = "mount.home"
	MaskSecrets ControlID = "mask.secrets"
	FSRules     ControlID = "fs.rules"
	LandlockFS  ControlID = "landlock.fs"

	FSStaged      ControlID = "fs.staged"
	MountReadonly ControlID = "mount.readonly"
	MountShares   ControlID = "mount.shares"
	FSQuota       ControlID = "fs.quota"

	NetNetns    ControlID = "net.netns"
	NetMediator ControlID = "net.mediator"
	NetDNS      ControlID = "net.dns"
	NetFamilies ControlID = "net.families"
	NetUnix     ControlID = "net.unix"

	NSPID         ControlID = "ns.pid"
	NSUser        ControlID = "ns.user"
	NSMount       ControlID = "ns.mount"
	NSIPC         ControlID = "ns.ipc"
	NSUTS         ControlID = "ns.uts"
	SeccompFilter ControlID = "seccomp.filter"
	CapsNone      ControlID = "caps.none"
	NNP           ControlID = "nnp"
	ExecRules     ControlID = "exec.rules"
	PidsLimit     ControlID = "pids.limit"

	EnvAllowlist  ControlID = "env.allowlist"
	SocketsAgents ControlID = "sockets.agents"
	Keyring       ControlID = "keyring"
	Core          ControlID = "core"

	ResMemory ControlID = "res.memory"
	ResCPU    ControlID = "res.cpu"
	ResPids   ControlID = "res.pids"
	ResWall   ControlID = "res.wall"
	ResDisk   ControlID = "res.disk"
	ResNofile ControlID = "res.nofile"
	ResOutput ControlID = "res.output"
)

// controlTable is SPEC's table of controls. A control that serves several dimensions stands in each.
var controlTable = PerDimension[[]ControlID]{
	FileReads:    []ControlID{MountRoot, MountHome, MaskSecrets, FSRules, LandlockFS},
	FileWrites:   []ControlID{FSStaged, MountReadonly, MountShares, FSQuota},
	Network:      []ControlID{NetNetns, NetMediator, NetDNS, NetFamilies, NetUnix},
	Subprocesses: []ControlID{NSPID, NSUser, NSMount, NSIPC, NSUTS, SeccompFilter, CapsNone, NNP, ExecRules, PidsLimit},
	Credentials:  []ControlID{EnvAllowlist, MaskSecrets, SocketsAgents, Keyring, Core},
	Resources:    []ControlID{ResMemory, ResCPU, ResPids, ResWall, ResDisk, ResNofile, ResOutput},
}

// ControlsOf returns the controls of a dimension.
func ControlsOf(d Dimension) []ControlID { return slices.Clone(*controlTable.At(d)) }

// Governs reports whether the control belongs to dimension d.
func (c ControlID) Governs(d Dimension) bool { return slices.Contains(*controlTable.At(d), c) }

// Dimensions returns the dimensions the control belongs to, the leading one first; none for an
// unknown control.
func (c ControlID) Dimensions() []Dimension {
	var ds []Dimension
	for _, d := range dimensions {
		if c.Governs(d) {
			ds = append(ds, d)
		}
	}
	return ds
}

// MarshalText refuses to write an unknown control.
func (c ControlID) MarshalText() ([]byte, error) { return []byte(c), c.check() }

// UnmarshalText refuses to read an unknown control.
func (c *ControlID) UnmarshalText(text []byte) error {
	*c = ControlID(text)
	return c.check()
}

func (c ControlID) check() error {
	if len(c.Dimensions()) == 0 {
		return fmt.Errorf("unknown control %q", c)
	}
	return nil
}

// PlannedLevel is what the plan intends of a control. It is never shown as enforced.
type PlannedLevel string

// The planned levels, from the weakest up.
const (
	PlanUnsupported PlannedLevel = "unsupported" // nothing here can do it
	PlanCooperative PlannedLevel = "cooperative" // depends on the command's good will
	PlanPlanned     PlannedLevel = "planned"     // is to be installed
)

var plannedLevels = []PlannedLevel{PlanUnsupported, PlanCooperative, PlanPlanned}

// MarshalText refuses to write an unknown level.
func (l PlannedLevel) MarshalText() ([]byte, error) {
	return []byte(l), oneOf("planned level", l, plannedLevels)
}

// UnmarshalText refuses to read an unknown level.
func (l *PlannedLevel) UnmarshalText(text []byte) error {
	*l = PlannedLevel(text)
	return oneOf("planned level", *l, plannedLevels)
}

// InstalledLevel is what the kernel confirms of a control.
type InstalledLevel string

// The installed levels, from the weakest up.
const (
	Unenforced  InstalledLevel = "unenforced"  // not in force, or not known to be
	Cooperative InstalledLevel = "cooperative" // depends on the command's good will
	Enforced    InstalledLevel = "enforced"    // read back from the kernel
)

var installedLevels = []InstalledLevel{Unenforced, Cooperative, Enforced}

// MarshalText refuses to write an unknown level.
func (l InstalledLevel) MarshalText() ([]byte, error) {
	return []byte(l), oneOf("installed level", l, installedLevels)
}

// UnmarshalText refuses to read an unknown level.
func (l *InstalledLevel) UnmarshalText(text []byte) error {
	*l = InstalledLevel(text)
	return oneOf("installed level", *l, installedLevels)
}

// Summary is what the controls of one dimension amount to.
type Summary struct {
	Planned   PlannedLevel    `json:"planned"`
	Installed InstalledLevel  `json:"installed"`
	Controls  List[ControlID] `json:"controls"`
}

// Summarize returns the state of each dimension: the level of its weakest required control. Where
// no control is required nothing is promised, and the levels are the lowest.
func Summarize(controls []Control) PerDimension[Summary] {
	var s PerDimension[Summary]
	for _, d := range dimensions {
		*s.At(d) = summarizeOne(d, controls)
	}
	return s
}

func summarizeOne(d Dimension, controls []Control) Summary {
	s := Summary{Planned: PlanUnsupported, Installed: Unenforced}
	planned, installed := len(plannedLevels), len(installedLevels)
	for _, c := range controls {
		if !c.ID.Governs(d) {
			continue
		}
		s.Controls = append(s.Controls, c.ID)
		if c.Required {
			planned = min(planned, slices.Index(plannedLevels, c.Planned.Level))
			installed = min(installed, slices.Index(installedLevels, c.Installed.Level))
		}
	}
	if planned >= 0 && planned < len(plannedLevels) {
		s.Planned = plannedLevels[planned]
	}
	if installed >= 0 && installed < len(installedLevels) {
		s.Installed = installedLevels[installed]
	}
	return s
}
