// Package stagedtest makes staged changes for tests: the same operations on a Job's overlay, without
// FUSE, and on a plain directory.
package stagedtest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
	"stage/fs/overlay"
	"stage/fs/staged"
	"stage/fs/tree"
)

// Tree is something operations can be done on. Paths are relative and slash-separated.
type Tree interface {
	Has(path string) bool
	// Write makes path a file with this content, or replaces its content.
	Write(path, content string)
	Mkdir(path string)
	Remove(path string) // a file or an empty directory
	Rename(from, to string)
	Exchange(a, b string)
	Chmod(path string, mode uint32)
	SetMtime(path string, t time.Time)
	Symlink(target, path string)
	Link(from, to string)
	Setxattr(path, attr, value string)
	Mkfifo(path string)
}

// Job is an overlay over a workspace.
type Job struct {
	t     testing.TB
	Lower string // the workspace
	Store string // upper/ and log of the Job
	fs    *overlay.FS
	low   hostfs.Dir
	up    hostfs.Dir
	gone  hostfs.Dir // what was unlinked and is in use
	euid  uint32
}

// NewJob begins a Job over the workspace lower, stored in store, an existing directory.
func NewJob(t testing.TB, lower, store string) *Job {
	t.Helper()
	if err := os.Mkdir(filepath.Join(store, "upper"), 0o700); err != nil {
		t.Fatal(err)
	}
	return openJob(t, lower, store, "", os.O_CREATE|os.O_EXCL)
}

// ResumeJob goes on with a Job that was sealed or broke off, as if the machine had the boot id boot.
func ResumeJob(t testing.TB, lower, store, boot string) *Job {
	t.Helper()
	return openJob(t, lower, store, boot, 0)
}

func openJob(t testing.TB, lower, store, boot string, flags int) *Job {
	t.Helper()
	j := &Job{t: t, Lower: lower, Store: store, euid: uint32(os.Geteuid())}
	if err := os.Mkdir(filepath.Join(store, "orphans"), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	j.gone = OpenRoot(t, filepath.Join(store, "orphans"))
	j.low, j.up = OpenRoot(t, lower), OpenRoot(t, filepath.Join(store, "upper"))
	log, err := os.OpenFile(j.logPath(), os.O_RDWR|flags, 0o600)
	j.must(err)
	ids := overlay.IDs{Rootless: j.euid != 0, UID: j.euid, GID: uint32(os.Getegid())}
	j.fs, err = overlay.Open(overlay.Config{Lower: j.low, Upper: j.up, Orphans: j.gone, LogFile: log, IDs: ids, Boot: boot})
	j.must(err)
	return j
}

// OpenRoot opens a directory for the length of the test.
func OpenRoot(t testing.TB, path string) hostfs.Dir {
	t.Helper()
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := hostfs.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func (j *Job) logPath() string { return filepath.Join(j.Store, "log") }

func (j *Job) must(err error) {
	j.t.Helper()
	if err != nil {
		j.t.Fatal(err)
	}
}

// Seal ends the Job.
func (j *Job) Seal() {
	j.t.Helper()
	j.must(j.fs.Close())
}

// Reader reads the sealed Job.
func (j *Job) Reader(rebased map[tree.Path]tree.Node) *staged.Reader {
	j.t.Helper()
	r, err := OpenReader(j.low, j.up, j.logPath(), rebased)
	j.must(err)
	return r
}

// ReaderWith is Reader with preimages and the judgement of what is alike.
func (j *Job) ReaderWith(rebased map[tree.Path]tree.Node, pre hostfs.Reader, alike func(tree.Path, func() (hostfs.File, error), func() (hostfs.File, error)) (bool, error)) *staged.Reader {
	j.t.Helper()
	return j.open(staged.Config{Rebased: rebased, Preimages: pre, Alike: alike})
}

// ReaderMerged is Reader with preimages, where what the Job has at the paths of merged was published
// merged.
func (j *Job) ReaderMerged(rebased, merged map[tree.Path]tree.Node, pre hostfs.Reader) *staged.Reader {
	j.t.Helper()
	return j.open(staged.Config{Rebased: rebased, Merged: merged, Preimages: pre})
}

// open opens a Reader as cfg says beside where the Job is.
func (j *Job) open(cfg staged.Config) *staged.Reader {
	j.t.Helper()
	text, err := os.ReadFile(j.logPath())
	j.must(err)
	cfg.Lower, cfg.Upper, cfg.Log = j.low, j.up, bytes.NewReader(text)
	cfg.Rootless, cfg.UID, cfg.GID = j.euid != 0, j.euid, uint32(os.Getegid())
	r, err := staged.Open(cfg)
	j.must(err)
	return r
}

// OpenReader reads a Job's change log and returns its Reader.
func OpenReader(low, up hostfs.Reader, log string, rebased map[tree.Path]tree.Node) (*staged.Reader, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	return staged.Open(staged.Config{
		Lower: low, Upper: up, Log: bytes.NewReader(text), Rebased: rebased,
		Rootless: os.Geteuid() != 0, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	})
}

// caller is the Job's user as the overlay sees it: in a rootless Job the user is mapped to 0.
func (j *Job) caller() overlay.Caller { return overlay.Caller{} }

// id looks path up. The lookups are never forgotten, like those of a kernel with a large cache.
func (j *Job) id(path string) uint64 {
	j.t.Helper()
	id := uint64(overlay.RootID)
	if path == "." {
		return id
	}
	for name := range strings.SplitSeq(path, "/") {
		var e overlay.Entry
		if err := j.fs.Lookup(id, name, &e); err != nil {
			j.t.Fatalf("lookup %q: %v", path, err)
		}
		id = e.ID
	}
	return id
}

// Has reports whether the Job sees path.
func (j *Job) Has(path string) bool {
	id := uint64(overlay.RootID)
	for _, name := range strings.Split(path, "/") {
		var e overlay.Entry
		if j.fs.Lookup(id, name, &e) != nil {
			return false
		}
		id = e.ID
	}
	return true
}

func (j *Job) parent(path string) (uint64, string) {
	j.t.Helper()
	return j.id(filepath.Dir(path)), filepath.Base(path)
}

// Write implements Tree.
func (j *Job) Write(path, content string) {
	j.t.Helper()
	parent, name := j.parent(path)
	var e overlay.Entry
	err := j.fs.Lookup(parent, name, &e)
	if err == unix.ENOENT {
		err = j.fs.Create(j.caller(), parent, name, 0, 0o644, &e)
	}
	j.must(err)
	var a overlay.Attr
	j.must(j.fs.Setattr(e.ID, &overlay.SetAttr{Set: overlay.SetSize}, &a))
	_, err = j.fs.Write(e.ID, []byte(content), 0, false)
	j.must(err)
}

// Mkdir implements Tree.
func (j *Job) Mkdir(path string) {
	j.t.Helper()
	parent, name := j.parent(path)
	var e overlay.Entry
	j.must(j.fs.Mkdir(j.caller(), parent, name, 0o755, &e))
}

// Remove implements Tree.
func (j *Job) Remove(path string) {
	j.t.Helper()
	parent, name := j.parent(path)
	err := j.fs.Unlink(parent, name)
	if err == unix.EISDIR {
		err = j.fs.Rmdir(parent, name)
	}
	j.must(err)
}

// Rename implements Tree.
func (j *Job) Rename(from, to string) {
	j.t.Helper()
	j.rename(from, to, 0)
}

// Exchange implements Tree.
func (j *Job) Exchange(a, b string) {
	j.t.Helper()
	j.rename(a, b, unix.RENAME_EXCHANGE)
}

func (j *Job) rename(from, to string, flags uint32) {
	j.t.Helper()
	p, name := j.parent(from)
	q, newName := j.parent(to)
	// The kernel looks before it renames; what it was not told of it takes for absent.
	if err := j.fs.Lookup(q, newName, &overlay.Entry{}); err != nil && err != unix.ENOENT {
		j.t.Fatalf("lookup %q: %v", to, err)
	}
	if err := j.fs.Rename(p, name, q, newName, flags); err != nil {
		j.t.Fatalf("rename %q to %q: %v", from, to, err)
	}
}

func (j *Job) setattr(path string, s overlay.SetAttr) {
	j.t.Helper()
	var a overlay.Attr
	j.must(j.fs.Setattr(j.id(path), &s, &a))
}

// Chmod implements Tree.
func (j *Job) Chmod(path string, mode uint32) {
	j.t.Helper()
	j.setattr(path, overlay.SetAttr{Set: overlay.SetMode, Mode: mode})
}

// SetMtime implements Tree.
func (j *Job) SetMtime(path string, t time.Time) {
	j.t.Helper()
	ts := unix.NsecToTimespec(t.UnixNano())
	j.setattr(path, overlay.SetAttr{Set: overlay.SetTimes, Atime: unix.Timespec{Nsec: unix.UTIME_OMIT}, Mtime: ts})
}

// Symlink implements Tree.
func (j *Job) Symlink(target, path string) {
	j.t.Helper()
	parent, name := j.parent(path)
	var e overlay.Entry
	j.must(j.fs.Symlink(j.caller(), parent, name, target, &e))
}

// Link implements Tree.
func (j *Job) Link(from, to string) {
	j.t.Helper()
	parent, name := j.parent(to)
	var e overlay.Entry
	j.must(j.fs.Link(j.id(from), parent, name, &e))
}

// Setxattr implements Tree.
func (j *Job) Setxattr(path, attr, value string) {
	j.t.Helper()
	j.must(j.fs.Setxattr(j.id(path), attr, []byte(value), 0))
}

// Mkfifo implements Tree.
func (j *Job) Mkfifo(path string) {
	j.t.Helper()
	parent, name := j.parent(path)
	var e overlay.Entry
	j.must(j.fs.Mknod(j.caller(), parent, name, unix.S_IFIFO|0o644, 0, &e))
}

// Sync makes everything durable, as syncfs(2) does.
func (j *Job) Sync() {
	j.t.Helper()
	j.must(j.fs.Sync())
}

// Fsync makes one file durable.
func (j *Job) Fsync(path string) {
	j.t.Helper()
	j.must(j.fs.Fsync(j.id(path), false))
}

// Append adds content at the end of a file.
func (j *Job) Append(path, content string) {
	j.t.Helper()
	var a overlay.Attr
	id := j.id(path)
	j.must(j.fs.Getattr(id, &a))
	_, err := j.fs.Write(id, []byte(content), int64(a.Size), false)
	j.must(err)
}

// View returns all paths of the view: "dir" for a directory, the content of a file, else "special".
func (j *Job) View() map[string]string {
	j.t.Helper()
	view := map[string]string{}
	j.view(overlay.RootID, "", view)
	return view
}

func (j *Job) view(dir uint64, at string, view map[string]string) {
	j.t.Helper()
	kids := map[string]overlay.Entry{}
	j.must(j.fs.Readdir(dir, 0, true, func(e *overlay.DirEntry) bool {
		if e.Entry != nil {
			kids[e.Name] = *e.Entry
		}
		return true
	}))
	for name, e := range kids {
		p := filepath.Join(at, name)
		switch e.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			view[p] = "dir"
			j.view(e.ID, p, view)
		case unix.S_IFREG:
			view[p] = "file " + j.content(e.ID, e.Size)
		default:
			view[p] = "special"
		}
	}
}

func (j *Job) content(id, size uint64) string {
	j.t.Helper()
	c, err := j.fs.Content(id)
	j.must(err)
	defer c.Done(0, false)
	b := make([]byte, size)
	if size > 0 {
		_, err = unix.Pread(c.FD(), b, 0)
		j.must(err)
	}
	return string(b)
}

// RemoveAll removes path and everything below, as rm -r does. list tells what is there.
func RemoveAll(x Tree, list []string, path string) {
	all := slices.Clone(list)
	slices.Sort(all)
	for _, p := range slices.Backward(all) {
		if p == path || strings.HasPrefix(p, path+"/") {
			x.Remove(p)
		}
	}
}
