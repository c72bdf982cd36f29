package overlay

import (
	"errors"
	"strings"
	"unique"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// The kernel keeps what it was told of a lower object for an hour, and the Job works from that. The
// base of a path is therefore the state the Job was served, not the one the workspace has when the
// Job first changes it: whatever the host did in between then shows as a conflict.

// maxStale bounds how many nodes wait to be invalidated, and how many events to be told.
const maxStale = 1024

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
	if old == now || old == (seen{}) || !n.cached() {
		n.seen = now
		f.tab.mu.Unlock()
		return
	}
	f.tab.mu.Unlock()
	a.Size, a.Mtime, a.Ctime = uint64(old.size), specOf(old.mtime), specOf(old.ctime)
	f.invalidate(n)
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
	d.absent[strings.Clone(name)] = struct{}{}
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
		s = kid.seen
		if read := kid.odd().read; read != nil {
			s = *read
		}
	}
	f.tab.mu.Unlock()
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
	f.invalidate(kid)
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

// invalidate asks whoever serves f to make the kernel forget what it holds of n. When too many wait
// already it is left to the next time.
func (f *FS) invalidate(n *node) {
	if n.flags.Or(flagQueued)&flagQueued != 0 {
		return
	}
	select {
	case f.stale <- n.id:
	default:
		n.flags.And(^uint32(flagQueued))
	}
}

// Stale returns the numbers of nodes of which the kernel holds attributes or content that the
// workspace has no more. Whoever serves f receives them and calls Invalidate, in a goroutine that
// answers no requests.
func (f *FS) Stale() <-chan uint64 { return f.stale }

// Invalidate calls drop, which must make the kernel forget attributes and content of node id, unless
// the node is gone.
//
// Preconditions:
//   - requests go on being answered meanwhile: the kernel may have to wait for one.
func (f *FS) Invalidate(id uint64, drop func() error) error {
	n := f.tab.get(id)
	if n == nil {
		return nil
	}
	n.flags.And(^uint32(flagQueued))
	f.mu.RLock()
	if !n.upper.Load() {
		f.fds.drop(&n.slot) // of what the name stood for then
	}
	f.mu.RUnlock()
	reads := n.reads.Load()
	if err := drop(); err != nil {
		return err
	}
	n.dropped.Store(reads)
	return nil
}

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
