package staged

import (
	"cmp"
	"context"
	"slices"

	"stage/fs/overlay"
	"stage/fs/tree"
)

// move is a workspace directory that shows at another path of the view.
type move struct{ from, to tree.Path }

// findMoves decides which displaced directories are one change each: those moved to where nothing
// was, from where nothing is now, and neither out of nor into another such directory. All others
// are compared name by name.
func (r *Reader) findMoves(context.Context) error {
	r.moves = map[tree.Path]tree.Path{}
	found := displaced(r.log.Root, tree.Path{}, nil)
	slices.SortFunc(found, func(a, b move) int {
		return cmp.Or(len(a.from.Names())-len(b.from.Names()), a.to.Compare(b.to))
	})
	for _, m := range found {
		ok, err := r.whole(m)
		if err != nil {
			return err
		}
		if ok {
			r.moves[m.to] = m.from
		}
	}
	return nil
}

// displaced returns the directories with an OpLower mark at or below m.
func displaced(m *overlay.Mark, p tree.Path, found []move) []move {
	if m.Lower != nil && *m.Lower != p && !m.Lost {
		found = append(found, move{*m.Lower, p})
	}
	for name, c := range m.Children {
		q, err := p.Child(name)
		if err != nil {
			continue // names in marks come from parsed paths
		}
		found = displaced(c, q, found)
	}
	return found
}

// published reports whether an earlier apply made the move: then the workspace has the directory
// where the view has it. apply.Read says so in the Target of the directory's node.
func (r *Reader) published(m move) bool {
	n, ok := r.cfg.Rebased[m.to]
	return ok && n.Kind == tree.Dir && n.Target == m.from.String()
}

// Displaced returns the directories that show elsewhere than in the workspace, by view path, and
// where they are there. What is below one of them, here or there, is one change of state: some of
// it without the rest would leave the workspace with files that exist twice or not at all.
func (r *Reader) Displaced() map[tree.Path]tree.Path {
	all := map[tree.Path]tree.Path{}
	for _, m := range displaced(r.log.Root, tree.Path{}, nil) {
		if !r.published(m) {
			all[m.to] = m.from
		}
	}
	return all
}

func (r *Reader) whole(m move) (bool, error) {
	for to, from := range r.moves {
		if from.Contains(m.from) || to.Contains(m.to) || m.to.Contains(to) {
			return false, nil
		}
	}
	at, ok, err := r.locate(m.to)
	if err != nil || !ok || !at.upper {
		return false, err
	}
	if _, ok, err = r.locate(m.from); err != nil || ok {
		return false, err
	}
	if r.published(m) {
		return true, nil
	}
	b, err := r.baseAt(m.to)
	if err != nil || b.node.Kind != tree.Absent || b.lost {
		return false, err
	}
	src, err := r.baseAt(m.from)
	return src.sub, err
}
