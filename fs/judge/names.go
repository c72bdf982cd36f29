package judge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// errEnough ends a search whose caller has found all it wants.
var errEnough = errors.New("found enough")

// Names calls f for every name below d, directories apart, whose inode number is wanted, until f
// returns false. It walks the whole tree: what its names are is nowhere noted in an inode.
func Names(ctx context.Context, d hostfs.Reader, wanted func(ino uint64) bool, f func(tree.Path, tree.Node) (more bool, err error)) error {
	err := namesBelow(ctx, d, tree.Path{}, wanted, f)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func namesBelow(ctx context.Context, d hostfs.Reader, p tree.Path, wanted func(uint64) bool, f func(tree.Path, tree.Node) (bool, error)) error {
	entries, err := d.ReadDir()
	if err != nil {
		return fmt.Errorf("read directory %q: %w", p, err)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if e.Kind != tree.Dir && e.Kind != tree.Absent && !wanted(e.Ino) {
			continue
		}
		q, err := p.Child(e.Name)
		if err != nil {
			return err
		}
		if err := namesAt(ctx, d, q, wanted, f); err != nil {
			return err
		}
	}
	return nil
}

func namesAt(ctx context.Context, d hostfs.Reader, q tree.Path, wanted func(uint64) bool, f func(tree.Path, tree.Node) (bool, error)) error {
	n, err := d.Stat(q.Base())
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return nil
	case err != nil:
		return fmt.Errorf("look at %q: %w", q, err)
	case n.Kind != tree.Dir:
		if !wanted(n.Ino) {
			return nil
		}
		more, err := f(q, n)
		if err == nil && !more {
			err = errEnough
		}
		return err
	}
	sub, err := d.OpenDir(q.Base())
	if errors.Is(err, fs.ErrPermission) {
		return nil // not ours to read, so nor were its names
	}
	if err != nil {
		return fmt.Errorf("open directory %q: %w", q, err)
	}
	defer sub.Close()
	return namesBelow(ctx, sub, q, wanted, f)
}
