package conformance

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// step is one operation of a script, as random tests make them and as TestReplay reads them: one line
// of JSON each.
type step struct {
	Op    string `json:"op"`
	P     string `json:"p,omitempty"` // path
	Q     string `json:"q,omitempty"` // second path, link target or attribute
	FD    int    `json:"fd,omitempty"`
	FD2   int    `json:"fd2,omitempty"`
	Off   int64  `json:"off,omitempty"`
	Off2  int64  `json:"off2,omitempty"`
	Len   int    `json:"len,omitempty"`
	Flags int    `json:"flags,omitempty"` // or mode, or whence
	Fill  byte   `json:"fill,omitempty"`
}

func (st step) String() string {
	b, err := json.Marshal(st)
	must(err)
	return string(b)
}

// Steps that say something of the script.
const (
	begin  = "begin"  // first: P is the kind of the script, Len the number of its tree
	reopen = "reopen" // the overlay is closed and opened again
)

// script is what a history holds.
type script struct {
	kind  string
	tree  int
	parts [][]step // cut where the overlay was reopened
}

func readScript(path string) (*script, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sc := &script{parts: [][]step{nil}}
	for in := json.NewDecoder(bufio.NewReader(f)); ; {
		var st step
		switch err := in.Decode(&st); {
		case err == io.EOF:
			return sc, nil
		case err != nil:
			return nil, fmt.Errorf("read script: %w", err)
		}
		switch last := len(sc.parts) - 1; st.Op {
		case begin:
			sc.kind, sc.tree = st.P, st.Len
		case reopen:
			sc.parts = append(sc.parts, nil)
		default:
			sc.parts[last] = append(sc.parts[last], st)
		}
	}
}

// data is what a step writes: every byte tells where it belongs.
func (st step) data() []byte {
	b := make([]byte, st.Len)
	for i := range b {
		b[i] = st.Fill + byte(i) + byte(i>>8)*13
	}
	return b
}

// side is one of the two directories that a script is done in, with what is open there.
type side struct {
	top    string          // of all trees
	dir    string          // the one of the script
	shared map[string]int  // directories reached by descriptor, whatever they are called by now
	files  map[int]int     // open files by slot
	maps   map[int]mapping // by slot
}

func newSide(top, tree string) *side {
	return &side{
		top: top, dir: filepath.Join(top, tree),
		shared: map[string]int{}, files: map[int]int{}, maps: map[int]mapping{},
	}
}

func (s *side) close() {
	for slot, m := range s.maps {
		mapSteps["unmap"](s, step{FD2: slot}, m)
	}
	for _, fd := range s.files {
		unix.Close(fd)
	}
	if os.Getenv(workerEnv) != "" {
		return // they are for all trees
	}
	for _, fd := range s.shared {
		unix.Close(fd)
	}
}

// at returns where path is.
func (s *side) at(path string) string {
	top, rest, _ := strings.Cut(path, "/")
	if fd, ok := s.shared[top]; ok {
		return fmt.Sprintf("/proc/self/fd/%d/%s", fd, rest)
	}
	return s.dir + "/" + path
}

// do does a step and returns what it saw.
func (s *side) do(st step) string {
	if do, ok := pathSteps[st.Op]; ok {
		return do(s, st)
	}
	if do, ok := mapSteps[st.Op]; ok {
		m, ok := s.maps[st.FD2]
		if !ok {
			return "nothing mapped"
		}
		return do(s, st, m)
	}
	do, ok := fileSteps[st.Op]
	if !ok {
		panic("unknown step " + st.String())
	}
	fd, ok := s.files[st.FD]
	if !ok {
		return "nothing open"
	}
	return do(s, st, fd)
}

// pathSteps are the steps that name files.
var pathSteps = map[string]func(*side, step) string{
	"write":  func(s *side, st step) string { return errName(writeNonblock(s.at(st.P), st.data(), unix.O_TRUNC)) },
	"append": func(s *side, st step) string { return errName(writeNonblock(s.at(st.P), st.data(), unix.O_APPEND)) },
	"read":   func(s *side, st step) string { return readNonblock(s.at(st.P)) },
	"stat":   func(s *side, st step) string { return lstat(s.at(st.P)) },
	"mkdir":  func(s *side, st step) string { return errName(unix.Mkdir(s.at(st.P), uint32(st.Flags))) },
	"unlink": func(s *side, st step) string { return errName(unix.Unlink(s.at(st.P))) },
	"rmdir":  func(s *side, st step) string { return errName(unix.Rmdir(s.at(st.P))) },
	"rm-r":   func(s *side, st step) string { return removeTree(s.at(st.P)) },
	"rename": func(s *side, st step) string {
		return errName(unix.Renameat2(unix.AT_FDCWD, s.at(st.P), unix.AT_FDCWD, s.at(st.Q), uint(st.Flags)))
	},
	"link":    func(s *side, st step) string { return errName(unix.Link(s.at(st.P), s.at(st.Q))) },
	"symlink": func(s *side, st step) string { return errName(unix.Symlink(st.Q, s.at(st.P))) },
	"chmod": func(s *side, st step) string {
		return errName(unix.Fchmodat(unix.AT_FDCWD, s.at(st.P), uint32(st.Flags), 0))
	},
	"chown": func(s *side, st step) string {
		return errName(unix.Lchown(s.at(st.P), os.Getuid(), os.Getgid())) + " " + lstat(s.at(st.P))
	},
	"truncate":    func(s *side, st step) string { return errName(unix.Truncate(s.at(st.P), st.Off)) },
	"utimes":      utimesStep,
	"setxattr":    func(s *side, st step) string { return errName(unix.Lsetxattr(s.at(st.P), st.Q, st.data(), st.Flags)) },
	"removexattr": func(s *side, st step) string { return errName(unix.Lremovexattr(s.at(st.P), st.Q)) },
	"xattrs":      func(s *side, st step) string { return listXattrs(s.at(st.P)) },
	"ls":          func(s *side, st step) string { return list(s.at(st.P), st.Q) },
	"mkfifo":      func(s *side, st step) string { return errName(unix.Mkfifo(s.at(st.P), uint32(st.Flags))) },
	"mksock": func(s *side, st step) string {
		return errName(unix.Mknod(s.at(st.P), unix.S_IFSOCK|uint32(st.Flags), 0))
	},
	"log": func(s *side, st step) string {
		return errName(writeNonblock(s.top+"/"+sharedLog, []byte(st.P+"\n"), unix.O_APPEND))
	},
	"rename-shared": func(s *side, st step) string {
		return errName(unix.Rename(s.top+"/shared/"+st.P, s.top+"/shared/"+st.Q))
	},
	"access":      func(s *side, st step) string { return errName(unix.Access(s.at(st.P), uint32(st.Flags))) },
	"tmpfile":     tmpfileStep,
	"direct-read": func(s *side, st step) string { return s.direct(st, unix.O_RDONLY, unix.Pread) },
	"direct-write": func(s *side, st step) string {
		return s.direct(st, unix.O_WRONLY, func(fd int, b []byte, off int64) (int, error) {
			copy(b, st.data())
			return unix.Pwrite(fd, b, off)
		})
	},
	"open": openStep,
}

// fileSteps are the steps on what is open.
var fileSteps = map[string]func(s *side, st step, fd int) string{
	"close": func(s *side, st step, fd int) string {
		delete(s.files, st.FD)
		return errName(unix.Close(fd))
	},
	"fstat": func(_ *side, _ step, fd int) string {
		var st unix.Stat_t
		err := unix.Fstat(fd, &st)
		return full(&st) + errName(err)
	},
	"pread": func(_ *side, st step, fd int) string {
		b := make([]byte, st.Len)
		n, err := unix.Pread(fd, b, st.Off)
		return brief(b[:max(n, 0)]) + errName(err)
	},
	"pwrite": func(_ *side, st step, fd int) string {
		n, err := unix.Pwrite(fd, st.data(), st.Off)
		return fmt.Sprint(n, errName(err))
	},
	"fwrite": func(_ *side, st step, fd int) string { // at the descriptor's own place
		n, err := unix.Write(fd, st.data())
		at, errSeek := unix.Seek(fd, 0, io.SeekCurrent)
		return fmt.Sprint(n, errName(err), at, errName(errSeek))
	},
	"fread": func(_ *side, st step, fd int) string {
		b := make([]byte, st.Len)
		n, err := unix.Read(fd, b)
		return brief(b[:max(n, 0)]) + errName(err)
	},
	"seek": func(_ *side, st step, fd int) string {
		var is unix.Stat_t
		if err := unix.Fstat(fd, &is); err != nil || is.Mode&unix.S_IFMT != unix.S_IFREG {
			return "no file " + errName(err) // what offsets of directories mean is their file system's affair
		}
		at, err := unix.Seek(fd, st.Off, st.Flags)
		return fmt.Sprint(at, errName(err))
	},
	"ftruncate": func(_ *side, st step, fd int) string { return errName(unix.Ftruncate(fd, st.Off)) },
	"fchmod":    func(_ *side, st step, fd int) string { return errName(unix.Fchmod(fd, uint32(st.Flags))) },
	"fallocate": func(_ *side, st step, fd int) string {
		return errName(unix.Fallocate(fd, uint32(st.Flags), st.Off, int64(st.Len)))
	},
	"fsync":     func(_ *side, _ step, fd int) string { return errName(unix.Fsync(fd)) },
	"fdatasync": func(_ *side, _ step, fd int) string { return errName(unix.Fdatasync(fd)) },
	"copy-file-range": func(s *side, st step, fd int) string {
		to, ok := s.files[st.FD2]
		if !ok {
			return "nothing open"
		}
		from, at := st.Off, st.Off2
		n, err := unix.CopyFileRange(fd, &from, to, &at, st.Len, 0)
		return fmt.Sprint(n, errName(err), from-st.Off, at-st.Off2)
	},
	"map": mapStep,
}

// utimesStep sets times that are long past, which is how compareTrees knows them.
func utimesStep(s *side, st step) string {
	times := []unix.Timespec{{Sec: st.Off, Nsec: int64(st.Fill)}, {Sec: st.Off / 2, Nsec: st.Off % 1e9}}
	if st.Flags&1 != 0 {
		times[0].Nsec = unix.UTIME_OMIT
	}
	if st.Flags&2 != 0 {
		times[1].Nsec = unix.UTIME_OMIT
	}
	if st.Flags&4 != 0 {
		times[1].Nsec = unix.UTIME_NOW
	}
	err := unix.UtimesNanoAt(unix.AT_FDCWD, s.at(st.P), times, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Flags&1 != 0 {
		return errName(err)
	}
	var is unix.Stat_t
	err = unix.Lstat(s.at(st.P), &is)
	return fmt.Sprint("atime ", is.Atim, errName(err))
}

func tmpfileStep(s *side, st step) string {
	fd, err := unix.Open(s.at(st.P), unix.O_TMPFILE|unix.O_RDWR, uint32(st.Flags))
	if err != nil {
		return errName(err)
	}
	defer unix.Close(fd)
	n, err := unix.Write(fd, st.data())
	errLink := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, s.at(st.Q), unix.AT_SYMLINK_FOLLOW)
	return fmt.Sprint(n, errName(err), errName(errLink))
}

func openStep(s *side, st step) string {
	if _, used := s.files[st.FD]; used {
		return "slot in use"
	}
	fd, err := unix.Open(s.at(st.P), st.Flags|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return errName(err)
	}
	s.files[st.FD] = fd
	return "ok"
}

// direct moves data as O_DIRECT wants it: whole pages. FUSE wants less than that, so that no other
// ranges can be compared.
func (s *side) direct(st step, flags int, move func(int, []byte, int64) (int, error)) string {
	fd, err := unix.Open(s.at(st.P), flags|unix.O_DIRECT|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return errName(err)
	}
	defer unix.Close(fd)
	b, err := unix.Mmap(-1, 0, st.Len, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(err)
	defer unix.Munmap(b)
	n, err := move(fd, b, st.Off)
	return brief(b[:max(n, 0)]) + errName(err)
}

// mapping is a shared mapping, and a descriptor that knows how long its file is by now.
type mapping struct {
	mem      []byte
	fd       int
	writable bool
}

// mapStep maps a whole file; what grows later is not in the map.
func mapStep(s *side, st step, fd int) string {
	if _, used := s.maps[st.FD2]; used {
		return "slot in use"
	}
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return errName(err)
	}
	if is.Mode&unix.S_IFMT != unix.S_IFREG {
		return "no file"
	}
	mem, err := unix.Mmap(fd, 0, int(is.Size), st.Flags, unix.MAP_SHARED)
	if err != nil {
		return errName(err)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	must(err)
	s.maps[st.FD2] = mapping{mem, own, st.Flags&unix.PROT_WRITE != 0}
	return fmt.Sprint("mapped ", len(mem))
}

// window returns the part of a map that a step is about, as far as its file still reaches: beyond,
// there is SIGBUS.
func (m mapping) window(st step) []byte {
	var is unix.Stat_t
	if err := unix.Fstat(m.fd, &is); err != nil {
		return nil
	}
	end := min(int64(len(m.mem)), is.Size)
	from := min(st.Off, end)
	return m.mem[from:min(from+int64(st.Len), end)]
}

// mapSteps are the steps on what is mapped.
var mapSteps = map[string]func(s *side, st step, m mapping) string{
	"load": func(_ *side, st step, m mapping) string { return brief(m.window(st)) },
	"store": func(_ *side, st step, m mapping) string {
		w := m.window(st)
		if !m.writable || len(w) == 0 {
			return "nothing to write"
		}
		copy(w, st.data())
		if st.Flags == unix.MS_SYNC {
			return fmt.Sprint(len(w), errName(unix.Msync(m.mem, st.Flags)))
		}
		// FUSE sets the mtime when the page is written back, ext4 when it is first written to; both may.
		now := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}
		err := unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", m.fd), now, 0)
		if st.Flags != 0 {
			err = errors.Join(err, unix.Msync(m.mem, st.Flags))
		}
		return fmt.Sprint(len(w), errName(err))
	},
	"unmap": func(s *side, st step, m mapping) string {
		delete(s.maps, st.FD2)
		return errName(errors.Join(unix.Munmap(m.mem), unix.Close(m.fd)))
	},
}

// writeNonblock is a write that cannot wait for a FIFO's reader.
func writeNonblock(path string, data []byte, flags int) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK|unix.O_NOFOLLOW|flags, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, data)
	return err
}

func readNonblock(path string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return errName(err)
	}
	defer unix.Close(fd)
	b := make([]byte, 400000)
	n, err := unix.Read(fd, b)
	return brief(b[:max(n, 0)]) + errName(err)
}

// brief tells contents apart in a line.
func brief(b []byte) string { return fmt.Sprintf("%d bytes %.6x ", len(b), sha256.Sum256(b)) }

// removeTree removes what is at path. os.RemoveAll would wait in a path that leads through a FIFO.
func removeTree(path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return errName(err)
	}
	return errName(os.RemoveAll(path))
}

func lstat(path string) string {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return full(&st) + errName(err)
}

// full is describe with owner and mtime; a recent mtime depends on when each side was at work.
func full(st *unix.Stat_t) string {
	mtime := "now"
	if st.Mtim.Sec < recent && st.Mode&unix.S_IFMT != unix.S_IFIFO {
		mtime = fmt.Sprint(st.Mtim)
	}
	return fmt.Sprintf("%s %d:%d %s ", describe(st), st.Uid, st.Gid, mtime)
}

// recent is the first second that counts as now: what tests set explicitly lies before.
const recent = 1500000000

func listXattrs(path string) string {
	buf := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, buf)
	if err != nil {
		return errName(err)
	}
	names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	var out []string
	for _, name := range names {
		n, err := unix.Lgetxattr(path, name, buf)
		out = append(out, fmt.Sprintf("%s=%.6x %s", name, sha256.Sum256(buf[:max(n, 0)]), errName(err)))
	}
	return strings.Join(out, ", ")
}

// list returns the names in a directory that begin with prefix, and whether kinds and inode numbers
// are what stat says.
func list(path, prefix string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return errName(err)
	}
	defer unix.Close(fd)
	entries, err := readDirents(fd)
	out := []string{errName(err)}
	for _, e := range entries {
		var st unix.Stat_t
		if e.name == "." || e.name == ".." || !strings.HasPrefix(e.name, prefix) {
			continue
		}
		err := unix.Fstatat(fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW)
		fits := st.Ino == e.ino && (e.typ == unix.DT_UNKNOWN || uint32(e.typ)<<12 == st.Mode&unix.S_IFMT)
		out = append(out, fmt.Sprintf("%q %v %s", e.name, fits, errName(err)))
	}
	slices.Sort(out[1:])
	return strings.Join(out, ", ")
}

func readDirents(fd int) ([]dirent, error) {
	var all []dirent
	buf := make([]byte, 1<<15)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return all, err
		}
		all = append(all, parseDirents(buf[:n])...)
	}
}

// history keeps the steps of one tree on disk, for TestReplay.
type history struct {
	file *os.File
	last []string // with results
}

// openHistory goes on with the history of the i-th tree of kind k.
func openHistory(dir string, k kind, i int) (*history, error) {
	path := filepath.Join(dir, "scripts", k.tree(i))
	_, errBefore := os.Lstat(path)
	errDir := os.MkdirAll(filepath.Dir(path), 0o755)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err := errors.Join(errDir, err); err != nil {
		return nil, err
	}
	h := &history{file: f}
	if errBefore == nil {
		return h, h.write(step{Op: reopen})
	}
	return h, h.write(step{Op: begin, P: k.name, Len: i})
}

func (h *history) write(st step) error {
	_, err := fmt.Fprintln(h.file, st)
	return err
}

// add notes a step before it is done, in case it is the last.
func (h *history) add(st step) {
	must(h.write(st))
	h.last = append(h.last, st.String())
}

func (h *history) result(s string) { h.last[len(h.last)-1] += " → " + s }

// tail returns the last n steps.
func (h *history) tail(n int) string { return strings.Join(h.last[max(0, len(h.last)-n):], "\n") }
