package overlay

import (
	"errors"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// move is one rename under way.
type move struct {
	from, to         *node // directories
	fromName, toName string
	exchange         bool
	src, dst         *node       // dst is nil where nothing is replaced
	dstSt            unix.Stat_t // of dst's object
	srcWhite         bool        // a lower entry shows behind src's name
	dstUpper         bool        // dst's name is in the upper directory
	mounted          bool        // src or dst is a mount point of the host
	ino              uint64      // of src's upper object
	recs             []Record
	srcFrom, dstFrom markBits  // markFrom for what is renamed from where the workspace had a file
	replaced         tree.Node // what is known of the lower file that is replaced
}

// Rename is renameat2(2) with flags 0, RENAME_NOREPLACE or RENAME_EXCHANGE. A directory of the
// workspace is moved by one record, whatever lies below it.
func (f *FS) Rename(parent uint64, name string, newParent uint64, newName string, flags uint32) error {
	if flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 || flags == unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE {
		return unix.EINVAL
	}
	from, err := f.dirNode(parent)
	if err != nil {
		return err
	}
	to, err := f.dirNode(newParent)
	if err != nil {
		return err
	}
	if err := errors.Join(checkName(name), checkName(newName)); err != nil {
		return err
	}
	if err := f.sameMount(from, to); err != nil {
		return err
	}
	for {
		moved, err := f.tryRename(&move{
			from: from, fromName: name, to: to, toName: newName, exchange: flags&unix.RENAME_EXCHANGE != 0,
		}, flags&unix.RENAME_NOREPLACE != 0)
		if moved || err != nil {
			return err
		}
	}
}

// tryRename brings what moves into the upper, which may take long, and then moves it under the tree
// lock. It reports false when somebody else changed the names in between.
func (f *FS) tryRename(m *move, noReplace bool) (bool, error) {
	src, err := f.holdUpper(m.from, m.fromName)
	if err != nil {
		return false, err
	}
	defer f.Forget(src.id, 1)
	if m.exchange {
		dst, err := f.holdUpper(m.to, m.toName)
		if err != nil {
			return false, err
		}
		defer f.Forget(dst.id, 1)
	} else if m.replaced, err = f.learn(m.to, m.toName); err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.resolveMove(m); err != nil {
		return false, err
	}
	if m.dst != nil {
		defer f.letGo(m.dst)
	}
	defer f.letGo(m.src)
	if !m.src.isDir() && !m.from.dir.hasUpper(m.fromName) || m.exchange && !m.dst.isDir() && !m.dstUpper {
		return false, nil
	}
	if done, err := f.checkMove(m, noReplace); done || err != nil {
		return true, err
	}
	return true, f.move(m)
}

// holdUpper finds name in p, counts a lookup of it and, unless it is a directory, copies it up
// under this very name: of a hard link another name may lie in the upper already.
func (f *FS) holdUpper(p *node, name string) (*node, error) {
	n, err := f.hold(p, name)
	if err != nil {
		return nil, err
	}
	if !n.isDir() {
		err = f.copyUp(n, toMove)
	}
	if err == nil && !n.isDir() {
		err = f.keepCopy(n)
	}
	if err == nil && !n.isDir() {
		err = f.placeHere(n, p, name)
	}
	if err != nil {
		f.Forget(n.id, 1)
		return nil, err
	}
	return n, nil
}

// resolveMove finds both ends of m; their nodes are given back with letGo.
func (f *FS) resolveMove(m *move) error {
	src, err := f.victim(m.from, m.fromName)
	if err != nil {
		return err
	}
	m.src, m.srcWhite, m.mounted, m.ino = src.n, src.white, src.mounted, src.st.Ino
	if !m.exchange && f.servedAbsent(m.to, m.toName) {
		return nil
	}
	dst, err := f.victim(m.to, m.toName)
	switch {
	case err == nil:
		m.dst, m.dstSt, m.dstUpper, m.mounted = dst.n, dst.st, dst.inUpper, m.mounted || dst.mounted
		return nil
	case err == unix.ENOENT && !m.exchange:
		return nil
	}
	f.letGo(m.src)
	return err
}

// checkMove refuses what rename(2) refuses. It reports true when there is nothing to do: both
// names are of the same inode.
func (f *FS) checkMove(m *move, noReplace bool) (done bool, err error) {
	if m.to != f.tab.root && m.to.parent == nil {
		return false, unix.ENOENT
	}
	if m.dst != nil && noReplace {
		return false, unix.EEXIST
	}
	if m.src == m.dst {
		return true, nil
	}
	if err := f.mayMoveBoth(m); err != nil {
		return false, err
	}
	if m.mounted {
		return false, unix.EBUSY
	}
	if f.cfg.FixedDirs && (showsLower(m.src) || m.exchange && showsLower(m.dst)) {
		return false, unix.EXDEV
	}
	for p := m.to; p != nil; p = p.parent {
		if p == m.src {
			return false, unix.EINVAL
		}
	}
	if m.dst == nil || m.exchange {
		return false, nil
	}
	switch {
	case m.src.isDir() && !m.dst.isDir():
		return false, unix.ENOTDIR
	case !m.src.isDir() && m.dst.isDir():
		return false, unix.EISDIR
	}
	return false, f.mayDelete(m.to, &victim{n: m.dst, st: m.dstSt})
}

func showsLower(n *node) bool { return n.isDir() && n.dir.lower != nil }

func (f *FS) mayMoveBoth(m *move) error {
	if err := f.mayMove(m.from, m.fromName, m.src.isDir()); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := f.stat(m.src, &st); err != nil {
		return err
	}
	if err := f.maySticky(m.from, m.src, &st); err != nil {
		return err
	}
	if m.dst == nil {
		return f.mayCreate(m.to, m.toName, m.src.isDir())
	}
	if err := f.mayMove(m.to, m.toName, m.dst.isDir()); err != nil {
		return err
	}
	return f.maySticky(m.to, m.dst, &m.dstSt)
}

// move appends the records, renames in the upper and notes the result. When the rename fails, the
// change log is told that it did not happen.
func (f *FS) move(m *move) error {
	if err := f.copyUpMove(m); err != nil {
		return err
	}
	dst := &victim{p: m.to, name: m.toName, n: m.dst, st: m.dstSt, inUpper: m.dstUpper}
	replaces := m.dst != nil && !m.exchange
	if replaces {
		if err := f.saveLinks(dst); err != nil {
			return err
		}
	}
	if err := f.moveRecords(m); err != nil {
		return err
	}
	if replaces {
		if err := f.orphanReplaced(dst); err != nil {
			return err
		}
	}
	if err := f.append(m.recs...); err != nil {
		return errors.Join(err, f.dropReplaced(dst))
	}
	f.noteMarks(m)
	if err := f.renameUpper(m); err != nil {
		return errors.Join(err, f.dropReplaced(dst), f.append(Record{Op: OpAbort}))
	}
	if replaces {
		f.loseName(dst)
		if dst.st.Ino != m.dstSt.Ino { // a twin of it lives on
			f.tab.forgetUpper(m.dstSt.Ino)
		}
	}
	f.noteMove(m)
	return nil
}

// copyUpMove brings the two directories into the upper, and what moves if it is a directory: as
// such, without what lies below.
func (f *FS) copyUpMove(m *move) error {
	for _, d := range []*node{m.from, m.to} {
		if err := f.copyUpDir(d); err != nil {
			return err
		}
	}
	if m.src.isDir() {
		if err := f.copyUpDir(m.src); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := f.stat(m.src, &st); err != nil {
			return err
		}
		m.ino = st.Ino
	}
	if m.exchange && m.dst.isDir() {
		return f.copyUpDir(m.dst)
	}
	return nil
}

// moveRecords collects what the change log must say before m happens: bases of both paths, which
// lower a moved directory shows, the whiteout left behind, and the move itself, last.
//
// There is no whiteout at the destination: the upper name hides the lower one, and were the move
// taken back after a crash, a whiteout would hide what was to be replaced.
func (f *FS) moveRecords(m *move) error {
	fromPath, err := f.childPath(m.from, m.fromName)
	if err != nil {
		return err
	}
	toPath, err := f.childPath(m.to, m.toName)
	if err != nil {
		return err
	}
	for _, end := range []alias{{m.from, m.fromName}, {m.to, m.toName}} {
		b, err := f.base(end.dir, end.name, true)
		if err != nil {
			return err
		}
		addDigest(b, m.replaced)
		if b != nil {
			m.recs = append(m.recs, *b)
		}
	}
	if err := m.noteLower(m.src, fromPath, m.to); err != nil {
		return err
	}
	m.srcFrom = f.fromMark(m.src, fromPath)
	op := OpMove
	if m.exchange {
		op = OpSwap
		m.dstFrom = f.fromMark(m.dst, toPath)
		if err := m.noteLower(m.dst, toPath, m.from); err != nil {
			return err
		}
	} else if m.srcWhite {
		m.recs = append(m.recs, Record{Op: OpWhite, Path: fromPath})
	}
	m.recs = append(m.recs, Record{Op: op, Path: fromPath, To: &toPath, Ino: m.ino})
	return nil
}

// fromMark returns the mark that State makes when n is moved away from path.
func (f *FS) fromMark(n *node, path tree.Path) markBits {
	b, ok := f.bases.Bases[path]
	if n.isDir() || !ok || b.Lost || b.Node.Kind == tree.Absent || b.Node.Kind == tree.Dir {
		return 0
	}
	return markFrom
}

// noteLower records which lower directory n, at path, shows, if it is a directory of which that
// was so far said by its place alone, and will be said no more by its place in to.
func (m *move) noteLower(n *node, path tree.Path, to *node) error {
	if !n.isDir() || n.dir.explicit {
		return nil
	}
	if n.dir.lower == nil {
		if to.dir.lower != nil {
			m.recs = append(m.recs, Record{Op: OpOpaque, Path: path})
		}
		return nil
	}
	lower, err := n.dir.lower.path()
	if err != nil {
		return err
	}
	m.recs = append(m.recs, Record{Op: OpLower, Path: path, Lower: &lower})
	return nil
}

// noteMarks notes in memory what the records before the last said.
func (f *FS) noteMarks(m *move) {
	if m.srcWhite && !m.exchange {
		m.from.dir.addWhite(m.fromName)
	}
	if m.src.isDir() && (m.src.dir.lower != nil || m.to.dir.lower != nil) {
		m.src.dir.explicit = true
	}
	if m.exchange && m.dst.isDir() && (m.dst.dir.lower != nil || m.from.dir.lower != nil) {
		m.dst.dir.explicit = true
	}
}

func (f *FS) renameUpper(m *move) error {
	from, err := f.upperFD(m.from)
	if err != nil {
		return err
	}
	defer f.fds.put(from)
	to, err := f.upperFD(m.to)
	if err != nil {
		return err
	}
	defer f.fds.put(to)
	flags := uint(0)
	if m.exchange {
		flags = unix.RENAME_EXCHANGE
	}
	return unix.Renameat2(from.fd, m.fromName, to.fd, m.toName, flags)
}

// noteMove gives the nodes their new names.
func (f *FS) noteMove(m *move) {
	from, to := m.from.dir, m.to.dir
	to.addName(m.toName)
	f.moveLink(m.src, alias{m.from, m.fromName}, alias{m.to, m.toName})
	srcMark, dstMark := from.marked[m.fromName]|m.srcFrom, to.marked[m.toName]|m.dstFrom
	f.unname(m.from, m.fromName)
	if m.exchange {
		f.moveLink(m.dst, alias{m.to, m.toName}, alias{m.from, m.fromName})
		f.unname(m.to, m.toName)
		f.setName(m.dst, m.from, m.fromName)
		from.setMark(m.fromName, dstMark)
	} else {
		delete(from.names, m.fromName)
		from.setMark(m.fromName, 0)
	}
	f.setName(m.src, m.to, m.toName)
	to.setMark(m.toName, srcMark)
}
