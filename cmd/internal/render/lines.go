package render

import (
	"bytes"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"
)

// isBinary reports whether content is not text: it holds a NUL.
func isBinary(data []byte) bool { return bytes.IndexByte(data, 0) >= 0 }

// lines cuts data after each newline; the last line lacks one if the text does.
func lines(data []byte) []string {
	l := strings.SplitAfter(string(data), "\n")
	if n := len(l); l[n-1] == "" {
		l = l[:n-1]
	}
	return l
}

// anchorsFrom is the number of lines from which lineEdits looks for anchors first.
const anchorsFrom = 200

// lineEdits returns the replacements that turn a into b, in order. Its time is bounded: the search
// between two anchors gives up at a fixed number of differences and then replaces what is left.
// Anchors, lines that occur once on both sides, keep that search short in long texts.
func lineEdits(a, b []string) []lcs.Diff {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	e := editor{a: a, b: b}
	e.between(head, len(a)-tail, head, len(b)-tail)
	return e.edits
}

// editor collects edits from the start of the texts to their end.
type editor struct {
	a, b  []string
	edits []lcs.Diff
}

func (e *editor) between(a0, a1, b0, b1 int) {
	if a1-a0 < anchorsFrom && b1-b0 < anchorsFrom {
		e.search(a0, a1, b0, b1)
		return
	}
	a, b := a0, b0
	for _, p := range anchors(e.a[a0:a1], e.b[b0:b1]) {
		e.search(a, a0+p.a, b, b0+p.b)
		a, b = a0+p.a+1, b0+p.b+1
	}
	e.search(a, a1, b, b1)
}

// anchor is a line that stands once in both texts.
type anchor struct{ a, b int }

// anchors returns the longest chain of lines that stand once in both texts, in the same order on
// both sides (patience diff).
func anchors(a, b []string) []anchor {
	type count struct{ na, nb, b int }
	counts := make(map[string]count, len(a))
	for _, l := range a {
		c := counts[l]
		c.na++
		counts[l] = c
	}
	for i, l := range b {
		c := counts[l]
		c.nb++
		c.b = i
		counts[l] = c
	}
	var all []anchor
	for i, l := range a {
		if c := counts[l]; c.na == 1 && c.nb == 1 {
			all = append(all, anchor{i, c.b})
		}
	}
	return longestChain(all)
}

// longestChain returns the longest subsequence of all, sorted by a, that rises in b too.
func longestChain(all []anchor) []anchor {
	var tails []int // tails[n] is the index in all of the smallest b that ends a chain of n+1
	before := make([]int, len(all))
	for i, p := range all {
		n, _ := slices.BinarySearchFunc(tails, p.b, func(t, b int) int { return all[t].b - b })
		before[i] = -1
		if n > 0 {
			before[i] = tails[n-1]
		}
		if n == len(tails) {
			tails = append(tails, i)
		}
		tails[n] = i
	}
	if len(tails) == 0 {
		return nil
	}
	chain := make([]anchor, len(tails))
	for i, n := tails[len(tails)-1], len(chain)-1; n >= 0; i, n = before[i], n-1 {
		chain[n] = all[i]
	}
	return chain
}

// search compares one stretch and appends its edits.
func (e *editor) search(a0, a1, b0, b1 int) {
	switch {
	case a0 == a1 && b0 == b1:
	case a0 == a1 || b0 == b1:
		e.add(lcs.Diff{Start: a0, End: a1, ReplStart: b0, ReplEnd: b1})
	default:
		for _, d := range lcs.DiffLines(e.a[a0:a1], e.b[b0:b1]) {
			e.add(lcs.Diff{Start: a0 + d.Start, End: a0 + d.End, ReplStart: b0 + d.ReplStart, ReplEnd: b0 + d.ReplEnd})
		}
	}
}

// add appends d, joined with the edit before it when they touch.
func (e *editor) add(d lcs.Diff) {
	if n := len(e.edits); n > 0 && e.edits[n-1].End == d.Start && e.edits[n-1].ReplEnd == d.ReplStart {
		e.edits[n-1].End, e.edits[n-1].ReplEnd = d.End, d.ReplEnd
		return
	}
	e.edits = append(e.edits, d)
}
