package overlay

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
	"stage/journal"
)

// peeked is a journal.File of which the first byte was read already.
type peeked struct {
	journal.File
	first []byte
}

func (p *peeked) Read(b []byte) (int, error) {
	if len(p.first) > 0 && len(b) > 0 {
		n := copy(b, p.first)
		p.first = p.first[n:]
		return n, nil
	}
	return p.File.Read(b)
}

// openLog starts a change log in an empty file, or replays the one in it into f.bases. What a power loss
// damaged is cut off.
func (f *FS) openLog() error {
	f.queued = append(f.queued, Record{Op: OpOpen, Boot: f.cfg.Boot})
	first := make([]byte, 1)
	_, err := io.ReadFull(f.cfg.LogFile, first)
	if err == io.EOF {
		f.log, err = journal.Create(f.cfg.LogFile, LogKind)
		return err
	}
	if err != nil {
		return fmt.Errorf("read change log: %w", err)
	}
	f.log, err = journal.Open(&peeked{f.cfg.LogFile, first}, LogKind, f.bases.Replay())
	damage := new(journal.DamageError)
	switch {
	case errors.Is(err, journal.ErrNoHeader):
		if err = f.cfg.LogFile.Truncate(0); err == nil {
			f.log, err = journal.Create(f.cfg.LogFile, LogKind)
		}
	case errors.As(err, &damage) && f.bases.Unsure(f.cfg.Boot):
		f.log, err = journal.Resume(f.cfg.LogFile, damage.End, damage.Last)
	}
	if err != nil {
		return fmt.Errorf("replay change log: %w", err)
	}
	return nil
}

// reopenLog makes a log that was replayed ready for more: when power failed since it was written, it is
// told what that lost, so that nothing recorded from now on is taken for what was recorded then.
func (f *FS) reopenLog() error {
	if err := f.finishMove(); err != nil {
		return err
	}
	var recs []Record
	_, n := f.log.Position()
	if f.bases.Unsure(f.cfg.Boot) {
		lost, err := f.bases.Losses(f.cfg.Lower, f.cfg.Upper)
		if err != nil {
			return err
		}
		for _, l := range lost {
			if err := f.bases.Lose(l); err != nil {
				return err
			}
			recs = append(recs, l.records()...)
		}
		if n > 0 { // what is there now has been read from the disk
			recs = append(recs, Record{Op: OpSynced, N: n})
		}
	}
	if n == 0 && len(recs) == 0 {
		return nil // a new one
	}
	recs = append(f.queued, recs...)
	f.queued = nil
	if err := f.append(recs...); err != nil {
		return err
	}
	f.bases.boot, f.bases.closed = f.cfg.Boot, false
	if err := f.log.Sync(); err != nil { // or a power loss would bring an OpClose back
		return err
	}
	return f.compactLoaded()
}

// Recover ends the change log of an overlay whose server died, as Close does: nothing in it is in doubt
// from then on. What the log did not know by then it says.
//
// Preconditions:
//   - no overlay is open on it.
func Recover(cfg Config) error {
	f := &FS{cfg: cfg, bases: NewState(), nextCompact: compactMin}
	err := f.setBoot()
	if err == nil {
		err = f.openLog()
	}
	if err != nil {
		return fmt.Errorf("recover change log: %w", errors.Join(err, cfg.LogFile.Close()))
	}
	if err = f.reopenLog(); err == nil {
		err = f.closeLog()
	}
	if err = errors.Join(err, f.log.Close()); err != nil {
		return fmt.Errorf("recover change log: %w", err)
	}
	return nil
}

// load makes the root node and those of all directories in the upper, with what the change log
// says of them.
func (f *FS) load() error {
	var lower, upper unix.Stat_t
	if err := unix.Fstat(f.cfg.Lower.Fd(), &lower); err != nil {
		return fmt.Errorf("stat lower: %w", err)
	}
	if err := unix.Fstat(f.cfg.Upper.Fd(), &upper); err != nil {
		return fmt.Errorf("stat upper: %w", err)
	}
	f.lowerDev, f.upperDev = uint64(lower.Dev), uint64(upper.Dev)
	f.tab.init()
	root := &node{kind: unix.S_IFDIR, ino: f.inoLocked(false, &lower), dir: &dirState{lower: &lowerDir{}}, lookups: 1}
	f.tab.root = root
	f.tab.insertLocked(root)
	if err := f.reopenLog(); err != nil {
		return err
	}
	if f.bases.HasRoot() {
		f.raise(root, &upper)
	}
	if err := f.loadDir(root, f.bases.Root); err != nil {
		return fmt.Errorf("read upper: %w", err)
	}
	f.bases.Root = nil
	return f.countLinks()
}

// finishMove looks whether the rename that ends the change log happened in the upper, and takes
// its record back if not.
func (f *FS) finishMove() error {
	r := f.bases.Pending()
	if r == nil {
		return nil
	}
	var st unix.Stat_t
	err := f.statUpperPath(*r.To, &st)
	if err != nil && absent(err) != unix.ENOENT {
		return fmt.Errorf("look for %q in upper: %w", *r.To, err)
	}
	if err == nil && st.Ino == r.Ino {
		return nil
	}
	f.bases.Abort()
	if _, err := f.log.Append(&Record{Op: OpAbort}); err != nil {
		return err
	}
	return nil
}

// statUpperPath finds a view path in the upper, where nothing is loaded yet.
func (f *FS) statUpperPath(p tree.Path, st *unix.Stat_t) error {
	fd, err := unix.Openat2(f.cfg.Upper.Fd(), p.Parent().String(), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return fstatat(fd, p.Base(), st, statFlags)
}

// loadDir reads the upper directory of n and the marks of what lies in it. A mark of a name that is
// not in the upper is left from a removal that a crash cut off before it could be forgotten.
func (f *FS) loadDir(n *node, m *Mark) error {
	if m == nil {
		m = &Mark{}
	}
	for name := range m.White {
		n.dir.addWhite(name)
	}
	d, err := f.upperFD(n)
	if err != nil {
		return err
	}
	defer f.fds.put(d)
	list, err := f.listDir(d.fd)
	if err != nil {
		return err
	}
	for _, name := range list {
		n.dir.addName(name)
		if err := f.loadName(n, d.fd, name, m.Children[name]); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return f.dropStale(n, m)
}

func (f *FS) dropStale(n *node, m *Mark) error {
	for name, c := range m.Children {
		if n.dir.hasUpper(name) || c.trace() {
			continue
		}
		path, err := f.childPath(n, name)
		if err != nil {
			return err
		}
		if err := f.append(Record{Op: OpDrop, Path: path}); err != nil {
			return err
		}
	}
	return nil
}

func (f *FS) loadName(p *node, up int, name string, m *Mark) error {
	var st unix.Stat_t
	if err := fstatat(up, name, &st, statFlags); err != nil {
		return err
	}
	if err := f.loadAttr(up, name, &st); err != nil {
		return err
	}
	f.keepIno(p, name, &st, m)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return f.loadSubdir(p, name, &st, m)
	}
	if m == nil {
		return nil
	}
	p.dir.mark(name, marksOf(m))
	if m.Link != nil {
		f.loadLink(p, name, &st, m.Link)
	}
	return nil
}

// loadAttr reads the logical owner of an upper file or directory, if it has one.
func (f *FS) loadAttr(up int, name string, st *unix.Stat_t) error {
	kind := st.Mode & unix.S_IFMT
	if !f.ids.Rootless || kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return nil
	}
	value, err := xattrAt(up, name).value(AttrXattr)
	if err == unix.ENODATA {
		return nil
	}
	if err != nil {
		return err
	}
	mode, uid, gid, err := DecodeAttr(value)
	if err != nil {
		return err
	}
	f.tab.setAttr(st.Ino, owner{uint32(mode), uid, gid})
	return nil
}

func (f *FS) loadSubdir(p *node, name string, st *unix.Stat_t, m *Mark) error {
	n := f.adopt(p, name, true, st, true)
	n.lookups = 0
	if m != nil {
		p.dir.mark(name, marksOf(m))
	}
	if m == nil || m.Dir == nil {
		if err := f.queueDir(p, name); err != nil {
			return err
		}
	}
	switch {
	case m != nil && m.Opaque:
		n.dir.explicit = true
	case m != nil && m.Lower != nil:
		n.dir.explicit = true
		n.dir.lower = lowerAt(*m.Lower)
	case p.dir.lower != nil && !p.dir.isWhite(name):
		n.dir.lower = &lowerDir{parent: p.dir.lower, name: name}
	}
	return f.loadDir(n, m)
}

// lowerAt returns the workspace directory at p.
func lowerAt(p tree.Path) *lowerDir {
	l := &lowerDir{}
	for _, name := range p.Names() {
		l = &lowerDir{parent: l, name: name}
	}
	return l
}

// keepIno shows a copy in the upper with the inode number that what it is a copy of had: git's index
// then fits across sessions too. A log without OpCopy does not tell copies from what the Job put there:
// there it is what is still where its base was.
func (f *FS) keepIno(p *node, name string, st *unix.Stat_t, m *Mark) {
	if m != nil && m.Shown != 0 {
		f.tab.origin[st.Ino] = m.Shown
		return
	}
	path, err := f.childPath(p, name)
	if err != nil || f.bases.copies {
		return
	}
	b, ok := f.bases.Bases[path]
	if ok && b.Node.Dev == f.lowerDev && b.Node.Kind == kindOf(st.Mode) && !b.Subtree && (b.Node.Nlink < 2 || b.Node.Kind == tree.Dir) {
		f.tab.origin[st.Ino] = b.Node.Ino
	}
}

// loadLink finds a name of a copied-up hard link again. countLinks completes the group.
func (f *FS) loadLink(p *node, name string, st *unix.Stat_t, lower *tree.Node) {
	p.dir.mark(name, markLink)
	key := inodeKey{lower.Dev, lower.Ino}
	g := f.groups[key]
	if g == nil {
		g = &linkGroup{lower: *lower, keys: []inodeKey{key, keyOf(st)}}
		f.groups[key], f.groups[keyOf(st)] = g, g
		if f.tab.origin[st.Ino] == 0 {
			f.tab.origin[st.Ino] = f.shownLower(lower)
		}
	}
	g.uppers = append(g.uppers, alias{p, name})
}
