package staged

import (
	"context"

	"stage/fs/tree"
)

// findRenames tells of new files where they came from: by the Job's own rename, else by equal
// content. Only what is gone from its old path was renamed.
func (r *Reader) findRenames(ctx context.Context) error {
	claimed := map[tree.Path]bool{}
	for i := range r.changes {
		c := &r.changes[i]
		from, ok := r.renamedFrom(c.Path)
		if !ok || !isNewFile(*c) || claimed[from] || !r.isRemoved(from) {
			continue
		}
		c.RenameFrom = &from
		claimed[from] = true
	}
	return r.matchContent(ctx, claimed)
}

func isNewFile(c tree.Change) bool {
	return c.Base.Kind == tree.Absent && !c.UnknownBase && c.RenameFrom == nil &&
		(c.New.Kind == tree.File || c.New.Kind == tree.Symlink)
}

// isRemoved reports whether the deletion of workspace path p, or of a directory above, is a change.
func (r *Reader) isRemoved(p tree.Path) bool {
	for !r.removed[p] {
		if p.IsRoot() {
			return false
		}
		p = p.Parent()
	}
	return true
}

// matchContent pairs deleted files with new ones of equal content, a file of the same name first.
// Content is read only where the sizes agree.
func (r *Reader) matchContent(ctx context.Context, claimed map[tree.Path]bool) error {
	gone := map[int64][]int{}
	for i, c := range r.changes {
		if c.Base.Kind == tree.File && c.Base.Size > 0 && c.New.Kind == tree.Absent && !c.UnknownBase && !claimed[c.Path] {
			gone[c.Base.Size] = append(gone[c.Base.Size], i)
		}
	}
	for i := range r.changes {
		c := &r.changes[i]
		if !isNewFile(*c) || c.New.Kind != tree.File || len(gone[c.New.Size]) == 0 {
			continue
		}
		if err := r.claim(ctx, c, gone[c.New.Size], claimed); err != nil {
			return err
		}
	}
	return nil
}

// claim makes c the rename of one of the deletions gone, if one has its content.
func (r *Reader) claim(ctx context.Context, c *tree.Change, gone []int, claimed map[tree.Path]bool) error {
	var best *tree.Change
	for _, i := range gone {
		d := &r.changes[i]
		if claimed[d.Path] || best != nil && d.Path.Base() != c.Path.Base() {
			continue
		}
		if err := r.fillBase(ctx, d); err != nil {
			return err
		}
		if d.Base.Digest == c.New.Digest {
			best = d
		}
	}
	if best != nil {
		from := best.Path
		c.RenameFrom = &from
		claimed[from] = true
	}
	return nil
}

func (r *Reader) fillBase(ctx context.Context, d *tree.Change) (err error) {
	if d.Base.Digest == "" {
		d.Base.Digest, err = r.baseDigest(ctx, d.Base, d.Path)
	}
	return err
}
