package render

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"stage/fs/tree"
)

var errFormat = errors.New("unknown form of review")

// item is one line of a review in git's layout: a change, or one file below a directory that was
// moved or removed as a whole.
type item struct {
	letter byte // A added, M modified, D deleted, R renamed, T type changed, m metadata only
	score  int  // similarity of a rename, 0 to 100
	from   tree.Path
	path   tree.Path
	base   tree.Node // the state at from, for a rename
	now    tree.Node
	guess  bool   // base is not known: it went with the directory it stood in
	entry  *Entry // the change it is, or is part of
}

// isDir reports whether the item is about a directory and nothing else.
func (it *item) isDir() bool {
	return (it.base.Kind == tree.Dir || it.base.Kind == tree.Absent) && (it.now.Kind == tree.Dir || it.now.Kind == tree.Absent)
}

// letterOf tells what became of a path whose content is not known to be the same.
func letterOf(base, now tree.Node) byte {
	switch {
	case base.Kind == tree.Absent:
		return 'A'
	case now.Kind == tree.Absent:
		return 'D'
	case base.Kind != now.Kind:
		return 'T'
	case base.SameContent(now) == tree.Same:
		return 'm'
	}
	return 'M'
}

// items returns one item per change; a directory moved or removed as a whole is one item. The old
// path of a rename has no item of its own, unless something else stands there now.
func (r *Review) items(ctx context.Context) ([]item, error) {
	l := newLayout(r)
	if err := l.similar(ctx); err != nil {
		return nil, err
	}
	l.dropDirs(true)
	return l.sorted(), nil
}

// expanded returns the items with directories that were moved or removed as a whole given file by
// file, as git would. Directories appear only when created empty, removed whole, or changed in mode,
// owner or extended attributes.
func (r *Review) expanded(ctx context.Context) ([]item, error) {
	l := newLayout(r)
	if err := l.expand(ctx); err != nil {
		return nil, err
	}
	if err := l.similar(ctx); err != nil {
		return nil, err
	}
	l.gitLetters()
	l.dropDirs(false)
	return l.sorted(), nil
}

// layout turns changes into items.
type layout struct {
	r       *Review
	items   []item
	entries map[tree.Path]*Entry
	gone    map[tree.Path]bool // old paths that a rename accounts for
	listed  map[tree.Path]bool // paths below removed directories, which may lie in each other
}

func newLayout(r *Review) *layout {
	l := &layout{r: r, entries: map[tree.Path]*Entry{}, gone: map[tree.Path]bool{}, listed: map[tree.Path]bool{}}
	for i := range r.Changes {
		if l.shown(&r.Changes[i]) {
			l.entries[r.Changes[i].Path] = &r.Changes[i]
		}
	}
	for i := range r.Changes {
		if e := &r.Changes[i]; l.entries[e.Path] == e {
			l.items = append(l.items, l.item(e))
		}
	}
	l.items = slices.DeleteFunc(l.items, func(it item) bool { return it.letter == 'D' && l.gone[it.path] })
	return l
}

// shown reports whether e is among the paths this review names.
func (l *layout) shown(e *Entry) bool {
	return l.r.RawGit || len(e.Flags) > 0 || !inGit(e.Path)
}

// inGit reports whether p is .git of the root or lies below it.
func inGit(p tree.Path) bool {
	s := p.String()
	return s == ".git" || strings.HasPrefix(s, ".git/")
}

func (l *layout) item(e *Entry) item {
	it := item{path: e.Path, base: e.Base, now: e.New, entry: e}
	it.letter = letterOf(e.Base, e.New)
	if e.RenameFrom != nil && it.now.Kind != tree.Absent {
		l.rename(&it, *e.RenameFrom)
	}
	return it
}

// rename makes it a rename from from, if from is free: nothing stands there now and no other item
// claims it. Otherwise git, too, would call the new path added or modified.
func (l *layout) rename(it *item, from tree.Path) {
	if it.base.Kind != tree.Absent || l.gone[from] {
		return
	}
	base, guess := it.now, true // what is below a directory that went as a whole has no entry
	base.Digest = ""
	if old, ok := l.entries[from]; ok {
		base, guess = old.Base, false
		if old.New.Kind != tree.Absent || base.Kind != it.now.Kind {
			return
		}
	} else if !l.wentWhole(from) {
		return
	}
	l.gone[from] = true
	it.letter, it.from, it.base, it.guess = 'R', from, base, guess
	if !guess && base.SameContent(it.now) == tree.Same {
		it.score = 100
	}
}

// wentWhole reports whether a directory above p was removed or moved away as a whole.
func (l *layout) wentWhole(p tree.Path) bool {
	for ; !p.IsRoot(); p = p.Parent() {
		if e := l.entries[p.Parent()]; e != nil && e.Subtree {
			return true
		}
	}
	return false
}

// expand adds the items below directories that were moved or removed as a whole.
func (l *layout) expand(ctx context.Context) error {
	own, sources := map[tree.Path]int{}, map[tree.Path]int{}
	for i, it := range l.items {
		own[it.path] = i
		if it.letter == 'R' {
			sources[it.from] = i
		}
	}
	for i := range l.r.Changes {
		e := &l.r.Changes[i]
		if err := ctx.Err(); err != nil {
			return err
		}
		if e.Moved && l.entries[e.Path] == e {
			if err := l.expandMoved(e, own); err != nil {
				return fmt.Errorf("list moved directory %q: %w", e.Path, err)
			}
		}
	}
	for i := range l.r.Changes {
		e := &l.r.Changes[i]
		if err := ctx.Err(); err != nil {
			return err
		}
		if e.Subtree && l.entries[e.Path] == e {
			if err := l.expandRemoved(e, sources); err != nil {
				return fmt.Errorf("list removed directory %q: %w", e.Path, err)
			}
		}
	}
	for i := range l.items {
		if it := &l.items[i]; it.guess && it.now.Kind != tree.Dir {
			l.settle(it, tree.Node{}) // what was there is no longer in the workspace
		}
	}
	l.items = slices.DeleteFunc(l.items, func(it item) bool { return it.letter == 'D' && l.gone[it.path] })
	return nil
}

// settle gives a rename whose base was a guess its base. What is of another kind now was no rename.
func (l *layout) settle(it *item, base tree.Node) {
	it.base, it.guess = base, false
	switch {
	case base.Kind == it.now.Kind && base.SameContent(it.now) == tree.Same:
		it.score = 100
	case base.Kind != it.now.Kind:
		delete(l.gone, it.from)
		it.letter, it.from, it.base = 'A', tree.Path{}, tree.Node{}
	}
}

func (l *layout) expandMoved(e *Entry, own map[tree.Path]int) error {
	return l.r.Walker.WalkMoved(e.Change, func(from, to tree.Path, n tree.Node) error {
		i, changed := own[to]
		switch {
		case !changed && l.entries[to] == nil:
			l.gone[from] = true
			l.items = append(l.items, item{letter: 'R', score: 100, from: from, path: to, base: n, now: n, entry: e})
		case changed && l.items[i].letter == 'A' && l.items[i].now.Kind == n.Kind:
			l.gone[from] = true
			l.items[i].letter, l.items[i].from, l.items[i].base = 'R', from, n
		}
		return nil
	})
}

func (l *layout) expandRemoved(e *Entry, sources map[tree.Path]int) error {
	return l.r.Walker.WalkRemoved(e.Change, func(p tree.Path, n tree.Node) error {
		if i, ok := sources[p]; ok && l.items[i].guess {
			l.settle(&l.items[i], n)
		}
		if l.gone[p] || l.entries[p] != nil || l.listed[p] {
			return nil
		}
		l.listed[p] = true
		l.items = append(l.items, item{letter: 'D', path: p, base: n, entry: e})
		return nil
	})
}

// full returns the directories below which something stands now.
func (l *layout) full() map[tree.Path]bool {
	full := map[tree.Path]bool{}
	for _, it := range l.items {
		if it.now.Kind != tree.Absent {
			full[it.path.Parent()] = true
		}
	}
	return full
}

// gitLetters gives a file that became a directory, or the reverse, the letters git has for it: it
// sees the files below come and go one by one.
func (l *layout) gitLetters() {
	full := l.full()
	for i := range l.items {
		switch it := &l.items[i]; {
		case it.letter == 'T' && it.base.Kind == tree.Dir:
			it.letter = 'A'
		case it.letter == 'T' && it.now.Kind == tree.Dir && full[it.path]:
			it.letter = 'D'
		}
	}
}

// dropDirs removes the directories that need no line: created ones with something below, and those
// in which neither mode, owner nor extended attributes changed. With whole, a moved directory stands
// for what is below it and stays.
func (l *layout) dropDirs(whole bool) {
	full := l.full()
	removed := map[tree.Path]bool{}
	for _, it := range l.items {
		if it.isDir() && it.letter == 'D' {
			removed[it.path] = true
		}
	}
	l.items = slices.DeleteFunc(l.items, func(it item) bool {
		switch {
		case !it.isDir() || whole && it.entry.Moved:
			return false
		case it.letter == 'A':
			return full[it.path] && len(it.entry.Flags) == 0
		case it.letter == 'R':
			return full[it.path] && it.base.SameMeta(it.now) && !it.guess
		case it.letter == 'D':
			return removed[it.path.Parent()]
		}
		return !whole && it.base.SameMeta(it.now) && len(it.entry.Flags) == 0
	})
}

// sorted returns the items in git's order: by the bytes of the path.
func (l *layout) sorted() []item {
	slices.SortStableFunc(l.items, func(a, b item) int { return strings.Compare(a.path.String(), b.path.String()) })
	return l.items
}
