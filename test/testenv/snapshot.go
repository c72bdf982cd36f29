package testenv

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

// Entry is all that tests compare of one path. Everything is text, so that a difference reads well.
type Entry struct {
	Kind    string // file, dir, symlink, fifo, socket, char, block
	Mode    string // octal, with setuid, setgid and sticky
	Owner   string // uid:gid
	Size    string // of files
	Mtime   string
	Content string // digest of a file, target of a link, numbers of a device
	Xattrs  string
	Links   string // the first path of the hard-link group; "" for a single link
	Holes   string // where a sparse file has data: "0-4096 8192-12288"; "" for a file without holes
	Inode   string // device, inode and ctime: changes whenever anybody changes anything
}

// Field is a field of Entry.
type Field string

// The fields that Diff can leave out.
const (
	Mode   Field = "mode"
	Owner  Field = "owner"
	Mtime  Field = "mtime"
	Xattrs Field = "xattrs"
	Links  Field = "links"
	Holes  Field = "holes"
	inode  Field = "inode"
)

// Tree is a tree at one instant, by slash-separated path; "." is its top.
type Tree map[string]Entry

// Snapshot reads the tree at dir. It follows no link and crosses into mounts.
func Snapshot(t testing.TB, dir string) Tree {
	t.Helper()
	s, err := snapshot(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Without returns the tree without the paths that match a pattern (doublestar; a directory's
// pattern does not take its content along: write both "d" and "d/**").
func (s Tree) Without(patterns ...string) Tree {
	out := maps.Clone(s)
	maps.DeleteFunc(out, func(p string, _ Entry) bool {
		return slices.ContainsFunc(patterns, func(pat string) bool { return doublestar.MatchUnvalidated(pat, p) })
	})
	return out
}

// Diff returns a readable list of what differs between two trees, "" when nothing does: "-" is only
// in a, "+" only in b. Inode numbers and ctimes are not compared.
func Diff(a, b Tree, ignore ...Field) string { return diff(a, b, append(ignore, inode)) }

// Untouched is Diff for the same tree at two instants: inode numbers and ctimes are compared too,
// so that even a change that was taken back shows.
func Untouched(before, after Tree) string { return diff(before, after, nil) }

func diff(a, b Tree, ignore []Field) string {
	paths := maps.Clone(a)
	maps.Copy(paths, b)
	var out strings.Builder
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		x, inA := a[p]
		y, inB := b[p]
		switch {
		case !inB:
			fmt.Fprintf(&out, "- %q %s\n", p, x.Kind)
		case !inA:
			fmt.Fprintf(&out, "+ %q %s\n", p, y.Kind)
		default:
			diffEntry(&out, p, x, y, ignore)
		}
	}
	return out.String()
}

func diffEntry(out io.Writer, path string, x, y Entry, ignore []Field) {
	xs, ys := x.fields(), y.fields()
	for i, f := range xs {
		if f.value != ys[i].value && !slices.Contains(ignore, f.name) {
			fmt.Fprintf(out, "  %q %s: %s → %s\n", path, f.name, f.value, ys[i].value)
		}
	}
}

type fieldValue struct {
	name  Field
	value string
}

func (e Entry) fields() []fieldValue {
	return []fieldValue{
		{"kind", e.Kind}, {Mode, e.Mode}, {Owner, e.Owner}, {"size", e.Size}, {Mtime, e.Mtime}, {"content", e.Content},
		{Xattrs, e.Xattrs}, {Links, e.Links}, {Holes, e.Holes}, {inode, e.Inode},
	}
}

func snapshot(dir string) (Tree, error) {
	s := Tree{}
	groups := map[[2]uint64]string{}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		e, err := readEntry(p, rel, groups)
		if err != nil {
			return fmt.Errorf("snapshot %q: %w", rel, err)
		}
		s[rel] = e
		return nil
	})
	return s, err
}

// readEntry reads p. Of a hard-link group, the path read first gives the name: WalkDir goes in
// lexical order, so that equal trees have equal names.
func readEntry(p, rel string, groups map[[2]uint64]string) (Entry, error) {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return Entry{}, err
	}
	e := Entry{
		Mode:  fmt.Sprintf("%04o", st.Mode&0o7777),
		Owner: fmt.Sprintf("%d:%d", st.Uid, st.Gid),
		Mtime: time.Unix(st.Mtim.Unix()).UTC().Format(time.RFC3339Nano),
		Inode: fmt.Sprintf("%d/%d@%d.%09d", st.Dev, st.Ino, st.Ctim.Sec, st.Ctim.Nsec),
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		key := [2]uint64{uint64(st.Dev), st.Ino}
		if groups[key] == "" {
			groups[key] = rel
		}
		e.Links = groups[key]
	}
	err := errors.Join(e.readKind(p, &st), e.readXattrs(p))
	return e, err
}

func (e *Entry) readKind(p string, st *unix.Stat_t) (err error) {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Kind, e.Size = "file", fmt.Sprint(st.Size)
		return e.readContent(p, st)
	case unix.S_IFDIR:
		e.Kind = "dir"
	case unix.S_IFLNK:
		e.Kind = "symlink"
		e.Content, err = os.Readlink(p)
		e.Mode = "" // means nothing
	case unix.S_IFIFO:
		e.Kind = "fifo"
	case unix.S_IFSOCK:
		e.Kind = "socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		e.Kind = map[uint32]string{unix.S_IFCHR: "char", unix.S_IFBLK: "block"}[st.Mode&unix.S_IFMT]
		e.Content = fmt.Sprintf("%d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)))
	}
	return err
}

func (e *Entry) readContent(p string, st *unix.Stat_t) error {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NOATIME, 0)
	if errors.Is(err, os.ErrPermission) { // O_NOATIME is for the owner
		f, err = os.Open(p)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	e.Content = hex.EncodeToString(h.Sum(nil))
	// The blocks do not tell: they are counted late, or inline, or hold extended attributes.
	if e.Holes, err = extents(f); st.Size == 0 || e.Holes == fmt.Sprintf("0-%d end", st.Size) {
		e.Holes = "" // full
	}
	return err
}

// extents lists where f has data.
func extents(f *os.File) (string, error) {
	var list []string
	for at := int64(0); ; {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, syscall.ENXIO) {
			return strings.Join(append(list, "end"), " "), nil
		}
		if err != nil {
			return "", err
		}
		if at, err = f.Seek(start, unix.SEEK_HOLE); err != nil {
			return "", err
		}
		list = append(list, fmt.Sprintf("%d-%d", start, at))
	}
}

func (e *Entry) readXattrs(p string) error {
	buf := make([]byte, 1<<16) // XATTR_LIST_MAX and XATTR_SIZE_MAX
	n, err := unix.Llistxattr(p, buf)
	if err == unix.EOPNOTSUPP || n == 0 && err == nil {
		return nil
	}
	if err != nil {
		return err
	}
	names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	var list []string
	for _, name := range names {
		n, err := unix.Lgetxattr(p, name, buf)
		if err != nil {
			return fmt.Errorf("xattr %s: %w", name, err)
		}
		list = append(list, fmt.Sprintf("%s=%q", name, buf[:n]))
	}
	e.Xattrs = strings.Join(list, " ")
	return nil
}
