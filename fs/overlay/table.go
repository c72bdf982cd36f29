package overlay

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// chunkSize is how many nodes are found through one chunk.
const chunkSize = 1024

// generations is how many a number can tell apart.
const generations = 1 << 24

// table finds nodes by number, lock-free, and by parent and name.
//
// A number is slot | generation << 32, and has 56 bits: a slot is used again for another node only
// under another number, so a late FORGET cannot hit the wrong one.
//
//	number ── slot / 1024 ──► chunk ── slot % 1024 ──► node
//	parent, name ── hash ──► names: slot ──► node, which is asked whether it is called so
type table struct {
	chunks atomic.Pointer[[]*chunk] // replaced as a whole; nil where no node is

	mu     sync.Mutex
	root   *node              // set once
	past   []chunkPast        // by place in chunks; guarded by mu, like all below
	spare  []uint32           // places in chunks that may have room
	unused []uint32           // places in chunks without a chunk
	live   int                // nodes
	most   int                // the most there were since memory was last given back
	dead   []uint64           // orphans of nodes that went
	names  nameIndex          // known names
	shared map[inodeKey]*node // nodes of inodes that have or had several names
	origin map[uint64]uint64  // upper inode -> st_ino shown, of copied-up objects
	attrs  map[uint64]owner   // upper inode -> logical owner, where AttrXattr is set
}

// chunk holds nodes with neighbouring numbers. It goes when the last of them does.
type chunk struct {
	n    [chunkSize]atomic.Pointer[node]
	gen  [chunkSize]uint32 // of the node there, or of the next one; guarded by table.mu, like all below
	free []uint16          // places of nodes that went
	used int               // places ever used
	live int
}

// chunkPast is what outlives a chunk.
type chunkPast struct {
	gen    uint32 // from which a chunk made anew starts
	listed bool   // in table.spare
}

func (t *table) init() {
	t.shared = map[inodeKey]*node{}
	t.origin, t.attrs = map[uint64]uint64{}, map[uint64]owner{}
	t.chunks.Store(&[]*chunk{})
	t.names.seed = maphash.MakeSeed()
}

// get returns the node with the given number, nil if there is none.
func (t *table) get(id uint64) *node {
	n := t.at(uint32(id))
	if n == nil || n.id != id {
		return nil
	}
	return n
}

// at returns the node in slot.
func (t *table) at(slot uint32) *node {
	chunks := *t.chunks.Load()
	i := slot / chunkSize
	if int(i) >= len(chunks) || chunks[i] == nil {
		return nil
	}
	return chunks[i].n[slot%chunkSize].Load()
}

func (t *table) insertLocked(n *node) {
	i, c := t.roomLocked()
	var at uint32
	if last := len(c.free) - 1; last >= 0 {
		at = uint32(c.free[last])
		c.free = c.free[:last]
	} else {
		at = uint32(c.used)
		c.used++
	}
	n.id = uint64(c.gen[at])<<32 | uint64(i*chunkSize+at)
	c.n[at].Store(n)
	c.live++
	t.live++
	t.most = max(t.most, t.live)
}

// roomLocked returns a chunk with room, and its place.
func (t *table) roomLocked() (uint32, *chunk) {
	for len(t.spare) > 0 {
		i := t.spare[len(t.spare)-1]
		if c := (*t.chunks.Load())[i]; c != nil && (len(c.free) > 0 || c.used < chunkSize) {
			return i, c
		}
		t.spare = t.spare[:len(t.spare)-1]
		t.past[i].listed = false
	}
	return t.addChunkLocked()
}

func (t *table) addChunkLocked() (uint32, *chunk) {
	chunks := append([]*chunk(nil), *t.chunks.Load()...)
	var i uint32
	if last := len(t.unused) - 1; last >= 0 {
		i = t.unused[last]
		t.unused = t.unused[:last]
	} else {
		i = uint32(len(chunks))
		chunks = append(chunks, nil)
		t.past = append(t.past, chunkPast{})
	}
	c := &chunk{}
	for at := range c.gen {
		c.gen[at] = t.past[i].gen
	}
	if i == 0 {
		c.used = RootID // 0 is no number
	}
	chunks[i] = c
	t.chunks.Store(&chunks)
	t.listLocked(i)
	return i, c
}

func (t *table) listLocked(i uint32) {
	if !t.past[i].listed {
		t.past[i].listed = true
		t.spare = append(t.spare, i)
	}
}

// removeLocked frees n's slot, and the chunk if it was the last in it.
func (t *table) removeLocked(n *node) {
	slot := uint32(n.id)
	i, at := slot/chunkSize, slot%chunkSize
	c := (*t.chunks.Load())[i]
	c.n[at].Store(nil)
	c.gen[at] = (c.gen[at] + 1) % generations
	c.free = append(c.free, uint16(at))
	c.live--
	t.live--
	t.listLocked(i)
	if c.live == 0 && len(t.spare) > 1 { // one with room stays: nodes come and go one at a time
		t.dropChunkLocked(i, c)
	}
}

func (t *table) dropChunkLocked(i uint32, c *chunk) {
	for _, g := range c.gen {
		t.past[i].gen = max(t.past[i].gen, g)
	}
	chunks := append([]*chunk(nil), *t.chunks.Load()...)
	chunks[i] = nil
	t.chunks.Store(&chunks)
	t.unused = append(t.unused, i)
}

// manyNodes is how many nodes are worth the return of their memory.
const manyNodes = 1 << 16

// shrankLocked reports whether half of many nodes went since it last reported true.
func (t *table) shrankLocked() bool {
	if t.most < manyNodes || t.live > t.most/2 {
		return false
	}
	t.most = t.live
	return true
}

// each calls visit for every node. Nodes that come or go meanwhile may be left out.
func (t *table) each(visit func(*node)) {
	for _, c := range *t.chunks.Load() {
		if c == nil {
			continue
		}
		for i := range c.n {
			if n := c.n[i].Load(); n != nil {
				visit(n)
			}
		}
	}
}

// attrOf returns the logical owner of upper inode ino where it differs from the real one.
func (t *table) attrOf(ino uint64) (owner, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, ok := t.attrs[ino]
	return o, ok
}

func (t *table) setAttr(ino uint64, o owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attrs[ino] = o
}

func (t *table) clearAttr(ino uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.attrs, ino)
}

// forgetUpper forgets an upper inode: the file system may give the number to another.
func (t *table) forgetUpper(ino uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.origin, ino)
	delete(t.attrs, ino)
}

// kidLocked returns the known node called name in p, nil if none is known.
func (t *table) kidLocked(p *node, name string) *node {
	s, h := t.names.shard(p, name)
	if i := s.find(t, h, p, name); i >= 0 {
		return t.at(s.slots[i].slot)
	}
	return nil
}

// setKidLocked makes n the node called name in p, in place of the one that was. Both still know, or
// will, that they are called so.
func (t *table) setKidLocked(p *node, name string, n *node) {
	s, h := t.names.shard(p, name)
	if i := s.find(t, h, p, name); i >= 0 {
		s.slots[i].slot = uint32(n.id)
		return
	}
	s.add(h, uint32(n.id))
	p.dir.kids++
}

// dropKidLocked forgets which node is called name in p.
//
// Preconditions:
//   - one is, and still knows the name.
func (t *table) dropKidLocked(p *node, name string) {
	s, h := t.names.shard(p, name)
	s.remove(s.find(t, h, p, name))
	p.dir.kids--
}
