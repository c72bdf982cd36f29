package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// testCase is one behaviour. setup fills a directory that is then both a plain directory and a
// lower one; run works in it and notes what it sees.
type testCase struct {
	name  string
	setup func(dir string)
	run   func(w *world)
	// ignore names fields of the resulting tree that may differ, with a reason at the case.
	ignore []testenv.Field
	// through are the notes, by step, that differ in passthrough mode.
	through map[int]string
	// reader is set where somebody waits for what an old reader never sees in passthrough mode.
	reader bool
}

// TestCases runs every case on a plain directory and on the mount, and compares.
func TestCases(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) { inModes(t, u, "cases") })
}

func suiteOf(list []testCase) suite {
	return suite{
		setup:  func(top string) { setupCases(top, list) },
		inside: func(t *testing.T, dir string) { insideCases(t, dir, list) },
	}
}

func setupCases(top string, list []testCase) {
	for _, c := range list {
		d := filepath.Join(top, c.name)
		must(os.MkdirAll(d, 0o755))
		if c.setup != nil {
			c.setup(d)
		}
	}
}

func insideCases(t *testing.T, dir string, list []testCase) {
	through := os.Getenv(modeEnv) == passthrough
	for _, c := range list {
		if through && c.reader {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			plain := runCase(t, c, filepath.Join(dir, "plain", c.name))
			mount := runCase(t, c, filepath.Join(dir, "mnt", c.name))
			if through {
				for step, note := range c.through {
					plain[step-1] = note
				}
			}
			compare(t, plain, mount)
			// Mtimes depend on when each side ran; cases that set times note them.
			ignore := append(slices.Clone(c.ignore), testenv.Mtime)
			a := testenv.Snapshot(t, filepath.Join(dir, "plain", c.name))
			b := testenv.Snapshot(t, filepath.Join(dir, "mnt", c.name))
			if d := testenv.Diff(a, b, ignore...); d != "" {
				t.Errorf("the trees differ, plain → mount:\n%s", d)
			}
		})
	}
}

func runCase(t *testing.T, c testCase, dir string) []string {
	t.Helper()
	w := &world{t: t, dir: dir}
	defer w.close()
	c.run(w)
	return w.log
}

func compare(t *testing.T, plain, mount []string) {
	t.Helper()
	for i := range max(len(plain), len(mount)) {
		a, b := "(nothing)", "(nothing)"
		if i < len(plain) {
			a = plain[i]
		}
		if i < len(mount) {
			b = mount[i]
		}
		if a != b {
			t.Errorf("step %d: on a plain directory %s; on the mount %s", i+1, a, b)
		}
	}
}

// world is a directory to work in, and the notes of what was seen. Paths are relative to it.
type world struct {
	t    *testing.T
	dir  string
	log  []string
	open []int
}

func (w *world) close() {
	for _, fd := range w.open {
		unix.Close(fd)
	}
}

func (w *world) at(path string) string { return w.dir + "/" + path }

// note writes one observation.
func (w *world) note(format string, a ...any) {
	w.log = append(w.log, strings.ReplaceAll(fmt.Sprintf(format, a...), w.dir, "DIR"))
}

// did notes the result of an operation.
func (w *world) did(what string, err error) bool {
	w.note("%s: %s", what, errName(err))
	return err == nil
}

func errName(err error) string {
	var errno unix.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// fd opens path for the length of the case.
func (w *world) fd(path string, flags int) int {
	fd, err := unix.Open(w.at(path), flags|unix.O_CLOEXEC, 0o644)
	if w.did(fmt.Sprintf("open %s %#x", path, flags), err) {
		w.open = append(w.open, fd)
	}
	return fd
}

func (w *world) write(path, content string) {
	w.did("write "+path, os.WriteFile(w.at(path), []byte(content), 0o644))
}

// cat notes the content of a file.
func (w *world) cat(path string) {
	b, err := os.ReadFile(w.at(path))
	w.note("cat %s: %q %s", path, b, errName(err))
}

// ls notes the names in a directory and their kinds.
func (w *world) ls(path string) {
	list, err := os.ReadDir(w.at(path))
	var names []string
	for _, e := range list {
		names = append(names, fmt.Sprintf("%q/%v", e.Name(), e.Type()))
	}
	w.note("ls %s: %s %s", path, strings.Join(names, " "), errName(err))
}

// stat notes kind, mode, links and size. The links of a directory are its file system's affair.
func (w *world) stat(path string) {
	var st unix.Stat_t
	err := unix.Lstat(w.at(path), &st)
	w.note("stat %s: %s %s", path, describe(&st), errName(err))
}

func (w *world) fstat(what string, fd int) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	w.note("fstat %s: %s %s", what, describe(&st), errName(err))
}

func describe(st *unix.Stat_t) string {
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fmt.Sprintf("%o", st.Mode)
	}
	return fmt.Sprintf("%o nlink %d size %d", st.Mode, st.Nlink, st.Size)
}

// ino returns an inode number; cases note whether two are equal, not the numbers.
func (w *world) ino(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Lstat(w.at(path), &st); err != nil {
		w.note("ino %s: %s", path, errName(err))
	}
	return st.Ino
}

func (w *world) rename(from, to string, flags uint) {
	err := unix.Renameat2(unix.AT_FDCWD, w.at(from), unix.AT_FDCWD, w.at(to), flags)
	if err == unix.EEXIST && flags == 0 { // what XFS calls a directory that is not empty
		err = unix.ENOTEMPTY
	}
	w.did(fmt.Sprintf("rename %s %s %d", from, to, flags), err)
}

func (w *world) mkdir(path string)  { w.did("mkdir "+path, unix.Mkdir(w.at(path), 0o755)) }
func (w *world) unlink(path string) { w.did("unlink "+path, unix.Unlink(w.at(path))) }
func (w *world) rmdir(path string)  { w.did("rmdir "+path, unix.Rmdir(w.at(path))) }
func (w *world) link(from, to string) {
	w.did("link "+from+" "+to, unix.Link(w.at(from), w.at(to)))
}
func (w *world) chmod(path string, mode uint32) {
	w.did(fmt.Sprintf("chmod %s %o", path, mode), unix.Chmod(w.at(path), mode))
}

func (w *world) pread(what string, fd, n int, off int64) {
	b := make([]byte, n)
	n, err := unix.Pread(fd, b, off)
	w.note("pread %s at %d: %q %s", what, off, b[:max(n, 0)], errName(err))
}

func (w *world) pwrite(what string, fd int, s string, off int64) {
	n, err := unix.Pwrite(fd, []byte(s), off)
	w.note("pwrite %s at %d: %d %s", what, off, n, errName(err))
}

// must panics: a fixture that cannot be made is no result.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// files makes files, each named "path" or "path=content"; a path that ends in a slash is a
// directory.
func files(specs ...string) func(string) {
	return func(dir string) {
		for _, s := range specs {
			path, content, _ := strings.Cut(s, "=")
			full := filepath.Join(dir, path)
			if strings.HasSuffix(path, "/") {
				must(os.MkdirAll(full, 0o755))
				continue
			}
			must(os.MkdirAll(filepath.Dir(full), 0o755))
			must(os.WriteFile(full, []byte(content), 0o644))
		}
	}
}
