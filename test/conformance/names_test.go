package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// nameCases are about which names show what.
var nameCases = []testCase{
	{name: "unlink-and-recreate", setup: files("f=lower"), run: func(w *world) {
		w.unlink("f")
		w.stat("f")
		w.ls(".")
		w.write("f", "upper")
		w.cat("f")
		w.unlink("f")
		w.stat("f")
		w.ls(".")
	}},
	{name: "rename-noreplace-over-whiteout", setup: files("f=lower", "g=other"), run: func(w *world) {
		w.rename("g", "f", unix.RENAME_NOREPLACE)
		w.unlink("f")
		w.rename("g", "f", unix.RENAME_NOREPLACE)
		w.cat("f")
		w.ls(".")
	}},
	{name: "exchange-lower-and-upper", setup: files("f=lower", "d/x=in d"), run: func(w *world) {
		w.write("u", "upper")
		w.rename("f", "u", unix.RENAME_EXCHANGE)
		w.cat("f")
		w.cat("u")
		w.rename("d", "u", unix.RENAME_EXCHANGE)
		w.cat("u/x")
		w.cat("d")
		w.unlink("f")
		w.rename("u", "f", unix.RENAME_EXCHANGE)
		w.ls(".")
	}},
	{name: "exchange-two-lower-directories", setup: files("a/x=ax", "a/s/t=ast", "b/y=by"), run: func(w *world) {
		w.rename("a", "b", unix.RENAME_EXCHANGE)
		w.cat("b/x")
		w.cat("b/s/t")
		w.cat("a/y")
		w.write("a/new", "1")
		w.write("b/s/t", "changed")
		w.rename("a", "b", unix.RENAME_EXCHANGE)
		w.cat("a/s/t")
		w.ls("b")
	}},
	{name: "removed-and-recreated-directory", setup: files("d/old=1", "d/sub/older=2"), run: func(w *world) {
		w.did("rm -r", os.RemoveAll(w.at("d")))
		w.stat("d")
		w.mkdir("d")
		w.ls("d")
		w.mkdir("d/sub")
		w.ls("d/sub")
		w.stat("d/old")
		w.write("d/sub/new", "3")
		w.ls("d/sub")
	}},
	{name: "rename-directory", setup: files("d/a=1", "d/b=2", "d/sub/c=3", "e/"), run: func(w *world) {
		w.unlink("d/b")
		w.rename("d", "moved", 0)
		w.stat("d")
		w.ls("moved")
		w.cat("moved/sub/c")
		w.mkdir("d")
		w.ls("d")
		w.write("moved/a", "changed")
		w.unlink("moved/sub/c")
		w.rename("moved/sub", "e/sub", 0)
		w.ls("e/sub")
		w.rename("moved", "e/sub/deep", 0)
		w.cat("e/sub/deep/a")
		w.rename("e", "e/sub/deep/loop", 0)
		w.ls(".")
	}},
	{name: "rename-directory-over-directory", setup: files("a/x=1", "empty/", "full/y=2"), run: func(w *world) {
		w.rename("a", "full", 0)
		w.rename("a", "empty", 0)
		w.ls("empty")
		w.unlink("full/y")
		w.rename("empty", "full", 0)
		w.ls("full")
		w.stat("full/y")
		w.ls(".")
	}},
	{name: "rename-file-over-kinds", setup: files("f=1", "g=2", "d/"), run: func(w *world) {
		w.rename("f", "d", 0)
		w.rename("d", "f", 0)
		w.rename("f", "g", 0)
		w.cat("g")
		w.stat("f")
		w.rename("missing", "g", 0)
		w.rename("g", "nowhere/g", 0)
		w.rename("g", "g", 0)
		w.cat("g")
	}},
	{name: "rename-into-new-directory", setup: files("low/a=1", "low/b=2"), run: func(w *world) {
		w.mkdir("new")
		w.rename("low", "new/low", 0)
		w.ls("new/low")
		w.rename("new/low/a", "a", 0)
		w.rename("new", "newer", 0)
		w.ls("newer/low")
		w.rename("newer/low", "low", 0)
		w.ls("low")
		w.stat("low/a")
	}},
	{name: "new-directory-into-lower-one", setup: files("low/sub/hidden=1", "low/keep=2"), run: func(w *world) {
		w.mkdir("fresh")
		w.mkdir("fresh/sub")
		w.write("fresh/sub/f", "new")
		w.did("rm -r", os.RemoveAll(w.at("low/sub")))
		w.rename("fresh/sub", "low/sub", 0)
		w.ls("low/sub")
		w.cat("low/sub/f")
	}},
	{name: "rmdir", setup: files("empty/", "full/x=1"), run: func(w *world) {
		w.rmdir("full")
		w.rmdir("empty")
		w.unlink("full/x")
		w.rmdir("full")
		w.rmdir("full")
		w.ls(".")
		w.unlink("missing")
		w.mkdir("empty")
		w.unlink("empty")
		w.mkdir("empty")
	}},
	{name: "removed-directory-in-use", setup: files("d/x=1"), run: func(w *world) {
		fd := w.fd("d", unix.O_RDONLY|unix.O_DIRECTORY)
		w.did("rm -r", os.RemoveAll(w.at("d")))
		_, err := unix.Openat(fd, "new", unix.O_CREAT|unix.O_WRONLY, 0o644)
		w.did("create in removed", err)
		_, err = unix.Openat(fd, "x", unix.O_RDONLY, 0)
		w.did("open in removed", err)
		w.fstat("removed", fd)
		w.mkdir("d")
		w.ls("d")
	}},
	{name: "names-of-all-kinds", setup: func(dir string) {
		for _, n := range oddNames {
			must(os.WriteFile(filepath.Join(dir, n), []byte("lower "+n), 0o644))
		}
	}, run: func(w *world) {
		w.ls(".")
		for i, n := range oddNames {
			w.cat(n)
			w.write(n, "upper")
			w.rename(n, fmt.Sprintf("plain%d", i), 0)
			w.rename(fmt.Sprintf("plain%d", i), n+"2", 0)
			w.write(n, "again")
		}
		w.stat(strings.Repeat("x", 256))
		w.write(strings.Repeat("x", 256), "")
		w.ls(".")
	}},
	{name: "hard-links-of-lower", setup: linked, run: func(w *world) {
		w.note("same inode: %v", w.ino("a") == w.ino("b"))
		w.stat("a")
		w.write("a", "changed through a")
		w.cat("b")
		w.cat("d/c")
		w.stat("b")
		w.note("same inode: %v", w.ino("a") == w.ino("d/c"))
		w.unlink("a")
		w.cat("b")
		w.stat("b")
		w.rename("b", "b2", 0)
		w.write("b2", "changed through b2")
		w.cat("d/c")
		w.unlink("b2")
		w.cat("d/c")
		w.stat("d/c")
	}},
	{name: "hard-link-of-lower-unseen-names", setup: linked, run: func(w *world) {
		w.write("a", "changed")
		w.unlink("a")
		w.cat("d/c")
		w.cat("b")
		w.stat("b")
		w.link("b", "e")
		w.chmod("e", 0o600)
		w.stat("d/c")
	}},
	{name: "hard-link-in-moved-directory", setup: linked, run: func(w *world) {
		w.rename("d", "moved", 0)
		w.unlink("b")
		w.write("a", "changed")
		w.unlink("a")
		w.cat("moved/c")
		w.stat("moved/c")
	}},
	{name: "hard-link-replaced-but-open", setup: linked, run: func(w *world) {
		w.fd("d/c", unix.O_RDWR)
		w.write("new", "in the place of c")
		w.rename("new", "d/c", 0)
		w.note("listed: %s", list(w.dir, ""))
		w.stat("a")
	}},
	{name: "new-hard-links", setup: files("f=lower", "d/"), run: func(w *world) {
		w.link("f", "d/g")
		w.stat("f")
		w.note("same inode: %v", w.ino("f") == w.ino("d/g"))
		w.write("d/g", "through g")
		w.cat("f")
		w.unlink("f")
		w.cat("d/g")
		w.stat("d/g")
		w.link("d/g", "d/g")
		w.link("d", "dirlink")
		w.link("missing", "x")
	}},
	{name: "symlinks", setup: func(dir string) {
		must(os.Symlink("target/../x", filepath.Join(dir, "l")))
		must(os.Symlink("/etc/hostname", filepath.Join(dir, "out")))
		must(os.WriteFile(filepath.Join(dir, "x"), []byte("x"), 0o644))
	}, run: func(w *world) {
		for _, l := range []string{"l", "out", "new"} {
			if l == "new" {
				w.did("symlink", unix.Symlink("x", w.at("new")))
			}
			target, err := os.Readlink(w.at(l))
			w.note("readlink %s: %q %s", l, target, errName(err))
			w.stat(l)
		}
		w.cat("new")
		w.rename("l", "l2", 0)
		w.link("l2", "l3")
		w.stat("l3")
		w.did("symlink", unix.Symlink("y", w.at("x")))
		w.did("symlink", unix.Symlink(strings.Repeat("t/", 2000), w.at("long")))
		target, _ := os.Readlink(w.at("long"))
		w.note("long target: %d", len(target))
		w.did("symlink", unix.Symlink("", w.at("empty")))
	}},
	{name: "telldir-and-seekdir", setup: func(dir string) {
		for i := range 300 {
			must(os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-with-a-longer-name-%03d", i)), nil, 0o644))
		}
	}, run: telldir},
	{name: "remove-while-listing", setup: func(dir string) {
		for i := range 500 {
			must(os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%03d", i)), nil, 0o644))
		}
	}, run: removeWhileListing},
	{name: "many-new-files", run: func(w *world) {
		w.mkdir("d")
		for i := range 200 {
			if err := os.WriteFile(w.at(fmt.Sprintf("d/f%d", i)), []byte("x"), 0o644); err != nil {
				w.did("write", err)
			}
		}
		w.ls("d")
		w.did("rm -r", os.RemoveAll(w.at("d")))
		w.ls(".")
	}},
	{name: "create-exclusive", setup: files("f=1", "gone=2"), run: func(w *world) {
		w.fd("f", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
		w.unlink("gone")
		w.fd("gone", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
		w.fd("gone", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
		w.fd("f", unix.O_CREAT|unix.O_WRONLY)
		w.cat("f")
		w.mkdir("f")
		w.fd("f/x", unix.O_CREAT|unix.O_WRONLY)
	}},
	{name: "stable-inode-numbers", setup: files("f=1", "d/x=2"), run: func(w *world) {
		f, d, x := w.ino("f"), w.ino("d"), w.ino("d/x")
		w.write("f", "changed")
		w.chmod("d", 0o700)
		w.note("after copy-up: %v %v", w.ino("f") == f, w.ino("d") == d)
		w.rename("f", "g", 0)
		w.rename("d", "e", 0)
		w.note("after rename: %v %v %v", w.ino("g") == f, w.ino("e") == d, w.ino("e/x") == x)
		w.write("e/x", "changed")
		w.note("below: %v", w.ino("e/x") == x)
		list, err := os.ReadDir(w.dir)
		w.did("list", err)
		for _, e := range list {
			info, err := e.Info()
			w.did("info", err)
			w.note("%s %v", e.Name(), info.Sys() != nil)
		}
		w.note("d_ino fits: %v", dirInos(w.dir, "g", g(w, "g"), "e", g(w, "e")))
	}},
	{name: "whole-tree-removed", setup: files("a/b/c/d=1", "a/b/e=2", "a/f=3"), run: func(w *world) {
		w.did("rm -r", os.RemoveAll(w.at("a")))
		w.ls(".")
		w.did("mkdir -p", os.MkdirAll(w.at("a/b/c"), 0o755))
		w.ls("a/b")
	}},
}

func g(w *world, path string) uint64 { return w.ino(path) }

// dirInos reports whether d_ino of the named entries is what stat says.
func dirInos(dir string, a string, inoA uint64, b string, inoB uint64) bool {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	want := map[string]uint64{a: inoA, b: inoB}
	buf := make([]byte, 1<<16)
	found := 0
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n == 0 {
			return found == len(want)
		}
		for _, e := range parseDirents(buf[:n]) {
			if ino, ok := want[e.name]; ok && ino == e.ino {
				found++
			}
		}
	}
}

var oddNames = []string{
	"\xff\xfe not UTF-8", "new\nline", " ", "-rf", "*", ".wh.x", ".wh..wh..opq", ".stage-x", "ü", "#", "user.stage",
	strings.Repeat("n", 254),
}

func linked(dir string) {
	must(os.WriteFile(filepath.Join(dir, "a"), []byte("shared"), 0o644))
	must(os.Mkdir(filepath.Join(dir, "d"), 0o755))
	must(os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	must(os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "d", "c")))
}

type dirent struct {
	name string
	ino  uint64
	off  int64
	typ  uint8
}

// telldir reads a directory in pieces and goes back to offsets it was given.
func telldir(w *world) {
	fd := w.fd(".", unix.O_RDONLY|unix.O_DIRECTORY)
	buf := make([]byte, 1500)
	var all []dirent
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n == 0 {
			w.did("end", err)
			break
		}
		all = append(all, parseDirents(buf[:n])...)
	}
	w.note("entries: %d", len(all))
	for _, i := range []int{0, 10, 150, 299} {
		_, err := unix.Seek(fd, all[i].off, 0)
		w.did("seekdir", err)
		n, err := unix.ReadDirent(fd, buf)
		w.did("read", err)
		got := parseDirents(buf[:n])
		w.note("after %d comes %d: %v", i, i+1, len(got) > 0 && got[0].name == all[i+1].name)
	}
	// Entries that stay are neither lost nor repeated when others come and go.
	_, err := unix.Seek(fd, all[100].off, 0)
	w.did("seekdir", err)
	removed := map[string]bool{}
	for _, e := range all[:50] {
		if e.name != "." && e.name != ".." {
			removed[e.name] = true
			w.did("unlink", unix.Unlink(w.at(e.name)))
		}
	}
	w.write("added", "")
	seen := map[string]int{}
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n == 0 {
			break
		}
		for _, e := range parseDirents(buf[:n]) {
			seen[e.name]++
		}
	}
	ok := true
	for _, e := range all[101:] {
		ok = ok && seen[e.name] == 1
	}
	w.note("all that stayed seen once: %v", ok)
	// Make both trees alike: directories list in their own order.
	for _, e := range all {
		if e.name != "." && e.name != ".." && !removed[e.name] {
			must(unix.Unlink(w.at(e.name)))
		}
	}
}

func removeWhileListing(w *world) {
	fd := w.fd(".", unix.O_RDONLY|unix.O_DIRECTORY)
	buf := make([]byte, 1000)
	count := 0
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n == 0 {
			w.did("end", err)
			break
		}
		for _, e := range parseDirents(buf[:n]) {
			if e.name == "." || e.name == ".." {
				continue
			}
			count++
			if err := unix.Unlink(w.at(e.name)); err != nil {
				w.did("unlink "+e.name, err)
			}
		}
	}
	w.note("removed %d", count)
	w.ls(".")
}

func parseDirents(buf []byte) []dirent {
	var out []dirent
	for len(buf) > 0 {
		size := int(buf[16]) | int(buf[17])<<8
		name, _, _ := strings.Cut(string(buf[19:size]), "\x00")
		out = append(out, dirent{name, le64(buf), int64(le64(buf[8:])), buf[18]})
		buf = buf[size:]
	}
	return out
}

func le64(b []byte) (v uint64) {
	for _, c := range slices.Backward(b[:8]) {
		v = v<<8 | uint64(c)
	}
	return v
}
