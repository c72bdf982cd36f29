package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// attrCases are about modes, owners, times and extended attributes.
var attrCases = []testCase{
	{name: "chmod", setup: files("f=1", "d/x=2"), run: func(w *world) {
		w.chmod("f", 0o600)
		w.stat("f")
		w.cat("f")
		w.chmod("f", 0o4755)
		w.stat("f")
		w.chmod("d", 0o500)
		w.stat("d")
		w.write("d/new", "")
		w.cat("d/x")
		w.chmod("d", 0o755)
		w.chmod("missing", 0o644)
	}},
	{name: "read-only-files", setup: func(dir string) {
		must(os.WriteFile(filepath.Join(dir, "ro"), []byte("1"), 0o444))
		must(os.WriteFile(filepath.Join(dir, "ro2"), []byte("2"), 0o444))
		must(os.Mkdir(filepath.Join(dir, "d"), 0o755))
	}, run: func(w *world) {
		w.fd("ro", unix.O_WRONLY)
		w.did("truncate", unix.Truncate(w.at("ro"), 0))
		w.chmod("ro", 0o644)
		w.write("ro", "writable now")
		w.chmod("ro", 0o444)
		w.fd("ro", unix.O_WRONLY)
		w.cat("ro")
		w.unlink("ro2")
		w.stat("ro2")
		w.did("mkdir", unix.Mkdir(w.at("closed"), 0o555))
		w.stat("closed")
		w.write("closed/x", "")
		w.chmod("closed", 0o755)
		w.write("closed/x", "")
		w.chmod("closed", 0o555)
		w.unlink("closed/x")
		fd, err := unix.Open(w.at("d/new"), unix.O_CREAT|unix.O_WRONLY, 0o444)
		w.did("create 0444", err)
		w.pwrite("new", fd, "through the first descriptor", 0)
		unix.Close(fd)
		w.cat("d/new")
		fd, err = unix.Open(w.at("d/none"), unix.O_CREAT|unix.O_RDWR, 0)
		w.did("create 0000", err)
		w.pwrite("none", fd, "secret", 0)
		w.pread("none", fd, 10, 0)
		unix.Close(fd)
		w.cat("d/none")
		w.chmod("d/none", 0o400)
		w.cat("d/none")
		w.rename("d/none", "d/none2", 0)
		w.stat("d/none2")
		w.did("mkdir", unix.Mkdir(w.at("dark"), 0))
		w.ls("dark")
		w.rmdir("dark")
		w.chmod("closed", 0o755)
	}},
	{name: "no-access-lower", setup: func(dir string) {
		must(os.Mkdir(filepath.Join(dir, "ro"), 0o755))
		must(os.WriteFile(filepath.Join(dir, "ro", "x"), []byte("1"), 0o444))
		must(os.WriteFile(filepath.Join(dir, "ro", "y"), nil, 0o644))
		must(os.Chmod(filepath.Join(dir, "ro"), 0o555))
	}, run: func(w *world) {
		w.write("ro/new", "")
		w.unlink("ro/x")
		w.rename("ro/x", "x", 0)
		w.write("ro/y", "written although the directory is closed")
		w.cat("ro/y")
		w.stat("ro")
		w.chmod("ro", 0o755)
		w.unlink("ro/x")
		w.ls("ro")
	}},
	{name: "setuid-goes-on-write", setup: func(dir string) {
		must(os.WriteFile(filepath.Join(dir, "f"), []byte("1"), 0o755))
		must(os.Chmod(filepath.Join(dir, "f"), 0o755|os.ModeSetuid|os.ModeSetgid))
		must(os.WriteFile(filepath.Join(dir, "g"), []byte("1"), 0o755))
		must(os.Chmod(filepath.Join(dir, "g"), 0o755|os.ModeSetuid))
		must(os.WriteFile(filepath.Join(dir, "h"), []byte("1"), 0o755))
		must(os.Chmod(filepath.Join(dir, "h"), 0o755|os.ModeSetuid))
	}, run: func(w *world) {
		w.stat("f")
		w.pwrite("f", w.fd("f", unix.O_WRONLY), "x", 0)
		w.stat("f")
		w.did("truncate", unix.Truncate(w.at("g"), 0))
		w.stat("g")
		w.did("chown", unix.Chown(w.at("h"), os.Getuid(), os.Getgid()))
		w.stat("h")
	}},
	{name: "chown-of-a-fifo-drops-setuid", run: func(w *world) {
		w.did("mkfifo", unix.Mkfifo(w.at("p"), 0o644))
		w.chmod("p", 0o6755)
		w.stat("p")
		w.did("chown", unix.Chown(w.at("p"), os.Getuid(), os.Getgid()))
		w.stat("p")
	}},
	{name: "map-keeps-setuid", setup: func(dir string) {
		must(os.WriteFile(filepath.Join(dir, "f"), []byte(strings.Repeat("x", 5000)), 0o644))
		must(os.Chmod(filepath.Join(dir, "f"), 0o755|os.ModeSetuid|os.ModeSetgid))
	}, run: func(w *world) {
		fd := w.fd("f", unix.O_RDWR)
		m, err := unix.Mmap(fd, 0, 5000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if !w.did("mmap", err) {
			return
		}
		copy(m, "through the map, which is no write")
		w.did("munmap", unix.Munmap(m))
		w.stat("f")
		w.pwrite("f", fd, "a write", 0)
		w.stat("f")
	}},
	{name: "unnamed-files-leave-nothing", setup: manyFiles, run: func(w *world) {
		for i := range 20 { // their inode numbers come again
			fd, err := unix.Open(w.dir, unix.O_TMPFILE|unix.O_RDWR, 0o044)
			w.did("open unnamed", err)
			w.did("link over", unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, w.at("f1"), unix.AT_SYMLINK_FOLLOW))
			unix.Close(fd)
			w.chmod(fmt.Sprintf("f%d", i), 0o600)
			w.stat(fmt.Sprintf("f%d", i))
		}
	}},
	{name: "chown", setup: files("f=1"), run: func(w *world) {
		w.did("chown to self", unix.Chown(w.at("f"), os.Getuid(), os.Getgid()))
		w.did("chown nothing", unix.Chown(w.at("f"), -1, -1))
		w.stat("f")
	}},
	{name: "setgid-directory", setup: func(dir string) {
		must(os.Mkdir(filepath.Join(dir, "d"), 0o755))
		must(os.Chmod(filepath.Join(dir, "d"), 0o755|os.ModeSetgid))
	}, run: func(w *world) {
		w.mkdir("d/sub")
		w.write("d/f", "")
		w.stat("d/sub")
		w.stat("d/f")
		w.mkdir("d/sub/deeper")
		w.stat("d/sub/deeper")
	}},
	{name: "umask", run: func(w *world) {
		old := unix.Umask(0o077)
		w.did("mkdir", unix.Mkdir(w.at("d"), 0o777))
		fd, err := unix.Open(w.at("f"), unix.O_CREAT|unix.O_WRONLY, 0o666)
		w.did("create", err)
		unix.Close(fd)
		unix.Umask(0)
		w.did("mkdir", unix.Mkdir(w.at("d0"), 0o777))
		w.did("mkfifo", unix.Mkfifo(w.at("p"), 0o666))
		unix.Umask(old)
		for _, p := range []string{"d", "f", "d0", "p"} {
			w.stat(p)
		}
	}},
	{name: "times", setup: files("f=1", "d/x=2"), run: func(w *world) {
		set := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
		w.did("chtimes", os.Chtimes(w.at("f"), set, set))
		w.mtime("f")
		w.did("chtimes dir", os.Chtimes(w.at("d"), set, set))
		w.mtime("d")
		w.chmod("d/x", 0o600)
		w.mtime("d")
		w.write("d/x", "content does not touch the directory")
		w.mtime("d")
		w.write("f", "changed")
		w.note("mtime moved: %v", w.mtimeOf("f").After(set))
		w.write("d/new", "")
		w.note("directory's too: %v", w.mtimeOf("d").After(set))
		must(os.Chtimes(w.at("d"), set, set))
		w.unlink("d/x")
		w.note("by unlink too: %v", w.mtimeOf("d").After(set))
		w.did("utimensat now", unix.UtimesNanoAt(unix.AT_FDCWD, w.at("f"), []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}, 0))
		w.did("before 1970", os.Chtimes(w.at("f"), time.Unix(-100, 0), time.Unix(-100, 0)))
		w.mtime("f")
	}},
	{name: "copy-up-keeps-times", setup: func(dir string) {
		old := time.Date(1999, 1, 2, 3, 4, 5, 678901234, time.UTC)
		must(os.MkdirAll(filepath.Join(dir, "a/b"), 0o750))
		must(os.WriteFile(filepath.Join(dir, "a/b/f"), []byte("x"), 0o640))
		must(os.Symlink("t", filepath.Join(dir, "a/b/l")))
		for _, p := range []string{"a/b/f", "a/b", "a"} {
			must(os.Chtimes(filepath.Join(dir, p), old, old))
		}
	}, run: func(w *world) {
		w.chmod("a/b/f", 0o600)
		for _, p := range []string{"a", "a/b", "a/b/f"} {
			w.mtime(p)
			w.stat(p)
		}
	}},
	{name: "xattrs", setup: func(dir string) {
		must(os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644))
		must(unix.Setxattr(filepath.Join(dir, "f"), "user.lower", []byte("value"), 0))
		must(os.Mkdir(filepath.Join(dir, "d"), 0o755))
		must(unix.Setxattr(filepath.Join(dir, "d"), "user.dir", []byte("of d"), 0))
	}, run: func(w *world) {
		w.xattrs("f")
		w.did("set", unix.Setxattr(w.at("f"), "user.new", []byte("1"), unix.XATTR_CREATE))
		w.did("set again", unix.Setxattr(w.at("f"), "user.new", []byte("1"), unix.XATTR_CREATE))
		w.did("replace", unix.Setxattr(w.at("f"), "user.none", []byte("1"), unix.XATTR_REPLACE))
		w.did("remove", unix.Removexattr(w.at("f"), "user.lower"))
		w.did("remove again", unix.Removexattr(w.at("f"), "user.lower"))
		w.xattrs("f")
		w.did("set on dir", unix.Setxattr(w.at("d"), "user.two", []byte("2"), 0))
		w.xattrs("d")
		w.did("empty value", unix.Setxattr(w.at("f"), "user.empty", nil, 0))
		w.did("trusted", unix.Setxattr(w.at("f"), "trusted.x", []byte("1"), 0))
		w.did("unknown name space", unix.Setxattr(w.at("f"), "none.x", []byte("1"), 0))
		_, err := unix.Getxattr(w.at("f"), "user.new", make([]byte, 0))
		w.did("size", err)
		_, err = unix.Getxattr(w.at("d"), "user.dir", make([]byte, 2))
		w.did("small buffer", err)
		w.xattrs("f")
	}},
	{name: "xattrs-survive-copy-up-and-rename", setup: func(dir string) {
		must(os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644))
		must(unix.Setxattr(filepath.Join(dir, "f"), "user.keep", []byte{0, 1, 2, 255}, 0))
		must(os.Mkdir(filepath.Join(dir, "d"), 0o755))
		must(unix.Setxattr(filepath.Join(dir, "d"), "user.dir", []byte("of d"), 0))
	}, run: func(w *world) {
		w.write("f", "changed")
		w.rename("f", "d/g", 0)
		w.rename("d", "e", 0)
		w.xattrs("e")
		w.xattrs("e/g")
	}},
	{name: "access", setup: files("f=1", "d/"), run: func(w *world) {
		for _, mode := range []uint32{unix.F_OK, unix.R_OK, unix.W_OK, unix.X_OK} {
			w.did(fmt.Sprintf("access f %d", mode), unix.Access(w.at("f"), mode))
			w.did(fmt.Sprintf("access d %d", mode), unix.Access(w.at("d"), mode))
		}
		w.did("missing", unix.Access(w.at("x"), unix.F_OK))
	}},
	{name: "chown-drops-setuid", setup: func(dir string) {
		setidNodes(dir)
	}, run: func(w *world) {
		must(os.Mkdir(w.at("new"), 0o755))
		setidNodes(w.at("new"))
		for _, path := range []string{"file", "fifo", "sock", "dir", "new/file", "new/fifo", "new/sock", "new/dir"} {
			w.stat(path)
			w.did("chown nothing of "+path, os.Lchown(w.at(path), -1, -1))
			w.stat(path)
			w.did("chown "+path, os.Lchown(w.at(path), -1, os.Getegid()))
			w.stat(path)
		}
	}},
	{name: "device-nodes-are-refused", run: func(w *world) {
		w.did("mknod char", unix.Mknod(w.at("c"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
		w.did("mknod file", unix.Mknod(w.at("f"), unix.S_IFREG|0o600, 0))
		w.stat("f")
	}},
	{name: "sticky-directory", setup: func(dir string) {
		must(os.Mkdir(filepath.Join(dir, "d"), 0o755))
		must(os.Chmod(filepath.Join(dir, "d"), 0o777|os.ModeSticky))
		must(os.WriteFile(filepath.Join(dir, "d/mine"), nil, 0o644))
	}, run: func(w *world) {
		w.stat("d")
		w.unlink("d/mine")
		w.write("d/new", "")
		w.rename("d/new", "d/newer", 0)
		w.ls("d")
	}},
}

// setidNodes makes one node of each kind with setuid and setgid.
func setidNodes(dir string) {
	at := func(name string) string { return filepath.Join(dir, name) }
	must(os.WriteFile(at("file"), nil, 0o644))
	must(unix.Mkfifo(at("fifo"), 0o644))
	must(unix.Mknod(at("sock"), unix.S_IFSOCK|0o644, 0))
	must(os.Mkdir(at("dir"), 0o755))
	for _, name := range []string{"file", "fifo", "sock", "dir"} {
		must(unix.Chmod(at(name), 0o6755))
	}
}

func (w *world) mtimeOf(path string) time.Time {
	info, err := os.Lstat(w.at(path))
	if err != nil {
		w.did("stat "+path, err)
		return time.Time{}
	}
	return info.ModTime()
}

func (w *world) mtime(path string) { w.note("mtime %s: %s", path, w.mtimeOf(path).UTC()) }

// xattrs notes the extended attributes of path that are the user's own.
func (w *world) xattrs(path string) {
	buf := make([]byte, 4096)
	n, err := unix.Llistxattr(w.at(path), buf)
	names := strings.Split(strings.TrimSuffix(string(buf[:max(n, 0)]), "\x00"), "\x00")
	slices.Sort(names)
	w.note("list %s: %q %s", path, names, errName(err))
	for _, name := range names {
		v := make([]byte, 256)
		n, err := unix.Lgetxattr(w.at(path), name, v)
		w.note("%s of %s: %q %s", name, path, v[:max(n, 0)], errName(err))
	}
}

var cases = slices.Concat(contentCases, nameCases, attrCases, againCases)
