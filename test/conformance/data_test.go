package conformance

import (
	"bytes"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const maxData = 300000 // how far random files reach

// dataTree fills a tree with files of many sizes.
func dataTree(dir string) {
	for name, size := range map[string]int{"empty": 0, "one": 1, "page": 4096, "odd": 100001, "long": maxData, "ro": 5000, "suid": 9000} {
		content := bytes.Repeat([]byte("0123456789abcdef-"+name), size/16+1)[:size]
		must(os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	f, err := os.OpenFile(filepath.Join(dir, "sparse"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	must(err)
	for _, at := range []int64{0, 100000, 180000} {
		_, err := f.WriteAt([]byte("data between holes"), at)
		must(err)
	}
	must(f.Truncate(250000))
	must(f.Close())
	must(os.Link(filepath.Join(dir, "odd"), filepath.Join(dir, "linked")))
	must(os.Chmod(filepath.Join(dir, "ro"), 0o444))
	must(os.Chmod(filepath.Join(dir, "suid"), 0o755|os.ModeSetuid))
	ageAll(dir)
}

var dataNames = []string{"empty", "one", "page", "odd", "long", "ro", "suid", "sparse", "linked", "new"}

func (m *model) dataPath() string { return one(m, dataNames) }

// dataStep returns a random step on content. COLLAPSE_RANGE and INSERT_RANGE are not among them:
// the kernel's FUSE refuses them itself (fuse_file_fallocate, fs/fuse/file.c).
func (m *model) dataStep() step {
	switch k := m.rand.IntN(20); {
	case len(m.plain.files) == 0 || len(m.plain.files) < 6 && k < 2:
		return step{Op: "open", P: m.dataPath(), FD: m.rand.IntN(8), Flags: one(m, openFlags)}
	case k < 5:
		return m.wholeFileStep()
	case k < 9:
		return m.mapStep()
	}
	st := m.span()
	st.FD, st.FD2 = m.slot(), m.slot()
	switch st.Op = one(m, dataOps); st.Op {
	case "direct-read", "direct-write":
		st.P, st.Off, st.Len = m.dataPath(), st.Off&^4095, max(st.Len&^4095, 4096)
	case "seek":
		if m.sloppyHoles {
			st.Op = "fread"
		}
		st.Flags = one(m, []int{unix.SEEK_DATA, unix.SEEK_HOLE, unix.SEEK_SET, unix.SEEK_END})
		if st.Flags == unix.SEEK_END {
			st.Off = -st.Off / 2
		}
	case "fallocate":
		if st.Flags = one(m, fallocateModes); !m.sloppyHoles {
			st.Flags = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
		}
	case "fchmod":
		st.Flags = one(m, []int{0o644, 0o600, 0o4755, 0o2755, 0o444})
	case "copy-file-range":
		st.Off2 = m.span().Off
	}
	return st
}

var openFlags = []int{
	unix.O_RDONLY, unix.O_RDWR, unix.O_RDWR, unix.O_RDWR, unix.O_WRONLY, unix.O_RDWR | unix.O_APPEND, unix.O_RDWR | unix.O_TRUNC,
	unix.O_RDWR | unix.O_CREAT, unix.O_RDWR | unix.O_SYNC,
}

var dataOps = []string{
	"close", "fstat", "pread", "pread", "pread", "pwrite", "pwrite", "pwrite", "fread", "fwrite", "ftruncate", "fchmod", "fallocate",
	"fallocate", "seek", "seek", "copy-file-range", "copy-file-range", "fsync", "fdatasync", "direct-read", "direct-write",
}

var fallocateModes = []int{
	0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE,
	unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE,
}

// span returns a step with a random range, often of whole pages.
func (m *model) span() step {
	st := step{Off: int64(m.rand.IntN(maxData)), Len: 1 + m.rand.IntN(20000), Fill: byte(m.rand.IntN(256))}
	if m.rand.IntN(3) == 0 {
		st.Off &^= 4095
	}
	if m.rand.IntN(3) == 0 {
		st.Len = st.Len&^4095 + 4096
	}
	if m.rand.IntN(8) == 0 {
		st.Len = 1 + m.rand.IntN(10)
	}
	return st
}

// wholeFileStep returns a step that names a file.
func (m *model) wholeFileStep() step {
	st := m.span()
	st.P, st.Q = m.dataPath(), m.dataPath()
	switch st.Op = one(m, []string{"read", "read", "stat", "write", "append", "truncate", "rename", "link", "unlink", "chmod"}); st.Op {
	case "truncate":
		st.Off = one(m, []int64{0, st.Off, st.Off})
	case "rename":
		st.Flags = one(m, []int{0, unix.RENAME_EXCHANGE})
	case "chmod":
		st.Flags = one(m, []int{0o644, 0o4755, 0o444, 0o600})
	}
	return st
}

// mapStep returns a step on a map.
func (m *model) mapStep() step {
	st := m.span()
	st.FD, st.FD2 = m.slot(), m.rand.IntN(4)
	if _, used := m.plain.maps[st.FD2]; !used {
		st.Op, st.Flags = "map", one(m, []int{unix.PROT_READ, unix.PROT_READ | unix.PROT_WRITE, unix.PROT_READ | unix.PROT_WRITE})
		return st
	}
	st.Op, st.Flags = one(m, []string{"load", "load", "store", "store", "store", "unmap"}), one(m, []int{0, 0, unix.MS_SYNC, unix.MS_ASYNC})
	if st.Op == "store" && !m.sloppyHoles {
		st.Op = "load"
	}
	return st
}

// lawTree fills one of very many trees.
func lawTree(dir string) {
	must(os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	must(os.Mkdir(filepath.Join(dir, "d"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "a/0"), []byte("content of 0"), 0o644))
	must(os.WriteFile(filepath.Join(dir, "a/b/1"), bytes.Repeat([]byte("1"), 10000), 0o444))
	must(os.Truncate(filepath.Join(dir, "a/0"), 20000))
	must(os.Link(filepath.Join(dir, "a/0"), filepath.Join(dir, "d/linked")))
	must(os.Symlink("../a/0", filepath.Join(dir, "d/s")))
	must(unix.Setxattr(filepath.Join(dir, "a/b"), "user.x", []byte("of b"), 0))
	ageAll(dir)
}

// lawStep returns a step of any kind.
func (m *model) lawStep() step {
	if m.rand.IntN(4) > 0 {
		return m.nameStep()
	}
	if len(m.plain.files) < 3 {
		return step{Op: "open", P: m.path(), FD: m.rand.IntN(8), Flags: one(m, openFlags)}
	}
	return synced(m.dataStep())
}

// synced has a store through a map written back at once: FUSE sets the mtime when it is, also after
// somebody set it explicitly.
func synced(st step) step {
	if st.Op == "store" {
		st.Flags = unix.MS_SYNC
	}
	return st
}
