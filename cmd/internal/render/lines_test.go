package render

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// patched applies edits to a.
func patched(a, b []string) []string {
	var out []string
	at := 0
	for _, e := range lineEdits(a, b) {
		if e.Start < at || e.End < e.Start || e.End > len(a) || e.ReplEnd < e.ReplStart || e.ReplEnd > len(b) {
			return []string{fmt.Sprintf("edit %+v is out of order", e)}
		}
		out = append(out, a[at:e.Start]...)
		out = append(out, b[e.ReplStart:e.ReplEnd]...)
		at = e.End
	}
	return append(out, a[at:]...)
}

func TestLineEditsTurnOneTextIntoTheOther(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		a := randomLines(rnd, rnd.IntN(600), 1+rnd.IntN(300))
		b := slices.Clone(a)
		for range rnd.IntN(20) {
			if len(b) == 0 {
				break
			}
			i := rnd.IntN(len(b))
			b = slices.Concat(b[:i], randomLines(rnd, rnd.IntN(9), 300), b[min(len(b), i+rnd.IntN(9)):])
		}
		if got := patched(a, b); !slices.Equal(got, b) {
			t.Fatalf("from\n%q\nto\n%q\ngot\n%q", a, b, got)
		}
	}
}

func randomLines(rnd *rand.Rand, n, kinds int) []string {
	l := make([]string, n)
	for i := range l {
		l[i] = fmt.Sprintf("%d\n", rnd.IntN(kinds))
	}
	return l
}

func TestManyScatteredChangesStaySmall(t *testing.T) {
	a := lines([]byte(numbered(0, 20000)))
	b := slices.Clone(a)
	for i := 0; i < len(b); i += 10 {
		b[i] = "changed\n"
	}
	changed := 0
	for _, e := range lineEdits(a, b) {
		changed += e.End - e.Start
	}
	if changed != 2000 {
		t.Errorf("%d lines are replaced, want 2000", changed)
	}
}

// The worst case for a line diff is two long texts that have nothing in common but frequent lines.
func TestTextsWithoutAnchorsTakeBoundedTime(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	a, b := randomLines(rnd, maxLines, 3), randomLines(rnd, maxLines, 3)
	if got := patched(a, b); !slices.Equal(got, b) {
		t.Error("the edits do not give the new text")
	}
}

func TestLinesKeepEveryByte(t *testing.T) {
	for _, text := range []string{"", "\n", "a", "a\n", "a\nb", "\n\n", "a\r\nb\n\x00"} {
		l := lines([]byte(text))
		if got := strings.Join(l, ""); got != text {
			t.Errorf("lines(%q) = %q", text, l)
		}
	}
}

func FuzzLineEdits(f *testing.F) {
	f.Add("a\nb\nc\n", "a\nc\nd")
	f.Add(strings.Repeat("x\n", 300), strings.Repeat("y\nx\n", 200))
	f.Fuzz(func(t *testing.T, a, b string) {
		if got := strings.Join(patched(lines([]byte(a)), lines([]byte(b))), ""); got != b {
			t.Errorf("from %q to %q: got %q", a, b, got)
		}
	})
}
