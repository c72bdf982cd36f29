package apply

import (
	"strings"

	udiff "github.com/aymanbagabas/go-udiff"
)

// Marks are the names in the conflict markers of a merged text.
type marks struct{ ours, base, theirs string }

// merge3 merges what two sides made of a text, line by line. Where both changed the same lines, or
// lines that touch, and not alike, it is a conflict: both sides are put between markers, as git
// does with merge.conflictStyle=diff3, and counted.
func merge3(base, ours, theirs string, m marks) (text string, conflicts int) {
	a, b := widen(base, udiff.Lines(base, ours)), widen(base, udiff.Lines(base, theirs))
	var out strings.Builder
	at := 0
	for len(a) > 0 || len(b) > 0 {
		r := nextRegion(a, b)
		out.WriteString(base[at:r.start])
		var mine, other string
		mine, a = r.take(base, a)
		other, b = r.take(base, b)
		switch old := base[r.start:r.end]; {
		case mine == other, other == old:
			out.WriteString(mine)
		case mine == old:
			out.WriteString(other)
		default:
			conflicts++
			m.write(&out, mine, old, other)
		}
		at = r.end
	}
	out.WriteString(base[at:])
	return out.String(), conflicts
}

// widen makes each edit as wide as the places it could as well stand at: which of two equal lines was
// removed, or before or behind which a third came, no diff can tell, so that both count as changed.
func widen(base string, edits []udiff.Edit) []udiff.Edit {
	out := make([]udiff.Edit, len(edits))
	for i, e := range edits {
		low, high := 0, len(base)
		if i > 0 {
			low = edits[i-1].End
		}
		if i+1 < len(edits) {
			high = edits[i+1].Start
		}
		out[i] = slide(base, e, low, high)
	}
	return out
}

// slide widens e, a pure insertion or deletion, within base[low:high].
func slide(base string, e udiff.Edit, low, high int) udiff.Edit {
	block := e.New
	if block == "" {
		block = base[e.Start:e.End]
	} else if e.Start != e.End {
		return e
	}
	up, down := e.Start, e.End
	for line := lastLine(block); line != "" && strings.HasSuffix(base[low:up], line); line = lastLine(block) {
		up -= len(line)
		block = line + block[:len(block)-len(line)]
	}
	block = e.New + base[e.Start:e.End] // one of the two is empty
	for line := firstLine(block); line != "" && strings.HasPrefix(base[down:high], line); line = firstLine(block) {
		down += len(line)
		block = block[len(line):] + line
	}
	return udiff.Edit{Start: up, End: down, New: base[up:e.Start] + e.New + base[e.End:down]}
}

// firstLine returns the first line of text with its end, "" if that has none.
func firstLine(text string) string { return text[:strings.IndexByte(text, '\n')+1] }

// lastLine returns the last line of a text that ends with a line's end, else "".
func lastLine(text string) string {
	if !strings.HasSuffix(text, "\n") {
		return ""
	}
	return text[strings.LastIndexByte(text[:len(text)-1], '\n')+1:]
}

// region is a range of the base that one side changed, or both in edits that overlap or touch.
type region struct{ start, end int }

// nextRegion returns the first region that the edits of two sides, each sorted, make.
func nextRegion(a, b []udiff.Edit) region {
	r := region{}
	switch {
	case len(b) == 0 || len(a) > 0 && a[0].Start <= b[0].Start:
		r = region{a[0].Start, a[0].End}
	default:
		r = region{b[0].Start, b[0].End}
	}
	for {
		end := max(r.reach(a), r.reach(b))
		if end == r.end {
			return r
		}
		r.end = end
	}
}

// reach returns how far the edits that begin in r, or where it ends, go.
func (r region) reach(edits []udiff.Edit) int {
	end := r.end
	for _, e := range edits {
		if e.Start > end {
			break
		}
		end = max(end, e.End)
	}
	return end
}

// take returns what a side made of r, and its edits behind r.
func (r region) take(base string, edits []udiff.Edit) (text string, rest []udiff.Edit) {
	var out strings.Builder
	at := r.start
	for len(edits) > 0 && edits[0].Start <= r.end {
		out.WriteString(base[at:edits[0].Start] + edits[0].New)
		at = edits[0].End
		edits = edits[1:]
	}
	out.WriteString(base[at:r.end])
	return out.String(), edits
}

// write writes a conflict.
func (m marks) write(out *strings.Builder, ours, base, theirs string) {
	for _, part := range [][2]string{
		{"<<<<<<< " + m.ours, ours}, {"||||||| " + m.base, base}, {"=======", theirs}, {">>>>>>> " + m.theirs, ""},
	} {
		out.WriteString(part[0] + "\n" + part[1])
		if part[1] != "" && !strings.HasSuffix(part[1], "\n") {
			out.WriteByte('\n')
		}
	}
}
