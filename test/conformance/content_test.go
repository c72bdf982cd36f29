package conformance

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// contentCases are about what files hold.
var contentCases = []testCase{
	{name: "shorter-rewrite", setup: files("f=a long line of text"), run: func(w *world) {
		w.write("f", "short")
		w.cat("f")
		w.stat("f")
	}},
	{name: "open-trunc", setup: files("f=a long line of text"), run: func(w *world) {
		fd := w.fd("f", unix.O_WRONLY|unix.O_TRUNC)
		w.fstat("f", fd)
		w.pwrite("f", fd, "x", 3)
		w.cat("f")
	}},
	{name: "open-for-writing-changes-nothing", setup: files("f=content"), run: func(w *world) {
		w.fd("f", unix.O_RDWR)
		w.cat("f")
	}},
	{name: "append-by-several-processes", setup: files("f=start\n"), run: appendByMany},
	{name: "truncate-grow-and-shrink", setup: files("f=0123456789"), run: func(w *world) {
		w.did("truncate 4", unix.Truncate(w.at("f"), 4))
		w.cat("f")
		w.did("truncate 12", unix.Truncate(w.at("f"), 12))
		w.cat("f")
	}},
	{name: "unlinked-but-open-lower", setup: files("f=lower content"), run: unlinkedButOpen},
	{name: "unlinked-but-open-upper", run: func(w *world) {
		w.write("f", "upper content")
		unlinkedButOpen(w)
	}},
	{name: "replaced-but-open", setup: files("f=old", "g=new"), run: func(w *world) {
		fd := w.fd("f", unix.O_RDWR)
		w.rename("g", "f", 0)
		w.pread("old", fd, 10, 0)
		w.pwrite("old", fd, "still", 0)
		w.pread("old", fd, 10, 0)
		w.fstat("old", fd)
		w.cat("f")
	}},
	{name: "reader-sees-writer", setup: files("f=before"), run: func(w *world) {
		r := w.fd("f", unix.O_RDONLY)
		w.pread("f", r, 10, 0)
		wr := w.fd("f", unix.O_WRONLY)
		w.pwrite("f", wr, "AFTER and more", 0)
		w.pread("f", r, 20, 0)
		w.fstat("f", r)
		// Whoever opened a lower file before its copy-up goes on reading that one.
	}, through: map[int]string{5: `pread f at 0: "before" ok`}},
	{name: "mmap-shared-write-after-copy-up", setup: files("f=" + strings.Repeat("a", 10000)), run: mmapShared},
	{name: "mmap-private-of-lower", setup: files("f=" + strings.Repeat("a", 5000)), run: func(w *world) {
		fd := w.fd("f", unix.O_RDONLY)
		m, err := unix.Mmap(fd, 0, 5000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		if !w.did("mmap", err) {
			return
		}
		m[0] = 'X'
		w.did("munmap", unix.Munmap(m))
		w.pread("f", fd, 3, 0)
	}},
	{name: "sparse-file-copied-up", setup: sparse, run: func(w *world) {
		fd := w.fd("f", unix.O_RDWR)
		w.pwrite("f", fd, "x", 1<<20+5)
		seekAll(w, fd)
	}},
	{name: "seek-hole-of-lower", setup: sparse, run: func(w *world) { seekAll(w, w.fd("f", unix.O_RDONLY)) }},
	{name: "fallocate-and-punch", setup: files("f=" + strings.Repeat("b", 20000)), run: func(w *world) {
		fd := w.fd("f", unix.O_RDWR)
		w.did("punch", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 8192))
		w.fstat("f", fd)
		w.did("grow", unix.Fallocate(fd, 0, 0, 30000))
		w.fstat("f", fd)
		w.digest("f")
	}},
	{name: "copy-file-range", setup: files("a="+strings.Repeat("c", 9000), "b=short"), run: func(w *world) {
		src, dst := w.fd("a", unix.O_RDONLY), w.fd("b", unix.O_RDWR)
		var from, to int64 = 100, 2
		n, err := unix.CopyFileRange(src, &from, dst, &to, 5000, 0)
		w.note("copy_file_range: %d %s", n, errName(err))
		w.digest("b")
	}},
	{name: "big-file", setup: func(dir string) {
		must(os.WriteFile(filepath.Join(dir, "f"), bytes.Repeat([]byte("0123456789abcdef"), 1<<18), 0o644)) // 4 MiB
	}, run: func(w *world) {
		w.digest("f")
		fd := w.fd("f", unix.O_RDWR)
		w.pwrite("f", fd, "middle", 2<<20)
		w.digest("f")
		w.did("truncate", unix.Ftruncate(fd, 3<<20))
		w.digest("f")
	}},
	{name: "o-tmpfile", setup: files("d/"), run: func(w *world) {
		fd := w.fd("d", unix.O_TMPFILE|unix.O_RDWR)
		w.pwrite("tmp", fd, "hello", 0)
		w.fstat("tmp", fd)
		w.ls("d")
		w.did("linkat", unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, w.at("d/named"), unix.AT_SYMLINK_FOLLOW))
		w.pwrite("tmp", fd, "HE", 0)
		w.cat("d/named")
		w.stat("d/named")
		w.ls("d")
	}},
	{name: "direct-io", setup: files("f=" + strings.Repeat("d", 8192)), run: func(w *world) {
		w.write("copy", strings.Repeat("e", 4096))
		r := w.fd("f", unix.O_RDONLY)
		w.pread("f", r, 4, 8190)
		w.pread("f", r, 4, 8192)
	}},
	{name: "locks", setup: files("f=x"), run: func(w *world) {
		a, b := w.fd("f", unix.O_RDWR), w.fd("f", unix.O_RDWR)
		w.did("flock a", unix.Flock(a, unix.LOCK_EX|unix.LOCK_NB))
		w.did("flock b", unix.Flock(b, unix.LOCK_EX|unix.LOCK_NB))
		lk := unix.Flock_t{Type: unix.F_WRLCK, Len: 10}
		w.did("ofd a", unix.FcntlFlock(uintptr(a), unix.F_OFD_SETLK, &lk))
		lk = unix.Flock_t{Type: unix.F_RDLCK, Len: 5}
		w.did("ofd b", unix.FcntlFlock(uintptr(b), unix.F_OFD_SETLK, &lk))
	}},
	{name: "fsync", setup: files("f=x", "d/g=y"), run: func(w *world) {
		w.did("fsync lower", unix.Fsync(w.fd("f", unix.O_RDONLY)))
		fd := w.fd("f", unix.O_RDWR)
		w.pwrite("f", fd, "new", 0)
		w.did("fsync", unix.Fsync(fd))
		w.did("fdatasync", unix.Fdatasync(fd))
		w.did("fsync dir", unix.Fsync(w.fd("d", unix.O_RDONLY|unix.O_DIRECTORY)))
		w.write("d/new", "z")
		w.did("fsync dir", unix.Fsync(w.fd("d", unix.O_RDONLY|unix.O_DIRECTORY)))
	}},
	{name: "parallel-readers-and-writers", setup: manyFiles, run: parallel},
	{name: "lower-fifo-and-socket", setup: func(dir string) {
		must(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
		must(unix.Mknod(filepath.Join(dir, "sock"), unix.S_IFSOCK|0o600, 0))
	}, run: func(w *world) {
		w.ls(".")
		w.stat("fifo")
		w.did("open fifo", func() error {
			_, err := unix.Open(w.at("fifo"), unix.O_WRONLY|unix.O_NONBLOCK, 0)
			return err
		}())
		r, err := unix.Open(w.at("fifo"), unix.O_RDONLY|unix.O_NONBLOCK, 0)
		w.did("open fifo to read", err)
		wr := w.fd("fifo", unix.O_WRONLY|unix.O_NONBLOCK)
		_, err = unix.Write(wr, []byte("through"))
		w.did("write", err)
		b := make([]byte, 10)
		n, err := unix.Read(r, b)
		w.note("read %q %s", b[:max(n, 0)], errName(err))
		unix.Close(r)
		w.chmod("fifo", 0o600)
		w.rename("sock", "sock2", 0)
		w.stat("sock2")
		w.unlink("fifo")
		w.did("mkfifo", unix.Mkfifo(w.at("new"), 0o640))
		w.stat("new")
	}},
	{name: "execute", setup: func(dir string) {
		must(os.WriteFile(filepath.Join(dir, "x"), []byte("#!/bin/sh\necho lower \"$1\"\n"), 0o755))
	}, run: func(w *world) {
		out, err := exec.Command(w.at("x"), "1").CombinedOutput()
		w.note("x: %q %v", out, err)
		w.write("y", "#!/bin/sh\necho upper\n")
		_, err = exec.Command(w.at("y")).CombinedOutput()
		w.note("y not executable: %v", err != nil)
		w.chmod("y", 0o755)
		out, err = exec.Command(w.at("y")).CombinedOutput()
		w.note("y: %q %v", out, err)
	}},
}

func unlinkedButOpen(w *world) {
	fd := w.fd("f", unix.O_RDWR)
	w.fstat("f", fd)
	w.unlink("f")
	w.fstat("unlinked", fd)
	w.pread("unlinked", fd, 5, 0)
	w.did("ftruncate", unix.Ftruncate(fd, 3))
	w.pwrite("unlinked", fd, "XYZ", 3)
	w.pread("unlinked", fd, 20, 0)
	w.did("fchmod", unix.Fchmod(fd, 0o600))
	w.fstat("unlinked", fd)
	w.did("stat", unix.Access(w.at("f"), unix.F_OK))
	w.write("f", "another")
	w.pread("unlinked", fd, 20, 0)
	w.cat("f")
}

func appendByMany(w *world) {
	const writers, lines = 4, 50
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			sh := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "writer %d" >> "$1"; i=$((i+1)); done`, lines, i)
			if out, err := exec.Command("sh", "-c", sh, "sh", w.at("f")).CombinedOutput(); err != nil {
				w.t.Errorf("append: %v: %s", err, out)
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(w.at("f"))
	w.did("read", err)
	for i := range writers {
		w.note("lines of %d: %d", i, bytes.Count(b, fmt.Appendf(nil, "writer %d\n", i)))
	}
	w.note("size %d", len(b))
	// Which order they came in is nobody's promise: make both trees alike.
	w.write("f", "")
}

func mmapShared(w *world) {
	fd := w.fd("f", unix.O_RDWR)
	w.pwrite("f", fd, "copied up", 0)
	m, err := unix.Mmap(fd, 0, 10000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if !w.did("mmap", err) {
		return
	}
	w.note("map %q", m[:12])
	copy(m[5000:], "through the map")
	w.did("msync", unix.Msync(m, unix.MS_SYNC))
	w.pread("f", fd, 15, 5000)
	copy(m[9000:], "without msync")
	w.did("munmap", unix.Munmap(m))
	w.pread("f", fd, 13, 9000)
}

func sparse(dir string) {
	f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	must(err)
	_, err = f.WriteAt([]byte("start"), 0)
	must(err)
	_, err = f.WriteAt([]byte("middle"), 1<<20)
	must(err)
	must(f.Truncate(4 << 20))
	must(f.Close())
}

func seekAll(w *world, fd int) {
	for _, at := range []int64{0, 10, 4096, 1 << 20, 2 << 20, 4 << 20, 5 << 20} {
		for _, whence := range []int{unix.SEEK_DATA, unix.SEEK_HOLE} {
			off, err := unix.Seek(fd, at, whence)
			w.note("seek %d %d: %d %s", at, whence, off, errName(err))
		}
	}
}

// digest notes what a large file holds.
func (w *world) digest(path string) {
	b, err := os.ReadFile(w.at(path))
	w.note("digest %s: %x of %d %s", path, sha256.Sum256(b), len(b), errName(err))
}

func manyFiles(dir string) {
	for i := range 40 {
		must(os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d", i)), bytes.Repeat([]byte{byte(i)}, 1000*i), 0o644))
	}
}

func parallel(w *world) {
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 40 {
				path := w.at(fmt.Sprintf("f%d", i))
				b, err := os.ReadFile(path)
				if err != nil || len(b) < 1000*i {
					w.t.Errorf("read f%d: %d bytes, %v", i, len(b), err)
				}
				f, err := os.OpenFile(path, os.O_RDWR, 0)
				if err != nil {
					w.t.Errorf("open f%d: %v", i, err)
					continue
				}
				if _, err := f.WriteAt([]byte{byte(g)}, int64(1000*i+g)); err != nil {
					w.t.Errorf("write f%d: %v", i, err)
				}
				f.Close()
			}
		})
	}
	wg.Wait()
	for i := range 40 {
		w.digest(fmt.Sprintf("f%d", i))
	}
}
