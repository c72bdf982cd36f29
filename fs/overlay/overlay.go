// Package overlay is the union of a workspace, the lower tree, and a Job's private changes, the
// upper tree: it resolves names, copies up, and records bases and marks before it changes anything.
//
// Every operation names nodes by number; a node knows its parent and its name, so nothing holds a
// path. A directory that has an upper directory stays in memory with the names in the upper and
// the whiteouts; a lookup elsewhere is one fstatat on the lower.
//
//	            lower (never written)          upper (mirrors the view's names)
//	lookup ───────────────────────────┐    ┌── in memory: names, whiteouts, which lower shows
//	                                  ▼    ▼
//	                                 one node ──► attributes as the Job may see them
//	change ── records appended to the change log ──► then the change in the upper
//
// Lock order: a copy-up lock or FS.syncing, then FS.mu, then table.mu, then one of fdCache.mu,
// watcher.mu and pending.mu. FS.mu is held shared by whatever resolves names and exclusively by
// whatever changes them. No lock is held over OnEvent nor over a call of Kernel.
package overlay

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
	"stage/fs/tree"
	"stage/journal"
)

// syncEvery is how often the change log is made durable without being asked.
const syncEvery = 5 * time.Second

// Config is what Open needs.
type Config struct {
	// Lower is the workspace; it is only read. Upper must be a directory of a file system with
	// O_TMPFILE and, for a Rootless caller, user extended attributes.
	Lower, Upper hostfs.Dir
	Preimages    hostfs.Dir // where replaced content is kept, each under its digest's hex; may be nil
	// Orphans is a private directory in the mount of Upper, outside of it: it holds what the Job
	// unlinked and still uses. Open and Close empty it.
	Orphans hostfs.Dir
	LogFile journal.File // the change log, new (empty) or existing; Close closes it
	// LogDir and LogName are where LogFile is, so that it can be written anew when it has grown; a nil
	// LogDir lets it grow.
	LogDir  hostfs.Dir
	LogName string
	Boot    string // of the machine (BootID); empty asks
	IDs     IDs
	Rules   Rules // nil takes nothing away
	// Devices allows device nodes: not for a Job, which has no CAP_MKNOD.
	Devices bool
	// FixedDirs forbids to rename a directory that a lower one shows: EXDEV.
	FixedDirs bool
	OnEvent   func(Event) // called without locks; may be nil
	// Reads, empty, is to hold what the Job read of the workspace; nil keeps no account. Close closes it.
	Reads journal.File
	// OpenOwn opens for reading what path, an O_PATH descriptor, refers to: a file that its owner, the
	// caller, may not read. nil: such a file cannot be changed by the Job. Its errnos are the Job's.
	OpenOwn func(path int) (int, error)
	// Watches is how many directories of the workspace may be watched with inotify; 0 stands for a
	// quarter of what the user may have, negative for none.
	Watches int
}

// EventKind says what an Event reports.
type EventKind uint8

// The kinds of event.
const (
	// EventError: an operation failed for a reason that has no errno; the Job saw EIO.
	EventError EventKind = iota + 1
	// EventMoving: a lower file kept changing while it was copied up; the Job saw EIO.
	EventMoving
	// EventDrift: the Job changed what the workspace has in another state than the Job was shown.
	// The base is what it was shown, so that apply sees a conflict.
	EventDrift
)

// Event is what the overlay has to tell beside the result of an operation. Path is where the node
// was in the view, the root when that is not known.
type Event struct {
	Kind EventKind
	Path tree.Path
	Err  error
}

// Stats counts what passed the overlay since Open.
type Stats struct {
	FilesServed   uint64 // files of which at least one byte range was read
	BytesServed   uint64
	DeniedLookups uint64 // names that a Hide rule made absent
	WriteRequests uint64
	BytesWritten  uint64
	CopyUps       uint64
	StaleCopyUps  uint64 // paths first changed after they had changed in the workspace unseen
	Denied        uint64 // operations refused because of a rule
}

type counters struct {
	filesServed, bytesServed, deniedLookups          atomic.Uint64
	writeRequests, bytesWritten, copyUps, deniedActs atomic.Uint64
	stale                                            atomic.Uint64
}

// FS is one open overlay.
type FS struct {
	cfg   Config
	ids   IDs
	rules Rules
	count counters
	fds   *fdCache
	tab   table

	lowerTop, upperTop, orphanTop *descriptor // of the directories of the Config
	lowerDev, upperDev            uint64
	self                          owner // the server's ids, and in mode its umask
	scratch                       int   // O_TMPFILE of the upper, touched to learn the file system's time

	noClone atomic.Bool  // the upper's file system has no reflinks of the lower's
	small   smallBuffers // for content that is copied in one piece

	copying [64]sync.Mutex // a node's copy-up holds copying[id%64]

	mu     sync.RWMutex // the tree lock; guards names, layers and all below
	log    *journal.Writer
	bases  *State                  // only Bases is kept up to date
	queued []Record                // to be recorded before, and with, the next record
	fresh  map[uint64]struct{}     // upper inodes of files copied up whose content may not be durable
	groups map[inodeKey]*linkGroup // by lower and by upper inode
	// orphans is the number of the last orphan.
	orphans uint64
	// uncounted says that bases of whole directories were loaded, see countNames.
	uncounted bool
	// lowerLinks are the names of lower inodes with several; nil until they are needed.
	lowerLinks map[inodeKey][]tree.Path

	syncing     sync.Mutex // held by Sync and compact, before FS.mu
	nextCompact uint64     // how many records make compact worth while; set by Open, then by syncTick alone

	dirents sync.Pool // of *[1<<15]byte, to read directories into
	listed  sync.Pool // of *listed

	reads   *readLog
	watches *watcher
	pending *pending // what the kernel is to forget
	kernel  atomic.Pointer[Kernel]
	drifts  chan tree.Path // of events to tell
	shed    chan struct{}  // many nodes went
	stop    chan struct{}
	done    sync.WaitGroup
}

// Open opens the overlay, replays its change log, finishes or takes back a rename a crash cut off,
// and reads the names in the upper.
func Open(cfg Config) (*FS, error) {
	f := &FS{
		cfg: cfg, ids: cfg.IDs, rules: cfg.Rules,
		fds:     newFDCache(),
		dirents: sync.Pool{New: func() any { return new([1 << 15]byte) }},
		listed:  sync.Pool{New: func() any { return new(listed) }},
		bases:   NewState(),
		fresh:   map[uint64]struct{}{},
		groups:  map[inodeKey]*linkGroup{},
		pending: newPending(),
		drifts:  make(chan tree.Path, maxDrifts),
		shed:    make(chan struct{}, 1),
		stop:    make(chan struct{}),

		nextCompact: compactMin,

		lowerTop: &descriptor{fd: cfg.Lower.Fd(), kept: true},
		upperTop: &descriptor{fd: cfg.Upper.Fd(), kept: true},
	}
	if err := f.open(); err != nil {
		return nil, fmt.Errorf("open overlay: %w", err)
	}
	var err error
	if f.reads, err = newReadLog(cfg.Reads); err != nil {
		return nil, errors.Join(fmt.Errorf("open overlay: log of reads: %w", err), f.log.Close(), unix.Close(f.scratch))
	}
	f.watches = newWatcher(cfg.Watches)
	f.done.Go(f.collect)
	f.done.Go(func() { f.every(readsEvery, f.reads.flush) })
	f.done.Go(func() { f.every(syncEvery, f.syncTick) })
	f.done.Go(f.tellDrifts)
	f.done.Go(f.giveBack)
	return f, nil
}

func (f *FS) open() error {
	var err error
	if err := f.setBoot(); err != nil {
		return err
	}
	if f.self, err = self(); err != nil {
		return err
	}
	if f.scratch, err = probeUpper(f.cfg.Upper.Fd(), f.ids.Rootless); err != nil {
		return err
	}
	f.clone(f.scratch, f.scratch) // finds out whether there are reflinks at all
	if err := f.openOrphans(); err != nil {
		return errors.Join(err, unix.Close(f.scratch))
	}
	if err := f.openLog(); err != nil {
		return errors.Join(err, unix.Close(f.scratch))
	}
	if err := f.load(); err != nil {
		return errors.Join(err, f.log.Close(), unix.Close(f.scratch))
	}
	return nil
}

// self returns the ids that this process gives to what it makes, and as mode what its umask takes away.
// umask(2) cannot tell without setting it.
func self() (owner, error) {
	o := owner{uid: uint32(unix.Geteuid()), gid: uint32(unix.Getegid())}
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return o, fmt.Errorf("read umask: %w", err)
	}
	_, rest, _ := strings.Cut(string(text), "\nUmask:")
	line, _, _ := strings.Cut(rest, "\n")
	if _, err := fmt.Sscanf(line, "%o", &o.mode); err != nil {
		return o, fmt.Errorf("read umask: %w", err)
	}
	return o, nil
}

func (f *FS) setBoot() (err error) {
	if f.cfg.Boot == "" {
		f.cfg.Boot, err = BootID()
	}
	return err
}

// probeUpper checks what the upper must be able to do and returns an O_TMPFILE of it.
func probeUpper(fd int, rootless bool) (int, error) {
	scratch, err := unix.Openat(fd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, fmt.Errorf("upper directory cannot hold unnamed files (O_TMPFILE): %w", err)
	}
	if !rootless {
		return scratch, nil
	}
	if err := unix.Fsetxattr(scratch, AttrXattr, EncodeAttr(0o600, 0, 0), 0); err != nil {
		return -1, errors.Join(fmt.Errorf("upper directory cannot hold user extended attributes: %w", err), unix.Close(scratch))
	}
	return scratch, nil
}

// every calls act once in each period until Close, or until it fails, which is told.
func (f *FS) every(period time.Duration, act func() error) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-tick.C:
			if err := act(); err != nil {
				f.event(Event{Kind: EventError, Err: err})
				return
			}
		}
	}
}

// syncTick makes the change log durable, and the upper too where content was copied into it: until then
// nothing vouches for a copy. New files are the Job's to sync. An error of the log is kept by the log
// itself: every later change fails with it.
func (f *FS) syncTick() error {
	f.mu.RLock()
	copies := len(f.fresh)
	f.mu.RUnlock()
	sync := f.syncRecords
	if copies > 0 {
		sync = f.Sync
	}
	if err := sync(); err != nil {
		return err
	}
	_, err := f.compact(f.nextCompact)
	return err
}

// syncRecords makes the change log durable.
func (f *FS) syncRecords() error {
	f.mu.Lock()
	err := f.appendQueued()
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.log.Sync()
}

// Sync makes everything changed so far durable, the change log first: what the upper has is recorded.
func (f *FS) Sync() error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	f.mu.Lock()
	err := f.appendQueued()
	_, n := f.log.Position()
	fresh := f.fresh
	f.fresh = map[uint64]struct{}{}
	f.mu.Unlock()
	if err != nil || n == 0 { // without a record nothing is in the upper: syncfs(2) would wait for what others write
		return err
	}
	if err := f.syncBoth(); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		maps.Copy(f.fresh, fresh)
		return err
	}
	if len(fresh) == 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.append(Record{Op: OpSynced, N: n})
}

func (f *FS) syncBoth() error {
	if err := f.log.Sync(); err != nil {
		return err
	}
	if err := f.cfg.Upper.Syncfs(); err != nil {
		return fmt.Errorf("sync upper: %w", err)
	}
	return nil
}

// Close syncs and ends the overlay. The directories of the Config stay open.
//
// Preconditions:
//   - nothing serves the overlay any more.
func (f *FS) Close() error {
	close(f.stop)
	err := f.watches.close()
	f.done.Wait()
	err = errors.Join(err, f.reads.close())
	err = errors.Join(err, f.closeLog())
	f.fds.closeAll()
	return errors.Join(err, f.clearOrphans(), unix.Close(f.scratch), f.log.Close())
}

// closeLog makes all durable and says so in the log.
func (f *FS) closeLog() error {
	if err := f.Sync(); err != nil {
		return err
	}
	if _, n := f.log.Position(); n == 0 {
		return nil // nothing was ever recorded
	}
	if _, err := f.compact(max(compactClosed, 2*uint64(len(f.bases.Bases)))); err != nil {
		return err
	}
	f.mu.Lock()
	err := f.append(Record{Op: OpClose})
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.log.Sync()
}

// Stats returns the counters.
func (f *FS) Stats() Stats {
	c := &f.count
	return Stats{
		FilesServed: c.filesServed.Load(), BytesServed: c.bytesServed.Load(), DeniedLookups: c.deniedLookups.Load(),
		WriteRequests: c.writeRequests.Load(), BytesWritten: c.bytesWritten.Load(),
		CopyUps: c.copyUps.Load(), Denied: c.deniedActs.Load(), StaleCopyUps: c.stale.Load(),
	}
}

// Report tells the caller of an error that has no errno, so that the Job saw EIO.
func (f *FS) Report(err error) { f.event(Event{Kind: EventError, Err: err}) }

func (f *FS) event(e Event) {
	if f.cfg.OnEvent != nil {
		f.cfg.OnEvent(e)
	}
}

// LoadState replays the change log in r.
func LoadState(r io.Reader) (*State, error) {
	s := NewState()
	if err := journal.Read(r, LogKind, s.Replay()); err != nil {
		return nil, err
	}
	return s, nil
}
