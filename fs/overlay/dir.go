package overlay

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

const (
	dirFlags  = unix.O_PATH | unix.O_DIRECTORY
	noFollow  = unix.AT_SYMLINK_NOFOLLOW
	statFlags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
)

// dirState is what a directory node has beside a node. All but kids and list are guarded by FS.mu.
type dirState struct {
	lower *lowerDir    // the workspace directory that shows here, nil for none
	slot  slot         // O_PATH descriptor of the upper directory
	watch atomic.Int32 // inotify watch of the lower directory, 0 for none; set under watcher.mu

	acl atomic.Int32 // whether the upper directory hands down an access control list: aclUnknown…

	// explicit: the change log says which lower shows here (OpOpaque or OpLower), so that the
	// directory may move without another record.
	explicit bool
	names    map[string]struct{} // names in the upper directory
	white    map[string]struct{} // lower names that do not show
	marked   map[string]markBits // names in the upper of which the change log says something

	kids      int32       // names in it that table.names has; guarded by table.mu
	anyAbsent atomic.Bool // absent was ever used
	// absent: names that the kernel was told are not there, although a node or the lower has them;
	// guarded by table.mu
	absent   map[string]struct{}
	replaced map[string]*seen // what the Job first read of files that the host replaced; guarded by table.mu
	list     *listing         // the last one; guarded by table.mu
}

// What is known of aclDefault of an upper directory.
const (
	aclUnknown = iota
	aclNone
	aclSome
)

// aclDefault is the extended attribute from which what is made in a directory gets its access control list
// (acl(5)).
const aclDefault = "system.posix_acl_default"

// lowerDir is a directory of the workspace. It does not move when the Job renames what shows it.
type lowerDir struct {
	parent *lowerDir // nil: the workspace itself
	name   string
	slot   slot // O_PATH descriptor
}

// path returns the workspace path of l.
func (l *lowerDir) path() (tree.Path, error) {
	if l.parent == nil {
		return tree.Path{}, nil
	}
	return l.parent.child(l.name)
}

func (l *lowerDir) child(name string) (tree.Path, error) {
	p, err := l.path()
	if err != nil {
		return tree.Path{}, err
	}
	return p.Child(name)
}

// newDirState returns the state of a directory not in the upper, called name in p.
func (f *FS) newDirState(p *node, name string) *dirState {
	d := &dirState{}
	if p.dir.lower != nil {
		d.lower = &lowerDir{parent: p.dir.lower, name: name}
	}
	return d
}

// hasUpper reports whether name is in the upper directory of p.
func (d *dirState) hasUpper(name string) bool {
	_, ok := d.names[name]
	return ok
}

func (d *dirState) isWhite(name string) bool {
	_, ok := d.white[name]
	return ok
}

func (d *dirState) addName(name string) {
	if d.names == nil {
		d.names = map[string]struct{}{}
	}
	d.names[name] = struct{}{}
}

func (d *dirState) addWhite(name string) {
	if d.white == nil {
		d.white = map[string]struct{}{}
	}
	d.white[name] = struct{}{}
}

// markBits are what the change log may say about a name beside what a directory shows.
type markBits uint8

const (
	markTimes markBits = 1 << iota // OpTimes
	markLink                       // OpLink
	markCopy                       // OpCopy
	markFrom                       // renamed from where the workspace had a file
)

// marksOf returns what m says.
func marksOf(m *Mark) (b markBits) {
	if m.Times {
		b |= markTimes
	}
	if m.Link != nil {
		b |= markLink
	}
	if m.Shown != 0 || m.fresh != 0 {
		b |= markCopy
	}
	if m.From != nil {
		b |= markFrom
	}
	return b
}

func (d *dirState) mark(name string, m markBits) { d.setMark(name, d.marked[name]|m) }

func (d *dirState) setMark(name string, m markBits) {
	if m == 0 {
		delete(d.marked, name)
		return
	}
	if d.marked == nil {
		d.marked = map[string]markBits{}
	}
	d.marked[name] = m
}

// lowerFD returns the descriptor of workspace directory l; put it back.
func (f *FS) lowerFD(l *lowerDir) (*descriptor, error) {
	if d := f.fds.get(&l.slot); d != nil {
		return d, nil
	}
	if l.parent == nil {
		return f.lowerTop, nil
	}
	p, err := f.lowerFD(l.parent)
	if err != nil {
		return nil, err
	}
	defer f.fds.put(p)
	fd, err := f.fds.openat(p.fd, l.name, dirFlags, 0)
	if err != nil {
		return nil, err
	}
	return f.fds.add(&l.slot, fd), nil
}

// upperFD returns the descriptor of the upper directory of n; put it back.
//
// Preconditions:
//   - FS.mu is held, and n is the root or in the upper.
func (f *FS) upperFD(n *node) (*descriptor, error) {
	if d := f.fds.get(&n.dir.slot); d != nil {
		return d, nil
	}
	if n == f.tab.root {
		return f.upperTop, nil
	}
	p, name := f.orphanTop, orphanName(n.odd().orphan)
	if n.parent != nil {
		var err error
		if p, err = f.upperFD(n.parent); err != nil {
			return nil, err
		}
		name = n.name
	}
	defer f.fds.put(p)
	fd, err := f.fds.openat(p.fd, name, dirFlags, 0)
	if err != nil {
		return nil, err
	}
	return f.fds.add(&n.dir.slot, fd), nil
}

// layerFD returns the directory in which the object called name in p lies: the upper's or the
// lower's.
func (f *FS) layerFD(p *node, upper bool) (*descriptor, error) {
	if upper {
		return f.upperFD(p)
	}
	if p.dir.lower == nil {
		return nil, unix.ENOENT
	}
	return f.lowerFD(p.dir.lower)
}

// find looks for name in p and says in which layer it lies. A copied-up hard link is found in the
// upper under whatever name it was copied to: then st is that of the copy.
//
// Preconditions:
//   - FS.mu is held.
func (f *FS) find(p *node, name string, st *unix.Stat_t) (upper bool, err error) {
	if p.dir.hasUpper(name) {
		return true, f.statUpper(p, name, st)
	}
	if err := f.statLower(p, name, st); err != nil {
		return false, err
	}
	if st.Nlink < 2 || len(f.groups) == 0 || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return false, nil
	}
	if g := f.groups[keyOf(st)]; g != nil && len(g.uppers) > 0 {
		return true, f.statUpper(g.uppers[0].dir, g.uppers[0].name, st)
	}
	return false, nil
}

func (f *FS) statUpper(p *node, name string, st *unix.Stat_t) error {
	d, err := f.upperFD(p)
	if err != nil {
		return err
	}
	defer f.fds.put(d)
	return fstatat(d.fd, name, st, statFlags)
}

// statLower finds name in the lower directory that shows in p, unless it is white.
func (f *FS) statLower(p *node, name string, st *unix.Stat_t) error {
	if p.dir.lower == nil || p.dir.isWhite(name) {
		return unix.ENOENT
	}
	d, err := f.lowerFD(p.dir.lower)
	if err != nil {
		return absent(err)
	}
	defer f.fds.put(d)
	return absent(fstatat(d.fd, name, st, statFlags))
}

// absent turns what says that a lower directory is not there any more into ENOENT: the host may
// remove or replace it while the Job runs.
func absent(err error) error {
	if err == unix.ENOTDIR || err == unix.ELOOP || err == unix.ESTALE {
		return unix.ENOENT
	}
	return err
}

// place is where the object of a node lies: name in the directory fd is a descriptor of, or, with
// an empty name, what fd itself is a descriptor of.
type place struct {
	d    *descriptor
	name string
}

// where finds the object of n; give the place back with leave.
//
// Preconditions:
//   - FS.mu is held.
func (f *FS) where(n *node) (place, error) {
	upper := n.upper.Load()
	switch r := n.odd(); {
	case r.orphan != 0:
		return place{f.orphanTop, orphanName(r.orphan)}, nil
	case r.lost != nil:
		return f.whereLost(r.lost)
	case n == f.tab.root && upper:
		d, err := f.upperFD(n)
		return place{d: d}, err
	case n == f.tab.root:
		d, err := f.lowerFD(n.dir.lower)
		return place{d: d}, err
	}
	a := f.realName(n)
	if a.dir == nil {
		return place{}, unix.ENOENT
	}
	d, err := f.layerFD(a.dir, upper)
	return place{d: d, name: a.name}, err
}

func (f *FS) leave(p place) { f.fds.put(p.d) }

// realName returns a name of n under which its object lies in its layer. A copied-up hard link may
// be known only by names that are in the lower alone.
func (f *FS) realName(n *node) alias {
	first := alias{n.parent, n.name}
	if !n.upper.Load() || n.isDir() || n.parent != nil && n.parent.dir.hasUpper(n.name) {
		return first
	}
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	for _, a := range n.odd().more {
		if a.dir.dir.hasUpper(a.name) {
			return a
		}
	}
	if g := n.odd().group; g != nil && len(g.uppers) > 0 {
		return g.uppers[0]
	}
	return first
}

// stat returns the state of n's object.
//
// Preconditions:
//   - FS.mu is held.
func (f *FS) stat(n *node, st *unix.Stat_t) error {
	p, err := f.where(n)
	if err != nil {
		return err
	}
	defer f.leave(p)
	if p.name == "" {
		return fstatat(p.d.fd, "", st, unix.AT_EMPTY_PATH)
	}
	return fstatat(p.d.fd, p.name, st, statFlags)
}

// checkName refuses what cannot be a name in a directory.
func checkName(name string) error {
	switch {
	case len(name) > tree.NameMax:
		return unix.ENAMETOOLONG
	case name == "" || name == "." || name == "..":
		return unix.EINVAL
	}
	for i := range len(name) {
		if name[i] == '/' || name[i] == 0 {
			return unix.EINVAL
		}
	}
	return nil
}
