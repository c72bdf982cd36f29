package render

import (
	"fmt"
	"maps"
	"slices"

	"stage/bundle"
	"stage/fs/tree"
)

// Apply writes what an apply did, or with check would do: one line per path whose verdict is worth
// a line, as a merged one's always is, then the sum. Conflicts and gates are errors: their lines are Conflicts and Gates.
func Apply(s *Screen, rep *bundle.ApplyReport, check bool) error {
	p := newPrinter(s)
	n := map[bundle.Verdict]int{}
	for _, a := range rep.Paths {
		n[a.Verdict]++
		if check || merged(a) {
			p.w.WriteString(p.paint(verdictColour(a.Verdict), fmt.Sprintf("%-12s", a.Verdict)) + "  " + pathWhy(a) + "\n")
		}
	}
	p.w.WriteString(applySum(rep, n, check) + "\n")
	return p.w.Flush()
}

func applySum(rep *bundle.ApplyReport, n map[bundle.Verdict]int, check bool) string {
	clean, done := n[bundle.VerdictClean], n[bundle.VerdictApplied]
	refused := n[bundle.VerdictConflict] + n[bundle.VerdictUnknownBase]
	switch {
	case check:
		return fmt.Sprintf("%s could be applied, %d are applied already, %d conflict; nothing was written", Plural(clean, "path"), done, refused)
	case rep.Result == bundle.ResultNothing:
		return "nothing to apply"
	case rep.Result != bundle.ResultApplied:
		return "nothing was written"
	case refused > 0:
		return fmt.Sprintf("applied %s, %d left out because they conflict", Plural(clean+done, "path"), refused)
	}
	return "applied " + Plural(clean+done, "path")
}

// Undo writes what an undo did: how many changes it took back, and how many it left.
func Undo(s *Screen, rep *bundle.ApplyReport) error {
	left := 0
	for _, a := range rep.Paths {
		if a.Verdict == bundle.VerdictConflict {
			left++
		}
	}
	p := newPrinter(s)
	text := "took back " + Plural(len(rep.Paths)-left, "path")
	if left > 0 {
		text += fmt.Sprintf(", %d left as they are because they changed since", left)
	}
	p.w.WriteString(text + "\n")
	return p.w.Flush()
}

// merged reports whether a was, or would be, applied in another form than the Job has it.
func merged(a bundle.ApplyPath) bool {
	return a.Verdict == bundle.VerdictClean && a.Why != nil && *a.Why != ""
}

func verdictColour(v bundle.Verdict) string {
	switch v {
	case bundle.VerdictClean, bundle.VerdictApplied:
		return green
	}
	return red
}

func pathWhy(a bundle.ApplyPath) string {
	text := QuoteName(a.Path.String())
	if a.Why != nil && *a.Why != "" {
		text += ": " + Printable(*a.Why)
	}
	return text
}

// Conflicts returns one line per path that conflicts, with the reason: details for Problem.
func Conflicts(rep *bundle.ApplyReport) []string {
	var l []string
	for _, a := range rep.Paths {
		if a.Verdict == bundle.VerdictConflict || a.Verdict == bundle.VerdictUnknownBase {
			l = append(l, pathWhy(a))
		}
	}
	return l
}

// gateLines is how many paths of one class are named before the rest is counted.
const gateLines = 10

// Gates returns the paths that need --allow, class by class: details for Problem.
func Gates(gated map[bundle.Class]bundle.List[tree.Path]) []string {
	var l []string
	for _, c := range slices.Sorted(maps.Keys(gated)) {
		paths := gated[c]
		for i, p := range paths {
			if i == gateLines {
				l = append(l, fmt.Sprintf("%s: … and %d more", c, len(paths)-i))
				break
			}
			l = append(l, string(c)+": "+QuoteName(p.String()))
		}
	}
	return l
}

// ApplyJSON writes the report of an apply.
func ApplyJSON(s *Screen, rep *bundle.ApplyReport) error { return document(s, rep) }
