package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stage/bundle"
)

// OutcomeText says in one phrase how the command ended.
func OutcomeText(o bundle.Outcome) string {
	text := outcomeKind(o)
	if o.WallNs != nil && o.Kind != bundle.NotStarted {
		text += " after " + Duration(time.Duration(*o.WallNs))
	}
	if o.Reason != nil && *o.Reason != "" {
		text += ": " + Printable(*o.Reason)
	}
	return text
}

func outcomeKind(o bundle.Outcome) string {
	switch o.Kind {
	case bundle.Exited:
		if o.ExitCode != nil {
			return fmt.Sprintf("exited with %d", *o.ExitCode)
		}
	case bundle.Signaled:
		if o.Signal != nil {
			return "died by " + signalName(*o.Signal)
		}
	case bundle.TimedOut:
		return "timed out"
	case bundle.Killed:
		return "killed by stage"
	case bundle.NotStarted:
		return "never started"
	case bundle.OutcomeInterrupted:
		return "interrupted, its end was not seen"
	}
	return string(o.Kind)
}

func signalName(n int) string {
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return fmt.Sprintf("signal %d (%s)", n, name)
	}
	return fmt.Sprintf("signal %d", n)
}

// Duration writes a duration for people: "350ms", "1.2s", "3m10s".
func Duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// Changed reports whether a Job left changes, as far as they were counted, or may have left some.
func Changed(c bundle.Changes) bool { return !c.Complete || total(c) > 0 }

// ChangesText says in one phrase which changes a Job left, over all its roots.
func ChangesText(c bundle.Changes) string {
	var sum Counts
	var bytes int64
	flags := map[bundle.Class]int{}
	for _, r := range c.Roots {
		n := rootCounts(r)
		sum = Counts{sum.Added + n.Added, sum.Modified + n.Modified, sum.Deleted + n.Deleted,
			sum.Renamed + n.Renamed, sum.TypeChanged + n.TypeChanged, sum.Metadata + n.Metadata}
		bytes += r.Bytes
		for class, n := range r.Flags {
			flags[class] += n
		}
	}
	if !c.Complete && sum.Total() == 0 {
		return "not counted: INCOMPLETE, what changed could not be determined"
	}
	text := sum.String()
	if sum.Total() > 0 {
		text += ", " + Bytes(bytes)
	}
	if len(flags) > 0 {
		text += "; flagged: " + flagText(flags)
	}
	if !c.Complete {
		text += "; INCOMPLETE, not all changes could be determined"
	}
	return text
}

func rootCounts(r bundle.RootChanges) Counts {
	return Counts{r.Added, r.Modified, r.Deleted, r.Renamed, r.TypeChanged, r.Metadata}
}

func flagText(flags map[bundle.Class]int) string {
	var parts []string
	for _, class := range slices.Sorted(maps.Keys(flags)) {
		parts = append(parts, fmt.Sprintf("%s %d", class, flags[class]))
	}
	return strings.Join(parts, ", ")
}

// ControlsText says in one phrase which dimensions' controls are in force, by what was read back.
func ControlsText(b *bundle.Bundle) string {
	by := map[string][]string{}
	for _, d := range bundle.Dimensions() {
		level := string(b.Dimensions.At(d).Installed)
		if !promises(b, d) {
			level = "not required"
		}
		by[level] = append(by[level], string(d))
	}
	var parts []string
	for _, level := range []string{string(bundle.Enforced), string(bundle.Cooperative), string(bundle.Unenforced), "not required"} {
		if len(by[level]) > 0 {
			parts = append(parts, level+": "+strings.Join(by[level], ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// promises reports whether some control of a dimension was required, so that its level says something.
func promises(b *bundle.Bundle, d bundle.Dimension) bool {
	return slices.ContainsFunc(b.Controls, func(c bundle.Control) bool { return c.Required && c.ID.Governs(d) })
}

// EndOfRun writes the three results of a run to s, normally stderr, each on its own line. None of
// them is inferred from another.
func EndOfRun(s *Screen, b *bundle.Bundle) error {
	p := newPrinter(s)
	p.w.WriteString("stage: outcome: " + p.paint(outcomeColour(b.Outcome), OutcomeText(b.Outcome)) + "\n")
	p.w.WriteString("stage: changes: " + ChangesText(b.Changes) + "\n")
	p.w.WriteString("stage: controls: " + ControlsText(b) + "\n")
	return p.w.Flush()
}

func outcomeColour(o bundle.Outcome) string {
	if o.Kind == bundle.Exited && o.ExitCode != nil && *o.ExitCode == 0 {
		return green
	}
	return red
}

// Status writes the three results of a Job on one screen. b is nil for a Job that is not sealed yet.
func Status(s *Screen, run *bundle.Run, b *bundle.Bundle) error {
	p := newPrinter(s)
	p.field("Job", string(run.Job)+"  "+string(run.State)+", "+publicationText(run.Publication))
	p.field("Command", Command(bundle.Strings(run.Argv)))
	p.field("Workspace", Printable(run.Workspace.Path.String()))
	p.field("Created", stamp(run.CreatedAt))
	if run.Parent != nil {
		p.field("Parent", string(run.Parent.Job)+" ("+string(run.Parent.Kind)+")")
	}
	if b == nil {
		p.line(plain, "")
		p.field("Outcome", "not sealed yet")
		return p.w.Flush()
	}
	p.line(plain, "")
	p.field("Outcome", p.paint(outcomeColour(b.Outcome), OutcomeText(b.Outcome)))
	p.changes(b.Changes)
	p.controls(b)
	p.list("Shares", hostPaths(b.Shares))
	p.list("Limits", b.Limits)
	return p.w.Flush()
}

// field writes one labelled line; text is safe already.
func (p *printer) field(label, text string) {
	fmt.Fprintf(p.w, "%s%s %s\n", p.paint(bold, label), strings.Repeat(" ", max(0, 10-len(label))), text)
}

func (p *printer) list(label string, texts []string) {
	for i, t := range texts {
		if i > 0 {
			label = ""
		}
		p.field(label, Printable(t))
	}
}

func hostPaths(paths []bundle.HostPath) []string {
	var s []string
	for _, p := range paths {
		s = append(s, p.String())
	}
	return s
}

func (p *printer) changes(c bundle.Changes) {
	p.field("Changes", ChangesText(c))
	if len(c.Roots) < 2 {
		return
	}
	for _, r := range c.Roots {
		p.field("", "  "+Printable(r.Name)+": "+ChangesText(bundle.Changes{Complete: true, Roots: []bundle.RootChanges{r}}))
	}
}

// controls writes the dimensions with their levels, then each control that is not enforced, the
// canaries and what was observed.
func (p *printer) controls(b *bundle.Bundle) {
	label := "Controls"
	for _, d := range bundle.Dimensions() {
		s := b.Dimensions.At(d)
		text := p.paint(levelColour(s.Installed), fmt.Sprintf("%-11s", s.Installed)) + " (plan: " + string(s.Planned) + ")"
		if !promises(b, d) {
			text = "nothing required"
		}
		p.field(label, fmt.Sprintf("%-13s %s", d, text))
		label = ""
	}
	var tried, passed int
	for i := range b.Controls {
		c := &b.Controls[i]
		if c.Installed.Canary != nil {
			tried++
			if c.Installed.Canary.Passed {
				passed++
			}
		}
		if c.Installed.Level != bundle.Enforced && (c.Required || c.Requested) {
			p.field("", "  "+string(c.ID)+": "+controlText(c))
		}
	}
	if tried > 0 {
		p.field("Canaries", fmt.Sprintf("%d tried, %d refused by the kernel as wanted", tried, passed))
	}
	p.observed(b)
}

func controlText(c *bundle.Control) string {
	text := string(c.Installed.Level)
	if c.Installed.Reason != "" {
		text += " (" + string(c.Installed.Reason) + ")"
	}
	if c.Required {
		text += ", required"
	}
	if c.Degraded {
		text += ", allowed to be missing by --allow-degraded"
	}
	return text
}

func levelColour(l bundle.InstalledLevel) string {
	switch l {
	case bundle.Enforced:
		return green
	case bundle.Cooperative:
		return yellow
	}
	return red
}

// observed writes one line per dimension with what reached its control points. What nobody saw is
// "-" with the reason, never 0.
func (p *printer) observed(b *bundle.Bundle) {
	label := "Observed"
	for _, d := range bundle.Dimensions() {
		var parts []string
		for _, c := range b.Controls {
			if c.Dimension != d {
				continue
			}
			for _, o := range c.Observed {
				parts = append(parts, observedText(o))
			}
		}
		if len(parts) > 0 {
			p.field(label, fmt.Sprintf("%-13s %s", d, strings.Join(parts, ", ")))
			label = ""
		}
	}
}

func observedText(o bundle.Observed) string {
	name := Printable(o.Name)
	if n, ok := o.Value.Number(); ok {
		switch o.Unit {
		case "bytes":
			return name + " " + Bytes(n)
		case "ns":
			return name + " " + Duration(time.Duration(n))
		}
		return fmt.Sprintf("%s %d", name, n)
	}
	if n, ok := o.Value.LowerBound(); ok {
		return fmt.Sprintf("%s ≥ %d (%s)", name, n, o.Value.Reason())
	}
	return fmt.Sprintf("%s - (%s)", name, o.Value.Reason())
}

// statusJSON is `status --json`: the two records as they are.
type statusJSON struct {
	Version bundle.V1      `json:"version"`
	Run     *bundle.Run    `json:"run"`
	Bundle  *bundle.Bundle `json:"bundle"`
}

// StatusJSON writes run.json and bundle.json (null while the Job is not sealed) as one object.
func StatusJSON(s *Screen, run *bundle.Run, b *bundle.Bundle) error {
	return object(s, statusJSON{Run: run, Bundle: b})
}

func publicationText(p bundle.Publication) string {
	switch p {
	case bundle.PublishedNone:
		return "not applied"
	case bundle.PublishedPartial:
		return "applied in part"
	case bundle.PublishedAll:
		return "applied"
	case bundle.RecoveryNeeded:
		return "an apply was interrupted"
	}
	return string(p)
}
