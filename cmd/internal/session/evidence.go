package session

import (
	"fmt"
	"slices"
	"strings"

	"stage/bundle"
	"stage/fs/overlay"
	"stage/jail"
	"stage/jail/mediator"
	"stage/policy"
)

// notYet are the controls this stage cannot install on any machine, with the flag that asks for each.
var notYet = map[string]string{
	"landlock.fs": "--strict",
	"fs.quota":    "--disk",
	"exec.rules":  "--deny-exec",
	"pids.limit":  "--pids",
	"res.memory":  "--memory",
	"res.cpu":     "--cpu",
	"res.pids":    "--pids",
	"res.disk":    "--disk",
	"res.output":  "--max-output",
}

func plannedLevel(id string) bundle.PlannedLevel {
	if _, ok := notYet[id]; ok {
		return bundle.PlanUnsupported
	}
	return bundle.PlanPlanned
}

// ControlError says that a required control is missing: the command did not start.
type ControlError struct {
	Control string
	Why     string
	Fix     string
}

// Error names the control and why it is missing.
func (e *ControlError) Error() string {
	return fmt.Sprintf("required control %s: %s", e.Control, e.Why)
}

// CheckSupported refuses a plan that requires what this stage cannot install.
func (a *Admission) CheckSupported() error {
	for _, needs := range a.Plan.Controls() {
		for _, n := range needs {
			flag, missing := notYet[n.ID]
			if n.Required && missing && !n.DegradedAllowed {
				return &ControlError{Control: n.ID, Why: "this stage cannot install it" + askedBy(n),
					Fix: fmt.Sprintf("leave out %s, or go on without it by --allow-degraded %s", flag, n.ID)}
			}
		}
	}
	return nil
}

// askedBy names the first rule that asks for a control.
func askedBy(n policy.ControlNeed) string {
	if len(n.Rules) == 0 {
		return ""
	}
	return ": " + n.Rules[0].String()
}

// evidence gathers, for one run, what is known of every control.
type evidence struct {
	admission *Admission
	installed *jail.Installed
	extra     map[string]bundle.Installed // controls installed outside the jail
	overlays  map[string]overlay.Stats    // by root name
	proxy     []mediator.HostStats
	services  []mediator.HostStats
	exit      *jail.Exit // nil: the command's end was not seen
	wallNs    int64
}

// checkRequired refuses to go on when a required control did not come into force.
func (e *evidence) checkRequired() error {
	for _, c := range e.controls() {
		if c.Required && !c.Degraded && c.Installed.Level == bundle.Unenforced {
			return &ControlError{Control: string(c.ID), Why: "it could not be installed: " + string(c.Installed.Reason),
				Fix: "`stage doctor` says what this machine can enforce; --allow-degraded " + string(c.ID) + " goes on without it"}
		}
	}
	return nil
}

// needs returns the plan's controls by id. One that serves several dimensions is required when one
// of them requires it.
func (a *Admission) needs() map[bundle.ControlID]policy.ControlNeed {
	needs := map[bundle.ControlID]policy.ControlNeed{}
	for _, list := range a.Plan.Controls() {
		for _, n := range list {
			id := bundle.ControlID(n.ID)
			n.Required = n.Required || needs[id].Required
			if id == bundle.MountHome && a.homeShown() {
				n.Required = false // the user asked to read it
			}
			n.Rules = slices.Concat(needs[id].Rules, n.Rules)
			needs[id] = n
		}
	}
	return needs
}

// controls returns one record for each control that exists, in the order of the dimensions.
func (e *evidence) controls() []bundle.Control {
	needs := e.admission.needs()
	var all []bundle.Control
	for _, d := range bundle.Dimensions() {
		for _, id := range bundle.ControlsOf(d) {
			if id.Dimensions()[0] == d {
				all = append(all, e.control(id, d, needs))
			}
		}
	}
	return all
}

func (e *evidence) control(id bundle.ControlID, d bundle.Dimension, needs map[bundle.ControlID]policy.ControlNeed) bundle.Control {
	need, wanted := needs[id]
	c := bundle.Control{ID: id, Dimension: d, Required: need.Required, Requested: len(need.Rules) > 0}
	c.Planned = bundle.Planned{Level: plannedLevel(string(id)), Mechanism: need.Mechanism}
	if !wanted {
		c.Planned.Level = bundle.PlanUnsupported
	}
	c.Installed = e.installedState(id, wanted)
	c.Degraded = need.Required && need.DegradedAllowed && c.Installed.Level == bundle.Unenforced
	c.Observed = e.observed(id)
	return c
}

func (e *evidence) installedState(id bundle.ControlID, wanted bool) bundle.Installed {
	if in, ok := e.extra[string(id)]; ok {
		return in
	}
	if e.installed != nil {
		if r, ok := e.installed.Control(string(id)); ok {
			return installedRecord(r)
		}
	}
	if !wanted {
		return bundle.Installed{Level: bundle.Unenforced, Reason: bundle.NotRequested}
	}
	return bundle.Installed{Level: bundle.Unenforced, Reason: bundle.NotInstalled}
}

func installedRecord(r jail.ControlReport) bundle.Installed {
	in := bundle.Installed{Level: bundle.InstalledLevel(r.Level)}
	for _, b := range r.ReadBack {
		in.ReadBack = append(in.ReadBack, bundle.ReadBack(b))
	}
	if r.Canary != nil {
		c := bundle.Canary(*r.Canary)
		in.Canary = &c
	}
	if in.Level == bundle.Unenforced {
		in.Reason = bundle.NotInstalled
	}
	return in
}

// limits are the reasons in words that the jail gave for what is less than enforced.
func (e *evidence) limits() []string {
	l := []string{
		"staging says nothing about the network: what the controls of that dimension say, and no more, is known of it",
		"observations count what reached a control point of stage; what passes none is null, not zero",
		"the records serve local review; they are no remote attestation",
	}
	if e.installed == nil {
		return l
	}
	for _, c := range e.installed.Controls {
		if c.Reason != "" {
			l = append(l, c.ID+": "+c.Reason)
		}
	}
	return l
}

// observed returns what was counted at the control point of one control.
func (e *evidence) observed(id bundle.ControlID) []bundle.Observed {
	switch id {
	case bundle.FSRules:
		return e.observedReads()
	case bundle.FSStaged:
		return e.observedWrites()
	case bundle.NetMediator:
		return e.observedHosts()
	case bundle.NetNetns:
		return []bundle.Observed{unseen("attempts", "count", bundle.NotObservable, "kernel", "connections refused for want of a route")}
	case bundle.SeccompFilter:
		return []bundle.Observed{unseen("denied", "count", bundle.NotObservable, "seccomp", "system calls")}
	case bundle.NSPID:
		return e.observedProcesses()
	case bundle.EnvAllowlist:
		return []bundle.Observed{
			seen("names_passed", int64(len(e.admission.EnvPassed)), "count", "admission", "environment"),
			seen("names_dropped", int64(len(e.admission.EnvDropped)), "count", "admission", "environment"),
		}
	case bundle.ResWall:
		if e.exit == nil {
			return []bundle.Observed{unseen("wall", "ns", bundle.ObserverLost, "supervisor", "command")}
		}
		return []bundle.Observed{seen("wall", e.wallNs, "ns", "supervisor", "command")}
	case bundle.ResMemory, bundle.ResCPU:
		return e.observedUsage(id)
	default:
		return nil
	}
}

func seen(name string, n int64, unit, source, scope string) bundle.Observed {
	return bundle.Observed{Name: name, Value: bundle.Seen(n), Unit: unit, Source: source, Scope: scope}
}

func unseen(name, unit string, why bundle.Reason, source, scope string) bundle.Observed {
	return bundle.Observed{Name: name, Value: bundle.Unseen(why), Unit: unit, Source: source, Scope: scope}
}

// rootNames are the roots whose overlay counted, in order.
func (e *evidence) rootNames() []string {
	var names []string
	for name := range e.overlays {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// content is what passed the overlay of the content of files: in passthrough mode none does.
func (e *evidence) content(name string, n uint64, unit, root string) bundle.Observed {
	if e.admission.Options.passthrough() {
		return unseen(name, unit, bundle.NotObservable, "fuse", root)
	}
	return seen(name, int64(n), unit, "fuse", root)
}

func (e *evidence) observedReads() []bundle.Observed {
	var l []bundle.Observed
	for _, root := range e.rootNames() {
		s := e.overlays[root]
		l = append(l,
			e.content("files_served", s.FilesServed, "count", root),
			e.content("bytes_served", s.BytesServed, "bytes", root),
			seen("denied_lookups", int64(s.DeniedLookups), "count", "fuse", root),
			unseen("opens", "count", bundle.NotObservable, "fuse", root))
	}
	return append(l, unseen("files_served", "count", bundle.NotObservable, "kernel", "outside the staged roots"))
}

func (e *evidence) observedWrites() []bundle.Observed {
	var l []bundle.Observed
	for _, root := range e.rootNames() {
		s := e.overlays[root]
		l = append(l,
			e.content("write_requests", s.WriteRequests, "count", root),
			e.content("bytes_written", s.BytesWritten, "bytes", root),
			seen("copy_ups", int64(s.CopyUps), "count", "fuse", root),
			seen("denied", int64(s.Denied), "count", "fuse", root),
			unseen("quota_hits", "count", bundle.NotInstalled, "fuse", root))
	}
	return l
}

func (e *evidence) observedHosts() []bundle.Observed {
	if e.admission.Plan.Net.Mode != policy.NetAllow {
		why := bundle.NotInstalled
		return []bundle.Observed{unseen("connections", "count", why, "mediator", "all hosts")}
	}
	var l []bundle.Observed
	for _, h := range slices.Concat(e.proxy, e.services) {
		scope := fmt.Sprintf("%s:%d", h.Host, h.Port)
		l = append(l,
			seen("connections", int64(h.Connections), "count", "mediator", scope),
			seen("requests", int64(h.Requests), "count", "mediator", scope),
			seen("bytes_in", int64(h.BytesIn), "bytes", "mediator", scope),
			seen("bytes_out", int64(h.BytesOut), "bytes", "mediator", scope),
			seen("denied", int64(h.Denied), "count", "mediator", scope))
	}
	return append(l, unseen("attempts_without_proxy", "count", bundle.NotObservable, "kernel", "refused for want of a route"))
}

func (e *evidence) observedProcesses() []bundle.Observed {
	execs := unseen("execs", "count", bundle.NotInstalled, "seccomp", "jail")
	if e.exit == nil {
		return []bundle.Observed{execs, unseen("survivors_killed", "count", bundle.ObserverLost, "jail init", "jail")}
	}
	if e.exit.Survivors < 0 {
		return []bundle.Observed{execs, unseen("survivors_killed", "count", bundle.NotObservable, "jail init", "jail")}
	}
	return []bundle.Observed{execs, seen("survivors_killed", int64(e.exit.Survivors), "count", "jail init", "jail")}
}

func (e *evidence) observedUsage(id bundle.ControlID) []bundle.Observed {
	name, unit := "max_rss", "bytes"
	if id == bundle.ResCPU {
		name, unit = "cpu_time", "ns"
	}
	if e.exit == nil {
		return []bundle.Observed{unseen(name, unit, bundle.ObserverLost, "wait4", "jail")}
	}
	n := e.exit.Rusage.MaxRSS
	if id == bundle.ResCPU {
		n = int64(e.exit.Rusage.User + e.exit.Rusage.System)
	}
	return []bundle.Observed{seen(name, n, unit, "wait4", "largest process, of those that were waited for")}
}

// Refusal is a host that was refused during the run.
type Refusal struct {
	Host   string
	Port   uint16
	Count  uint64
	Reason string
}

// refusals are the hosts the mediator refused.
func (e *evidence) refusals() []Refusal {
	var l []Refusal
	for _, h := range e.proxy {
		if h.Denied > 0 {
			l = append(l, Refusal{h.Host, h.Port, h.Denied, strings.TrimSpace(h.Reason + " " + h.Rule)})
		}
	}
	return l
}
