package render

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"stage/bundle"
	"stage/fs/tree"
)

// Lines are counted only where that is cheap: in files up to maxCount bytes, until maxCountAll bytes
// were read.
const (
	maxCount    = 512 << 10
	maxCountAll = 32 << 20
	nameColumn  = 48 // names are padded up to this width
)

// List writes the default review: the Job, its outcome and the counts, then one line per change with
// what was found out about it. Volume (node_modules, build output, lock files, .git) is one line per
// place, with count and bytes. The caller writes Next to stderr after it.
func List(ctx context.Context, s *Screen, r *Review) error {
	all := *r
	all.RawGit = true // .git is collapsed here, with its bytes
	items, err := all.items(ctx)
	if err != nil {
		return err
	}
	l := &lister{printer: newPrinter(s), r: r}
	var total Counts
	for i := range items {
		total.add(&items[i])
	}
	own, groups := r.collapsed(items)
	l.header(total)
	if err := l.items(ctx, own); err != nil {
		return err
	}
	for _, g := range groups {
		l.group(g)
	}
	if r.RawGit || !slices.ContainsFunc(groups, func(g *group) bool { return inGit(g.volume.dir) }) {
		l.git()
	}
	return l.w.Flush()
}

// lister writes the default review.
type lister struct {
	*printer
	r    *Review
	read int64
}

func (l *lister) header(total Counts) {
	outcome := ""
	if l.r.Outcome != "" {
		outcome = ": " + Printable(l.r.Outcome)
	}
	l.line(bold, fmt.Sprintf("Job %s, %s%s", l.r.Job, l.r.Root, outcome))
	l.line(plain, total.String())
	if l.r.drifted() {
		l.line(yellow, "the workspace changed since the run where the Job changed it too")
	}
	l.readDrift()
	if total.Total() > 0 {
		l.line(plain, "")
	}
}

// maxReadDrift is how many files that were read and changed since the list names.
const maxReadDrift = 5

func (l *lister) readDrift() {
	d := l.r.Reads
	if len(d.Paths) > 0 {
		var names []string
		for _, p := range d.Paths[:min(len(d.Paths), maxReadDrift)] {
			names = append(names, QuoteName(p.String()))
		}
		if len(d.Paths) > maxReadDrift {
			names = append(names, "…")
		}
		l.line(yellow, fmt.Sprintf("files that the Job read changed in the workspace since: %d (%s)", len(d.Paths), strings.Join(names, ", ")))
	}
	if d.More > 0 {
		l.line(yellow, fmt.Sprintf("the Job read %d more files, of which no account was kept", d.More))
	}
}

func (l *lister) items(ctx context.Context, items []item) error {
	width := 0
	for i := range items {
		width = max(width, min(nameColumn, len(itemName(&items[i]))))
	}
	for i := range items {
		if err := ctx.Err(); err != nil {
			return err
		}
		it := &items[i]
		l.entry(it.letter, itemName(it), width, l.details(it))
		l.remarks(it)
	}
	return nil
}

// entry writes one line: letter, name, details.
func (l *lister) entry(letter byte, name string, width int, details []string) {
	line := " " + l.paint(letterColour(letter), string(letter)) + "  " + name
	if len(details) > 0 {
		line += strings.Repeat(" ", max(0, width-len(name))) + "  " + strings.Join(details, ", ")
	}
	l.w.WriteString(line + "\n")
}

func letterColour(letter byte) string {
	switch letter {
	case 'A':
		return green
	case 'D':
		return red
	case 'M', 'm':
		return yellow
	}
	return cyan
}

// itemName is a path as the list shows it: quoted, directories with a slash, renames with both names.
func itemName(it *item) string {
	name := shownName(it.path, it.now.Kind == tree.Dir || it.now.Kind == tree.Absent && it.base.Kind == tree.Dir)
	if it.letter == 'R' {
		name = shownName(it.from, it.base.Kind == tree.Dir) + " -> " + name
	}
	return name
}

func shownName(p tree.Path, dir bool) string {
	if dir {
		return QuoteName(p.String() + "/")
	}
	return QuoteName(p.String())
}

// details says what is cheap to know about a change.
func (l *lister) details(it *item) []string {
	var d []string
	if it.letter == 'T' {
		d = append(d, it.base.Kind.String()+" -> "+it.now.Kind.String())
	}
	if k := it.now.Kind; it.letter == 'A' && k != tree.File && k != tree.Dir {
		d = append(d, k.String())
	}
	if it.now.Kind == tree.Symlink {
		d = append(d, "to "+QuoteName(it.now.Target))
	}
	if c := l.lineCount(it); c != "" {
		d = append(d, c)
	}
	if it.entry != nil && it.entry.Moved && it.letter != 'R' && it.entry.RenameFrom != nil {
		d = append(d, "moved from "+shownName(*it.entry.RenameFrom, true))
	}
	if it.entry != nil && it.entry.LinkGroup > 0 {
		d = append(d, fmt.Sprintf("hard link group %d", it.entry.LinkGroup))
	}
	d = append(d, metadata(it)...)
	if it.letter == 'm' && len(d) == 0 {
		d = append(d, "metadata")
	}
	return d
}

// lineCount returns "+3 -1" for text, the sizes for other files, "" where it would cost too much.
func (l *lister) lineCount(it *item) string {
	if it.base.Kind != tree.File && it.now.Kind != tree.File || it.letter == 'm' || it.score == 100 {
		return ""
	}
	sizes := Bytes(it.base.Size) + " -> " + Bytes(it.now.Size)
	switch {
	case it.base.Kind != tree.File:
		sizes = Bytes(it.now.Size)
	case it.now.Kind != tree.File:
		sizes = Bytes(it.base.Size)
	}
	if l.read += min(it.base.Size, maxCount) + min(it.now.Size, maxCount); l.read > maxCountAll {
		return sizes
	}
	c, err := l.r.count(it, maxCount)
	if err != nil || !c.known {
		return sizes // content that is gone or not text is told by --diff
	}
	return c.String()
}

// remarks writes what a reader has to know before an apply, below the line of its change.
func (l *lister) remarks(it *item) {
	e := it.entry
	if e == nil {
		return
	}
	for _, f := range e.Flags {
		text := "! " + string(f.Class) + ": " + Printable(f.Reason)
		if f.Class.Gated() {
			text += " (apply needs --allow " + string(f.Class) + ")"
		}
		l.remark(yellow, text)
	}
	switch {
	case e.UnknownBase || e.Verdict == bundle.VerdictUnknownBase:
		l.remark(red, "! base unknown: its record was lost; apply refuses this path")
	case e.Verdict == bundle.VerdictConflict:
		l.remark(red, "! conflict: "+why(e.Why))
	case e.Verdict == bundle.VerdictApplied:
		l.remark(green, "already in the workspace")
	case e.Drift:
		l.remark(yellow, "! changed in the workspace since the run")
	}
}

func why(text string) string {
	if text == "" {
		return "the workspace has something else"
	}
	return Printable(text)
}

func (l *lister) remark(colour, text string) {
	l.w.WriteString("      " + l.paint(colour, text) + "\n")
}

// group writes a collapsed line.
func (l *lister) group(g *group) {
	text := fmt.Sprintf(" …  %s  %s, %s", g.volume, g.counts, Bytes(g.bytes))
	for _, c := range slices.Sorted(maps.Keys(g.flags)) {
		text += fmt.Sprintf(", %s %d", c, g.flags[c])
	}
	l.w.WriteString(text + "\n")
	if inGit(g.volume.dir) {
		l.git()
	}
}

// git writes what git would say of the changes below .git.
func (l *lister) git() {
	for _, g := range l.r.Git {
		l.w.WriteString("      " + Printable(g) + "\n")
	}
}

// Next returns the next useful command after a review, for Hint.
func Next(r *Review) string {
	gated := map[bundle.Class]bool{}
	left, conflicts := 0, 0
	for _, e := range r.Changes {
		switch e.Verdict {
		case bundle.VerdictApplied:
			continue
		case bundle.VerdictConflict, bundle.VerdictUnknownBase:
			conflicts++
		}
		left++
		for _, f := range e.Flags {
			if f.Class.Gated() {
				gated[f.Class] = true
			}
		}
	}
	apply := "stage apply " + string(r.Job)
	if len(gated) > 0 {
		var names []string
		for _, c := range slices.Sorted(maps.Keys(gated)) {
			names = append(names, string(c))
		}
		apply += " --allow " + strings.Join(names, ",")
	}
	switch {
	case len(r.Changes) == 0:
		return "nothing to apply; discard the Job with `stage drop " + string(r.Job) + "`"
	case left == 0:
		return "everything is applied already"
	case conflicts == left:
		return "nothing can be applied as the workspace is now; discard the changes with `stage drop " + string(r.Job) + "`"
	case conflicts > 0:
		return "see contents with `stage review " + string(r.Job) + " --diff`; take what does not conflict with `" + apply + " --keep-going`"
	}
	return "see contents with `stage review " + string(r.Job) + " --diff`, then `" + apply + "` or `stage drop " + string(r.Job) + "`"
}
