package overlay

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
)

// benchFS opens an overlay over a lower directory "d" of n files of 4 KiB.
func benchFS(b *testing.B, n int) (*FS, uint64) {
	b.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "stage-bench-")
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	check(err)
	b.Cleanup(func() { os.RemoveAll(dir) })
	check(os.MkdirAll(filepath.Join(dir, "lower/d"), 0o755))
	check(os.Mkdir(filepath.Join(dir, "upper"), 0o755))
	check(os.Mkdir(filepath.Join(dir, "orphans"), 0o700))
	for i := range n {
		check(os.WriteFile(filepath.Join(dir, fmt.Sprintf("lower/d/f%d", i)), []byte(strings.Repeat("x", 4096)), 0o644))
	}
	lower, err := hostfs.OpenRoot(filepath.Join(dir, "lower"))
	check(err)
	upper, err := hostfs.OpenRoot(filepath.Join(dir, "upper"))
	check(err)
	orphans, err := hostfs.OpenRoot(filepath.Join(dir, "orphans"))
	check(err)
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_CREATE, 0o600)
	check(err)
	f, err := Open(Config{Lower: lower, Upper: upper, Orphans: orphans, LogFile: log, IDs: IDs{Rootless: os.Geteuid() != 0, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}})
	check(err)
	b.Cleanup(func() { check(f.Close()) })
	var e Entry
	check(f.Lookup(RootID, "d", &e))
	b.ReportAllocs()
	b.ResetTimer()
	return f, e.ID
}

func BenchmarkLookup(b *testing.B) {
	f, d := benchFS(b, 1)
	var e Entry
	for b.Loop() {
		if err := f.Lookup(d, "f0", &e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetattr(b *testing.B) {
	f, d := benchFS(b, 1)
	var e Entry
	if err := f.Lookup(d, "f0", &e); err != nil {
		b.Fatal(err)
	}
	var a Attr
	for b.Loop() {
		if err := f.Getattr(e.ID, &a); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadSmall(b *testing.B) {
	f, d := benchFS(b, 1)
	var e Entry
	if err := f.Lookup(d, "f0", &e); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 8192)
	for b.Loop() {
		c, err := f.Content(e.ID)
		if err != nil {
			b.Fatal(err)
		}
		n, err := unix.Pread(c.FD(), buf, 0)
		if err != nil {
			b.Fatal(err)
		}
		c.Done(n, true)
	}
}

func BenchmarkCopyUp(b *testing.B) {
	f, d := benchFS(b, 2000)
	var e Entry
	for i := range b.N {
		if err := f.Lookup(d, fmt.Sprintf("f%d", i%2000), &e); err != nil {
			b.Fatal(err)
		}
		if _, err := f.Write(e.ID, []byte("y"), 4096, true); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreateAndUnlink(b *testing.B) {
	f, d := benchFS(b, 0)
	var e Entry
	if err := f.Mkdir(Caller{}, d, "new", 0o755, &e); err != nil {
		b.Fatal(err)
	}
	n := e.ID
	for b.Loop() {
		if err := f.Create(Caller{}, n, "f", 0, 0o644, &e); err != nil {
			b.Fatal(err)
		}
		if err := f.Unlink(n, "f"); err != nil {
			b.Fatal(err)
		}
		f.Forget(e.ID, 1)
	}
}
