package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"stage/fs/hostfs"
	"stage/fs/judge"
	"stage/fs/tree"
)

// within opens the parent of p below root and calls f with it and the name of p.
func within(root hostfs.Dir, p tree.Path, f func(d hostfs.Dir, name string) error) error {
	if p.IsRoot() {
		return f(root, ".")
	}
	d, err := root.OpenDirAt(p.Parent(), false)
	if err != nil {
		return err
	}
	return errors.Join(f(d, p.Base()), d.Close())
}

// nodeAt returns what root has at p; Absent if there is none or a parent is no directory.
func nodeAt(root hostfs.Reader, p tree.Path) (tree.Node, error) {
	n, _, _, err := judge.Look(root, p)
	return n, err
}

// mayChange reports whether the caller may set mode and times of n: its owner and root may.
func mayChange(n tree.Node) bool {
	me := os.Geteuid()
	return me == 0 || n.UID == uint32(me)
}

// setAttrs gives name the owner, attributes and mode of want, in the order in which the kernel does
// not take one back because of another: chown clears setuid, an ACL sets mode bits, and attributes
// need write permission.
func setAttrs(d hostfs.Dir, name string, want tree.Node) error {
	have, err := judge.Node(d, name)
	if err != nil {
		return err
	}
	if have.UID != want.UID || have.GID != want.GID {
		if err := d.Chown(name, want.UID, want.GID); err != nil {
			return err
		}
	}
	if !have.Xattrs.Equal(want.Xattrs) {
		if err := setXattrs(d, name, have, want.Xattrs); err != nil {
			return err
		}
	}
	if want.Kind == tree.Symlink {
		return nil
	}
	return d.Chmod(name, want.Mode)
}

func setXattrs(d hostfs.Dir, name string, have tree.Node, want tree.Xattrs) error {
	if have.Kind != tree.Symlink && have.Mode&0o200 == 0 {
		if err := d.Chmod(name, have.Mode|0o200); err != nil {
			return err
		}
	}
	for attr := range have.Xattrs {
		if _, keep := want[attr]; keep {
			continue
		}
		if err := d.Removexattr(name, attr); err != nil {
			return err
		}
	}
	for attr, v := range want {
		if old, ok := have.Xattrs[attr]; ok && string(old) == string(v) {
			continue
		}
		if err := d.Setxattr(name, attr, v); err != nil {
			return err
		}
	}
	return nil
}

// makeNode makes name like n: what is no file and no directory.
func makeNode(d hostfs.Dir, name string, n tree.Node) error {
	switch n.Kind {
	case tree.Symlink:
		return d.Symlink(n.Target, name)
	case tree.FIFO, tree.Socket, tree.Char, tree.Block:
		bare := n
		bare.Mode &= 0o777
		return d.Mknod(name, bare)
	default:
		return fmt.Errorf("cannot make a node of kind %s", n.Kind)
	}
}

// removeTree removes name and everything below, unless something is mounted there. It opens what is
// closed to its owner.
func removeTree(d hostfs.Dir, name string) error {
	n, err := d.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if n.Kind != tree.Dir {
		return d.Unlink(name)
	}
	if n.Mode&0o700 != 0o700 {
		if err := d.Chmod(name, n.Mode|0o700); err != nil {
			return err
		}
	}
	if err := removeBelow(d, name); err != nil {
		return err
	}
	return d.Rmdir(name)
}

func removeBelow(d hostfs.Dir, name string) error {
	sub, err := openHere(d, name)
	if err != nil {
		return err
	}
	defer sub.Close()
	entries, err := sub.ReadDir()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := removeTree(sub, e.Name); err != nil {
			return err
		}
	}
	return nil
}

// openHere opens a directory unless something is mounted on it: what a tree to be removed or kept has
// mounted in it belongs to somebody else.
func openHere(d hostfs.Dir, name string) (hostfs.Dir, error) {
	p, err := tree.Path{}.Child(name)
	if err != nil {
		return nil, err
	}
	return d.OpenDirAt(p, true)
}

// copier copies trees below root; names of one inode stay names of one inode.
type copier struct {
	root  hostfs.Dir
	links map[uint64]tree.Path // inode number of an original with several names, its copy
	made  map[uint64]bool      // inode numbers of copies
}

// copy makes to, below c.root, a copy of name in src.
func (c *copier) copy(ctx context.Context, src hostfs.Dir, name string, to tree.Path) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n, err := judge.Node(src, name)
	if err != nil {
		return err
	}
	// Other names may be gone by now, and with them the count of links.
	if first, ok := c.links[n.Ino]; ok && n.Kind != tree.Dir {
		return link(c.root, first, to)
	}
	err = within(c.root, to, func(d hostfs.Dir, base string) error {
		if err := c.copyNode(ctx, src, name, n, d, base, to); err != nil {
			return err
		}
		if err := setAttrs(d, base, n); err != nil {
			return err
		}
		if err := d.SetMtime(base, n.Mtime); err != nil {
			return err
		}
		made, err := d.Stat(base)
		c.made[made.Ino] = true
		return err
	})
	if err == nil && n.Nlink > 1 && n.Kind != tree.Dir {
		c.links[n.Ino] = to
	}
	return err
}

func (c *copier) copyNode(ctx context.Context, src hostfs.Dir, name string, n tree.Node, d hostfs.Dir, base string, to tree.Path) error {
	switch n.Kind {
	case tree.Absent:
		return fmt.Errorf("copy %q: %w", to, fs.ErrNotExist)
	case tree.File:
		in, err := src.Open(name)
		if err != nil {
			return err
		}
		defer in.Close()
		return writeFile(d, base, in, nil)
	case tree.Dir:
		if err := d.Mkdir(base, 0o700); err != nil {
			return err
		}
		return c.copyBelow(ctx, src, name, to)
	default:
		return makeNode(d, base, n)
	}
}

func (c *copier) copyBelow(ctx context.Context, src hostfs.Dir, name string, to tree.Path) error {
	sub, err := openHere(src, name)
	if err != nil {
		return err
	}
	defer sub.Close()
	entries, err := sub.ReadDir()
	if err != nil {
		return err
	}
	for _, e := range entries {
		q, err := to.Child(e.Name)
		if err != nil {
			return err
		}
		if err := c.copy(ctx, sub, e.Name, q); err != nil {
			return err
		}
	}
	return nil
}

// writeFile makes the file name with the content of in. If check is not nil it is asked about the
// digest of what was copied.
func writeFile(d hostfs.Dir, name string, in hostfs.File, check func(tree.Digest) error) error {
	out, err := d.Create(name, 0o600)
	if err != nil {
		return err
	}
	if check == nil {
		return errors.Join(out.CopyFrom(in, nil), out.Close())
	}
	h := tree.NewHash()
	err = out.CopyFrom(in, h)
	if err == nil {
		err = check(tree.SumDigest(h))
	}
	return errors.Join(err, out.Close())
}

// link makes to a further name of the file from, both below root.
func link(root hostfs.Dir, from, to tree.Path) error {
	return within(root, from, func(src hostfs.Dir, old string) error {
		return within(root, to, func(dst hostfs.Dir, name string) error {
			return src.Link(old, dst, name)
		})
	})
}
