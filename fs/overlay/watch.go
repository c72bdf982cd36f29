package overlay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel may keep what it is told of a lower directory for Long as long as the directory has an
// inotify watch, put on it before it was first looked into; what has none is told for Short.
//
//	host edits ──inotify──► collect (reads events) ──pending──► Notify (see notify.go) ──► kernel
//
// What inotify does not see is told for Short too: files with several names, which may be written
// through a name elsewhere, and file systems that others than this kernel write to.
const (
	// Long is how long answers hold that nothing but a notification can make wrong.
	Long = time.Hour
	// Short is how long answers hold about what is not watched.
	Short = time.Second
)

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF |
	unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

const (
	namesChanged   = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO
	contentChanged = unix.IN_MODIFY | unix.IN_CLOSE_WRITE
	placeLost      = unix.IN_IGNORED | unix.IN_UNMOUNT | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
)

const (
	// watchAgain is how long after the kernel refused a watch the next is asked for.
	watchAgain = 10 * time.Second
	// countAgain is after how many new watches those of the user's other Jobs are counted again.
	countAgain = 4096
)

// watcher holds the inotify watches. Its mu is the last in the lock order of the package.
type watcher struct {
	full atomic.Bool // no watch can be had before again

	mu    sync.Mutex
	f     *os.File           // inotify; nil: none could be had, or closed. Guarded by mu, like all below
	fd    int                // of f, which File.Fd would make blocking
	dirs  map[int32][]uint64 // watch -> numbers of the directories that show what it watches
	again time.Time
	max   int // of watches
	count int // at which the watches of others are counted again; 0 where max is fixed
}

// newWatcher returns a watcher of at most budget directories; 0 stands for a quarter of what the
// user may have, less what the user's other Jobs have; negative for none.
func newWatcher(budget int) *watcher {
	w := &watcher{dirs: map[int32][]uint64{}, max: budget}
	if budget < 0 {
		w.max = 0
	}
	if budget == 0 {
		w.count = countAgain
		w.max = quarter() - othersWatches()
	}
	if w.max > 0 {
		w.openLocked()
	}
	w.full.Store(w.f == nil)
	return w
}

// openLocked starts a new inotify instance. Without one nothing is watched.
func (w *watcher) openLocked() {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		w.f, w.max, w.count = nil, 0, 0
		w.full.Store(true)
		return
	}
	w.f, w.fd = os.NewFile(uintptr(fd), "inotify"), fd
}

// quarter is a quarter of the watches the user may have.
func quarter() int {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return n / 4
}

// othersWatches counts the watches of the other processes that run this program under this user:
// the supervisors of the user's other Jobs. No file tells how many a user has in all. A process that
// cannot be looked at is somebody else's, or gone.
func othersWatches() int {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return 0
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	n := 0
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		exe, err := os.Stat("/proc/" + p.Name() + "/exe")
		if err != nil || !os.SameFile(self, exe) {
			continue
		}
		n += watchesOf("/proc/" + p.Name() + "/fdinfo")
	}
	return n
}

// watchesOf counts the watches in the inotify descriptors of a process: one line "inotify wd:…" each
// (proc_pid_fdinfo(5)).
func watchesOf(fdinfo string) int {
	fds, err := os.ReadDir(fdinfo)
	if err != nil {
		return 0
	}
	n := 0
	for _, fd := range fds {
		text, err := os.ReadFile(fdinfo + "/" + fd.Name())
		if err == nil {
			n += bytes.Count(text, []byte("\ninotify wd:"))
		}
	}
	return n
}

// watch puts a watch on the lower directory that shows in n, if it has none and one can be had.
//
// Preconditions:
//   - FS.mu is held, and n was not looked into for the answer under way yet.
func (f *FS) watch(n *node) {
	if n.dir.lower == nil || n.dir.watch.Load() != 0 || f.watches.full.Load() && !f.watches.mayTry() {
		return
	}
	d, err := f.lowerFD(n.dir.lower)
	if err != nil {
		return // whoever looks into it finds out
	}
	defer f.fds.put(d)
	f.watches.add(n, d.fd)
}

// mayTry reports whether the time has come to ask for a watch again.
func (w *watcher) mayTry() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.max <= 0 || time.Now().Before(w.again) {
		return false
	}
	w.full.Store(false)
	return true
}

func (w *watcher) add(n *node, fd int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.dir.watch.Load() != 0 || !w.roomLocked() || !local(fd) {
		return
	}
	wd, err := unix.InotifyAddWatch(w.fd, procFD(fd), watchMask)
	if err != nil {
		if err == unix.ENOSPC || err == unix.ENOMEM {
			w.refuseLocked()
		}
		return
	}
	w.dirs[int32(wd)] = append(w.dirs[int32(wd)], n.id)
	n.dir.watch.Store(int32(wd))
}

func (w *watcher) refuseLocked() {
	w.full.Store(true)
	w.again = time.Now().Add(watchAgain)
}

// roomLocked reports whether one more watch is within the budget.
func (w *watcher) roomLocked() bool {
	if w.f == nil {
		return false
	}
	if w.count > 0 && len(w.dirs) >= w.count {
		w.max = quarter() - othersWatches()
		w.count = len(w.dirs) + countAgain
	}
	if len(w.dirs) >= w.max {
		w.refuseLocked()
		return false
	}
	return true
}

// localTypes are the file systems that nobody but this kernel writes to (statfs(2), linux/magic.h).
var localTypes = map[int64]bool{
	unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true, unix.TMPFS_MAGIC: true,
	unix.F2FS_SUPER_MAGIC: true, unix.OVERLAYFS_SUPER_MAGIC: true, unix.RAMFS_MAGIC: true, unix.NILFS_SUPER_MAGIC: true,
	unix.MSDOS_SUPER_MAGIC: true, unix.SQUASHFS_MAGIC: true, unix.EROFS_SUPER_MAGIC_V1: true, unix.ISOFS_SUPER_MAGIC: true,
	0x2fc12fc1: true /* zfs */, 0xca451a4e: true /* bcachefs */, 0x2011bab0: true /* exfat */, 0x7366746e: true, /* ntfs3 */
}

func local(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && localTypes[int64(uint32(st.Type))]
}

// drop takes back the watch of a directory.
func (w *watcher) drop(n *node) {
	if n.dir.watch.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	wd := n.dir.watch.Swap(0)
	ids := w.dirs[wd]
	for i, id := range ids {
		if id == n.id {
			ids = append(ids[:i:i], ids[i+1:]...)
			break
		}
	}
	if len(ids) > 0 {
		w.dirs[wd] = ids
		return
	}
	if _, ok := w.dirs[wd]; !ok {
		return // of an instance that is gone
	}
	delete(w.dirs, wd)
	// EINVAL: the directory is gone, and the watch with it.
	if _, err := unix.InotifyRmWatch(w.fd, uint32(wd)); err == nil {
		w.full.Store(false)
	}
}

func (w *watcher) watching(wd int32) []uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]uint64(nil), w.dirs[wd]...)
}

// restart gives all watches up for a new inotify instance, and returns the directories that had one.
func (w *watcher) restart() ([]uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []uint64
	for _, ids := range w.dirs {
		all = append(all, ids...)
	}
	clear(w.dirs)
	old := w.f
	if old == nil {
		return all, nil
	}
	w.openLocked()
	w.full.Store(w.f == nil)
	return all, old.Close()
}

func (w *watcher) file() *os.File {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.f
}

func (w *watcher) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return nil
	}
	w.full.Store(true)
	f := w.f
	w.f, w.max = nil, 0
	return f.Close()
}

// collect turns inotify events into pending changes until Close.
func (f *FS) collect() {
	buf := make([]byte, 1<<16)
	for {
		w := f.watches.file()
		if w == nil {
			return // without inotify all answers are short
		}
		n, err := w.Read(buf)
		switch {
		case err == nil:
			f.noteEvents(buf[:n])
		case !errors.Is(err, os.ErrClosed): // closed: there is a new one, or the overlay ends
			f.event(Event{Kind: EventError, Err: fmt.Errorf("read inotify events: %w", err)})
			f.rewatch()
		}
	}
}

// noteEvents parses struct inotify_event (inotify(7)).
func (f *FS) noteEvents(buf []byte) {
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf))
		mask := binary.NativeEndian.Uint32(buf[4:])
		size := binary.NativeEndian.Uint32(buf[12:])
		name := buf[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+size]
		buf = buf[unix.SizeofInotifyEvent+size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			f.rewatch()
			return // what else was read is of watches that are gone
		}
		if i := bytes.IndexByte(name, 0); i >= 0 {
			name = name[:i]
		}
		for _, id := range f.watches.watching(wd) {
			f.noteEvent(id, string(name), mask)
		}
	}
}

func (f *FS) noteEvent(id uint64, name string, mask uint32) {
	if mask&placeLost != 0 {
		f.lowerLost(id)
		return
	}
	what := dropAttr
	if mask&contentChanged != 0 {
		what |= dropContent
	}
	if mask&namesChanged != 0 {
		what |= dropName
	}
	f.pending.add(change{id, name}, what)
}

// lowerLost notes that the workspace directory that shows in node id was moved, deleted or
// unmounted. It and what is below it are found by their paths again, watched anew when they are
// looked into, and compared.
func (f *FS) lowerLost(id uint64) {
	top := f.tab.get(id)
	if top == nil {
		return
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	lost := top.dir.lower
	f.eachDir(func(n *node) {
		if n.dir.lower == nil || n != top && !n.dir.lower.below(lost) {
			return
		}
		f.fds.drop(&n.dir.lower.slot)
		f.watches.drop(n)
		f.pending.add(change{id: n.id}, dropBelow)
	})
}

// below reports whether l lies below, or is, another directory.
func (l *lowerDir) below(top *lowerDir) bool {
	for ; l != nil; l = l.parent {
		if l == top {
			return true
		}
	}
	return false
}

// rewatch is called when events were lost: every directory that had a watch is watched anew and
// compared with what the kernel may have been told of it.
func (f *FS) rewatch() {
	ids, err := f.watches.restart()
	if err != nil {
		f.event(Event{Kind: EventError, Err: fmt.Errorf("close inotify: %w", err)})
	}
	for _, id := range ids {
		if n := f.tab.get(id); n != nil {
			n.dir.watch.Store(0)
		}
		f.pending.add(change{id: id}, dropBelow)
	}
}
