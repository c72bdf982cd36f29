package overlay

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"stage/fs/hostfs"
	"stage/test/testenv"
)

// maxPerFile is what a known file may cost in the heap, its part of the directories included.
const maxPerFile = 220

// manyFiles makes dirs directories of each files in a new lower, on tmpfs where there is one, and
// opens an overlay over it.
func manyFiles(t testing.TB, dirs, each int) *FS {
	t.Helper()
	base := "/dev/shm"
	if _, err := os.Stat(base); err != nil {
		base = ""
	}
	dir, err := os.MkdirTemp(base, "stage-many-")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	for i := range dirs {
		d := filepath.Join(dir, "lower", fmt.Sprintf("dir%03d", i))
		check(os.MkdirAll(d, 0o755))
		for k := range each {
			check(os.WriteFile(filepath.Join(d, fmt.Sprintf("some_file%03d.txt", k)), nil, 0o644))
		}
	}
	up := testenv.User{}.TempDir(t)
	check(os.Mkdir(filepath.Join(up, "upper"), 0o755))
	check(os.Mkdir(filepath.Join(up, "orphans"), 0o700))
	lower, err := hostfs.OpenRoot(filepath.Join(dir, "lower"))
	check(err)
	upper, err := hostfs.OpenRoot(filepath.Join(up, "upper"))
	check(err)
	orphans, err := hostfs.OpenRoot(filepath.Join(up, "orphans"))
	check(err)
	log, err := os.OpenFile(filepath.Join(up, "log"), os.O_RDWR|os.O_CREATE, 0o600)
	check(err)
	uid := uint32(os.Geteuid())
	f, err := Open(Config{Lower: lower, Upper: upper, Orphans: orphans, LogFile: log, IDs: IDs{Rootless: uid != 0, UID: uid, GID: uint32(os.Getegid())}})
	check(err)
	t.Cleanup(func() { check(f.Close()); check(orphans.Close()); check(upper.Close()); check(lower.Close()) })
	return f
}

// walkAll looks up everything below id as READDIRPLUS does, and calls visit for each.
func walkAll(t testing.TB, f *FS, id uint64, visit func(id uint64)) {
	t.Helper()
	var dirs []uint64
	var end uint64
	err := f.Readdir(id, 0, true, func(d *DirEntry) bool {
		end = d.Off
		if d.Entry == nil {
			return true
		}
		visit(d.Entry.ID)
		if d.Mode == 0o040000 {
			dirs = append(dirs, d.Entry.ID)
		}
		return true
	})
	if err == nil { // the kernel asks until there is nothing more
		err = f.Readdir(id, end, true, func(*DirEntry) bool { return true })
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		walkAll(t, f, d, visit)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemoryPerKnownFile walks many files and forgets them.
func TestMemoryPerKnownFile(t *testing.T) {
	const dirs, each = 50, 1000
	f := manyFiles(t, dirs, each)
	before := heap()
	ids := make([]uint64, 0, dirs*(each+1))
	walkAll(t, f, RootID, func(id uint64) { ids = append(ids, id) })
	per := int(heap()-before)/len(ids) - 8
	t.Logf("%d bytes for a known file", per)
	if per > maxPerFile {
		t.Errorf("a known file costs %d bytes, want at most %d", per, maxPerFile)
	}
	for _, id := range ids {
		f.Forget(id, 1)
	}
	runtime.KeepAlive(ids)
	if f.tab.live != 1 {
		t.Errorf("%d nodes left, want the root", f.tab.live)
	}
	if left := int(heap()) - int(before) - 8*cap(ids); left > 10*dirs*each {
		t.Errorf("%d bytes are left of forgotten files", left)
	}
}
