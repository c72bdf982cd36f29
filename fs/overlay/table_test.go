package overlay

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
	"unsafe"
)

func TestNodeSize(t *testing.T) {
	if got := unsafe.Sizeof(node{}); got != 128 {
		t.Errorf("a node has %d bytes, want 128, which is a size class of the allocator", got)
	}
}

// TestTableFindsByName gives and takes names at random and compares with a map, and takes all at the
// end.
func TestTableFindsByName(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var tab table
	tab.init()
	var dirs []*node
	for range 10 {
		d := &node{dir: &dirState{}}
		tab.insertLocked(d)
		dirs = append(dirs, d)
	}
	want := map[alias]*node{}
	gone := map[uint64]bool{}
	for step := range 200_000 {
		a := alias{dirs[r.IntN(len(dirs))], strconv.Itoa(r.IntN(3000))}
		if step > 100_000 && r.IntN(3) > 0 { // shrinks
			a.name = strconv.Itoa(r.IntN(200))
		}
		n := tab.kidLocked(a.dir, a.name)
		if n != want[a] {
			t.Fatalf("step %d: %s found %p, want %p", step, a.name, n, want[a])
		}
		switch {
		case n == nil && (step < 100_000 || r.IntN(4) == 0):
			n = &node{parent: a.dir, name: a.name}
			tab.insertLocked(n)
			if gone[n.id] {
				t.Fatalf("step %d: number %#x was given again", step, n.id)
			}
			tab.setKidLocked(a.dir, a.name, n)
			want[a] = n
		case n != nil && r.IntN(2) == 0:
			tab.dropKidLocked(a.dir, a.name)
			tab.removeLocked(n)
			gone[n.id] = true
			delete(want, a)
		}
	}
	for a, n := range want {
		if tab.kidLocked(a.dir, a.name) != n || tab.get(n.id) != n {
			t.Fatalf("%s is lost", a.name)
		}
		tab.dropKidLocked(a.dir, a.name)
		tab.removeLocked(n)
	}
	for id := range gone {
		if tab.get(id) != nil {
			t.Fatalf("forgotten number %#x finds a node", id)
		}
	}
	if tab.live != len(dirs) {
		t.Errorf("%d nodes left, want %d", tab.live, len(dirs))
	}
	for i, d := range dirs {
		if d.dir.kids != 0 {
			t.Errorf("directory %d: %d names left", i, d.dir.kids)
		}
	}
	for i := range tab.names.shards {
		if s := tab.names.shards[i]; len(s.slots) > 8*minSlots || s.used != 0 {
			t.Errorf("shard %d: %d of %d places in use", i, s.used, len(s.slots))
		}
	}
}

// TestTableGivesChunksBack knows many nodes, forgets them, and looks at what the table still holds;
// numbers are never given twice.
func TestTableGivesChunksBack(t *testing.T) {
	var tab table
	tab.init()
	given := map[uint64]bool{}
	for round := range 5 {
		var nodes []*node
		for range 50 * chunkSize {
			n := &node{}
			tab.insertLocked(n)
			if n.id == 0 || given[n.id] {
				t.Fatalf("round %d: number %#x was given again", round, n.id)
			}
			given[n.id] = true
			nodes = append(nodes, n)
		}
		if got := len(*tab.chunks.Load()); got > 52 {
			t.Fatalf("round %d: %d chunks for 50", round, got)
		}
		rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		for _, n := range nodes {
			tab.removeLocked(n)
		}
		left := 0
		for _, c := range *tab.chunks.Load() {
			if c != nil {
				left++
			}
		}
		if left > 1 || tab.live != 0 {
			t.Errorf("round %d: %d chunks and %d nodes left", round, left, tab.live)
		}
	}
}
