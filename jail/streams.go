package jail

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// A process can open again what it holds open, through /proc/self/fd and with rights of its choosing, and change
// mode and owner of it. So the command is never given a file of the host's as a standard stream:
//
//	anonymous pipe                stays
//	/dev/null and the like        the jail's own
//	terminal                      opened again through a read-only mount, which lets it be used and not changed
//	file, named pipe, socket, …   pumped through a pipe
//	directory, block device, …    refused

var streamNames = [3]string{"standard input", "standard output", "standard error"}

// stream says how the shim comes by one of the command's standard streams. The zero value is what it was handed.
type stream struct {
	Device   string    // in the jail's /dev
	Terminal bytesText // on the host
}

// streams are the command's three, as the supervisor sees them.
type streams struct {
	how    [3]stream
	files  [3]*os.File // what the holder is given
	ends   []*os.File  // those of files that are pipe ends of this process's, until the holder has them
	in     *inPump     // nil: nothing to pump
	out    []*outPump
	wake   [2]*os.File // a pipe; closing its write end tells the pumps to finish
	pumped chan struct{}

	mu      sync.Mutex
	started bool  // guarded by mu
	ended   bool  // guarded by mu: finish was called
	err     error // guarded by mu
}

// openStreams refuses what cannot be a stream. null stands in where nothing is to be handed over.
func openStreams(cfg Config, null *os.File) (*streams, error) {
	s := &streams{files: [3]*os.File{null, null, null}, pumped: make(chan struct{})}
	given := [3]*os.File{cfg.Stdin, cfg.Stdout, cfg.Stderr}
	for i, f := range given {
		ownTerminal := cfg.TTY && (i < 2 || f != nil && term.IsTerminal(int(f.Fd())))
		var err error
		switch {
		case cfg.Skip == "streams" && f != nil:
			s.files[i] = f
		case f == nil || ownTerminal:
			s.how[i].Device = "null"
		default:
			err = s.add(i, given)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", streamNames[i], err), s.close())
		}
	}
	var err error
	if s.wake[0], s.wake[1], err = os.Pipe(); err != nil {
		return nil, errors.Join(fmt.Errorf("make pipe: %w", err), s.close())
	}
	return s, nil
}

func (s *streams) add(i int, given [3]*os.File) error {
	f := given[i]
	how, pump, err := classify(f)
	if err != nil {
		return err
	}
	s.how[i] = how
	switch {
	case how.Device != "":
		return nil
	case !pump:
		s.files[i] = f
		return nil
	case i == 0:
		return s.pumpIn(f)
	}
	if i == 2 && len(s.out) == 1 && sameOutput(given[1], f) {
		s.files[2] = s.files[1]
		return nil
	}
	return s.pumpOut(i, f)
}

// classify tells how f becomes a stream; pump means through a pipe.
func classify(f *os.File) (how stream, pump bool, err error) {
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return stream{}, false, err
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return stream{}, false, err
	}
	if flags&unix.O_PATH != 0 {
		return stream{}, false, errors.New("is a handle that cannot be read or written")
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return stream{}, false, errors.New("is a directory")
	case unix.S_IFBLK:
		return stream{}, false, errors.New("is a block device")
	case unix.S_IFSOCK:
		listening, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if err != nil {
			return stream{}, false, err
		}
		if listening != 0 {
			return stream{}, false, errors.New("is a listening socket")
		}
	case unix.S_IFIFO:
		return stream{}, !isAnonymousPipe(fd), nil
	case unix.S_IFCHR:
		if name, ok := ownDevice(st.Rdev); ok {
			return stream{Device: name}, false, nil
		}
		if name, ok := terminalName(f, &st); ok {
			return stream{Terminal: bytesText(name)}, false, nil
		}
	}
	return stream{}, true, nil
}

func isAnonymousPipe(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && st.Type == unix.PIPEFS_MAGIC
}

// ownDevice names the device of the jail's /dev that does the same.
func ownDevice(number uint64) (string, bool) {
	if unix.Major(number) != 1 {
		return "", false
	}
	switch unix.Minor(number) {
	case 3:
		return "null", true
	case 5:
		return "zero", true
	case 7:
		return "full", true
	case 8:
		return "random", true
	case 9:
		return "urandom", true
	default:
		return "", false
	}
}

// terminalName finds the name by which a terminal can be opened again. There is none after su, where it
// still belongs to somebody else, or when it comes from another mount namespace.
func terminalName(f *os.File, st *unix.Stat_t) (string, bool) {
	if !term.IsTerminal(int(f.Fd())) {
		return "", false
	}
	name, err := os.Readlink(fdPath(int(f.Fd())))
	if err != nil {
		return "", false
	}
	var named unix.Stat_t
	if unix.Stat(name, &named) != nil || named.Dev != st.Dev || named.Ino != st.Ino {
		return "", false
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	unix.Close(fd)
	return name, true
}

// reopenTerminal opens a terminal through a mount that lets nobody change its mode, owner and times.
func reopenTerminal(name string, given *os.File) (*os.File, error) {
	flags, err := unix.FcntlInt(given.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return nil, fmt.Errorf("open terminal %q: %w", name, err)
	}
	handle, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open terminal", Path: name, Err: err}
	}
	defer unix.Close(handle)
	if !sameFile(handle, int(given.Fd())) {
		return nil, fmt.Errorf("open terminal %q: it is another one now", name)
	}
	mount, err := cloneTree(handle, false, attrDevice)
	if err != nil {
		return nil, fmt.Errorf("open terminal %q: %w", name, err)
	}
	defer unix.Close(mount)
	fd, err := unix.Open(fdPath(mount), flags&unix.O_ACCMODE|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open terminal", Path: name, Err: err}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&unix.O_APPEND); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open terminal %q: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// sameOutput tells whether what is written to a and to b must stay in order: they are one open file, or both
// append to one.
func sameOutput(a, b *os.File) bool {
	x, y := int(a.Fd()), int(b.Fd())
	pid := uintptr(os.Getpid())
	const kcmpFile = 0
	differ, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, uintptr(x), uintptr(y), 0)
	if errno == 0 && differ == 0 {
		return true
	}
	if !sameFile(x, y) {
		return false
	}
	return errno != 0 || appends(x) && appends(y) // no kcmp(2) in this kernel: order matters more than offsets
}

func appends(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_APPEND != 0
}

func (s *streams) pumpIn(f *os.File) error {
	fds, err := pumpPipe(1)
	if err != nil {
		return err
	}
	s.files[0] = os.NewFile(uintptr(fds[0]), "pipe of standard input")
	s.ends = append(s.ends, s.files[0])
	s.in = &inPump{from: int(f.Fd()), to: fds[1], counts: readsFile(int(f.Fd()))}
	return nil
}

func (s *streams) pumpOut(i int, f *os.File) error {
	fds, err := pumpPipe(0)
	if err != nil {
		return err
	}
	s.files[i] = os.NewFile(uintptr(fds[1]), "pipe of "+streamNames[i])
	s.ends = append(s.ends, s.files[i])
	s.out = append(s.out, &outPump{name: streamNames[i], from: fds[0], to: int(f.Fd())})
	return nil
}

// pumpPipe makes a pipe of which the end with index own does not block.
func pumpPipe(own int) ([2]int, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return fds, fmt.Errorf("make pipe: %w", err)
	}
	if err := unix.SetNonblock(fds[own], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return fds, fmt.Errorf("make pipe: %w", err)
	}
	return fds, nil
}

func readsFile(fd int) bool {
	var st unix.Stat_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY && unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

// handedOver closes the ends that the holder has by now.
func (s *streams) handedOver() {
	closeAll(s.ends)
	s.ends = nil
}

// start pumps. It comes after the start of the command, which may not want any of the input.
func (s *streams) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return // Close came first
	}
	s.started = true
	wake := int(s.wake[0].Fd())
	var pumps sync.WaitGroup
	if s.in != nil {
		pumps.Go(func() { s.in.run(wake) })
	}
	for _, p := range s.out {
		pumps.Go(func() { p.run(wake) })
	}
	go func() {
		pumps.Wait()
		s.wake[0].Close()
		close(s.pumped)
	}()
}

// finish writes what the command left in its pipes, gives unread input back and closes everything. It waits for
// the readers of the output, for a short time only once hurry is closed.
//
// Preconditions:
//   - no process of the jail is left: what one wrote later would be lost.
func (s *streams) finish(hurry <-chan struct{}) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return s.err
	}
	s.ended = true
	if s.started {
		s.err = s.drain(hurry)
	} else {
		s.err = s.close()
	}
	return s.err
}

func (s *streams) drain(hurry <-chan struct{}) error {
	s.wake[1].Close()
	select {
	case <-s.pumped:
	case <-hurry:
		select {
		case <-s.pumped:
		case <-time.After(takeDownTime): // the goroutine that writes stays until its reader reads or ends
			return errors.New("write output: nobody takes it")
		}
	}
	var errs []error
	for _, p := range s.out {
		errs = append(errs, p.err)
	}
	return errors.Join(errs...)
}

// close releases streams that were not started.
func (s *streams) close() error {
	s.handedOver()
	var errs []error
	if s.in != nil {
		errs = append(errs, unix.Close(s.in.to))
	}
	for _, p := range s.out {
		errs = append(errs, unix.Close(p.from))
	}
	for _, f := range s.wake {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
