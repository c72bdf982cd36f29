// Package fusefs serves an overlay to the kernel over a mounted /dev/fuse descriptor.
//
// Opens cost no message: OPEN, OPENDIR and FLUSH are answered ENOSYS, so the kernel sends none of
// them again, and no RELEASE either. Its caches are ours to invalidate, so entries, attributes and
// content stay valid for an hour, where the overlay is told of what others change.
//
//	kernel ──read──► loop (one locked thread per CPU) ──► go-fuse parses ──► mount ──► overlay.FS
//	       ◄─writev─                                      and serializes
package fusefs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"stage/fs/overlay"
)

// maxIO is the largest READ and WRITE. The kernel allows 256 pages by default.
const maxIO = 1 << 20

// Sizes of the buffers of one loop: a request or a reply is at most maxIO and its headers.
const (
	headRoom = 4096
	bufSize  = maxIO + headRoom
)

// maxExtra is how many loops may be added while all others are in slow operations.
const maxExtra = 16

// Offsets in fuse_in_header and fuse_out_header (linux/fuse.h).
const (
	inOpcode, inUnique, inNode = 4, 8, 16
	inHeader, outHeader        = 40, 16
)

// rootAlias stands for the root's node number, 1, between loop and mount. go-fuse takes requests
// for a certain name in node 1 as its own (poll.go); here every name belongs to the Job.
const rootAlias = 1<<63 | overlay.RootID

// Options are the settings of one served mount.
type Options struct {
	Name      string // name of the root, for errors
	Transport Transport
	// Passthrough has the kernel read and write the host's files itself, for the price of a message per
	// open. It takes CAP_SYS_ADMIN in the initial user namespace. Where it cannot be had the mount is
	// dead, and Established says why.
	Passthrough bool

	around func(fuse.RawFileSystem) fuse.RawFileSystem // tests: what stands between threads and mount
}

// Server serves one mount.
type Server struct {
	name      string
	fd        int
	dev       *os.File
	fs        *overlay.FS
	proto     *fuse.ProtocolServer
	mount     *mount    // nil where something stands around it
	transport Transport // asked for
	around    func(fuse.RawFileSystem) fuse.RawFileSystem
	readers   int

	pass        *passthrough  // nil unless asked for
	established chan struct{} // closed once INIT is answered, or will not be

	received messages
	turns    turns

	closed  atomic.Bool  // Close was called
	closing atomic.Bool  // the loops are to end
	idle    atomic.Int32 // loops that wait for a request
	loops   atomic.Int32
	wg      sync.WaitGroup

	pacer    *pacer
	stop     chan struct{} // ends notifier
	notifier sync.WaitGroup

	mu       sync.Mutex
	protocol string           // guarded by mu, like all below
	threads  map[int]struct{} // of the loops
	spare    []*buffers       // of loops that ended
	uring    *uring           // nil without io_uring
	why      error            // why without
	err      error            // the first of the connection
}

// MountOptions returns the option string for mount(2), without "fd=". The ids are those of the
// caller in the user namespace that owns the mount.
func MountOptions(userID, groupID uint32) string {
	return fmt.Sprintf("rootmode=40000,user_id=%d,group_id=%d,default_permissions,max_read=%d", userID, groupID, maxIO)
}

// Serve starts to serve fs on dev, an already mounted /dev/fuse descriptor that the Server takes
// over. It returns at once, before the kernel's INIT is answered. The caller must never touch the
// mount itself: it could wait for itself.
func Serve(dev *os.File, fs *overlay.FS, o Options) (*Server, error) {
	if dev == nil || fs == nil {
		return nil, errors.New("serve overlay: no device or no overlay")
	}
	s := &Server{
		name: o.Name, dev: dev, fs: fs, transport: o.Transport, around: o.around,
		readers: max(runtime.GOMAXPROCS(0), 2), threads: map[int]struct{}{}, stop: make(chan struct{}),
		established: make(chan struct{}),
	}
	s.fd = int(dev.Fd()) // Fd makes it blocking, which the loops rely on
	s.pacer = startPacer()
	if o.Passthrough {
		s.pass = newPassthrough(s.fd)
	}
	s.start(s.first)
	s.notifier.Go(func() { s.fs.Notify(notifier{s.fd, s.pass}, s.stop) })
	return s, nil
}

// mountSettings returns what is negotiated with the kernel. ATOMIC_O_TRUNC must never be: without
// OPEN nobody would be told to truncate. PASSTHROUGH needs opens, and raises the stacking depth.
// POSIX_ACL would cost a GETXATTR per inode.
func mountSettings(uring, pass bool) *fuse.MountOptions {
	o := &fuse.MountOptions{
		Name:                     "stage",
		MaxWrite:                 maxIO,
		MaxBackground:            64,
		ExplicitDataCacheControl: true,
		EnableSymlinkCaching:     true,
		DisabledCapabilities:     fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_PASSTHROUGH,
		ExtraCapabilities:        fuse.CAP_NO_OPENDIR_SUPPORT | fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_ASYNC_DIO | fuse.CAP_DONT_MASK,
		Logger:                   log.New(io.Discard, "", 0),
	}
	if uring {
		o.ExtraCapabilities |= fuse.CAP_OVER_IO_URING
	}
	if pass {
		o.DisabledCapabilities &^= fuse.CAP_PASSTHROUGH
		o.MaxStackDepth = stackDepth
	}
	return o
}

func (s *Server) start(loop func()) {
	s.loops.Add(1)
	s.wg.Go(func() {
		defer s.loops.Add(-1)
		defer s.enter()()
		loop()
	})
}

// enter binds a loop to its thread, and returns what frees it again.
func (s *Server) enter() (leave func()) {
	runtime.LockOSThread()
	tid := unix.Gettid()
	t := s.turns.enter()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.threads[tid] = struct{}{}
	return func() {
		s.turns.leave(t)
		s.mu.Lock()
		delete(s.threads, tid)
		s.mu.Unlock()
		runtime.UnlockOSThread()
	}
}

// first answers INIT alone, then starts what else serves: what INIT negotiates is read by all.
func (s *Server) first() {
	b := s.newBuffers()
	readers, ok := s.establish(b)
	close(s.established)
	if !ok {
		return
	}
	for range readers - 1 {
		s.start(s.serve)
	}
	s.serveWith(b, false)
}

// establish answers INIT and returns how many loops are to read /dev/fuse.
func (s *Server) establish(b *buffers) (readers int, ok bool) {
	n, ok := s.read(b)
	if !ok {
		return 0, false
	}
	u, why := s.openUring(b.in[:n])
	if u == nil && s.transport == Uring {
		s.fail(fmt.Errorf("io_uring: %w", why))
		return 0, false
	}
	own := &mount{RawFileSystem: fuse.NewDefaultRawFileSystem(), fs: s.fs, pass: s.pass}
	var m fuse.RawFileSystem = own
	if s.around != nil {
		m = s.around(m)
	} else {
		s.mount = own
	}
	s.proto = fuse.NewProtocolServer(m, mountSettings(u != nil, s.pass != nil))
	reply := b.answer(s, n)
	caps := s.note(b.out[:reply], u, why)
	if !s.write(b.out[:reply]) || !s.passable(caps) {
		if u != nil {
			u.decide(false)
		}
		return 0, false
	}
	if u != nil && s.register(u) {
		return 1, true
	}
	return s.readers, true
}

// passable reports whether passthrough works, if it was asked for.
func (s *Server) passable(caps uint64) bool {
	if s.pass == nil {
		return true
	}
	err := errNotOffered
	if caps&fuse.CAP_PASSTHROUGH != 0 {
		err = s.pass.probe()
	}
	if err != nil {
		s.fail(fmt.Errorf("passthrough: %w", err))
	}
	return err == nil
}

// Established waits until INIT, which the kernel sends when the mount is made, is answered. It returns
// why the mount is dead instead.
func (s *Server) Established(ctx context.Context) error {
	select {
	case <-s.established:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// register switches the kernel over to io_uring and reports whether it is used. What then still comes
// over /dev/fuse, FORGET and INTERRUPT, one loop reads.
func (s *Server) register(u *uring) bool {
	err := u.register()
	if err != nil {
		s.mu.Lock()
		s.why = err
		s.mu.Unlock()
	}
	return err == nil
}

func (s *Server) serve() { s.serveWith(s.newBuffers(), false) }

func (s *Server) serveExtra() { s.serveWith(s.newBuffers(), true) }

// serveWith reads, handles and answers requests until the mount or the Server goes. Before a
// request that may take long it makes sure that another loop waits for the next one; such an extra
// loop ends when there are enough without it.
func (s *Server) serveWith(b *buffers, extra bool) {
	defer s.giveBack(b)
	for !s.closing.Load() {
		n, ok := s.read(b)
		if !ok {
			return
		}
		if s.idle.Load() == 0 && s.slow(b.in[:inHeader], b.in[inHeader:]) && s.loops.Load() < int32(s.readers+maxExtra) {
			s.start(s.serveExtra)
		}
		if reply := b.answer(s, n); reply > 0 && !s.write(b.out[:reply]) {
			return
		}
		if extra && s.idle.Load() > 0 {
			return
		}
	}
}

// Opcodes that may take long: they copy up, sync or move much data (linux/fuse.h).
var slowOps = [64]bool{4: true, 12: true, 13: true, 14: true, 16: true, 20: true, 21: true, 24: true, 30: true, 43: true, 45: true, 47: true}

// Requests that are slow or not as their arguments say (linux/fuse.h).
const (
	opSetattr, opWrite = 4, 16

	setattrValid = 0       // in fuse_setattr_in
	writeSize    = 16      // in fuse_write_in
	manyBytes    = 1 << 16 // written at once
)

// slow reports whether the request with header and first argument may take long. What is in the upper
// already needs no copy: creating many small files must not start a loop for each.
func (s *Server) slow(header, arg []byte) bool {
	op := binary.NativeEndian.Uint32(header[inOpcode:])
	switch {
	case op >= uint32(len(slowOps)) || !slowOps[op]:
		return false
	case op == opSetattr && binary.NativeEndian.Uint32(arg[setattrValid:])&fuse.FATTR_SIZE != 0,
		op == opWrite && binary.NativeEndian.Uint32(arg[writeSize:]) > manyBytes:
		return true
	case op == opSetattr || op == opWrite:
		return !s.fs.InUpper(id(binary.NativeEndian.Uint64(header[inNode:])))
	}
	return true
}

// buffers hold a request and a reply of the loop whose turn it is.
type buffers struct {
	in, out   []byte
	ins, outs [1][]byte // the request in in, and out, as handle takes them
	turn      *turn
}

func makeBuffers(t *turn) *buffers {
	b := &buffers{in: make([]byte, bufSize), out: make([]byte, bufSize), turn: t}
	b.outs[0] = b.out
	return b
}

// answer handles the request in the first n bytes.
func (b *buffers) answer(s *Server, n int) int {
	b.ins[0] = b.in[:n]
	return s.handle(b.turn, b.ins[:], b.outs[:])
}

// newBuffers returns buffers for the loop that calls it, those of one that ended if there are: loops come
// and go, and new memory of this size has to be cleared.
func (s *Server) newBuffers() *buffers {
	t := s.turns.own()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.spare); n > 0 {
		b := s.spare[n-1]
		s.spare = s.spare[:n-1]
		b.turn = t
		return b
	}
	return makeBuffers(t)
}

func (s *Server) giveBack(b *buffers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spare) < s.readers {
		s.spare = append(s.spare, b)
	}
}

// read reads one request. It reports false when there will be no more.
func (s *Server) read(b *buffers) (int, bool) {
	s.idle.Add(1)
	defer s.idle.Add(-1)
	for {
		n, err := unix.Read(s.fd, b.in)
		switch {
		case err == nil && n > inNode:
			return n, true
		case err == unix.EINTR || err == unix.EAGAIN || err == unix.ENOENT: // ENOENT: interrupted before it was read
			if s.closing.Load() {
				return 0, false
			}
			continue
		case err != nil && err != unix.ENODEV: // ENODEV: unmounted
			s.fail(fmt.Errorf("read request: %w", err))
		}
		return 0, false
	}
}

// handle handles, as turn t, the request in in and returns the size of the reply in out, 0 for none. The first
// parts hold at least the headers.
func (s *Server) handle(t *turn, in, out [][]byte) int {
	t.work()
	defer t.rest()
	s.received.count(binary.NativeEndian.Uint32(in[0][inOpcode:]))
	if binary.NativeEndian.Uint64(in[0][inNode:]) == overlay.RootID {
		binary.NativeEndian.PutUint64(in[0][inNode:], rootAlias)
	}
	if h, ok := hotOf(in, out); ok && s.mount != nil {
		if size, ok := h.answer(s.mount, out[0]); ok {
			return size
		}
	}
	size, status := s.proto.HandleRequest(in, out)
	if status.Ok() {
		return size
	}
	// The request could not be parsed.
	refuse(in[0], out[0], unix.Errno(status))
	return outHeader
}

// refuse makes out the reply errno to the request with header in.
func refuse(in, out []byte, errno unix.Errno) {
	copy(out[8:16], in[inUnique:inUnique+8])
	binary.NativeEndian.PutUint32(out, outHeader)
	binary.NativeEndian.PutUint32(out[4:], uint32(-int32(errno)))
}

// write sends a reply. ENOENT means that nobody waits for it any more.
func (s *Server) write(reply []byte) bool {
	for {
		_, err := unix.Write(s.fd, reply)
		switch err {
		case nil, unix.ENOENT:
			return true
		case unix.EINTR, unix.EAGAIN:
			continue
		case unix.ENODEV, unix.ECONNABORTED, unix.ENOTCONN:
			return false
		}
		s.fail(fmt.Errorf("write reply: %w", err))
		return false
	}
}

// fail keeps the first error of the connection and reports it.
func (s *Server) fail(err error) {
	err = fmt.Errorf("serve %s: %w", s.name, err)
	s.mu.Lock()
	first := s.err == nil
	if first {
		s.err = err
	}
	s.mu.Unlock()
	if first {
		s.fs.Report(err)
	}
}

// note keeps what the reply to INIT negotiated, and how requests are to come. It returns the
// capabilities.
func (s *Server) note(reply []byte, u *uring, why error) uint64 {
	s.mu.Lock()
	s.uring, s.why = u, why
	s.mu.Unlock()
	if len(reply) < outHeader+int(unsafe.Sizeof(fuse.InitOut{})) {
		return 0
	}
	var out fuse.InitOut
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&out)), unsafe.Sizeof(out)), reply[outHeader:])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.protocol = describe(&out)
	return out.Flags64()
}

// capNames are the capabilities worth telling, in the words of linux/fuse.h.
var capNames = []struct {
	bit  uint64
	name string
}{
	{fuse.CAP_PASSTHROUGH, "passthrough"}, {fuse.CAP_NO_OPEN_SUPPORT, "no_open"}, {fuse.CAP_NO_OPENDIR_SUPPORT, "no_opendir"},
	{fuse.CAP_EXPLICIT_INVAL_DATA, "explicit_inval_data"}, {fuse.CAP_AUTO_INVAL_DATA, "auto_inval_data"},
	{fuse.CAP_READDIRPLUS, "readdirplus"}, {fuse.CAP_HANDLE_KILLPRIV_V2, "handle_killpriv_v2"},
	{fuse.CAP_ATOMIC_O_TRUNC, "atomic_o_trunc"}, {fuse.CAP_CACHE_SYMLINKS, "cache_symlinks"},
	{fuse.CAP_PARALLEL_DIROPS, "parallel_dirops"}, {fuse.CAP_WRITEBACK_CACHE, "writeback_cache"},
	{fuse.CAP_POSIX_LOCKS, "posix_locks"}, {fuse.CAP_FLOCK_LOCKS, "flock_locks"},
}

func describe(out *fuse.InitOut) string {
	var caps []string
	for _, c := range capNames {
		if out.Flags64()&c.bit != 0 {
			caps = append(caps, c.name)
		}
	}
	return fmt.Sprintf("fuse %d.%d: %s, max_write %d", out.Major, out.Minor, strings.Join(caps, ", "), out.MaxWrite)
}

// Protocol tells what was negotiated, "" before INIT was answered.
func (s *Server) Protocol() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.protocol == "":
		return ""
	case s.why == nil:
		return s.protocol + "; " + s.uring.String()
	}
	return fmt.Sprintf("%s; read loop, no io_uring: %v", s.protocol, s.why)
}

// Wait returns when the mount is gone, or when Close has ended serving.
func (s *Server) Wait() { s.wg.Wait() }

// Close ends serving: after the mount is gone, or to abort it, when whoever uses it gets ENOTCONN.
// It waits for all loops and closes the device; for requests that make no progress it does not wait, and
// returns ErrStuck: then the overlay must stay open.
func (s *Server) Close() error {
	if s.closed.Swap(true) {
		return os.ErrClosed
	}
	close(s.stop)
	told := s.await(&s.notifier) // while requests are still answered, for which a notification may wait
	s.closing.Store(true)
	if err := s.wake(); err != nil {
		return err
	}
	s.pacer.stop()
	ended := s.await(&s.wg) // with the first loop, whoever could set s.uring is gone
	err := s.endUring()
	if !told || !ended || errors.Is(err, ErrStuck) {
		return s.abandon()
	}
	err = errors.Join(err, s.dev.Close())
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.err, err)
}

// endUring ends what serves over io_uring.
func (s *Server) endUring() error {
	s.mu.Lock()
	u := s.uring
	s.mu.Unlock()
	if u == nil {
		return nil
	}
	if err := u.end(); err != nil {
		return err
	}
	if !s.await(&u.wg) {
		return ErrStuck
	}
	return u.free()
}

// wake makes loops that wait for a request return. Closing the device would not: a read(2) under way
// keeps it open. But a read that a signal interrupts is started again (SA_RESTART, which the Go
// runtime sets for every signal), and finds the device non-blocking by then. SIGURG is the signal
// the runtime preempts goroutines with, so that one more does no harm.
func (s *Server) wake() error {
	if err := unix.SetNonblock(s.fd, true); err != nil {
		return fmt.Errorf("make device non-blocking: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for tid := range s.threads {
		if err := unix.Tgkill(unix.Getpid(), tid, unix.SIGURG); err != nil {
			return fmt.Errorf("interrupt loop: %w", err)
		}
	}
	return nil
}
