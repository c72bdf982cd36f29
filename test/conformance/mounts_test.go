package conformance

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mountCases are about what is mounted in the workspace: a tmpfs on m, another on d/m2, and d/f on over.
var mountCases = []testCase{
	{name: "mounts-show", setup: fillMounts, run: func(w *world) {
		for _, d := range []string{".", "m", "m/sub", "d", "d/m2"} {
			w.ls(d)
		}
		w.cat("m/a")
		w.cat("d/m2/b")
		w.cat("over")
		w.distinct(".", "m", "m/a", "m/sub", "m/sub/x", "d", "d/m2", "d/m2/b", "d/f", "plain/p")
	}},
	{name: "mounts-copied-up", setup: fillMounts, run: func(w *world) {
		paths := []string{"m", "m/a", "m/sub", "d/m2", "d/m2/b", "m/link1"}
		before := w.inos(paths)
		w.write("m/a", "changed")
		w.write("d/m2/b", "changed")
		w.chmod("m/sub", 0o700)
		w.write("m/link1", "both")
		w.cat("m/link2")
		w.write("m/new", "new")
		w.mkdir("d/m2/made")
		w.did("xattr", unix.Setxattr(w.at("m/a"), "user.x", []byte("1"), 0))
		w.note("the same inodes: %v", before == w.inos(paths))
		w.distinct("m", "m/a", "m/new", "d/m2", "d/m2/b", "d/m2/made", "plain/p")
		w.ls("m")
		w.unlink("m/link1")
		w.stat("m/link2")
	}},
	{name: "mounts-renamed-across", setup: fillMounts, run: func(w *world) {
		w.rename("m/a", "a", 0)
		w.rename("m/a", "d/m2/a", 0)
		w.rename("plain/p", "m/a", 0)
		w.rename("plain", "m/plain", 0)
		w.rename("m/sub", "sub", 0)
		w.rename("m/a", "plain/p", unix.RENAME_EXCHANGE)
		w.link("m/a", "linked")
		w.link("plain/p", "m/linked")
		w.mkdir("made")
		w.write("made/f", "1")
		w.rename("made", "m/made", 0)
		w.mkdir("m/made")
		w.rename("m/made", "moved", 0)
		w.rename("m/a", "m/made/a", 0)
		w.rename("m/sub", "m/made/sub", 0)
		w.rename("m/made/sub/x", "m/x", 0)
		w.link("m/made/a", "m/linked")
		w.ls("m")
		w.ls("m/made/sub")
		w.did("rm -r", os.RemoveAll(w.at("m/made")))
		w.mkdir("m/made")
		w.rename("made/f", "m/made/f", 0)
		w.rename("m/x", "m/made/x", 0)
		w.ls("m")
	}},
	{name: "mount-points-stay", setup: fillMounts, run: func(w *world) {
		w.rmdir("m")
		w.unlink("m")
		w.rename("m", "n", 0)
		w.rename("d/m2", "d/n", 0)
		w.rename("plain", "d/m2", 0)
		w.rename("plain", "m", unix.RENAME_EXCHANGE)
		w.unlink("over")
		w.rename("over", "under", 0)
		w.rename("plain/p", "over", 0)
		for _, name := range []string{"a", "sub/x", "sub", "link1", "link2"} {
			w.did("remove", os.Remove(w.at("m/"+name)))
		}
		w.rmdir("m")
		w.ls("m")
		w.unlink("d/m2/b")
		w.rmdir("d/m2")
		w.rmdir("d")
		w.ls("d")
	}},
	{name: "mount-moves-with-its-parent", setup: fillMounts, run: func(w *world) {
		w.rename("d", "e", 0)
		w.ls("e")
		w.cat("e/m2/b")
		w.write("e/m2/b", "changed")
		w.rename("e/m2", "e/n", 0)
		w.rename("e/m2/b", "e/b", 0)
		w.rename("e/m2/b", "e/m2/c", 0)
		w.mkdir("d")
		w.rename("e/m2/c", "d/c", 0)
		w.ls("e/m2")
		w.rename("d", "plain/d", 0)
		w.rename("e", "plain/e", 0)
		w.cat("plain/e/m2/c")
		w.rmdir("plain/e/m2")
	}},
}

// fillMounts fills what is mounted in dir, and a directory beside.
func fillMounts(dir string) {
	files("m/a=a of m", "m/sub/x=x of sub", "d/m2/b=b of m2", "m/link1=linked", "plain/p=p of plain")(dir)
	must(os.Link(filepath.Join(dir, "m/link1"), filepath.Join(dir, "m/link2")))
}

// inos returns the inode numbers of paths as a text.
func (w *world) inos(paths []string) string {
	text := ""
	for _, p := range paths {
		text += fmt.Sprintf("%d ", w.ino(p))
	}
	return text
}

// distinct notes whether all paths are of different inodes.
func (w *world) distinct(paths ...string) {
	seen := map[[2]uint64]string{}
	for _, p := range paths {
		var st unix.Stat_t
		if !w.did("stat "+p, unix.Lstat(w.at(p), &st)) {
			continue
		}
		key := [2]uint64{uint64(st.Dev), st.Ino}
		if other := seen[key]; other != "" {
			w.note("%s and %s are the same inode", p, other)
		}
		seen[key] = p
	}
}
