package staged

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"stage/fs/hostfs"
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
	for k := range r.links {
		r.shareTimes(r.links[k])
	}
	if err := r.addAliases(ctx); err != nil {
		return err
	}
	keys := slices.SortedFunc(maps.Keys(r.links), func(a, b inode) int {
		return r.links[a][0].change.Path.Compare(r.links[b][0].change.Path)
	})
	group := 0
	for _, k := range keys {
		if ms := r.links[k]; len(ms) > 1 && r.group(ms, group+1) {
			group++
		}
	}
	return nil
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
	for i := range r.changes {
		if c := &r.changes[i]; paths[c.Path] && c.New.Kind != tree.Absent {
			c.LinkGroup = n
		}
	}
	return true
}

// addAliases adds, for each changed copy of a workspace file with several names, the names that
// still show: they have the copy's content now. For a workspace file that shows elsewhere, its other
// names are what it is to stay linked to.
func (r *Reader) addAliases(ctx context.Context) error {
	wanted := map[inode]inode{} // workspace inode, inode of its copy
	names := 0
	for k, ms := range r.links {
		for _, m := range ms {
			switch {
			case m.link != nil && !m.same:
				wanted[inode{m.link.Dev, m.link.Ino}] = k
				names += int(m.link.Nlink)
			case m.lower && !m.same:
				if _, ok := wanted[k]; !ok {
					wanted[k] = k
				}
				names += int(m.change.New.Nlink)
			}
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	s := &linkSearch{r: r, wanted: wanted, left: names}
	if err := s.dir(ctx, r.cfg.Lower, tree.Path{}); err != nil {
		return fmt.Errorf("search for other names of changed files: %w", err)
	}
	return nil
}

// linkSearch walks the workspace for the names of some inodes.
type linkSearch struct {
	r      *Reader
	wanted map[inode]inode
	left   int // names that may still be found
}

func (s *linkSearch) dir(ctx context.Context, d hostfs.Reader, p tree.Path) error {
	entries, err := d.ReadDir()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil || s.left <= 0 {
			return err
		}
		q, err := p.Child(e.Name)
		if err != nil {
			return err
		}
		if e.Kind == tree.Dir || e.Kind == tree.Absent {
			err = s.below(ctx, d, q)
		}
		if err == nil && e.Kind != tree.Dir && s.mayBe(e.Ino) {
			err = s.name(ctx, d, q)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *linkSearch) below(ctx context.Context, d hostfs.Reader, q tree.Path) error {
	n, err := d.Stat(q.Base())
	if err != nil || n.Kind != tree.Dir {
		return err
	}
	sub, err := d.OpenDir(q.Base())
	if err != nil {
		return err
	}
	defer sub.Close()
	return s.dir(ctx, sub, q)
}

func (s *linkSearch) mayBe(ino uint64) bool {
	for k := range s.wanted {
		if k.ino == ino {
			return true
		}
	}
	return false
}

// name looks at workspace path q, which has the inode number of a wanted file.
func (s *linkSearch) name(ctx context.Context, d hostfs.Reader, q tree.Path) error {
	n, err := d.Stat(q.Base())
	if err != nil {
		return err
	}
	copied, ok := s.wanted[inode{n.Dev, n.Ino}]
	if !ok {
		return nil
	}
	s.left--
	p, shows, err := s.r.viewOf(q)
	if err != nil || !shows {
		return err
	}
	return s.r.addAlias(ctx, p, q, copied)
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
	if p != q {
		c.Base, c.RenameFrom = tree.Node{}, &q
	}
	if old, ok := r.takeMember(p); ok { // compared by name already, with what the lower has
		c.Base, c.RenameFrom, c.SubtreeTime = old.base, old.change.RenameFrom, old.change.SubtreeTime
	}
	if !unchanged(c) {
		r.changes = append(r.changes, c)
	}
	r.aliases[p] = first.Path
	r.links[copied] = append(r.links[copied], member{change: c, base: c.Base, same: unchanged(c)})
	return nil
}

// takeMember forgets what is known of view path p as a name of an unchanged workspace file.
func (r *Reader) takeMember(p tree.Path) (m member, ok bool) {
	for k, ms := range r.links {
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
	tops := append(displaced(r.log.state.Root, tree.Path{}, nil), move{})
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
