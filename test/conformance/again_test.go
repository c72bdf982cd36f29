package conformance

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// againCases are what other overlays got wrong; never_again_test.go lists all of it.
var againCases = []testCase{
	{name: "opaque-inside-opaque", setup: files("d/a=1", "d/s/b=2", "d/s/t/c=3"), run: func(w *world) {
		for _, d := range []string{"d/s/t", "d/s", "d"} {
			w.did("rm -r", os.RemoveAll(w.at(d)))
			w.mkdir(d)
			w.ls(d)
			if d != "d" {
				w.write(d+"/new", d)
			}
		}
		w.mkdir("d/s")
		w.mkdir("d/s/t")
		w.rename("d/s", "d/moved", 0)
		w.mkdir("d/s")
		w.rename("d", "e", 0)
		for _, d := range []string{"e", "e/s", "e/moved", "e/moved/t"} {
			w.ls(d)
		}
	}},
	{name: "temporary-names-leave-nothing", setup: files("d/f=old", "d/g=keep"), run: func(w *world) {
		for i := range 5 { // as editors save
			w.write("d/.f.swp", "swap")
			w.write("d/f~new", fmt.Sprint("saved ", i))
			w.rename("d/f", "d/f~", 0)
			w.rename("d/f~new", "d/f", 0)
			w.unlink("d/f~")
			w.unlink("d/.f.swp")
		}
		w.ls("d")
		w.unlink("d/f")
		w.unlink("d/g")
		w.rmdir("d")
		w.mkdir("d")
		w.ls("d")
	}},
	{name: "read-only-lower-files", setup: closedFiles(0o444), run: useClosed},
	{name: "closed-lower-files", setup: closedFiles(0o000), run: func(w *world) {
		if rootless() { // the server cannot read what its user may not, README: Limits
			w.cat("f0")
			w.stat("f0")
			w.unlink("f1")
			w.rename("open", "f2", 0)
			w.cat("f2")
			for _, f := range []string{"f0", "f3", "f4", "f5"} { // for the comparison of trees
				w.unlink(f)
			}
			return
		}
		useClosed(w)
		for _, f := range []string{"d/moved", "f4", "f5"} { // for the comparison of trees
			w.chmod(f, 0o600)
			w.cat(f)
		}
	}},
	{name: "capabilities-go-on-write", setup: withCapabilities, run: func(w *world) {
		w.write("f", "changed")
		w.xattrs("f")
		w.did("truncate", unix.Truncate(w.at("g"), 1))
		w.xattrs("g")
		w.chmod("h", 0o711)
		w.xattrs("h")
		w.did("chown", unix.Chown(w.at("i"), os.Getuid(), os.Getgid()))
		w.xattrs("i")
	}},
	{name: "map-made-before-copy-up", setup: files("f=" + strings.Repeat("a", 9000)), run: func(w *world) {
		fd := w.fd("f", unix.O_RDONLY)
		m, err := unix.Mmap(fd, 0, 9000, unix.PROT_READ, unix.MAP_SHARED)
		if !w.did("mmap", err) {
			return
		}
		w.note("before %q", m[4090:4100])
		w.pwrite("f", w.fd("f", unix.O_WRONLY), "written later", 4090)
		w.note("after %q", m[4090:4110])
		w.pread("f", fd, 20, 4090)
		w.did("munmap", unix.Munmap(m))
	}, through: map[int]string{6: `after "aaaaaaaaaaaaaaaaaaaa"`, 7: `pread f at 4090: "aaaaaaaaaaaaaaaaaaaa" ok`}},
	{name: "depth-1000", setup: func(dir string) {
		deep := strings.Repeat("d/", 1000)
		must(os.MkdirAll(filepath.Join(dir, deep), 0o755))
		must(os.WriteFile(filepath.Join(dir, deep, "f"), []byte("at the bottom"), 0o644))
	}, run: func(w *world) {
		deep := strings.Repeat("d/", 1000)
		w.cat(deep + "f")
		w.write(deep+"f", "changed at the bottom")
		w.mkdir(deep + "new")
		w.ls(deep)
		w.rename("d", "e", 0)
		w.cat("e/" + strings.Repeat("d/", 999) + "f")
		w.rename("e", "d", 0)
	}},
	{name: "path-max", run: pathMax},
	{name: "symlink-loops", setup: func(dir string) {
		must(os.Symlink("b", filepath.Join(dir, "a")))
		must(os.Symlink("a", filepath.Join(dir, "b")))
		must(os.Symlink(".", filepath.Join(dir, "dot")))
		must(os.Symlink("self", filepath.Join(dir, "self")))
	}, run: func(w *world) {
		for _, p := range []string{"a", "b/x", "self", "self/self"} {
			w.fd(p, unix.O_RDONLY)
			w.fd(p, unix.O_RDWR|unix.O_CREAT)
		}
		w.stat(strings.Repeat("dot/", 39) + "a")
		w.stat(strings.Repeat("dot/", 41) + "a")
		w.rename("a", "c", 0)
		w.unlink("self")
		w.ls("dot")
	}},
	{name: "sync-family", setup: files("f=lower"), run: func(w *world) {
		fd := w.fd("f", unix.O_RDWR)
		w.pwrite("f", fd, "upper", 0)
		w.did("sync_file_range", unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER))
		w.did("syncfs", unix.Syncfs(fd))
		for _, whence := range []int{0, 1, 2} {
			at, err := unix.Seek(fd, 3, whence)
			w.note("seek %d: %d %s", whence, at, errName(err))
		}
		_, err := unix.Seek(fd, -1, 0)
		w.did("seek before the start", err)
		w.did("fdatasync of a directory", unix.Fdatasync(w.fd(".", unix.O_RDONLY|unix.O_DIRECTORY)))
		w.did("fsync of a read-only descriptor", unix.Fsync(w.fd("f", unix.O_RDONLY)))
		sync := w.fd("f", unix.O_WRONLY|unix.O_DSYNC)
		w.pwrite("f", sync, "through O_DSYNC", 0)
		w.cat("f")
	}},
	{name: "fallocate-modes", setup: files("f="+strings.Repeat("b", 20000), "g=short"), run: func(w *world) {
		fd := w.fd("f", unix.O_RDWR)
		w.did("zero", unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 100, 5000))
		w.did("zero beyond the end", unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 19000, 5000))
		w.did("zero and keep size", unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, 23000, 5000))
		w.did("keep size", unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 30000, 5000))
		w.did("punch without keep", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE, 0, 4096))
		w.did("no length", unix.Fallocate(fd, 0, 0, 0))
		w.did("negative", unix.Fallocate(fd, 0, -1, 5))
		w.fstat("f", fd)
		w.digest("f")
		w.did("read-only descriptor", unix.Fallocate(w.fd("g", unix.O_RDONLY), 0, 0, 100))
		w.cat("g")
		must(os.Truncate(w.at("f"), 0)) // ext4 makes data of it when it likes
	}},
	{name: "o-direct", setup: files("f=" + strings.Repeat("0123456789abcdef", 1000)), run: func(w *world) {
		s := newSide(w.dir, "")
		st := step{P: "f", Off: 4096, Len: 8192}
		w.note("read %s", s.do(with(st, "direct-read")))
		w.note("write %s", s.do(with(st, "direct-write")))
		w.note("read %s", s.do(with(st, "direct-read")))
		w.note("read at the end %s", s.do(with(step{P: "f", Off: 12288, Len: 8192}, "direct-read")))
		w.note("grow %s", s.do(with(step{P: "f", Off: 16384, Len: 4096}, "direct-write")))
		w.digest("f")
	}},
	{name: "sparse-terabyte", run: func(w *world) {
		fd := w.fd("f", unix.O_RDWR|unix.O_CREAT)
		w.did("truncate", unix.Ftruncate(fd, 1<<40))
		w.pwrite("f", fd, "near the end", 1<<40-4096)
		w.fstat("f", fd)
		w.pread("f", fd, 12, 1<<40-4096)
		w.pread("f", fd, 4, 1<<39)
		at, err := unix.Seek(fd, 0, unix.SEEK_DATA)
		w.note("data at %d %s", at, errName(err))
		w.did("punch", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1<<40-4096, 4096))
		_, err = unix.Seek(fd, 0, unix.SEEK_DATA)
		w.did("no data", err)
		w.unlink("f")
	}},
	{name: "signals-while-writing", setup: files("f=" + strings.Repeat("s", 100000)), run: signalsWhileWriting},
	{name: "utimensat", setup: files("f=1", "d/x=2", "l="), run: utimensat},
	{name: "xattr-sizes", setup: files("f=1", "d/"), run: func(w *world) {
		for _, n := range []int{1, 255, 2000, 3500} {
			w.did(fmt.Sprintf("set %d", n), unix.Setxattr(w.at("f"), "user.v", bytes.Repeat([]byte("v"), n), 0))
			got, err := unix.Getxattr(w.at("f"), "user.v", make([]byte, 1<<16))
			w.note("get %d %s", got, errName(err))
		}
		w.did("too large for the system", unix.Setxattr(w.at("f"), "user.v", make([]byte, 1<<16+1), 0))
		w.did("name too long", unix.Setxattr(w.at("f"), "user."+strings.Repeat("n", 251), nil, 0))
		w.did("longest name", unix.Setxattr(w.at("d"), "user."+strings.Repeat("n", 250), []byte("v"), 0))
		w.did("no name", unix.Setxattr(w.at("d"), "user.", nil, 0))
		for i := range 20 {
			w.did("set many", unix.Setxattr(w.at("d"), fmt.Sprintf("user.name%d", i), []byte{byte(i)}, 0))
		}
		w.xattrs("d")
		_, err := unix.Listxattr(w.at("d"), make([]byte, 10))
		w.did("list into too little", err)
		n, err := unix.Listxattr(w.at("d"), nil)
		w.note("list size %d %s", n, errName(err))
		w.did("security", unix.Setxattr(w.at("f"), "security.x", []byte("1"), 0))
		w.did("trusted", unix.Setxattr(w.at("f"), "trusted.x", []byte("1"), 0))
		_, err = unix.Getxattr(w.at("f"), "security.none", nil)
		w.did("get security", err)
		_, err = unix.Getxattr(w.at("f"), "trusted.none", nil)
		w.did("get trusted", err)
	}},
	{name: "acl-default", setup: func(dir string) {
		must(os.Mkdir(filepath.Join(dir, "d"), 0o755))
		must(os.WriteFile(filepath.Join(dir, "d/low"), []byte("1"), 0o640))
		out, err := exec.Command("setfacl", "-m", "u::rwx,u:0:rwx,g::rx,m::rwx,o::-,d:u::rwx,d:u:0:rwx,d:g::r,d:m::rw,d:o::-", filepath.Join(dir, "d")).CombinedOutput()
		if err != nil {
			panic(fmt.Sprintf("setfacl: %v %s", err, out))
		}
	}, run: func(w *world) {
		w.stat("d")
		w.write("d/new", "1")
		w.mkdir("d/sub")
		w.write("d/sub/x", "2")
		w.chmod("d/low", 0o600)
		for _, p := range []string{"d/new", "d/sub", "d/sub/x", "d/low"} {
			w.stat(p)
		}
		w.cat("d/new")
		if !rootless() { // FUSE has no ACLs in a user namespace without POSIX_ACL (fuse_no_acl, fs/fuse/acl.c)
			w.xattrs("d/sub")
			w.xattrs("d/new")
		}
	}, ignore: []testenv.Field{testenv.Xattrs}},
	{name: "inotify", setup: files("f=lower", "d/x=1"), run: inotify},
	{name: "tail-f", setup: files("log=first\n"), run: tailF, reader: true},
	{name: "many-writers", setup: manyFiles, run: manyWriters},
}

func with(st step, op string) step {
	st.Op = op
	return st
}

// rootless reports whether this is an ordinary user, who is root in his own user namespace alone.
func rootless() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	must(err)
	return !strings.HasSuffix(strings.TrimSpace(string(b)), " 4294967295")
}

func closedFiles(mode os.FileMode) func(string) {
	return func(dir string) {
		files("open=to replace one", "d/")(dir)
		for i := range 6 {
			name := filepath.Join(dir, fmt.Sprintf("f%d", i))
			must(os.WriteFile(name, fmt.Appendf(nil, "closed %d", i), 0o644))
			must(os.Chmod(name, mode))
		}
	}
}

func useClosed(w *world) {
	w.fd("f0", unix.O_WRONLY)
	w.chmod("f0", 0o644)
	w.write("f0", "writable now")
	w.unlink("f1")
	w.rename("open", "f2", 0)
	w.rename("f3", "d/moved", 0)
	w.stat("d/moved")
	w.rename("f4", "f5", unix.RENAME_EXCHANGE)
	w.stat("f5")
	w.cat("f5")
	dst := w.fd("copy", unix.O_WRONLY|unix.O_CREAT)
	var from, to int64
	n, err := unix.CopyFileRange(w.fd("f4", unix.O_RDONLY), &from, dst, &to, 100, 0)
	w.note("copy_file_range %d %s", n, errName(err))
	w.cat("copy")
	w.link("f4", "linked")
	w.stat("linked")
	w.did("utimes", os.Chtimes(w.at("f4"), time.Unix(1e9, 0), time.Unix(1e9, 0)))
	w.mtime("linked")
}

// withCapabilities gives files a capability where that is allowed: to root.
func withCapabilities(dir string) {
	value := binary.LittleEndian.AppendUint32(nil, 0x02000000) // VFS_CAP_REVISION_2
	value = binary.LittleEndian.AppendUint32(value, 1<<unix.CAP_NET_BIND_SERVICE)
	value = append(value, make([]byte, 12)...)
	for _, name := range []string{"f", "g", "h", "i"} {
		path := filepath.Join(dir, name)
		must(os.WriteFile(path, []byte("program"), 0o755))
		if err := unix.Setxattr(path, "security.capability", value, 0); err != nil && !errors.Is(err, unix.EPERM) {
			panic(err)
		}
	}
}

// pathMax works below a directory whose path is longer than PATH_MAX, by descriptors, and takes it
// away again.
func pathMax(w *world) {
	name := strings.Repeat("n", 255)
	dirs := []int{w.fd(".", unix.O_RDONLY|unix.O_DIRECTORY)}
	for range 20 {
		at := dirs[len(dirs)-1]
		if !w.did("mkdirat", unix.Mkdirat(at, name, 0o755)) {
			return
		}
		fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if !w.did("openat", err) {
			return
		}
		dirs = append(dirs, fd)
		w.open = append(w.open, fd)
	}
	last := dirs[len(dirs)-1]
	fd, err := unix.Openat(last, "f", unix.O_RDWR|unix.O_CREAT, 0o644)
	w.did("create", err)
	w.pwrite("f", fd, "far away", 0)
	unix.Close(fd)
	w.did("rename", unix.Renameat(last, "f", last, "g"))
	w.did("stat by name", unix.Access(w.at(strings.Repeat(name+"/", 20)+"g"), unix.F_OK))
	w.did("move the top", unix.Renameat(dirs[0], name, dirs[0], "short"))
	w.did("unlink", unix.Unlinkat(last, "g", 0))
	for i := 19; i > 0; i-- {
		w.did("rmdir", unix.Unlinkat(dirs[i], name, unix.AT_REMOVEDIR))
	}
	w.rmdir("short")
}

// signalsWhileWriting has a timer interrupt system calls.
func signalsWhileWriting(w *world) {
	timer := time.NewTicker(100 * time.Microsecond)
	defer timer.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			<-timer.C
			if err := unix.Kill(unix.Getpid(), unix.SIGURG); err != nil {
				panic(err)
			}
		}
	}()
	fd := w.fd("f", unix.O_RDWR)
	block := bytes.Repeat([]byte("0123456789abcdef"), 8192)
	for i := range 100 {
		if n, err := unix.Pwrite(fd, block, int64(i*len(block))); n != len(block) || err != nil {
			w.note("pwrite %d: %d %s", i, n, errName(err))
		}
		if n, err := unix.Pread(fd, block, int64(i*len(block))); n != len(block) || err != nil {
			w.note("pread %d: %d %s", i, n, errName(err))
		}
	}
	<-done
	w.digest("f")
}

func utimensat(w *world) {
	set := func(what, path string, a, m unix.Timespec, flags int) {
		w.did(what, unix.UtimesNanoAt(unix.AT_FDCWD, w.at(path), []unix.Timespec{a, m}, flags))
	}
	now, omit := unix.Timespec{Nsec: unix.UTIME_NOW}, unix.Timespec{Nsec: unix.UTIME_OMIT}
	early, late := unix.Timespec{Sec: 1, Nsec: 123456789}, unix.Timespec{Sec: 1000000000, Nsec: 999999999}
	set("both", "f", early, late, 0)
	w.times("f", true)
	set("atime alone", "f", late, omit, 0)
	w.times("f", true)
	set("mtime alone", "f", omit, early, 0)
	w.times("f", true)
	ctime := w.ctime("f")
	set("neither", "f", omit, omit, 0)
	w.note("ctime moved: %v", w.ctime("f") != ctime)
	set("mtime now", "f", omit, now, 0)
	w.times("f", false)
	set("both now", "f", now, now, 0)
	w.times("f", false)
	set("directory", "d", early, late, 0)
	w.times("d", true)
	must(os.Remove(w.at("l")))
	w.did("symlink", unix.Symlink("f", w.at("l")))
	set("symlink", "l", early, late, unix.AT_SYMLINK_NOFOLLOW)
	w.times("l", true)
	set("through the symlink", "l", early, early, 0)
	w.times("f", true)
	set("nonsense", "f", unix.Timespec{Nsec: 1e9}, now, 0)
	set("missing", "none", now, now, 0)
	for _, c := range []struct {
		what string
		do   func() error
	}{
		{"chmod", func() error { return unix.Chmod(w.at("d/x"), 0o600) }},
		{"write", func() error { return os.WriteFile(w.at("d/x"), []byte("more"), 0) }},
		{"setxattr", func() error { return unix.Setxattr(w.at("d/x"), "user.a", nil, 0) }},
		{"link", func() error { return unix.Link(w.at("d/x"), w.at("d/y")) }},
		{"rename", func() error { return unix.Rename(w.at("d/y"), w.at("d/z")) }},
		{"unlink", func() error { return unix.Unlink(w.at("d/z")) }},
		{"truncate", func() error { return unix.Truncate(w.at("d/x"), 1) }},
		{"read", func() error { _, err := os.ReadFile(w.at("d/x")); return err }},
	} {
		time.Sleep(10 * time.Millisecond) // more than a tick of a coarse clock: what is tested are times
		x, d := w.ctime("d/x"), w.ctime("d")
		w.did(c.what, c.do())
		w.note("ctime of the file moved: %v, of the directory: %v", w.ctime("d/x") != x, w.ctime("d") != d)
	}
}

func (w *world) ctime(path string) unix.Timespec {
	var st unix.Stat_t
	must(unix.Lstat(w.at(path), &st))
	return st.Ctim
}

// times notes atime and mtime, or that they are recent.
func (w *world) times(path string, exact bool) {
	var st unix.Stat_t
	must(unix.Lstat(w.at(path), &st))
	if exact {
		w.note("times of %s: %v %v", path, st.Atim, st.Mtim)
		return
	}
	w.note("mtime of %s is recent: %v", path, st.Mtim.Sec > recent)
}

// inotify notes what a watcher is told.
func inotify(w *world) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(err)
	defer unix.Close(fd)
	watches := map[int32]string{}
	for _, p := range []string{".", "d"} {
		wd, err := unix.InotifyAddWatch(fd, w.at(p), unix.IN_ALL_EVENTS&^unix.IN_ACCESS)
		w.did("watch "+p, err)
		watches[int32(wd)] = p
	}
	told := func(what string) {
		buf := make([]byte, 1<<16)
		n, _ := unix.Read(fd, buf)
		var list []string
		for b := buf[:max(n, 0)]; len(b) > 0; {
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:size]), "\x00")
			list = append(list, fmt.Sprintf("%s/%s %#x", watches[int32(binary.NativeEndian.Uint32(b))], name, binary.NativeEndian.Uint32(b[4:])))
			b = b[size:]
		}
		w.note("%s: %s", what, strings.Join(list, ", "))
	}
	w.write("f", "changed")
	told("write to a lower file")
	w.write("new", "1")
	told("create")
	w.rename("new", "d/moved", 0)
	told("rename")
	w.chmod("d/x", 0o600)
	told("chmod")
	w.unlink("d/x")
	told("unlink")
	w.mkdir("d/sub")
	w.rmdir("d/sub")
	told("mkdir and rmdir")
	w.did("truncate", unix.Truncate(w.at("f"), 2))
	told("truncate")
	w.did("xattr", unix.Setxattr(w.at("f"), "user.a", nil, 0))
	told("setxattr")
	w.rename("d", "e", 0)
	told("rename of the watched directory")
}

// tailF lets tail -f wait for lines.
func tailF(w *world) {
	c := exec.Command("tail", "-n", "+1", "-f", w.at("log"))
	out, err := c.StdoutPipe()
	must(err)
	must(c.Start())
	defer c.Wait()
	defer c.Process.Kill()
	next := func() {
		buf := make([]byte, 100)
		n, err := out.Read(buf)
		w.note("tail says %q %s", buf[:n], errName(err))
	}
	next()
	for i := range 2 {
		fd, err := unix.Open(w.at("log"), unix.O_WRONLY|unix.O_APPEND, 0)
		must(err)
		_, err = unix.Write(fd, fmt.Appendf(nil, "line %d\n", i))
		must(errors.Join(err, unix.Close(fd)))
		next()
	}
}

// manyWriters has 64 writers at once, each in its part of every file.
func manyWriters(w *world) {
	done := make(chan error)
	const writers = 64
	for g := range writers {
		go func() {
			var err error
			for i := range 40 {
				f, e := os.OpenFile(w.at(fmt.Sprintf("f%d", (i+g)%40)), os.O_RDWR, 0)
				if e != nil {
					err = errors.Join(err, e)
					continue
				}
				_, e = f.WriteAt(bytes.Repeat([]byte{byte(g)}, 300), int64(g*300))
				err = errors.Join(err, e, f.Close())
			}
			done <- err
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			w.note("writer: %v", err)
		}
	}
	for i := range 40 {
		w.digest(fmt.Sprintf("f%d", i))
	}
}
