package staged

import (
	"slices"

	"stage/fs/tree"
)

// base is the state a workspace path had before the Job changed it.
type base struct {
	node  tree.Node
	sub   bool      // node is a directory that stands for everything below it, as of since
	since tree.Time // not 0: what changed later was changed by somebody else
	lost  bool      // no record says so: node is what the workspace has now
}

// baseAt returns the base of workspace path p.
func (r *Reader) baseAt(p tree.Path) (base, error) {
	if b, ok, err := r.rebased(p); ok || err != nil {
		return b, err
	}
	b, at, ok := r.log.BaseOf(p)
	ok = ok && !b.Lost
	switch {
	case ok && at == p:
		own := ownBase(b.Node, b.Subtree, b.Time)
		if own.since == 0 && b.Node.Kind == tree.Dir {
			own.since = r.coveredSince(p)
		}
		return own, nil
	case ok && !b.Subtree:
		return base{}, nil // nothing was below what was absent or no directory
	}
	n, err := r.lowerNode(p)
	n.Digest = ""
	if !ok {
		return base{node: n, lost: true}, err
	}
	return base{node: n, sub: n.Kind == tree.Dir, since: b.Time}, err
}

// coveredSince returns the instant of the subtree base of a directory above p, 0 without one: the Job
// removed or moved that after it changed p.
func (r *Reader) coveredSince(p tree.Path) tree.Time {
	for q := p; !q.IsRoot(); {
		q = q.Parent()
		if b, ok := r.log.Bases[q]; ok && b.Subtree && !b.Lost {
			return b.Time
		}
	}
	return 0
}

func ownBase(n tree.Node, sub bool, since tree.Time) base {
	n.Xattrs = n.Xattrs.Own()
	if !sub || n.Kind != tree.Dir {
		return base{node: n}
	}
	return base{node: n, sub: true, since: since}
}

// rebased returns what an earlier apply or undo made the base of p.
func (r *Reader) rebased(p tree.Path) (base, bool, error) {
	if n, ok := r.cfg.Rebased[p]; ok {
		rec := r.log.Bases[p]
		since := rec.Time
		if r.heldWhole(p) {
			since = max(since, n.Ctime)
		}
		n.Target = linkTarget(n)
		return ownBase(n, rec.Subtree && rec.Node.Kind == tree.Dir, since), true, nil
	}
	for q := p; !q.IsRoot(); {
		q = q.Parent()
		n, ok := r.cfg.Rebased[q]
		if ok && n.Kind != tree.Dir {
			return base{}, true, nil
		}
		if r.heldWhole(q) {
			now, err := r.lowerNode(p)
			return base{node: now, sub: now.Kind == tree.Dir, since: n.Ctime}, true, err
		}
	}
	return base{}, false, nil
}

// linkTarget returns the target of a link; for a directory that field has another meaning here.
func linkTarget(n tree.Node) string {
	if n.Kind == tree.Symlink {
		return n.Target
	}
	return ""
}

// heldWhole reports whether directory q got all it holds from an apply that moved it there, or from
// an undo that put it back.
func (r *Reader) heldWhole(q tree.Path) bool {
	n := r.cfg.Rebased[q]
	switch {
	case n.Kind != tree.Dir || n.Target == "":
		return false
	case n.Target == q.String():
		return r.log.Bases[q].Subtree
	}
	return true
}

// basesBelow returns the recorded paths strictly below p.
func (r *Reader) basesBelow(p tree.Path) []tree.Path {
	i, _ := slices.BinarySearchFunc(r.bases, p, tree.Path.Compare)
	j := i
	for j < len(r.bases) && p.Contains(r.bases[j]) {
		j++
	}
	below := r.bases[i:j]
	if len(below) > 0 && below[0] == p {
		below = below[1:]
	}
	return below
}
