package overlay

import "hash/maphash"

const (
	nameShards = 64
	minSlots   = 8
)

// nameIndex finds the slot of a node by parent and name. It keeps neither: a node has them, so a
// known name costs 8 bytes here, where a map in each directory would cost five times as much. It is
// in shards so that no growth takes long. All of it is guarded by table.mu.
type nameIndex struct {
	seed   maphash.Seed
	shards [nameShards]nameShard
}

// nameShard is a hash table with linear probing. Half to three quarters of it are in use.
type nameShard struct {
	slots []nameSlot // as many as a power of two
	used  int
}

// nameSlot is one known name; slot 0, which no node has, is none.
type nameSlot struct{ hash, slot uint32 }

// shard returns where name in p belongs, and its hash there.
func (x *nameIndex) shard(p *node, name string) (*nameShard, uint32) {
	h := maphash.String(x.seed, name) ^ p.id*0x9e3779b97f4a7c15
	h ^= h >> 29
	return &x.shards[h>>58], uint32(h)
}

// find returns the place of name in p, -1 if it is not there.
func (s *nameShard) find(t *table, h uint32, p *node, name string) int {
	if s.used == 0 {
		return -1
	}
	mask := len(s.slots) - 1
	for i := int(h) & mask; s.slots[i].slot != 0; i = (i + 1) & mask {
		if s.slots[i].hash == h && t.at(s.slots[i].slot).isCalled(p, name) {
			return i
		}
	}
	return -1
}

func (s *nameShard) add(h, slot uint32) {
	if s.used*4 >= len(s.slots)*3 {
		s.resize(max(2*len(s.slots), minSlots))
	}
	s.put(nameSlot{h, slot})
	s.used++
}

func (s *nameShard) put(e nameSlot) {
	mask := len(s.slots) - 1
	i := int(e.hash) & mask
	for s.slots[i].slot != 0 {
		i = (i + 1) & mask
	}
	s.slots[i] = e
}

func (s *nameShard) resize(size int) {
	old := s.slots
	s.slots = make([]nameSlot, size)
	for _, e := range old {
		if e.slot != 0 {
			s.put(e)
		}
	}
}

// remove empties place i, and moves what follows nearer to where it belongs, so that no probe ends
// early.
func (s *nameShard) remove(i int) {
	mask := len(s.slots) - 1
	for j := (i + 1) & mask; s.slots[j].slot != 0; j = (j + 1) & mask {
		if home := int(s.slots[j].hash) & mask; (j-home)&mask >= (j-i)&mask {
			s.slots[i] = s.slots[j]
			i = j
		}
	}
	s.slots[i] = nameSlot{}
	s.used--
	if len(s.slots) > minSlots && s.used*8 < len(s.slots) {
		s.resize(len(s.slots) / 2)
	}
}
