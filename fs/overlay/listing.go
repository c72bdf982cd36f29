package overlay

import (
	"hash/maphash"
	"math"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// listing is the names in a directory in the order they are read. It is never changed once it is
// made. A name has 16 bytes and itself, as a directory may have a million of them.
type listing struct {
	names strings.Builder // one behind the other
	items []listItem
	last  uint64 // offset behind the last name there ever was
}

// listItem is one name of a listing.
type listItem struct {
	end  uint64 // offset behind it: names keep theirs as others come and go
	at   uint32 // where it begins in names
	size uint8
	typ  uint8 // DT_*, DT_UNKNOWN where the file system does not tell
}

// firstOffset is where the first name begins, behind "." and "..".
const firstOffset = 2

func newListing() *listing { return &listing{last: firstOffset} }

// name returns the name of item i. It holds on to all of them.
func (l *listing) name(i int) string {
	e := &l.items[i]
	return l.names.String()[e.at : e.at+uint32(e.size)]
}

// add puts name behind the others.
func (l *listing) add(name string, typ uint8) error {
	l.last++
	return l.keep(name, typ, l.last)
}

// keep puts name, of which the offset behind it is known already, behind the others.
func (l *listing) keep(name string, typ uint8, end uint64) error {
	if l.names.Len() > math.MaxUint32-len(name) {
		return unix.EOVERFLOW
	}
	l.items = append(l.items, listItem{end, uint32(l.names.Len()), uint8(len(name)), typ})
	l.names.WriteString(name)
	return nil
}

// from returns the first item at or behind an offset.
func (l *listing) from(off uint64) int {
	return sort.Search(len(l.items), func(i int) bool { return l.items[i].end > off })
}

// merge returns the listing that follows old, nil for none: what is left of old, each at its offset,
// and behind it what is new: lower names in their order, then those of the upper, sorted.
func merge(old, lower *listing, upper map[string]struct{}) (*listing, error) {
	if old == nil && len(upper) == 0 {
		return lower, nil
	}
	if old == nil {
		old = newListing()
	}
	l := &listing{last: old.last}
	was, is := newNameSet(old), newNameSet(lower)
	for i, e := range old.items {
		name, typ := old.name(i), uint8(unix.DT_UNKNOWN)
		at := is.find(name)
		if at >= 0 {
			typ = lower.items[at].typ
		} else if _, ok := upper[name]; !ok {
			continue
		}
		if err := l.keep(name, typ, e.end); err != nil {
			return nil, err
		}
	}
	for i, e := range lower.items {
		if name := lower.name(i); was.find(name) < 0 {
			if err := l.add(name, e.typ); err != nil {
				return nil, err
			}
		}
	}
	return l, l.addNew(upper, was, is)
}

// addNew puts the names of the upper that are in neither set behind the others.
func (l *listing) addNew(upper map[string]struct{}, was, is *nameSet) error {
	var names []string
	for name := range upper {
		if was.find(name) < 0 && is.find(name) < 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if err := l.add(name, unix.DT_UNKNOWN); err != nil {
			return err
		}
	}
	return nil
}

// nameSet finds names of a listing.
type nameSet struct {
	l     *listing
	seed  maphash.Seed
	slots []uint32 // item + 1, by linear probing; at least half are empty
}

func newNameSet(l *listing) *nameSet {
	size := 8
	for size < 2*len(l.items) {
		size *= 2
	}
	s := &nameSet{l, maphash.MakeSeed(), make([]uint32, size)}
	for i := range l.items {
		s.slots[s.place(l.name(i))] = uint32(i + 1)
	}
	return s
}

// place returns where name is, or belongs.
func (s *nameSet) place(name string) uint64 {
	mask := uint64(len(s.slots) - 1)
	i := maphash.String(s.seed, name) & mask
	for s.slots[i] != 0 && s.l.name(int(s.slots[i]-1)) != name {
		i = (i + 1) & mask
	}
	return i
}

// find returns the item called name, -1 if there is none.
func (s *nameSet) find(name string) int { return int(s.slots[s.place(name)]) - 1 }
