package overlay

import (
	"golang.org/x/sys/unix"
)

// Unlink removes a name that is not a directory's.
func (f *FS) Unlink(parent uint64, name string) error { return f.remove(parent, name, false) }

// Rmdir removes an empty directory.
func (f *FS) Rmdir(parent uint64, name string) error { return f.remove(parent, name, true) }

func (f *FS) remove(parent uint64, name string, isDir bool) error {
	p, err := f.dirNode(parent)
	if err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.victim(p, name)
	if err != nil {
		return err
	}
	defer f.letGo(v.n)
	switch {
	case v.n.isDir() && !isDir:
		return unix.EISDIR
	case !v.n.isDir() && isDir:
		return unix.ENOTDIR
	}
	if err := f.mayRemove(p, name, isDir); err != nil {
		return err
	}
	if err := f.mayDelete(p, v); err != nil {
		return err
	}
	return f.removeEntry(v)
}

// victim is an entry about to lose its name.
type victim struct {
	p       *node
	name    string
	n       *node
	st      unix.Stat_t // of the object
	inUpper bool        // the name is in the upper directory
	white   bool        // a lower entry shows, or would show if the upper one went
	mounted bool        // that is a mount point of the host, which can neither go nor move
	orphan  uint64      // what the object is called from now on, where it is still in use
}

// victim finds name in p; give its node back with letGo.
func (f *FS) victim(p *node, name string) (*victim, error) {
	v := &victim{p: p, name: name, inUpper: p.dir.hasUpper(name)}
	upper, err := f.find(p, name, &v.st)
	if err != nil {
		return nil, err
	}
	if err := f.countNames(upper, &v.st, true); err != nil {
		return nil, err
	}
	if v.white, v.mounted, err = f.lowerEntry(p, name); err != nil {
		return nil, err
	}
	v.n = f.adopt(p, name, upper, &v.st, true)
	return v, nil
}

// letGo takes back one lookup that adopt counted.
func (f *FS) letGo(n *node) {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	n.unlookLocked(1)
	f.releaseLocked(n)
}

// mayDelete checks that v may go: no mount point, not from another's sticky directory, and only if it
// is empty.
func (f *FS) mayDelete(p *node, v *victim) error {
	if v.mounted {
		return unix.EBUSY
	}
	if err := f.maySticky(p, v.n, &v.st); err != nil {
		return err
	}
	if !v.n.isDir() {
		return nil
	}
	return f.mustBeEmpty(v.n)
}

// maySticky makes the kernel's check of a sticky directory again where it was shown the wrong
// owners.
func (f *FS) maySticky(p, n *node, st *unix.Stat_t) error {
	if !f.ids.Rootless {
		return nil
	}
	var dir unix.Stat_t
	if err := f.stat(p, &dir); err != nil {
		return err
	}
	d := f.logical(p.upper.Load(), &dir)
	if d.mode&unix.S_ISVTX != 0 && f.ids.foreign(d) && f.ids.foreign(f.logical(n.upper.Load(), st)) {
		return unix.EPERM
	}
	return nil
}

// mustBeEmpty refuses a directory that shows an entry. Entries hidden by a rule count.
func (f *FS) mustBeEmpty(n *node) error {
	if len(n.dir.names) > 0 {
		return unix.ENOTEMPTY
	}
	return f.eachLower(n, func(name []byte, _ uint8) error {
		if _, white := n.dir.white[string(name)]; !white {
			return unix.ENOTEMPTY
		}
		return nil
	})
}

// removeEntry takes v out of the view: the records first, then the name in the upper, then the
// record that forgets what was said of it. Were that one written before, a crash in between would
// show an upper directory without its marks.
func (f *FS) removeEntry(v *victim) error {
	if err := f.copyUpDir(v.p); err != nil {
		return err
	}
	if err := f.saveLinks(v); err != nil {
		return err
	}
	recs, err := f.goneRecords(v)
	if err != nil {
		return err
	}
	if err := f.append(recs...); err != nil {
		return err
	}
	if v.white {
		v.p.dir.addWhite(v.name)
	}
	if err := f.removeUpper(v); err != nil {
		return err
	}
	f.loseName(v)
	return f.dropMarks(v)
}

// goneRecords returns what the change log must say before v goes.
func (f *FS) goneRecords(v *victim) ([]Record, error) {
	var recs []Record
	b, err := f.base(v.p, v.name, true)
	if err != nil {
		return nil, err
	}
	if b != nil {
		recs = append(recs, *b)
	}
	if v.white {
		path, err := f.childPath(v.p, v.name)
		if err != nil {
			return nil, err
		}
		recs = append(recs, Record{Op: OpWhite, Path: path})
	}
	return recs, nil
}

// inUse reports whether the kernel knows n; our own lookup of it does not count.
func (f *FS) inUse(n *node) bool {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	return n.lookups > 1 || n.isDir() && n.dir.kids > 0
}

// removeUpper removes v's name from the upper directory; where there is none, the directory only
// gets the mtime it would have.
func (f *FS) removeUpper(v *victim) error {
	up, err := f.upperFD(v.p)
	if err != nil {
		return err
	}
	defer f.fds.put(up)
	if !v.inUpper {
		return utimes(up.fd, "", unix.Timespec{Nsec: unix.UTIME_OMIT}, unix.Timespec{Nsec: unix.UTIME_NOW})
	}
	if f.willOrphan(v) {
		err = f.orphanUnlinked(v, up.fd)
	} else {
		err = f.unlinkUpper(v, up.fd)
	}
	if err != nil {
		return err
	}
	delete(v.p.dir.names, v.name)
	return nil
}

func (f *FS) unlinkUpper(v *victim, up int) error {
	flags := 0
	if v.n.isDir() {
		flags = unix.AT_REMOVEDIR
	}
	return unix.Unlinkat(up, v.name, flags)
}

// loseName notes that v's name is gone, from the view and perhaps its object with it.
func (f *FS) loseName(v *victim) {
	keep := f.willOrphan(v)
	n := f.unname(v.p, v.name)
	f.loseLink(v)
	if n.parent != nil {
		return
	}
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	switch {
	case v.orphan != 0:
		n.oddLocked().orphan = v.orphan
	case keep && !n.upper.Load():
		n.oddLocked().lost = &lost{v.p.dir.lower, v.name, keyOf(&v.st)}
	}
	if n.isDir() {
		f.emptyDir(n)
	}
	names := 1
	if n.odd().orphan != 0 && v.orphan == 0 {
		names++ // it was an orphan before, got a name, and lost it again
	}
	if v.inUpper && (n.isDir() || int(v.st.Nlink) == names) {
		n.oddLocked().doomed = keyOf(&v.st)
	}
}

// emptyDir makes n a removed directory, in which nothing is found.
func (f *FS) emptyDir(n *node) {
	f.fds.drop(&n.dir.slot)
	if n.dir.lower != nil {
		f.fds.drop(&n.dir.lower.slot)
	}
	n.dir.lower, n.dir.names, n.dir.white, n.dir.marked = nil, nil, nil, nil
}

// dropMarks makes the change log forget what it said of v, if it said something.
func (f *FS) dropMarks(v *victim) error {
	if !v.inUpper || !v.n.isDir() && v.p.dir.marked[v.name] == 0 {
		return nil
	}
	path, err := f.childPath(v.p, v.name)
	if err != nil {
		return err
	}
	delete(v.p.dir.marked, v.name)
	return f.append(Record{Op: OpDrop, Path: path})
}
