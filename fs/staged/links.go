package staged

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"stage/fs/judge"
	"stage/fs/tree"
)

type inode struct{ dev, ino uint64 }

// member is one name of a file of the view that has several.
type member struct {
	change tree.Change // what it is, or would be if it were changed
	base   tree.Node
	same   bool       // it is no change by itself
	lower  bool       // it shows the workspace's file, which a directory brought here
	link   *tree.Node // the workspace inode with several names that the file is a copy of
}

// groupLinks numbers the hard-link groups among the changes. A group with an unchanged member is to
// be linked to that, its anchor. Names that the Job only linked together are changes too.
func (r *Reader) groupLinks(ctx context.Context) error {
	r.mergeCopies()
	for k := range r.links {
		r.shareTimes(r.links[k])
	}
	if err := r.addAliases(ctx); err != nil {
		return err
	}
	group := 0
	for _, k := range r.linkKeys() {
		if ms := r.links[k]; len(ms) > 1 && r.group(ms, group+1) {
			group++
		}
	}
	for i := range r.changes {
		if c := &r.changes[i]; c.New.Kind != tree.Absent {
			c.LinkGroup = r.groups[c.Path]
		}
	}
	return nil
}

// linkKeys returns the keys of links in the order of their first paths.
func (r *Reader) linkKeys() []inode {
	return slices.SortedFunc(maps.Keys(r.links), func(a, b inode) int {
		return r.links[a][0].change.Path.Compare(r.links[b][0].change.Path)
	})
}

// mergeCopies joins workspace files that show elsewhere with the copy of their inode: the Job sees
// the copy at all its names.
func (r *Reader) mergeCopies() {
	for _, k := range r.linkKeys() {
		ms := r.links[k]
		i := slices.IndexFunc(ms, func(m member) bool { return m.link != nil && !m.lower })
		if i < 0 {
			continue
		}
		for _, m := range slices.Clone(r.links[inode{ms[i].link.Dev, ms[i].link.Ino}]) {
			r.showCopy(m.change.Path, ms[i].change, k)
		}
	}
}

// showCopy makes view path p, at which an unchanged workspace file was found, a name of the upper
// file k, whose change is copied.
func (r *Reader) showCopy(p tree.Path, copied tree.Change, k inode) {
	old, ok := r.takeMember(p)
	if !ok {
		return
	}
	c := old.change
	c.Base, c.New, c.TimesSet = old.base, copied.New, copied.TimesSet
	same := unchanged(c)
	c.Base = old.change.Base
	if !same {
		r.changes = append(r.changes, c)
	}
	r.aliases[p] = copied.Path
	r.links[k] = append(r.links[k], member{change: c, base: old.base, same: same})
}

// shareTimes makes an mtime that was set through one name one that was set through all.
func (r *Reader) shareTimes(ms []member) {
	if !slices.ContainsFunc(ms, func(m member) bool { return m.change.TimesSet }) {
		return
	}
	for i := range ms {
		m := &ms[i]
		m.change.TimesSet = true
		if m.same && m.base.Mtime != m.change.New.Mtime {
			m.same = false
			r.changes = append(r.changes, m.change)
		}
		for j := range r.changes {
			if c := &r.changes[j]; c.Path == m.change.Path && c.New.Kind != tree.Absent {
				c.TimesSet = true
			}
		}
	}
}

// group gives the changes among ms the number n; it returns false when there are none.
func (r *Reader) group(ms []member, n int) bool {
	anchor := slices.IndexFunc(ms, func(m member) bool { return m.same })
	paths := map[tree.Path]bool{}
	for i, m := range ms {
		switch {
		case !m.same:
			paths[m.change.Path] = true
		case i != anchor && (m.base.Ino != ms[anchor].base.Ino || m.base.Dev != ms[anchor].base.Dev):
			r.changes = append(r.changes, m.change)
			paths[m.change.Path] = true
		}
	}
	if len(paths) == 0 {
		return false
	}
	if anchor >= 0 {
		r.anchors[n] = ms[anchor].change.Path
	}
	for p := range paths {
		r.groups[p] = n
	}
	return true
}

// madeAnew returns, by the inode that a file had for the Job, those an undo made anew: it has to where
// the originals were kept on another file system.
func (r *Reader) madeAnew() map[inode]tree.Node {
	anew := map[inode]tree.Node{}
	for p, n := range r.cfg.Rebased {
		old := r.log.Bases[p].Node
		if n.Kind == old.Kind && n.Kind != tree.Dir && n.Ino != old.Ino && n.Size == old.Size && n.Mtime == old.Mtime {
			anew[inode{old.Dev, old.Ino}] = n
		}
	}
	return anew
}

// original is a workspace file with several names, and the inode that shows in its place.
type original struct {
	node   tree.Node
	copied inode
}

// addAliases adds, for each changed copy of a workspace file with several names, the names that
// still show: they have the copy's content now. For a workspace file that shows elsewhere, its other
// names are what it is to stay linked to.
func (r *Reader) addAliases(ctx context.Context) error {
	wanted, names := r.wantedNames()
	if len(wanted) == 0 {
		return nil
	}
	inos := map[uint64]bool{}
	for k := range wanted {
		inos[k.ino] = true
	}
	err := judge.Names(ctx, r.cfg.Lower, func(ino uint64) bool { return inos[ino] }, func(q tree.Path, n tree.Node) (bool, error) {
		o, ok := wanted[inode{n.Dev, n.Ino}]
		if !ok || n.Size != o.node.Size || n.Mtime != o.node.Mtime {
			return true, nil // the number is another file's now
		}
		names--
		p, shows, err := r.viewOf(q)
		if err == nil && shows {
			err = r.addAlias(ctx, p, q, o.copied)
		}
		return names > 0, err
	})
	if err != nil {
		return fmt.Errorf("search for other names of changed files: %w", err)
	}
	return nil
}

// wantedNames returns the workspace inodes whose names are to be searched for, and how many there
// are at most.
func (r *Reader) wantedNames() (wanted map[inode]original, names int) {
	wanted = map[inode]original{}
	anew := r.madeAnew()
	for _, k := range r.linkKeys() {
		for _, m := range r.links[k] {
			switch {
			case m.link != nil && !m.same:
				lower := inode{m.link.Dev, m.link.Ino}
				wanted[lower] = original{*m.link, k}
				if n, ok := anew[lower]; ok {
					wanted[inode{n.Dev, n.Ino}] = original{n, k}
				}
				names += int(m.link.Nlink)
			case m.lower && !m.same:
				if _, ok := wanted[k]; !ok {
					wanted[k] = original{m.change.New, k}
				}
				names += int(m.change.New.Nlink)
			}
		}
	}
	return wanted, names
}

// addAlias makes view path p, where workspace path q shows, one more name of the upper file copied.
func (r *Reader) addAlias(ctx context.Context, p, q tree.Path, copied inode) error {
	first := r.links[copied][0].change
	b, err := r.baseAt(q)
	if err != nil {
		return err
	}
	if r.links[copied][0].lower { // the same file, where it always was
		if !slices.ContainsFunc(r.links[copied], func(m member) bool { return m.change.Path == p }) {
			c := tree.Change{Path: p, Base: b.node, New: b.node}
			r.links[copied] = append(r.links[copied], member{change: c, base: b.node, same: true, lower: true})
		}
		return nil
	}
	if b.lost { // the Job never named it: it was what the copied file was
		for _, m := range r.links[copied] {
			if m.link != nil {
				b = ownBase(*m.link, false, 0)
			}
		}
		b.node.Xattrs = first.Base.Xattrs
	}
	if b.node.Kind == tree.File && b.node.Digest == "" {
		if b.node.Digest, err = r.baseDigest(ctx, b.node, q); err != nil {
			return err
		}
	}
	c := tree.Change{Path: p, Base: b.node, New: first.New, TimesSet: first.TimesSet}
	same := unchanged(c)
	if p != q {
		c.Base, c.RenameFrom = tree.Node{}, &q
	}
	if !same {
		r.changes = append(r.changes, c)
	}
	r.aliases[p] = first.Path
	r.links[copied] = append(r.links[copied], member{change: c, base: b.node, same: same})
	return nil
}

// takeMember forgets what is known of view path p as a name of an unchanged workspace file.
func (r *Reader) takeMember(p tree.Path) (m member, ok bool) {
	for _, k := range r.linkKeys() {
		ms := r.links[k]
		i := slices.IndexFunc(ms, func(m member) bool { return m.change.Path == p })
		if i < 0 {
			continue
		}
		m = ms[i]
		r.links[k] = slices.Delete(ms, i, i+1)
		if len(r.links[k]) == 0 {
			delete(r.links, k)
		}
		r.changes = slices.DeleteFunc(r.changes, func(c tree.Change) bool { return c.Path == p && c.New.Kind != tree.Absent })
		return m, true
	}
	return m, false
}

// viewOf returns the view path at which workspace path w shows unchanged, if it does.
func (r *Reader) viewOf(w tree.Path) (p tree.Path, ok bool, err error) {
	tops := append(displaced(r.log.Root, tree.Path{}, nil), move{})
	for _, top := range tops {
		if !top.from.Contains(w) || top.from == w {
			continue
		}
		p = w.Rebase(top.from, top.to)
		if ok, err = r.shows(p, w); ok || err != nil {
			return p, ok, err
		}
	}
	return p, false, nil
}

// shows reports whether view path p shows workspace path w.
func (r *Reader) shows(p, w tree.Path) (bool, error) {
	at, ok, err := r.locate(p)
	return ok && !at.upper && at.path == w, err
}
