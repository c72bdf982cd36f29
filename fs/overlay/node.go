package overlay

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// RootID is the number of the root node.
const RootID = 1

const chunkSize = 1024

// node is one inode of the view.
type node struct {
	id   uint64
	ino  uint64 // st_ino as shown, the same through copy-up and rename
	kind uint32 // S_IFMT bits

	upper  atomic.Bool // its object lies in the upper; set under FS.mu
	served atomic.Bool // something of it was read
	queued atomic.Bool // waits to be invalidated

	reads, dropped atomic.Uint64 // reads begun, and how many of them the kernel has forgotten

	// guarded by FS.mu, except that alias lists grow under table.mu
	parent *node   // nil: the root, or a node without names
	name   string  // its name in parent
	more   []alias // further names a hard link was seen under
	group  *linkGroup
	dir    *dirState   // directories only
	pin    *descriptor // keeps the object of a node without names

	keys    []inodeKey // its entries in table.shared; guarded by table.mu
	doomed  inodeKey   // the upper inode that goes with it, its last name being gone; guarded by FS.mu
	lookups uint64     // guarded by table.mu
	seen    seen       // what the kernel was told of its lower object; guarded by table.mu
	// read is the state of which the Job first read content, once the workspace has another: what the
	// Job makes of it is made of that state, whatever it is shown later. Guarded like seen.
	read *seen
	slot slot // content descriptor: read-only of a lower file, read-write of an upper one
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

// table finds nodes by number, lock-free, and holds what lookups change.
//
// A number is slot | generation << 32: a slot is used again for another node only under another
// number, so a late FORGET cannot hit the wrong one.
type table struct {
	chunks atomic.Pointer[[]*chunk]

	mu     sync.Mutex
	root   *node              // set once
	free   []uint32           // guarded by mu, like all below
	next   uint32             // first slot never used
	shared map[inodeKey]*node // nodes of inodes that have or had several names
	origin map[uint64]uint64  // upper inode -> st_ino shown, of copied-up objects
	attrs  map[uint64]owner   // upper inode -> logical owner, where AttrXattr is set
}

type chunk [chunkSize]struct {
	n   atomic.Pointer[node]
	gen uint32
}

func (t *table) init() {
	t.shared = map[inodeKey]*node{}
	t.origin, t.attrs = map[uint64]uint64{}, map[uint64]owner{}
	t.chunks.Store(&[]*chunk{})
	t.next = RootID
}

// get returns the node with the given number, nil if there is none.
func (t *table) get(id uint64) *node {
	slot := uint32(id)
	chunks := *t.chunks.Load()
	if int(slot/chunkSize) >= len(chunks) {
		return nil
	}
	n := chunks[slot/chunkSize][slot%chunkSize].n.Load()
	if n == nil || n.id != id {
		return nil
	}
	return n
}

func (t *table) insertLocked(n *node) {
	var slot uint32
	if len(t.free) > 0 {
		slot = t.free[len(t.free)-1]
		t.free = t.free[:len(t.free)-1]
	} else {
		slot = t.next
		t.next++
	}
	chunks := *t.chunks.Load()
	if int(slot/chunkSize) >= len(chunks) {
		grown := append(append([]*chunk(nil), chunks...), &chunk{})
		t.chunks.Store(&grown)
		chunks = grown
	}
	e := &chunks[slot/chunkSize][slot%chunkSize]
	n.id = uint64(e.gen)<<32 | uint64(slot)
	e.n.Store(n)
}

// removeLocked frees n's slot and whatever names it in the maps.
func (t *table) removeLocked(n *node) {
	slot := uint32(n.id)
	e := &(*t.chunks.Load())[slot/chunkSize][slot%chunkSize]
	e.n.Store(nil)
	e.gen++
	t.free = append(t.free, slot)
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

func (t *table) closePins() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	for _, c := range *t.chunks.Load() {
		for i := range c {
			if n := c[i].n.Load(); n != nil && n.pin != nil {
				err = errors.Join(err, unix.Close(n.pin.fd))
			}
		}
	}
	return err
}

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
	n := p.dir.kids[name]
	if n == nil || !f.matchesLocked(n, upper, st) {
		n = f.sharedLocked(upper, st)
		if n != nil && n.parent == nil && !excl {
			return nil
		}
	}
	if n == nil {
		n = &node{kind: st.Mode & unix.S_IFMT, ino: f.inoLocked(upper, st)}
		if old := p.dir.kids[name]; old != nil && !upper {
			n.seen = old.seen // until the kernel is told of the new one
		}
		n.upper.Store(upper)
		switch {
		case n.isDir() && upper: // new: upper directories stay known from then on
			n.dir = &dirState{}
		case n.isDir():
			n.dir = f.newDirState(p, name)
		}
		t.insertLocked(n)
		if key := keyOf(st); !n.isDir() && (st.Nlink > 1 || f.groups[key] != nil) {
			f.shareLocked(n, key)
		}
	}
	n.lookups++
	f.nameLocked(n, p, name)
	return n
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
	n.keys = append(n.keys, key)
	if n.group == nil {
		n.group = f.groups[key]
	}
}

// nameLocked notes that n is called name in p.
func (f *FS) nameLocked(n, p *node, name string) {
	if p.dir.kids[name] == n {
		return
	}
	if p.dir.kids == nil {
		p.dir.kids = map[string]*node{}
	}
	p.dir.kids[name] = n
	if n.parent == nil {
		n.parent, n.name = p, name
		return
	}
	n.more = append(n.more, alias{p, name})
}

// unname takes the name away from whichever node has it in p and returns that node, nil if none is
// known.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) unname(p *node, name string) *node {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	n := p.dir.kids[name]
	if n == nil {
		return nil
	}
	delete(p.dir.kids, name)
	a := alias{p, name}
	if n.parent == p && n.name == name {
		n.parent, n.name = nil, ""
		if len(n.more) > 0 {
			n.parent, n.name = n.more[0].dir, n.more[0].name
			n.more = n.more[1:]
		}
		return n
	}
	for i := range n.more {
		if n.more[i] == a {
			n.more = append(n.more[:i:i], n.more[i+1:]...)
			break
		}
	}
	return n
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
	return p.dir.kids[name]
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

// Forget takes back count lookups of a node. A node nobody can name any more is freed, with its
// descriptors.
func (f *FS) Forget(id, count uint64) {
	n := f.tab.get(id)
	if n == nil || n == f.tab.root {
		return
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	n.lookups -= min(count, n.lookups)
	if n.lookups == 0 {
		n.seen = seen{}
	}
	f.releaseLocked(n)
}

// releaseLocked frees n, and then its parents, if nothing needs them: the kernel does not know
// them, no known node lies below, and they hold no state of the upper.
func (f *FS) releaseLocked(n *node) {
	if n == f.tab.root || n.lookups > 0 || n.isDir() && (len(n.dir.kids) > 0 || n.parent != nil && n.upper.Load()) {
		return
	}
	f.fds.drop(&n.slot)
	if n.isDir() {
		f.fds.drop(&n.dir.slot)
		if n.dir.lower != nil {
			f.fds.drop(&n.dir.lower.slot)
		}
	}
	if n.pin != nil {
		closeFD(n.pin.fd)
		n.pin = nil
	}
	if n.doomed != (inodeKey{}) { // the file system may give the number to another inode
		delete(f.tab.origin, n.doomed.ino)
		delete(f.tab.attrs, n.doomed.ino)
	}
	for _, k := range n.keys {
		if f.tab.shared[k] == n {
			delete(f.tab.shared, k)
		}
	}
	f.tab.removeLocked(n)
	names := n.more[:len(n.more):len(n.more)]
	if n.parent != nil {
		names = append(names, alias{n.parent, n.name})
	}
	for _, a := range names {
		if a.dir.dir.kids[a.name] == n {
			delete(a.dir.dir.kids, a.name)
			f.releaseLocked(a.dir)
		}
	}
}
