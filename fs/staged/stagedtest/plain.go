package stagedtest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Plain is a plain directory.
type Plain struct {
	T   testing.TB
	Dir string
}

// Has reports whether path is there.
func (p Plain) Has(path string) bool {
	_, err := os.Lstat(p.at(path))
	return err == nil
}

func (p Plain) at(path string) string { return filepath.Join(p.Dir, path) }

func (p Plain) must(err error) {
	p.T.Helper()
	if err != nil {
		p.T.Fatal(err)
	}
}

// Write implements Tree.
func (p Plain) Write(path, content string) {
	p.T.Helper()
	_, err := os.Lstat(p.at(path))
	p.must(os.WriteFile(p.at(path), []byte(content), 0o644))
	if errors.Is(err, fs.ErrNotExist) {
		p.must(os.Chmod(p.at(path), 0o644))
	}
}

// Mkdir implements Tree.
func (p Plain) Mkdir(path string) {
	p.T.Helper()
	p.must(os.Mkdir(p.at(path), 0o755))
	p.must(os.Chmod(p.at(path), 0o755))
}

// Remove implements Tree.
func (p Plain) Remove(path string) {
	p.T.Helper()
	p.must(os.Remove(p.at(path)))
}

// Rename implements Tree.
func (p Plain) Rename(from, to string) {
	p.T.Helper()
	p.must(os.Rename(p.at(from), p.at(to)))
}

// Exchange implements Tree.
func (p Plain) Exchange(a, b string) {
	p.T.Helper()
	p.must(unix.Renameat2(unix.AT_FDCWD, p.at(a), unix.AT_FDCWD, p.at(b), unix.RENAME_EXCHANGE))
}

// Chmod implements Tree.
func (p Plain) Chmod(path string, mode uint32) {
	p.T.Helper()
	p.must(unix.Chmod(p.at(path), mode))
}

// SetMtime implements Tree.
func (p Plain) SetMtime(path string, t time.Time) {
	p.T.Helper()
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(t.UnixNano())}
	p.must(unix.UtimesNanoAt(unix.AT_FDCWD, p.at(path), ts, unix.AT_SYMLINK_NOFOLLOW))
}

// Symlink implements Tree.
func (p Plain) Symlink(target, path string) {
	p.T.Helper()
	p.must(os.Symlink(target, p.at(path)))
}

// Link implements Tree.
func (p Plain) Link(from, to string) {
	p.T.Helper()
	p.must(os.Link(p.at(from), p.at(to)))
}

// Setxattr implements Tree.
func (p Plain) Setxattr(path, attr, value string) {
	p.T.Helper()
	p.must(unix.Lsetxattr(p.at(path), attr, []byte(value), 0))
}

// Mkfifo implements Tree.
func (p Plain) Mkfifo(path string) {
	p.T.Helper()
	p.must(unix.Mkfifo(p.at(path), 0o644))
	p.must(os.Chmod(p.at(path), 0o644))
}

// List returns the paths of all that is below the directory.
func (p Plain) List() []string {
	p.T.Helper()
	var out []string
	err := filepath.WalkDir(p.Dir, func(path string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(p.Dir, path); rel != "." {
			out = append(out, rel)
		}
		return err
	})
	p.must(err)
	return out
}
