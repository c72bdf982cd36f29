package hostfs

import (
	"errors"
	"io"
	"os"

	"stage/fs/tree"
)

// NewFault returns d with a fault point in front of everything that changes something, of d and of
// every Dir and File it hands out. Each such operation first asks f, which is told the act and the
// name ("rename a", "write a", "sync a"), and is not done when f returns an error: the error is its
// result. What only reads asks nothing.
//
// An error made by Short lets a write begin: half of the bytes are written before it fails.
//
// f is called by whatever goroutine does the operation.
func NewFault(d Dir, f func(op string) error) Dir { return &faultDir{d, fault{f, false}} }

// NewReadFault is NewFault, with fault points in front of what reads as well ("stat a", "open a",
// "read a").
func NewReadFault(d Dir, f func(op string) error) Dir { return &faultDir{d, fault{f, true}} }

// Short makes a fault that fails a write with err after half of its bytes were written. In front of
// other operations it is err.
func Short(err error) error { return &shortWrite{err} }

type shortWrite struct{ err error }

func (s *shortWrite) Error() string { return s.err.Error() }

func (s *shortWrite) Unwrap() error { return s.err }

// fault is a func to ask, and whether it wants to be asked about reads.
type fault struct {
	f     func(op string) error
	reads bool
}

func (t fault) change(act, name string) error {
	err := t.f(act + " " + name)
	if s := new(shortWrite); errors.As(err, &s) && act != "write" && act != "copy into" {
		err = s.err
	}
	return fail(act, name, err)
}

func (t fault) read(act, name string) error {
	if !t.reads {
		return nil
	}
	return t.change(act, name)
}

// faultDir asks before it passes an operation on to the Dir. Fd and Close are passed on unasked.
type faultDir struct {
	Dir
	fault fault
}

func (d *faultDir) dir(sub Dir, err error) (Dir, error) {
	if err != nil {
		return nil, err
	}
	return &faultDir{sub, d.fault}, nil
}

func (d *faultDir) file(f File, err error, name string) (File, error) {
	if err != nil {
		return nil, err
	}
	return &faultFile{f, name, d.fault}, nil
}

func (d *faultDir) Stat(name string) (tree.Node, error) {
	if err := d.fault.read("stat", name); err != nil {
		return tree.Node{}, err
	}
	return d.Dir.Stat(name)
}

func (d *faultDir) Xattrs(name string) (tree.Xattrs, error) {
	if err := d.fault.read("xattrs", name); err != nil {
		return nil, err
	}
	return d.Dir.Xattrs(name)
}

func (d *faultDir) Open(name string) (File, error) {
	if err := d.fault.read("open", name); err != nil {
		return nil, err
	}
	f, err := d.Dir.Open(name)
	return d.file(f, err, name)
}

func (d *faultDir) OpenDir(name string) (Dir, error) {
	if err := d.fault.read("opendir", name); err != nil {
		return nil, err
	}
	return d.dir(d.Dir.OpenDir(name))
}

func (d *faultDir) OpenDirAt(p tree.Path, oneDev bool) (Dir, error) {
	if err := d.fault.read("opendir", p.String()); err != nil {
		return nil, err
	}
	return d.dir(d.Dir.OpenDirAt(p, oneDev))
}

func (d *faultDir) ReadDir() ([]Dirent, error) {
	if err := d.fault.read("readdir", "."); err != nil {
		return nil, err
	}
	return d.Dir.ReadDir()
}

func (d *faultDir) Create(name string, mode tree.Mode) (File, error) {
	if err := d.fault.change("create", name); err != nil {
		return nil, err
	}
	f, err := d.Dir.Create(name, mode)
	return d.file(f, err, name)
}

// OpenWrite changes nothing yet: it counts as a read.
func (d *faultDir) OpenWrite(name string) (File, error) {
	if err := d.fault.read("openwrite", name); err != nil {
		return nil, err
	}
	f, err := d.Dir.OpenWrite(name)
	return d.file(f, err, name)
}

func (d *faultDir) Mkdir(name string, mode tree.Mode) error {
	if err := d.fault.change("mkdir", name); err != nil {
		return err
	}
	return d.Dir.Mkdir(name, mode)
}

func (d *faultDir) Symlink(target, name string) error {
	if err := d.fault.change("symlink", name); err != nil {
		return err
	}
	return d.Dir.Symlink(target, name)
}

func (d *faultDir) Mknod(name string, n tree.Node) error {
	if err := d.fault.change("mknod", name); err != nil {
		return err
	}
	return d.Dir.Mknod(name, n)
}

func (d *faultDir) Link(name string, newDir Dir, newName string) error {
	if err := d.fault.change("link", name); err != nil {
		return err
	}
	return d.Dir.Link(name, newDir, newName)
}

func (d *faultDir) Unlink(name string) error {
	if err := d.fault.change("unlink", name); err != nil {
		return err
	}
	return d.Dir.Unlink(name)
}

func (d *faultDir) Rmdir(name string) error {
	if err := d.fault.change("rmdir", name); err != nil {
		return err
	}
	return d.Dir.Rmdir(name)
}

func (d *faultDir) Rename(name string, newDir Dir, newName string, flags uint) error {
	if err := d.fault.change("rename", name); err != nil {
		return err
	}
	return d.Dir.Rename(name, newDir, newName, flags)
}

func (d *faultDir) Chmod(name string, mode tree.Mode) error {
	if err := d.fault.change("chmod", name); err != nil {
		return err
	}
	return d.Dir.Chmod(name, mode)
}

func (d *faultDir) Chown(name string, uid, gid uint32) error {
	if err := d.fault.change("chown", name); err != nil {
		return err
	}
	return d.Dir.Chown(name, uid, gid)
}

func (d *faultDir) SetMtime(name string, mtime tree.Time) error {
	if err := d.fault.change("setmtime", name); err != nil {
		return err
	}
	return d.Dir.SetMtime(name, mtime)
}

func (d *faultDir) Setxattr(name, attr string, value []byte) error {
	if err := d.fault.change("setxattr", name); err != nil {
		return err
	}
	return d.Dir.Setxattr(name, attr, value)
}

func (d *faultDir) Removexattr(name, attr string) error {
	if err := d.fault.change("removexattr", name); err != nil {
		return err
	}
	return d.Dir.Removexattr(name, attr)
}

func (d *faultDir) Sync() error {
	if err := d.fault.change("sync", "."); err != nil {
		return err
	}
	return d.Dir.Sync()
}

func (d *faultDir) Syncfs() error {
	if err := d.fault.change("syncfs", "."); err != nil {
		return err
	}
	return d.Dir.Syncfs()
}

// faultFile asks before it passes an operation on to the File. OSFile leads past it.
type faultFile struct {
	File
	name  string
	fault fault
}

// write does half of the bytes and fails when the fault is a short write.
func (f *faultFile) write(b []byte, write func([]byte) (int, error)) (int, error) {
	err := f.fault.change("write", f.name)
	if err == nil {
		return write(b)
	}
	if s := new(shortWrite); errors.As(err, &s) {
		n, werr := write(b[:len(b)/2])
		return n, errors.Join(err, werr)
	}
	return 0, err
}

func (f *faultFile) Write(b []byte) (int, error) { return f.write(b, f.File.Write) }

func (f *faultFile) WriteAt(b []byte, off int64) (int, error) {
	return f.write(b, func(b []byte) (int, error) { return f.File.WriteAt(b, off) })
}

func (f *faultFile) Read(b []byte) (int, error) {
	if err := f.fault.read("read", f.name); err != nil {
		return 0, err
	}
	return f.File.Read(b)
}

func (f *faultFile) ReadAt(b []byte, off int64) (int, error) {
	if err := f.fault.read("read", f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(b, off)
}

func (f *faultFile) Stat() (tree.Node, error) {
	if err := f.fault.read("stat", f.name); err != nil {
		return tree.Node{}, err
	}
	return f.File.Stat()
}

func (f *faultFile) Truncate(size int64) error {
	if err := f.fault.change("truncate", f.name); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultFile) Sync() error {
	if err := f.fault.change("sync", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultFile) CopyFrom(src File, sum io.Writer) error {
	err := f.fault.change("copy into", f.name)
	if err == nil {
		return f.File.CopyFrom(src, sum)
	}
	if s := new(shortWrite); errors.As(err, &s) {
		return errors.Join(err, f.copyHalf(src))
	}
	return err
}

func (f *faultFile) copyHalf(src File) error {
	n, err := src.Stat()
	if err != nil {
		return err
	}
	if err := f.File.CopyFrom(src, nil); err != nil {
		return err
	}
	return f.File.Truncate(n.Size / 2)
}

// OSFile returns the file without fault points.
func (f *faultFile) OSFile() *os.File { return f.File.OSFile() }
