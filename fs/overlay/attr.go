package overlay

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// AttrXattr is the extended attribute that holds the logical attributes of an upper file or
// directory whose real ones had to differ, since a server that is not root must be able to use it.
const AttrXattr = "user.stage.attr"

// XattrPrefix begins the names of extended attributes that are ours: the Job neither sees nor sets
// them.
const XattrPrefix = "user.stage."

// ErrAttr is the cause of every error of DecodeAttr.
var ErrAttr = errors.New("not a stage attribute")

// EncodeAttr writes mode and owner as the value of AttrXattr: "v1 <octal mode> <uid> <gid>".
func EncodeAttr(mode tree.Mode, uid, gid uint32) []byte {
	return fmt.Appendf(nil, "v1 %04o %d %d", uint32(mode), uid, gid)
}

// DecodeAttr reads what EncodeAttr writes and refuses everything else.
func DecodeAttr(value []byte) (mode tree.Mode, uid, gid uint32, err error) {
	fields := strings.Split(string(value), " ")
	if len(fields) != 4 || fields[0] != "v1" {
		return 0, 0, 0, fmt.Errorf("decode %q: %w", value, ErrAttr)
	}
	var n [3]uint64
	var errs [3]error
	n[0], errs[0] = strconv.ParseUint(fields[1], 8, 12)
	n[1], errs[1] = strconv.ParseUint(fields[2], 10, 32)
	n[2], errs[2] = strconv.ParseUint(fields[3], 10, 32)
	if errors.Join(errs[:]...) != nil {
		return 0, 0, 0, fmt.Errorf("decode %q: %w", value, ErrAttr)
	}
	return tree.Mode(n[0]), uint32(n[1]), uint32(n[2]), nil
}

// IDs are the real ids of the caller whose files are served.
type IDs struct {
	// Rootless: the server is not root, and the mount lives in a user namespace that maps only
	// UID and GID, as 0.
	Rootless bool
	UID, GID uint32
	Groups   []uint32 // supplementary groups
}

// Caller is who asks for an operation, with the ids that came over the wire. What he makes lacks the
// bits of Umask, but where it inherits an ACL.
type Caller struct {
	UID, GID, Umask uint32
}

// owner is who may do what with a node: the permission bits and the two ids.
type owner struct {
	mode, uid, gid uint32
}

// show turns a real owner into the one the Job sees. It is the only place that translates ids on
// their way out. Ids outside the caller's user namespace would make the kernel refuse every write
// (HAS_UNMAPPED_ID, fs/namei.c), so an unmapped owner is shown as the caller, with owner bits that
// say what the caller may really do.
func (ids *IDs) show(o owner) owner {
	if !ids.Rootless {
		return o
	}
	if o.uid != ids.UID {
		o.mode = o.mode&^0o700 | ids.rights(o)<<6
	}
	return owner{o.mode, 0, 0}
}

// rights returns the rwx bits of o that hold for a caller who does not own it.
func (ids *IDs) rights(o owner) uint32 {
	if o.gid == ids.GID || slices.Contains(ids.Groups, o.gid) {
		return o.mode >> 3 & 7
	}
	return o.mode & 7
}

// real turns the ids of the wire into real ones, the other way of show.
func (ids *IDs) real(c Caller) Caller {
	if !ids.Rootless {
		return c
	}
	return Caller{ids.UID, ids.GID, c.Umask}
}

// foreign reports whether the kernel's check of ownership means nothing for o, because it is shown
// as the caller's own and is not.
func (ids *IDs) foreign(o owner) bool { return ids.Rootless && o.uid != ids.UID }

// Attr are the attributes of a node as the Job sees them.
type Attr struct {
	Ino, Size, Blocks     uint64
	Atime, Mtime, Ctime   unix.Timespec
	Mode, Nlink, UID, GID uint32
	Rdev                  uint64
	Blksize               uint32
	AttrValid             time.Duration // how long the kernel may keep this
}

// Entry is the result of a lookup. Every Entry handed out counts as one lookup, which Forget takes
// back.
type Entry struct {
	ID, Generation uint64
	EntryValid     time.Duration // how long the kernel may keep that the name stands for this node, or for none
	Attr
}

// logical returns mode (with its type bits) and owner of a node from its stat, those an upper
// inode only pretends to have included.
func (f *FS) logical(upper bool, st *unix.Stat_t) owner {
	if upper && f.ids.Rootless {
		if o, ok := f.tab.attrOf(st.Ino); ok {
			o.mode |= st.Mode & unix.S_IFMT
			return o
		}
	}
	return owner{st.Mode, st.Uid, st.Gid}
}

// fill makes a the attributes of n, whose stat is st.
//
// Preconditions:
//   - FS.mu is held.
func (f *FS) fill(n *node, st *unix.Stat_t, a *Attr) {
	o := f.ids.show(f.logical(n.upper.Load(), st))
	if f.rules != nil {
		o.mode = f.nodeVerdict(n).mask(o.mode)
	}
	*a = Attr{
		Ino: n.ino, Size: uint64(st.Size), Blocks: uint64(st.Blocks),
		Atime: st.Atim, Mtime: st.Mtim, Ctime: st.Ctim,
		Mode: o.mode, Nlink: f.nlink(n, st), UID: o.uid, GID: o.gid,
		Rdev: uint64(st.Rdev), Blksize: uint32(st.Blksize), AttrValid: f.attrValid(n, st),
	}
}

// attrValid returns how long the state st of n holds unless the kernel is notified.
//
// Preconditions:
//   - FS.mu is held.
func (f *FS) attrValid(n *node, st *unix.Stat_t) time.Duration {
	switch {
	case n.upper.Load():
		return Long
	case n.isDir():
		return validIf(n.dir.watch.Load() != 0)
	case n.parent == nil || st.Nlink > 1:
		return Short
	}
	return validIf(n.parent.dir.watch.Load() != 0)
}

// entryValid returns how long it holds what name in p stands for, unless the kernel is notified.
//
// Preconditions:
//   - FS.mu is held, and f.watch(p) was called before name was looked for.
func (f *FS) entryValid(p *node, name string) time.Duration {
	return validIf(p.dir.lower == nil || p.dir.hasUpper(name) || p.dir.isWhite(name) || p.dir.watch.Load() != 0)
}

func validIf(watched bool) time.Duration {
	if watched {
		return Long
	}
	return Short
}

// nlink returns the number of names n has in the view. A directory both layers show has 1, as in
// overlayfs: nobody counted its subdirectories.
func (f *FS) nlink(n *node, st *unix.Stat_t) uint32 {
	switch r := n.odd(); {
	case r.group != nil:
		return r.group.nlink
	case r.orphan != 0 && n.isDir():
		return 0
	case r.orphan != 0:
		return uint32(st.Nlink) - 1
	case n.parent == nil && n != f.tab.root && !n.upper.Load():
		return 0
	case n.isDir() && n.upper.Load() && n.dir.lower != nil:
		return 1
	}
	return uint32(st.Nlink)
}

// nodeOf turns a stat into a tree.Node without xattrs, target and digest.
func nodeOf(st *unix.Stat_t, o owner) tree.Node {
	n := tree.Node{
		Kind: kindOf(st.Mode), Mode: tree.Mode(o.mode & 0o7777), UID: o.uid, GID: o.gid, Size: st.Size,
		Mtime: timeOf(st.Mtim), Ctime: timeOf(st.Ctim),
		Dev: uint64(st.Dev), Ino: st.Ino, Nlink: uint32(st.Nlink),
	}
	if n.Kind == tree.Char || n.Kind == tree.Block {
		n.Rdev = uint64(st.Rdev)
	}
	return n
}

func timeOf(t unix.Timespec) tree.Time { return tree.Time(t.Nano()) }

func specOf(t tree.Time) unix.Timespec { return unix.NsecToTimespec(int64(t)) }

func kindOf(mode uint32) tree.Kind {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return tree.File
	case unix.S_IFDIR:
		return tree.Dir
	case unix.S_IFLNK:
		return tree.Symlink
	case unix.S_IFIFO:
		return tree.FIFO
	case unix.S_IFSOCK:
		return tree.Socket
	case unix.S_IFCHR:
		return tree.Char
	case unix.S_IFBLK:
		return tree.Block
	}
	return tree.Absent
}
