// Package hostfs does file operations on the host by directory handle, one name at a time, and
// never follows a symbolic link. It is where errno enters stage: every error wraps the errno, so
// errors.Is(err, unix.ENOENT) and errors.Is(err, fs.ErrNotExist) both hold.
//
// A Dir is a directory handle. Names are single path components; the multi-component OpenDirAt
// resolves with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS (openat2(2)), so that no link, planted
// before or during the call, leads out of the tree.
package hostfs

import (
	"io"
	"os"

	"stage/fs/tree"
)

// Flags of Dir.Rename, with the values of renameat2(2).
const (
	NoReplace uint = 1 // RENAME_NOREPLACE
	Exchange  uint = 2 // RENAME_EXCHANGE
)

// Dirent is one entry of a directory, "." and ".." left out. Kind is Absent where the file system
// does not tell (DT_UNKNOWN).
type Dirent struct {
	Name string
	Kind tree.Kind
	Ino  uint64
}

// Reader reads one directory. What must not write is given a Reader.
type Reader interface {
	// Stat returns the state of name without following a link: everything statx tells, and a
	// link's target. Xattrs and Digest are left empty. The name "." is the directory itself.
	Stat(name string) (tree.Node, error)
	// Xattrs returns the extended attributes of name ("." is the directory itself), nil for none.
	// A file system without xattrs has none. Security and trusted attributes the caller may not
	// read are left out, as listxattr(2) leaves them out.
	Xattrs(name string) (tree.Xattrs, error)
	// Open opens a regular file for reading. It never blocks on a FIFO: what is not a regular
	// file is refused with ErrNotRegular.
	Open(name string) (File, error)
	// OpenDir opens a directory below this one. OpenDir(".") returns a second handle to it.
	OpenDir(name string) (Dir, error)
	// OpenDirAt opens the directory p below this one in one resolution that follows no link and
	// leaves the tree by no mount-free means; crossing a mount point is allowed unless oneDev.
	OpenDirAt(p tree.Path, oneDev bool) (Dir, error)
	// ReadDir returns all entries in the order of the file system.
	ReadDir() ([]Dirent, error)
	// Fd returns the handle's descriptor, valid until Close. It is not O_PATH.
	Fd() int
	Close() error
}

// Dir reads and changes one directory.
type Dir interface {
	Reader
	// Create makes a regular file that must not exist (O_CREAT|O_EXCL), open for reading and
	// writing. The mode is exact: the umask is not applied. Writing clears setuid and setgid again
	// for who is not root (file_remove_privs in the kernel's fs/inode.c): Chmod when all is written.
	Create(name string, mode tree.Mode) (File, error)
	// OpenWrite opens an existing regular file for reading and writing.
	OpenWrite(name string) (File, error)
	// Mkdir makes a directory with exactly this mode.
	Mkdir(name string, mode tree.Mode) error
	Symlink(target, name string) error
	// Mknod makes a FIFO, socket or device node of n.Kind with n.Mode and n.Rdev.
	Mknod(name string, n tree.Node) error
	// Link makes newName in newDir a hard link to name. newDir must come from this package.
	Link(name string, newDir Dir, newName string) error
	Unlink(name string) error
	Rmdir(name string) error
	// Rename is renameat2(2) with flags 0, NoReplace or Exchange.
	Rename(name string, newDir Dir, newName string, flags uint) error
	Chmod(name string, mode tree.Mode) error
	Chown(name string, uid, gid uint32) error
	// SetMtime sets the mtime and leaves the atime.
	SetMtime(name string, mtime tree.Time) error
	Setxattr(name, attr string, value []byte) error
	Removexattr(name, attr string) error
	// Sync is fsync of the directory; Syncfs is syncfs(2) of its file system.
	Sync() error
	Syncfs() error
}

// File is an open regular file.
type File interface {
	io.Reader
	io.Writer
	io.ReaderAt
	io.WriterAt
	io.Closer
	Stat() (tree.Node, error)
	Truncate(size int64) error
	Sync() error
	// CopyFrom makes this file's content that of src: reflinked where the file system can, else
	// only data extents are copied so that holes stay holes. The file must be empty. Bytes copied
	// are also written to sum, holes included as zeros, unless sum is nil; asking for a sum means
	// the content is read.
	CopyFrom(src File, sum io.Writer) error
	// OSFile returns the *os.File behind it, for what passes descriptors on.
	OSFile() *os.File
}
