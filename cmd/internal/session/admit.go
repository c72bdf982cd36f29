package session

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"stage/policy"
)

// Options is one `stage run` as its command line says it.
type Options struct {
	Argv      []string
	Workspace string // --workspace, "" for the git work tree around the current directory
	Flags     policy.Flags
	Policies  []string // --policy files, the session layer
	Executor  string   // --executor, "" to choose by argv[0]

	KeepAgentSandbox bool
	NoAuthWriteback  bool
	FreshCache       bool
	FSMode           string // --fs-mode: "", auto or passthrough
}

// passthrough reports whether the kernel is to read and write the files of staged roots itself.
func (o *Options) passthrough() bool { return o.FSMode == "passthrough" }

// checkFSMode refuses a mode that cannot be had, as far as can be known before a mount is made.
func (o *Options) checkFSMode() error {
	switch {
	case o.FSMode != "" && o.FSMode != "auto" && !o.passthrough():
		return invalidf("--fs-mode %s: want auto or passthrough", o.FSMode)
	case o.passthrough() && os.Geteuid() != 0:
		return invalidf("--fs-mode passthrough: the kernel takes files of the host from root alone: leave it out, or run stage as root")
	}
	return nil
}

// proxyAddr is where the mediator's proxy listens inside the Job's network namespace.
const proxyAddr = "127.0.0.1:3128"

// Admission is what a run may do and how it is set up, decided before anything is started.
type Admission struct {
	Options   Options
	Workspace string // absolute, free of links
	Cwd       string // where the command starts: inside the workspace
	Home      string // the caller's home directory, free of links

	program      program // what argv[0] is on the host
	Preset       policy.Preset
	PresetSource string
	Agents       []*agentHome // the preset's private homes
	Request      policy.Request
	Layers       []policy.Layer
	Plan         policy.Plan

	Env        []string // the command's environment
	EnvPassed  []string // names of the caller's variables that pass
	EnvDropped []string // … and that do not
	Hints      []string // for the user, not errors
}

// InvalidError is a request that cannot be taken: the command line or what it names is wrong.
type InvalidError struct{ err error }

func (e *InvalidError) Error() string { return e.err.Error() }
func (e *InvalidError) Unwrap() error { return e.err }

func invalidf(format string, args ...any) error { return &InvalidError{fmt.Errorf(format, args...)} }

// Admit decides what the run of o may do. It starts nothing and writes nothing.
func Admit(o Options) (*Admission, error) {
	if len(o.Argv) == 0 {
		return nil, invalidf("no command: stage run [flags] -- CMD ARG…")
	}
	if err := o.checkFSMode(); err != nil {
		return nil, err
	}
	a := &Admission{Options: o}
	if err := a.resolveRoots(); err != nil {
		return nil, err
	}
	if err := a.resolveFlags(); err != nil {
		return nil, err
	}
	presets, err := policy.LoadPresets()
	if err != nil {
		return nil, err
	}
	if err := a.choosePreset(presets); err != nil {
		return nil, err
	}
	if err := a.readLayers(presets); err != nil {
		return nil, err
	}
	agent, err := a.readAgent()
	if err != nil {
		return nil, err
	}
	a.Request, err = policy.NewRequest(a.Workspace, a.Home, a.Options.Flags, a.Preset, agent)
	if err != nil {
		return nil, err
	}
	a.Request.Resolve = newResolver()
	if a.Plan, err = policy.Narrow(a.Request, a.Layers...); err != nil {
		return nil, err
	}
	if err := errors.Join(a.checkStaged(), a.checkShares()); err != nil {
		return nil, err
	}
	a.explainRefusals()
	if err := a.warnHidden(); err != nil {
		return nil, err
	}
	a.buildEnv(os.Environ())
	return a, nil
}

// checkStaged refuses a plan without the workspace among its staged roots, or with more than it.
func (a *Admission) checkStaged() error {
	roots := a.Plan.StageRoots
	if len(roots) == 1 && roots[0].Path == a.Workspace {
		return nil
	}
	for _, r := range a.Plan.Refused {
		if r.Want.Object == "stage" {
			return &RefusedError{What: "stage " + a.Workspace, By: r.By}
		}
	}
	return invalidf("this stage can stage the workspace alone, not %d roots", len(roots))
}

// RefusedError is a request that policy refuses as a whole.
type RefusedError struct {
	What string
	By   policy.Rule
}

// Error names what was asked for and the rule that refuses it.
func (e *RefusedError) Error() string { return fmt.Sprintf("policy refuses to %s: %s", e.What, e.By) }

// explainRefusals tells the user which of his own flags a policy took away.
func (a *Admission) explainRefusals() {
	for _, r := range a.Plan.Refused {
		if r.Want.Source.Layer == policy.FromFlag {
			a.Hints = append(a.Hints, fmt.Sprintf("%s is taken away by %s", r.Want, r.By))
		}
	}
}

// resolveRoots finds the workspace, the home directory and where the command starts.
func (a *Admission) resolveRoots() error {
	home, err := homeDir()
	if err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("current directory: %w", err)
	}
	if a.Workspace, err = FindWorkspace(a.Options.Workspace, cwd, home); err != nil {
		return err
	}
	a.Home, a.Cwd = home, a.Workspace
	if real, err := filepath.EvalSymlinks(cwd); err == nil && within(a.Workspace, real) {
		a.Cwd = real
	}
	return nil
}

// within reports whether path is root or lies below it; both are absolute and clean.
func within(root, path string) bool {
	return root == "/" || path == root || strings.HasPrefix(path, root+"/")
}

func homeDir() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("home directory: %w: set HOME", err)
	}
	real, err := filepath.EvalSymlinks(home)
	if errors.Is(err, os.ErrNotExist) {
		return filepath.Clean(home), nil // a user without a home still may run Jobs
	}
	if err != nil {
		return "", fmt.Errorf("home directory: %w", err)
	}
	return real, nil
}

// choosePreset picks the preset by --executor or by where argv[0] really is.
func (a *Admission) choosePreset(presets policy.Presets) error {
	argv0 := a.Options.Argv[0]
	a.program = lookProgram(argv0)
	resolved := a.program.real
	writable := slices.Concat([]string{a.Workspace}, a.Options.Flags.Share, a.Options.Flags.Scratch)
	preset, hint, err := presets.Choose(a.Options.Executor, argv0, resolved, writable)
	if err != nil {
		return err
	}
	a.Preset, a.PresetSource = preset, "argv[0] "+argv0
	if a.Options.Executor != "" {
		a.PresetSource = "--executor"
	}
	if hint != "" {
		a.Hints = append(a.Hints, hint)
	}
	return nil
}
