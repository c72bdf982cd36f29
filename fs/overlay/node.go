package overlay

import (
	"math"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// RootID is the number of the root node.
const RootID = 1

// node is one inode of the view. There may be millions: TestNodeSize holds it to 128 bytes, and what
// few nodes need is in rare.
type node struct {
	id   uint64
	ino  uint64 // st_ino as shown, the same through copy-up and rename
	kind uint32 // S_IFMT bits

	upper atomic.Bool   // its object lies in the upper; set under FS.mu
	flags atomic.Uint32 // flagServed, flagUnseen

	reads, dropped atomic.Uint32 // reads begun, and how many of them the kernel has forgotten
	lookups        uint32        // guarded by table.mu; at maxLookups the node stays for ever

	parent *node // nil: the root, or a node without names; guarded by FS.mu
	name   string
	dir    *dirState // directories only
	rare   atomic.Pointer[rare]
	seen   seen // what the kernel was told of its lower object; guarded by table.mu
	slot   slot // content descriptor: read-only of a lower file, read-write of an upper one
}

// Flags of a node.
const (
	flagServed = 1 << iota // something of it was read
	flagUnseen             // the Job came upon it where it had been shown nothing
)

const maxLookups = math.MaxUint32

// rare is what most nodes do without. Its fields are guarded by FS.mu, except that alias lists grow
// under table.mu.
type rare struct {
	more  []alias // further names a hard link was seen under
	group *linkGroup
	// The object of a node that lost its last name, see orphan.go.
	orphan uint64 // its name in Config.Orphans, 0 for none
	lost   *lost  // where it is in the lower

	keys   []inodeKey // its entries in table.shared; guarded by table.mu
	doomed inodeKey   // the upper inode that goes with it, its last name being gone
	// read is the state of which the Job first read content, once the workspace has another: what the
	// Job makes of it is made of that state, whatever it is shown later. Guarded by table.mu.
	read *seen
}

// none is what a node without anything rare has. It is never changed.
var none rare

// odd returns what n has that most have not, to be read.
func (n *node) odd() *rare {
	if r := n.rare.Load(); r != nil {
		return r
	}
	return &none
}

// oddLocked returns it to be changed.
//
// Preconditions:
//   - table.mu is held.
func (n *node) oddLocked() *rare {
	r := n.rare.Load()
	if r == nil {
		r = &rare{}
		n.rare.Store(r)
	}
	return r
}

// isCalled reports whether name in p is a name of n.
func (n *node) isCalled(p *node, name string) bool {
	return n != nil && (n.parent == p && n.name == name || slices.Contains(n.odd().more, alias{p, name}))
}

// alias is one name.
type alias struct {
	dir  *node
	name string
}

func (n *node) isDir() bool { return n.kind == unix.S_IFDIR }

// inodeKey names an inode of the host.
type inodeKey struct{ dev, ino uint64 }

func keyOf(st *unix.Stat_t) inodeKey { return inodeKey{uint64(st.Dev), st.Ino} }

// node returns the node with the given number; the kernel only sends numbers it was given.
func (f *FS) node(id uint64) (*node, error) {
	if n := f.tab.get(id); n != nil {
		return n, nil
	}
	return nil, unix.ESTALE
}

// dirNode returns the directory with the given number.
func (f *FS) dirNode(id uint64) (*node, error) {
	n, err := f.node(id)
	if err != nil {
		return nil, err
	}
	if !n.isDir() {
		return nil, unix.ENOTDIR
	}
	return n, nil
}

// path returns where n is in the view. A node without names has no path: ENOENT.
func (f *FS) path(n *node) (tree.Path, error) {
	if n == f.tab.root {
		return tree.Path{}, nil
	}
	if n.parent == nil {
		return tree.Path{}, unix.ENOENT
	}
	return f.childPath(n.parent, n.name)
}

// childPath returns where name in p is in the view.
func (f *FS) childPath(p *node, name string) (tree.Path, error) {
	size := len(name)
	for n := p; n != f.tab.root; n = n.parent {
		if n.parent == nil {
			return tree.Path{}, unix.ENOENT
		}
		size += len(n.name) + 1
	}
	buf := make([]byte, size)
	at := size - copy(buf[size-len(name):], name)
	for n := p; n != f.tab.root; n = n.parent {
		at--
		buf[at] = '/'
		at -= copy(buf[at-len(n.name):], n.name)
	}
	return tree.ParsePath(string(buf))
}

// pathOf is path for events: the root where there is none.
func (f *FS) pathOf(n *node) tree.Path {
	p, err := f.path(n)
	if err != nil {
		return tree.Path{}
	}
	return p
}

// adopt returns the node for name in p whose object was just found with state st, and counts one
// lookup of it. A node whose object the host replaced makes way for a new one. It returns nil where
// a node without names would get one, which takes FS.mu exclusively.
//
// Preconditions:
//   - FS.mu is held, exclusively if excl is set.
func (f *FS) adopt(p *node, name string, upper bool, st *unix.Stat_t, excl bool) *node {
	t := &f.tab
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.kidLocked(p, name)
	n := old
	if n == nil || !f.matchesLocked(n, upper, st) {
		n = f.sharedLocked(upper, st)
		if n != nil && n.parent == nil && !excl {
			return nil
		}
	}
	if n == nil {
		n = &node{kind: st.Mode & unix.S_IFMT, ino: f.inoLocked(upper, st), parent: p, name: name}
		if old != nil && !upper {
			n.seen = old.seen // until the kernel is told of the new one
		}
		if was := p.dir.firstReadLocked(name, old); was != nil && !upper {
			n.oddLocked().read = was
		}
		n.upper.Store(upper)
		switch {
		case n.isDir() && upper: // new: upper directories stay known from then on
			n.dir = &dirState{}
		case n.isDir():
			n.dir = f.newDirState(p, name)
		}
		t.insertLocked(n)
		t.setKidLocked(p, name, n)
		if key := keyOf(st); !n.isDir() && (st.Nlink > 1 || f.groups[key] != nil) {
			f.shareLocked(n, key)
		}
	}
	n.lookLocked()
	if n != old {
		f.nameLocked(n, p, name)
	}
	return n
}

// lookLocked counts a lookup.
func (n *node) lookLocked() {
	if n.lookups < maxLookups {
		n.lookups++
	}
}

// unlookLocked takes count lookups back.
func (n *node) unlookLocked(count uint64) {
	if n.lookups < maxLookups {
		n.lookups -= uint32(min(count, uint64(n.lookups)))
	}
}

// matchesLocked reports whether n is the node of an object with state st.
func (f *FS) matchesLocked(n *node, upper bool, st *unix.Stat_t) bool {
	return n.kind == st.Mode&unix.S_IFMT && n.upper.Load() == upper && n.ino == f.inoLocked(upper, st)
}

// sharedLocked returns the node of a hard link already known under another name.
func (f *FS) sharedLocked(upper bool, st *unix.Stat_t) *node {
	n := f.tab.shared[keyOf(st)]
	if n == nil || n.kind != st.Mode&unix.S_IFMT || n.upper.Load() != upper {
		return nil
	}
	return n
}

// shareLocked lets further names of an inode find n.
func (f *FS) shareLocked(n *node, key inodeKey) {
	f.tab.shared[key] = n
	r := n.oddLocked()
	r.keys = append(r.keys, key)
	if r.group == nil {
		r.group = f.groups[key]
	}
}

// nameLocked notes that n is called name in p.
func (f *FS) nameLocked(n, p *node, name string) {
	if f.tab.kidLocked(p, name) == n {
		return
	}
	f.tab.setKidLocked(p, name, n)
	if n.parent == nil {
		n.parent, n.name = p, name
		return
	}
	r := n.oddLocked()
	r.more = append(r.more, alias{p, name})
}

// unname takes the name away from whichever node has it in p and returns that node, nil if none is
// known.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) unname(p *node, name string) *node {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	n := f.tab.kidLocked(p, name)
	if n == nil {
		return nil
	}
	f.tab.dropKidLocked(p, name)
	if n.parent != p || n.name != name {
		r := n.oddLocked()
		r.more = slices.DeleteFunc(r.more, func(a alias) bool { return a == alias{p, name} })
		return n
	}
	n.nextNameLocked()
	return n
}

// nextNameLocked takes the name of n away, and lets the next of its further names be the first.
func (n *node) nextNameLocked() {
	n.parent, n.name = nil, ""
	if more := n.odd().more; len(more) > 0 {
		n.parent, n.name = more[0].dir, more[0].name
		n.oddLocked().more = more[1:]
	}
}

// nameTaken takes from n the name under which the Job was shown another file of the host since.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) nameTaken(n *node) {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	n.nextNameLocked()
}

// setName gives n one more name.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) setName(n, p *node, name string) {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	f.nameLocked(n, p, name)
}

// kid returns the known node called name in p, nil if none is known.
func (f *FS) kid(p *node, name string) *node {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	return f.tab.kidLocked(p, name)
}

// inoLocked returns the st_ino to show for an object that gets a node. Numbers of the lower's own
// device are shown as they are, so that git's index keeps fitting; other devices are moved out of
// their way.
func (f *FS) inoLocked(upper bool, st *unix.Stat_t) uint64 {
	if upper {
		if ino, ok := f.tab.origin[st.Ino]; ok {
			return ino
		}
	}
	switch dev := uint64(st.Dev); dev {
	case f.lowerDev:
		return st.Ino
	case f.upperDev:
		return st.Ino | 1<<62
	default:
		return st.Ino ^ (dev&0xffff)<<44 ^ 1<<61
	}
}

// shownLower returns the st_ino to show for a lower inode.
func (f *FS) shownLower(n *tree.Node) uint64 {
	return f.inoLocked(false, &unix.Stat_t{Dev: n.Dev, Ino: n.Ino})
}

// Forget takes back count lookups of a node. A node nobody can name any more is freed, with its
// descriptors.
func (f *FS) Forget(id, count uint64) {
	n := f.tab.get(id)
	if n == nil || n == f.tab.root {
		return
	}
	f.bury(f.forget(n, count))
}

// forget is Forget, and returns the orphans that nobody uses any more.
func (f *FS) forget(n *node, count uint64) []uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	n.unlookLocked(count)
	if n.lookups == 0 {
		n.seen = seen{}
		if n.isDir() {
			n.dir.list = nil // nobody reads it
		}
	}
	f.releaseLocked(n)
	if f.tab.shrankLocked() {
		select {
		case f.shed <- struct{}{}:
		default: // it will be seen to
		}
	}
	return f.tab.takeDeadLocked()
}

// giveBack returns memory to the system when many nodes went, until Close: the runtime would keep it
// until the next collection of garbage, and may have no reason for one.
func (f *FS) giveBack() {
	for {
		select {
		case <-f.shed:
			debug.FreeOSMemory()
		case <-f.stop:
			return
		}
	}
}

// releaseLocked frees n, and then its parents, if nothing needs them: the kernel does not know
// them, no known node lies below, and they hold no state of the upper.
func (f *FS) releaseLocked(n *node) {
	if n == f.tab.root || n.lookups > 0 || n.isDir() && (n.dir.kids > 0 || n.parent != nil && n.upper.Load()) {
		return
	}
	f.fds.drop(&n.slot)
	if n.isDir() {
		f.fds.drop(&n.dir.slot)
		f.watches.drop(n)
		if n.dir.lower != nil {
			f.fds.drop(&n.dir.lower.slot)
		}
	}
	r := n.odd()
	if r.orphan != 0 {
		f.tab.dead = append(f.tab.dead, r.orphan)
	}
	if r.doomed != (inodeKey{}) { // the file system may give the number to another inode
		delete(f.tab.origin, r.doomed.ino)
		delete(f.tab.attrs, r.doomed.ino)
	}
	for _, k := range r.keys {
		if f.tab.shared[k] == n {
			delete(f.tab.shared, k)
		}
	}
	for _, a := range r.more {
		f.loseKidLocked(n, a)
	}
	if n.parent != nil {
		f.loseKidLocked(n, alias{n.parent, n.name})
	}
	f.tab.removeLocked(n)
}

// loseKidLocked forgets that n is called a, unless another node is by now, and frees the directory if
// nothing needs it any more.
func (f *FS) loseKidLocked(n *node, a alias) {
	if f.tab.kidLocked(a.dir, a.name) == n {
		f.tab.dropKidLocked(a.dir, a.name)
		f.releaseLocked(a.dir)
	}
}
