package apply

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"stage/fs/tree"
)

// graph says which changes of a Job cannot be applied without which others.
type graph struct {
	all   []tree.Change // sorted by path
	index map[tree.Path]int
	needs [][]int // by position in all
}

// choose returns which of all are selected: those that match, and what they need. What is excluded
// takes along what needs it.
func (o *Options) choose(all []tree.Change) ([]bool, error) {
	g := newGraph(all, o.Source)
	sel, err := o.matching(g)
	if err != nil {
		return nil, err
	}
	g.close(sel, g.needs)
	out := make([]bool, len(all))
	for _, pattern := range o.Exclude {
		hit, err := g.match(pattern)
		if err != nil {
			return nil, err
		}
		for i := range hit {
			out[i] = out[i] || hit[i]
		}
	}
	g.close(out, g.neededBy())
	for i := range sel {
		sel[i] = sel[i] && !out[i]
	}
	return sel, nil
}

// matching returns the changes that Paths and Include name.
func (o *Options) matching(g *graph) ([]bool, error) {
	sel := make([]bool, len(g.all))
	for i := range sel {
		sel[i] = len(o.Paths)+len(o.Include) == 0
	}
	for _, p := range o.Paths {
		if err := g.selectPath(p, sel); err != nil {
			return nil, err
		}
	}
	for _, pattern := range o.Include {
		hit, err := g.match(pattern)
		if err != nil {
			return nil, err
		}
		for i := range hit {
			sel[i] = sel[i] || hit[i]
		}
	}
	return sel, nil
}

func (g *graph) selectPath(p tree.Path, sel []bool) error {
	found := false
	for i, c := range g.all {
		if p.Contains(c.Path) {
			sel[i], found = true, true
		}
	}
	if found {
		return nil
	}
	e := &NoMatchError{Pattern: p.String()}
	for _, c := range g.all {
		if (c.Subtree || c.Moved) && c.Path.Contains(p) {
			within := c.Path
			e.Within = &within
		}
	}
	return e
}

// match returns the changes that the doublestar pattern covers: paths that match, and everything
// below them.
func (g *graph) match(pattern string) ([]bool, error) {
	whole := pattern
	pattern = strings.TrimSuffix(pattern, "/")
	if !doublestar.ValidatePattern(pattern) {
		return nil, fmt.Errorf("pattern %q: %w", pattern, doublestar.ErrBadPattern)
	}
	hit := make([]bool, len(g.all))
	for i, c := range g.all {
		hit[i] = covers(pattern, c.Path)
	}
	if !slices.Contains(hit, true) {
		return nil, &NoMatchError{Pattern: whole}
	}
	return hit, nil
}

// covers reports whether pattern matches p or a directory above.
func covers(pattern string, p tree.Path) bool {
	for ; !p.IsRoot(); p = p.Parent() {
		if doublestar.MatchUnvalidated(pattern, p.String()) {
			return true
		}
	}
	return false
}

// close adds to sel what its members lead to by edges.
func (g *graph) close(sel []bool, edges [][]int) {
	var todo []int
	for i, on := range sel {
		if on {
			todo = append(todo, i)
		}
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, j := range edges[i] {
			if !sel[j] {
				sel[j] = true
				todo = append(todo, j)
			}
		}
	}
}

// causes returns, for everything that edges lead to from what is bad, which of bad it follows from.
func (g *graph) causes(bad []bool, edges [][]int) map[int]int {
	cause := map[int]int{}
	var todo []int
	for i, on := range bad {
		if on {
			cause[i] = i
			todo = append(todo, i)
		}
	}
	for len(todo) > 0 {
		i := todo[0]
		todo = todo[1:]
		for _, j := range edges[i] {
			if _, known := cause[j]; !known {
				cause[j] = cause[i]
				todo = append(todo, j)
			}
		}
	}
	return cause
}

// addGit: what is in one git directory goes together. Some of a commit without the rest is a
// repository that names what it has not.
func (g *graph) addGit() {
	first := map[tree.Path]int{}
	for i, c := range g.all {
		d, ok := gitDirOf(c.Path)
		if !ok {
			continue
		}
		if j, known := first[d]; known {
			g.both(j, i)
		} else {
			first[d] = i
		}
	}
}

// gitDirOf returns the outermost git directory that p is or lies in.
func gitDirOf(p tree.Path) (d tree.Path, ok bool) {
	for ; !p.IsRoot(); p = p.Parent() {
		if p.Base() == ".git" {
			d, ok = p, true
		}
	}
	return d, ok
}

func (g *graph) neededBy() [][]int {
	by := make([][]int, len(g.all))
	for i, list := range g.needs {
		for _, j := range list {
			by[j] = append(by[j], i)
		}
	}
	return by
}

func newGraph(all []tree.Change, src Source) *graph {
	g := &graph{all: all, index: map[tree.Path]int{}, needs: make([][]int, len(all))}
	for i, c := range all {
		g.index[c.Path] = i
	}
	groups := map[int][]int{}
	for i, c := range all {
		g.addParents(i, c)
		g.addRename(i, c)
		if c.LinkGroup != 0 {
			groups[c.LinkGroup] = append(groups[c.LinkGroup], i)
		}
	}
	g.addDisplaced(src.Displaced())
	for n, members := range groups {
		if a, ok := src.LinkAnchor(n); ok {
			g.addAnchor(members[0], a)
		}
		for k := range members {
			g.both(members[0], members[k])
		}
	}
	return g
}

func (g *graph) need(i, j int) {
	if i != j {
		g.needs[i] = append(g.needs[i], j)
	}
}

func (g *graph) both(i, j int) {
	g.need(i, j)
	g.need(j, i)
}

// addParents: what is made needs the directories it is made in; what is in a directory that was
// moved or removed as a whole goes with it.
func (g *graph) addParents(i int, c tree.Change) {
	for p := c.Path; !p.IsRoot(); {
		p = p.Parent()
		j, ok := g.index[p]
		if !ok {
			continue
		}
		switch up := g.all[j]; {
		case up.Moved, up.Subtree:
			g.both(i, j)
		case up.New.Kind == tree.Dir && up.Base.Kind != tree.Dir && c.New.Kind != tree.Absent:
			g.need(i, j)
		}
	}
}

// addRename: a rename needs both its ends.
func (g *graph) addRename(i int, c tree.Change) {
	if c.RenameFrom == nil {
		return
	}
	for p := *c.RenameFrom; ; p = p.Parent() {
		if j, ok := g.index[p]; ok && (p == *c.RenameFrom || g.all[j].Subtree) {
			g.both(i, j)
			return
		}
		if p.IsRoot() {
			return
		}
	}
}

// addDisplaced: what is below a directory that shows elsewhere, here or there, goes together.
func (g *graph) addDisplaced(moves map[tree.Path]tree.Path) {
	for to, from := range moves {
		first := -1
		for i, c := range g.all {
			switch {
			case !to.Contains(c.Path) && !from.Contains(c.Path) && !(c.Subtree && c.Path.Contains(from)):
			case first < 0:
				first = i
			default:
				g.both(first, i)
			}
		}
	}
}

// addAnchor: what is to be linked to an unchanged file needs the move that brings it along.
func (g *graph) addAnchor(i int, a tree.Path) {
	for !a.IsRoot() {
		a = a.Parent()
		if j, ok := g.index[a]; ok && g.all[j].Moved {
			g.need(i, j)
		}
	}
}
