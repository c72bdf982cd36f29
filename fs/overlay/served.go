package overlay

import (
	"errors"
	"unique"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// The kernel keeps what it was told of a lower object until it is told to forget, and the Job works
// from that. The base of a path is therefore the state the Job was served, not the one the workspace
// has when the Job first changes it: whatever the host did in between then shows as a conflict.

// maxDrifts bounds how many events wait to be told.
const maxDrifts = 1024

// errDrift is the cause in an EventDrift.
var errDrift = errors.New("changed in the workspace after the Job was shown it")

// seen is what the kernel was last told of a lower object. The zero seen is nothing.
type seen struct {
	ino          uint64
	size         int64
	mtime, ctime tree.Time
	class        unique.Handle[class]
}

// class is the part of seen that many objects have in common.
type class struct {
	dev                   uint64
	mode, uid, gid, nlink uint32
}

// seenOf returns what st says. The class of old is taken where it fits, as it mostly does.
func seenOf(st *unix.Stat_t, old *seen) seen {
	now := seen{ino: st.Ino, size: st.Size, mtime: timeOf(st.Mtim), ctime: timeOf(st.Ctim), class: old.class}
	c := class{uint64(st.Dev), st.Mode, st.Uid, st.Gid, uint32(st.Nlink)}
	if old.class == (unique.Handle[class]{}) || old.class.Value() != c {
		now.class = unique.Make(c)
	}
	return now
}

// serve notes that the kernel is told st of node n. While the kernel may
// hold content of an older state it is told that state's size and times once more, and then to
// forget both: new attributes would make a mixture of what it has.
func (f *FS) serve(n *node, st *unix.Stat_t, a *Attr) {
	if n.upper.Load() {
		return
	}
	f.tab.mu.Lock()
	old := n.seen
	now := seenOf(st, &old)
	if n.odd().read == nil && old != now && old != (seen{}) && n.reads.Load() > 0 && st.Mode&unix.S_IFMT == unix.S_IFREG {
		read := old
		n.oddLocked().read = &read
	}
	if isLink := st.Mode&unix.S_IFMT == unix.S_IFLNK; isLink || old == now || old == (seen{}) || !n.cached() {
		n.seen = now
		f.tab.mu.Unlock()
		if isLink && old != now && old != (seen{}) {
			f.invalidate(n) // the target: another link has the inode number now
		}
		return
	}
	f.tab.mu.Unlock()
	a.Size, a.Mtime, a.Ctime, a.AttrValid = uint64(old.size), specOf(old.mtime), specOf(old.ctime), Short
	f.invalidate(n)
}

// serveContent notes that the kernel is given content of n through fd. Where that is of another state
// than the attributes it was told, it has to ask for those again before it looks where the content
// ends; and if it may hold content of the state it was told, it has to forget all of it. first says
// that it holds none. keep says that the host may soon put another file in the place of this one,
// whose inode number must not be used again as long as the kernel may know n.
func (f *FS) serveContent(n *node, fd int, first bool) (keep bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	keep = isRecent(&st)
	if n.flags.Load()&flagServed == 0 {
		f.noteRead(n, &st)
	}
	f.tab.mu.Lock()
	same := n.seen == (seen{}) || n.seen.size == st.Size && n.seen.mtime == timeOf(st.Mtim)
	if !same && first {
		n.seen = seenOf(&st, &n.seen)
	}
	f.tab.mu.Unlock()
	if same {
		return keep, nil
	}
	if !first {
		f.invalidate(n)
		return keep, nil
	}
	if k := f.kernel.Load(); k != nil {
		err = known((*k).DropNode(n.id, false))
	}
	return keep, err
}

// lastServed tells of n, whose object is gone from the workspace, what was told last.
//
// Preconditions:
//   - FS.mu is held.
func (f *FS) lastServed(n *node, a *Attr) error {
	f.tab.mu.Lock()
	s := n.seen
	f.tab.mu.Unlock()
	if s == (seen{}) {
		return unix.ENOENT
	}
	c := s.class.Value()
	st := unix.Stat_t{
		Dev: c.dev, Ino: s.ino, Mode: c.mode, Uid: c.uid, Gid: c.gid, Size: s.size,
		Blksize: 4096, Blocks: (s.size + 511) / 512, Atim: specOf(s.mtime), Mtim: specOf(s.mtime), Ctim: specOf(s.ctime),
	}
	f.fill(n, &st, a)
	a.Nlink, a.AttrValid = 0, Short
	return nil
}

// firstReadLocked returns the state of which the Job first read content of n, nil if it read none.
//
// Preconditions:
//   - table.mu is held.
func (n *node) firstReadLocked() *seen {
	if was := n.odd().read; was != nil || n.reads.Load() == 0 || n.seen == (seen{}) || n.upper.Load() {
		return was
	}
	was := n.seen
	return &was
}

// firstReadLocked returns the state of which the Job first read content of name, nil if it read none:
// what the host puts in the place of a file is not what the Job knows by its name. old is the node
// called so until now, or nil.
//
// Preconditions:
//   - table.mu is held.
func (d *dirState) firstReadLocked(name string, old *node) *seen {
	if was, ok := d.replaced[name]; ok {
		return was
	}
	if old == nil {
		return nil
	}
	return old.firstReadLocked()
}

// noteReplaced keeps what the Job first read as name in p, where the host put kid's object away: the
// kernel may forget kid before it asks for the name again.
func (f *FS) noteReplaced(p *node, name string, kid *node) {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	was := kid.firstReadLocked()
	if was == nil || p.dir.replaced[name] != nil {
		return
	}
	if p.dir.replaced == nil {
		p.dir.replaced = map[string]*seen{}
	}
	p.dir.replaced[name] = was
}

// servePresent takes serveAbsent back.
func (f *FS) servePresent(p *node, name string) {
	if !p.dir.anyAbsent.Load() {
		return
	}
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	delete(p.dir.absent, name)
}

// serveAbsent notes that the kernel is told there is no name in p. Only where a node has that name
// must it be remembered: the kernel forgets a node, never an absence.
func (f *FS) serveAbsent(p *node, name string) {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	if f.tab.kidLocked(p, name) != nil {
		p.dir.noteAbsent(name)
	}
}

func (d *dirState) noteAbsent(name string) {
	if d.absent == nil {
		d.absent = map[string]struct{}{}
	}
	d.absent[name] = struct{}{}
	d.anyAbsent.Store(true)
}

// servedAbsent reports whether the kernel, which asks to put something at name in p, takes the name
// for free although the lower has it: it always looks first, and no node was ever given to it.
func (f *FS) servedAbsent(p *node, name string) bool {
	var st unix.Stat_t
	if p.dir.hasUpper(name) || f.statLower(p, name, &st) != nil {
		return false
	}
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	if _, ok := p.dir.absent[name]; !ok && f.tab.kidLocked(p, name) != nil {
		return false
	}
	p.dir.noteAbsent(name)
	return true
}

// asServed returns the state of name in p the kernel was told, where that is not now, the one the
// lower has; what only the lower could have told then is left out. kid is the node the Job changes
// there, nil for the one that has the name.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) asServed(kid, p *node, name string, now tree.Node) (n tree.Node, drifted bool) {
	f.tab.mu.Lock()
	gone := false
	if kid == nil {
		_, gone = p.dir.absent[name]
		kid = f.tab.kidLocked(p, name)
	}
	var s seen
	if kid != nil {
		gone = gone || kid.flags.Load()&flagUnseen != 0
		s = kid.seen
		if read := kid.odd().read; read != nil {
			s = *read
		}
	}
	f.tab.mu.Unlock()
	if path, ok := f.lowerPathOf(p, name); ok { // whoever read it may know it still, though no node does
		if read := f.reads.first(path); read != (seen{}) {
			s = read
		}
	}
	switch {
	case gone:
		return tree.Node{}, now.Kind != tree.Absent
	case s == (seen{}):
		return now, false
	}
	was := s.node()
	if was.Kind == tree.Dir && now.Kind == tree.Dir {
		was.Xattrs = now.Xattrs
		return was, was.Ino != now.Ino || was.Dev != now.Dev || !was.SameMeta(now)
	}
	if was.SameIdentity(now) {
		return now, false
	}
	if was.Kind == now.Kind {
		was.Xattrs = now.Xattrs
	}
	if kid != nil {
		f.invalidate(kid)
	}
	return was, true
}

func (s *seen) node() tree.Node {
	c := s.class.Value()
	return tree.Node{
		Kind: kindOf(c.mode), Mode: tree.Mode(c.mode & 0o7777), UID: c.uid, GID: c.gid, Size: s.size,
		Mtime: s.mtime, Ctime: s.ctime, Dev: c.dev, Ino: s.ino, Nlink: c.nlink,
	}
}

// cached reports whether the kernel may hold content of n.
func (n *node) cached() bool { return n.reads.Load() != n.dropped.Load() }

// invalidate lets the kernel forget what it holds of n.
func (f *FS) invalidate(n *node) { f.pending.add(change{id: n.id}, dropAttr|dropContent) }

// drift notes that the Job changed path, of which the workspace has another state than was served.
func (f *FS) drift(path tree.Path) {
	f.count.stale.Add(1)
	select {
	case f.drifts <- path:
	default: // counted, and the Job's review shows each
	}
}

// tellDrifts reports drifts until Close: they are found with locks held, over which no event is told.
func (f *FS) tellDrifts() {
	for {
		select {
		case path := <-f.drifts:
			f.event(Event{Kind: EventDrift, Path: path, Err: errDrift})
		case <-f.stop:
			for len(f.drifts) > 0 {
				f.event(Event{Kind: EventDrift, Path: <-f.drifts, Err: errDrift})
			}
			return
		}
	}
}
