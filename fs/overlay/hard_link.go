package overlay

import (
	"slices"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// linkGroup is a lower inode with several names, one of which the Job changed or removed. All its
// names in the view show the same object: the lower inode, or its copy in the upper, wherever that
// is called.
type linkGroup struct {
	nlink  uint32
	lower  tree.Node // the lower inode
	uppers []alias   // names of the copy in the upper; none while it is not copied up
	keys   []inodeKey
}

// groupCopied notes that n, one name of a lower inode, was copied up.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) groupCopied(n *node, lower, upper *unix.Stat_t) {
	g := f.groupOf(n, lower)
	g.uppers = append(g.uppers, alias{n.parent, n.name})
	g.keys = append(g.keys, keyOf(upper))
	f.groups[keyOf(upper)] = g
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	f.shareLocked(n, keyOf(upper))
}

// groupOf returns the group of a lower inode, of which n is a node.
func (f *FS) groupOf(n *node, lower *unix.Stat_t) *linkGroup {
	g := f.groups[keyOf(lower)]
	if g == nil {
		g = &linkGroup{
			nlink: uint32(lower.Nlink),
			lower: nodeOf(lower, owner{lower.Mode, lower.Uid, lower.Gid}),
			keys:  []inodeKey{keyOf(lower)},
		}
		f.groups[keyOf(lower)] = g
	}
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	n.oddLocked().group = g
	return g
}

// loseLink notes that v's object has one name less.
func (f *FS) loseLink(v *victim) {
	g := v.n.odd().group
	if g == nil {
		if v.inUpper || v.n.isDir() || v.st.Nlink < 2 {
			return
		}
		g = f.groupOf(v.n, &v.st)
	}
	g.nlink--
	g.uppers = slices.DeleteFunc(g.uppers, func(a alias) bool { return a == alias{v.p, v.name} })
	if g.nlink > 0 {
		return
	}
	for _, k := range g.keys {
		delete(f.groups, k)
	}
}

// moveLink notes that the name of a copied-up hard link changed.
func (f *FS) moveLink(n *node, from, to alias) {
	g := n.odd().group
	if g == nil {
		return
	}
	for i := range g.uppers {
		if g.uppers[i] == from {
			g.uppers[i] = to
		}
	}
}

// placeHere gives the copy of a hard link the name in p too, if it was copied up under another
// name only.
func (f *FS) placeHere(n, p *node, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.dir.hasUpper(name) || n.odd().group == nil || f.kid(p, name) != n {
		return nil
	}
	return f.linkCopy(n.odd().group, p, name)
}

// linkCopy makes name in p, which shows a lower name of g's inode, a name of its copy.
func (f *FS) linkCopy(g *linkGroup, p *node, name string) error {
	if err := f.copyUpDir(p); err != nil {
		return err
	}
	path, err := f.childPath(p, name)
	if err != nil {
		return err
	}
	recs := []Record{{Op: OpCopy, Path: path, Ino: f.shownLower(&g.lower)}}
	b, err := f.base(p, name, false)
	if err != nil {
		return err
	}
	if b != nil {
		recs = append(recs, *b)
	}
	from := g.uppers[0]
	d, err := f.upperFD(from.dir)
	if err != nil {
		return err
	}
	defer f.fds.put(d)
	recs = append(recs, Record{Op: OpLink, Path: path, Node: &g.lower})
	if err := f.append(recs...); err != nil {
		return err
	}
	err = f.keepMtime(p, func(up int) error { return unix.Linkat(d.fd, from.name, up, name, 0) })
	if err != nil {
		return err
	}
	p.dir.addName(name)
	p.dir.mark(name, markLink|markCopy)
	g.uppers = append(g.uppers, alias{p, name})
	return nil
}

// saveLinks keeps the copy of a hard link whose last name in the upper is about to go, if further
// names in the lower show it: one of them becomes a name of the copy.
func (f *FS) saveLinks(v *victim) error {
	g := v.n.odd().group
	if g == nil || g.nlink < 2 || len(g.uppers) != 1 || g.uppers[0] != (alias{v.p, v.name}) {
		return nil
	}
	paths, err := f.lowerNamesOf(inodeKey{g.lower.Dev, g.lower.Ino})
	if err != nil {
		return err
	}
	for _, path := range paths {
		done, err := f.saveLink(g, path)
		if err != nil {
			return err
		}
		if done {
			v.st.Nlink++
			return nil
		}
	}
	return nil
}

// saveLink makes workspace path path a name of g's copy, if the view shows it somewhere.
func (f *FS) saveLink(g *linkGroup, path tree.Path) (bool, error) {
	if !f.showsLower(g, path) {
		return false, nil
	}
	p, held := f.showing(path)
	defer f.letAllGo(held)
	return true, f.linkCopy(g, p, path.Base())
}

// findName gives a node in use, whose known names are gone, another name of its lower inode, if the
// view shows one: what is written through an open descriptor must show there.
func (f *FS) findName(n *node) error {
	if n.odd().group.nlink == 0 {
		return nil
	}
	paths, err := f.lowerNamesOf(n.odd().group.keys[0])
	if err != nil {
		return err
	}
	for _, path := range paths {
		if !f.showsLower(n.odd().group, path) {
			continue
		}
		p, held := f.showing(path)
		f.setName(n, p, path.Base())
		f.letAllGo(held)
		return nil
	}
	return nil
}

// countLinks finds out how many names the view has of each lower inode with several, of which the
// Job touched one.
func (f *FS) countLinks() error {
	for _, b := range f.bases.Bases {
		f.uncounted = f.uncounted || b.Subtree
		if b.Node.Nlink < 2 || b.Node.Kind == tree.Dir || b.Node.Kind == tree.Absent {
			continue
		}
		key := inodeKey{b.Node.Dev, b.Node.Ino}
		if f.groups[key] == nil {
			f.groups[key] = &linkGroup{lower: b.Node, keys: []inodeKey{key}}
		}
	}
	for _, g := range f.groups {
		if err := f.countGroup(g); err != nil {
			return err
		}
	}
	return nil
}

// countNames finds out how many names the view has of the lower inode with state st, if it has several.
// What an earlier session did below a directory it moved or removed has no base of its own, so that
// countLinks did not learn of it. It returns errExclusive where it must count and excl is not set.
func (f *FS) countNames(upper bool, st *unix.Stat_t, excl bool) error {
	if upper || st.Nlink < 2 || st.Mode&unix.S_IFMT == unix.S_IFDIR || !f.uncounted || f.groups[keyOf(st)] != nil {
		return nil
	}
	if !excl {
		return errExclusive
	}
	g := &linkGroup{lower: nodeOf(st, owner{st.Mode, st.Uid, st.Gid}), keys: []inodeKey{keyOf(st)}}
	if err := f.countGroup(g); err != nil {
		return err
	}
	f.groups[keyOf(st)] = g
	return nil
}

func (f *FS) countGroup(g *linkGroup) error {
	paths, err := f.lowerNamesOf(g.keys[0])
	if err != nil {
		return err
	}
	nlink := max(int(g.lower.Nlink)-len(paths), 0) // names outside of the workspace
	for _, path := range paths {
		if f.showsLower(g, path) {
			nlink++
		}
	}
	g.nlink = uint32(nlink + len(g.uppers))
	return nil
}

// showsLower reports whether the view shows workspace path path, a lower name of g's inode, as
// such: not hidden, and not by an upper name.
func (f *FS) showsLower(g *linkGroup, path tree.Path) bool {
	p, held := f.showing(path)
	defer f.letAllGo(held)
	var st unix.Stat_t
	return p != nil && !p.dir.hasUpper(path.Base()) && f.statLower(p, path.Base(), &st) == nil && slices.Contains(g.keys, keyOf(&st))
}

func (f *FS) letAllGo(held []*node) {
	for _, n := range slices.Backward(held) {
		f.letGo(n)
	}
}

// showing returns the view directory that shows the lower directory which path lies in, nil if
// none does, and the nodes held on the way.
func (f *FS) showing(path tree.Path) (p *node, held []*node) {
	p, at := f.nearestShown(path.Parent())
	for _, name := range path.Parent().Names()[len(at.Names()):] {
		var st unix.Stat_t
		upper, err := f.find(p, name, &st)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil, held
		}
		n := f.adopt(p, name, upper, &st, true)
		held = append(held, n)
		if n.dir.explicit || n.dir.lower == nil {
			return nil, held
		}
		p = n
	}
	return p, held
}

// nearestShown returns the directory that shows the lower directory nearest above or at path, by
// an explicit mark, else the root; and the path of that lower directory.
func (f *FS) nearestShown(path tree.Path) (*node, tree.Path) {
	best, at := f.tab.root, tree.Path{}
	f.eachDir(func(n *node) {
		if !n.dir.explicit || n.dir.lower == nil || n.parent == nil {
			return
		}
		if l, err := n.dir.lower.path(); err == nil && l.Contains(path) && at.Contains(l) {
			best, at = n, l
		}
	})
	return best, at
}

// eachDir calls visit for every known directory.
func (f *FS) eachDir(visit func(*node)) {
	f.tab.each(func(n *node) {
		if n.isDir() {
			visit(n)
		}
	})
}

// lowerNamesOf returns the workspace paths that are names of a lower inode. The workspace is
// walked for them once, on first need, and only files with several names are remembered.
func (f *FS) lowerNamesOf(key inodeKey) ([]tree.Path, error) {
	if f.lowerLinks == nil {
		f.lowerLinks = map[inodeKey][]tree.Path{}
		if err := f.walkLinks(&lowerDir{}, tree.Path{}); err != nil {
			f.lowerLinks = nil
			return nil, err
		}
	}
	return f.lowerLinks[key], nil
}

func (f *FS) walkLinks(l *lowerDir, at tree.Path) error {
	d, err := f.lowerFD(l)
	if err != nil {
		if absent(err) == unix.ENOENT || err == unix.EACCES {
			return nil // gone meanwhile, or not for the caller
		}
		return err
	}
	defer f.fds.put(d)
	defer f.fds.drop(&l.slot)
	names, err := f.listDir(d.fd)
	if err == unix.EACCES {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		path, err := at.Child(name)
		if err != nil {
			return err
		}
		if err := f.walkLink(l, d.fd, name, path); err != nil {
			return err
		}
	}
	return nil
}

func (f *FS) walkLink(l *lowerDir, dirfd int, name string, path tree.Path) error {
	var st unix.Stat_t
	if err := absent(fstatat(dirfd, name, &st, statFlags)); err != nil {
		if err == unix.ENOENT {
			return nil
		}
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return f.walkLinks(&lowerDir{parent: l, name: name}, path)
	case st.Nlink > 1:
		f.lowerLinks[keyOf(&st)] = append(f.lowerLinks[keyOf(&st)], path)
	}
	return nil
}
