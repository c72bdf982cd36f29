package fusefs

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestGarbagePercent(t *testing.T) {
	for _, c := range []struct{ liveMB, least, most int }{
		{0, 400, 400}, {4, 400, 400}, {20, 100, 140}, {200, 20, 30}, {1000, 12, 16},
	} {
		if got := garbagePercent(uint64(c.liveMB) << 20); got < c.least || got > c.most {
			t.Errorf("%d MB: got %d, want %d to %d", c.liveMB, got, c.least, c.most)
		}
	}
}

// TestMemoryOfManyFiles lets another process look at many files, and measures this one, which serves
// them: while the kernel knows them, and when it has forgotten them. With STAGE_SOAK a million.
func TestMemoryOfManyFiles(t *testing.T) {
	files, most, after := 50_000, 80<<20, 50<<20
	if os.Getenv("STAGE_SOAK") != "" {
		files, most = 1_000_000, 300<<20
	}
	if raceEnabled {
		most, after = 4*most, 4*after // the detector shadows what is allocated
	}
	m := newMounted(t)
	lower := filepath.Join(m.dir, "lower")
	m.must(unix.Mount("tmpfs", lower, "tmpfs", 0, "nr_inodes=0"))
	t.Cleanup(func() { unix.Unmount(lower, unix.MNT_DETACH) })
	const each = 1000
	for i := range files / each {
		d := filepath.Join(lower, fmt.Sprintf("dir%03d", i))
		m.must(os.Mkdir(d, 0o755))
		for k := range each {
			m.must(unix.Mknod(filepath.Join(d, fmt.Sprintf("some_file%03d.txt", k)), unix.S_IFREG|0o644, 0))
		}
	}
	debug.FreeOSMemory()
	m.mount(Options{Name: "test"})
	start, begun := rss(t), time.Now()
	if out, err := m.sh("find mnt -type f -size 0 -printf x | wc -c"); strings.TrimSpace(out) != strconv.Itoa(files) || err != nil {
		t.Fatalf("find: got %q, %v, want %d", out, err, files)
	}
	t.Logf("%d files: from %d to %d MB in %v", files, start>>20, rss(t)>>20, time.Since(begun))
	if got := rss(t); got > most {
		t.Errorf("%d MB with %d files known, want at most %d", got>>20, files, most>>20)
	}
	begun = time.Now()
	if out, err := m.sh("mount -i -o remount mnt"); err != nil { // makes the kernel forget
		t.Fatalf("remount: %q, %v", out, err)
	}
	for deadline := time.Now().Add(time.Minute); rss(t) > after && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond) // nothing tells when the last FORGET is done
	}
	t.Logf("forgotten: %d MB after %v", rss(t)>>20, time.Since(begun))
	if got := rss(t); got > after {
		t.Errorf("%d MB when they are forgotten, want at most %d", got>>20, after>>20)
	}
	m.must(unix.Unmount(m.mnt(), 0))
	m.must(m.close())
}

// rss returns the memory this process has, in bytes.
func rss(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
