package judge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Node returns the state of name in d with the attributes somebody set; Absent when there is none.
// Digest is left empty.
func Node(d hostfs.Reader, name string) (tree.Node, error) {
	n, err := d.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return tree.Node{}, nil
	}
	if err != nil {
		return tree.Node{}, err
	}
	x, err := d.Xattrs(name)
	if errors.Is(err, fs.ErrNotExist) {
		return tree.Node{}, nil
	}
	n.Xattrs = x.Own()
	return n, err
}

// Digest returns the digest of the regular file name in d.
func Digest(ctx context.Context, d hostfs.Reader, name string) (tree.Digest, error) {
	f, err := d.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return DigestFile(ctx, f)
}

// DigestFile returns the digest of what f holds from its current offset on.
func DigestFile(ctx context.Context, f hostfs.File) (tree.Digest, error) {
	h := tree.NewHash()
	if _, err := io.CopyBuffer(h, ctxReader{ctx, f}, make([]byte, 1<<18)); err != nil {
		return "", err
	}
	return tree.SumDigest(h), nil
}

// ctxReader ends a long read when ctx does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

// Look returns the state of p below d. A parent that is missing or no directory makes it Absent;
// then at is that parent and parent its state, else parent is a directory.
func Look(d hostfs.Reader, p tree.Path) (n, parent tree.Node, at tree.Path, err error) {
	if p.IsRoot() {
		n, err = Node(d, ".")
		return n, n, p, err
	}
	dir, err := d.OpenDirAt(p.Parent(), false)
	if err != nil {
		return lookUp(d, p.Parent(), err)
	}
	defer dir.Close()
	if n, err = Node(dir, p.Base()); err != nil {
		return n, parent, p, fmt.Errorf("look at %q: %w", p, err)
	}
	return n, tree.Node{Kind: tree.Dir}, p.Parent(), nil
}

// lookUp finds which parent of a path could not be opened because of cause.
func lookUp(d hostfs.Reader, dir tree.Path, cause error) (n, parent tree.Node, at tree.Path, err error) {
	here, err := d.OpenDir(".")
	if err != nil {
		return n, parent, at, err
	}
	defer func() { here.Close() }()
	for _, name := range dir.Names() {
		if at, err = at.Child(name); err != nil {
			return n, parent, at, err
		}
		if parent, err = Node(here, name); err != nil || parent.Kind != tree.Dir {
			return n, parent, at, err
		}
		next, err := here.OpenDir(name)
		if err != nil {
			return n, parent, at, fmt.Errorf("look at %q: %w", at, err)
		}
		here.Close()
		here = next
	}
	return n, parent, at, fmt.Errorf("look at %q: %w", dir, cause)
}

// Later returns the first path below directory p of d whose ctime is later than since and that
// skip, if not nil, does not excuse; ok is false when there is none. Directories that the caller may
// not read are passed by: nor could the Job, and they go where they go as they are.
func Later(ctx context.Context, d hostfs.Reader, p tree.Path, since tree.Time, skip func(tree.Path, tree.Node) bool) (late tree.Path, ok bool, err error) {
	entries, err := d.ReadDir()
	if err != nil {
		return late, false, fmt.Errorf("read directory %q: %w", p, err)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return late, false, err
		}
		q, err := p.Child(e.Name)
		if err != nil {
			return late, false, err
		}
		if late, ok, err := laterAt(ctx, d, q, since, skip); ok || err != nil {
			return late, ok, err
		}
	}
	return late, false, nil
}

func laterAt(ctx context.Context, d hostfs.Reader, q tree.Path, since tree.Time, skip func(tree.Path, tree.Node) bool) (late tree.Path, ok bool, err error) {
	n, err := d.Stat(q.Base())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return q, true, nil // gone while we looked
	case errors.Is(err, fs.ErrPermission):
		return late, false, nil // in a directory that may be read but not searched
	case err != nil:
		return late, false, fmt.Errorf("look at %q: %w", q, err)
	case n.Ctime > since && (skip == nil || !skip(q, n)):
		return q, true, nil
	case n.Kind != tree.Dir:
		return late, false, nil
	}
	sub, err := d.OpenDir(q.Base())
	if errors.Is(err, fs.ErrPermission) {
		return late, false, nil
	}
	if err != nil {
		return late, false, fmt.Errorf("open directory %q: %w", q, err)
	}
	defer sub.Close()
	return Later(ctx, sub, q, since, skip)
}

// mounted returns the first directory below directory p of d that something is mounted on.
func mounted(ctx context.Context, d hostfs.Reader, p tree.Path) (at tree.Path, ok bool, err error) {
	entries, err := d.ReadDir()
	if err != nil {
		return at, false, fmt.Errorf("read directory %q: %w", p, err)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return at, false, err
		}
		if e.Kind != tree.Dir && e.Kind != tree.Absent { // Absent: not told
			continue
		}
		q, err := p.Child(e.Name)
		if err != nil {
			return at, false, err
		}
		if at, ok, err := mountedAt(ctx, d, q); ok || err != nil {
			return at, ok, err
		}
	}
	return at, false, nil
}

func mountedAt(ctx context.Context, d hostfs.Reader, q tree.Path) (at tree.Path, ok bool, err error) {
	name, err := tree.Path{}.Child(q.Base())
	if err != nil {
		return at, false, err
	}
	sub, err := d.OpenDirAt(name, true)
	switch {
	case errors.Is(err, hostfs.ErrCrossDevice):
		return q, true, nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return at, false, nil
	case err != nil:
		n, serr := d.Stat(q.Base())
		if serr == nil && n.Kind != tree.Dir {
			return at, false, nil
		}
		return at, false, fmt.Errorf("open directory %q: %w", q, err)
	}
	defer sub.Close()
	return mounted(ctx, sub, q)
}
