package overlay

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestMergeKeepsOffsets lists a directory again and again while names in both layers come and go, and
// compares with what must hold of each listing and of its likeness to the one before.
func TestMergeKeepsOffsets(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	lower, upper := map[string]struct{}{}, map[string]struct{}{}
	var old *listing
	ends := map[string]uint64{}
	for step := range 500 {
		for range r.IntN(10) {
			layer, name := lower, fmt.Sprintf("n%d", r.IntN(60))
			if r.IntN(2) == 0 {
				layer = upper
			}
			if _, ok := layer[name]; ok {
				delete(layer, name)
			} else {
				layer[name] = struct{}{}
			}
		}
		low := newListing()
		names := slices.Collect(maps.Keys(lower))
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			if err := low.add(name, 8); err != nil {
				t.Fatal(err)
			}
		}
		l, err := merge(old, low, upper)
		if err != nil {
			t.Fatal(err)
		}
		want := maps.Clone(lower)
		maps.Copy(want, upper)
		now := map[string]uint64{}
		last := uint64(firstOffset)
		for i, e := range l.items {
			name := l.name(i)
			if _, ok := want[name]; !ok || now[name] != 0 {
				t.Fatalf("step %d: %q is not there, or twice", step, name)
			}
			if e.end <= last {
				t.Fatalf("step %d: %q ends at %d, behind %d", step, name, e.end, last)
			}
			if was, ok := ends[name]; ok && was != e.end {
				t.Fatalf("step %d: %q moved from %d to %d", step, name, was, e.end)
			}
			if l.from(e.end-1) != i || l.from(e.end) != i+1 {
				t.Fatalf("step %d: offset %d leads to item %d and %d, want %d, %d", step, e.end, l.from(e.end-1), l.from(e.end), i, i+1)
			}
			now[name], last = e.end, e.end
		}
		if len(now) != len(want) {
			t.Fatalf("step %d: %d names, want %d", step, len(now), len(want))
		}
		old, ends = l, now
		if len(upper) == 0 && r.IntN(3) == 0 { // dropped
			old, ends = nil, map[string]uint64{}
		}
	}
}

// TestListingDoesNotGrow lists a directory in which names come and go.
func TestListingDoesNotGrow(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.open()
		j.mkdir("d")
		for i := range 200 {
			j.create(fmt.Sprintf("d/f%d", i), "")
			j.wantLs("d", fmt.Sprintf("f%d", i))
			j.unlink(fmt.Sprintf("d/f%d", i))
		}
		d := j.fs.tab.get(j.mustID("d"))
		if n := len(d.dir.list.items); n > 1 {
			t.Errorf("the listing has %d places, want 1", n)
		}
		j.fs.Forget(d.id, 1<<20)
		if d.dir.list != nil {
			t.Error("the listing of a forgotten directory is kept")
		}
	})
}
