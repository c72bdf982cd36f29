package fusefs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// FUSE over io_uring (linux/fuse.h 7.42, fs/fuse/dev_uring.c). The kernel has a queue per possible
// CPU and sends a request to the queue of the CPU its caller runs on. A worker, one thread pinned to
// that CPU with a ring of its own, answers there: no other CPU need be woken, and one system call
// answers a request and waits for the next.
//
// A worker has one entry of its CPU's queue. While it is busy with a request its entry is not to be
// had, so the kernel gives the next one to another worker of that CPU: a copy-up of a large file
// delays nobody as long as there is one, and before a slow request the worker makes sure that there
// will be two. What the kernel could give to nobody waits until a reply of that queue fetches it: a
// new entry does not (fuse_uring_do_register).
type uring struct {
	s       *Server
	queues  []*queue
	workers int           // at the start
	extra   atomic.Int32  // added later
	stop    int           // eventfd, readable once all workers are to end
	held    [2]int        // pipe that all rings wait on in vain: its writing end is closed with the last ring
	decided chan struct{} // closed when it is known whether io_uring is used
	use     bool          // written before decided is closed
	results chan error    // what each worker of the start says of opening, then of registering
	wg      sync.WaitGroup

	mu     sync.Mutex
	memory [][]byte // of entries, until no ring is left; guarded by mu
}

// queue is served by workers on one CPU.
type queue struct {
	cpu  int
	ids  []uint16     // of the kernel's queues: the CPU's own, and those of CPUs this process cannot use
	idle atomic.Int32 // workers that wait for a request
}

// workersEach returns how many workers each of n CPUs has from the start, so that a request that waits
// for a disk does not hold up the next.
func workersEach(n int) int {
	switch {
	case n <= 4:
		return 3
	case n <= 32:
		return 2
	}
	return 1
}

// Where INIT offers and grants io_uring (linux/fuse.h).
const (
	inInitFlags, inInitFlags2 = inHeader + 12, inHeader + 16

	initExt   = 1 << 30        // FUSE_INIT_EXT
	overUring = 1 << (41 - 32) // FUSE_OVER_IO_URING, in flags2
)

var (
	errNotOffered = errors.New("the kernel does not offer it")
	errUnwanted   = errors.New("not asked for")
)

// offersUring reports whether INIT, in request, offers io_uring.
func offersUring(request []byte) bool {
	return len(request) >= inInitFlags2+4 &&
		binary.NativeEndian.Uint32(request[inInitFlags:])&initExt != 0 &&
		binary.NativeEndian.Uint32(request[inInitFlags2:])&overUring != 0
}

// openUring makes threads and rings before INIT is answered: once io_uring is granted the kernel
// holds all requests back until every queue is registered.
func (s *Server) openUring(init []byte) (*uring, error) {
	if s.transport == Loop {
		return nil, errUnwanted
	}
	if !offersUring(init) {
		return nil, errNotOffered
	}
	queues, err := makeQueues()
	if err != nil {
		return nil, err
	}
	u := &uring{s: s, queues: queues, decided: make(chan struct{}), results: make(chan error)}
	if u.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	if err := unix.Pipe2(u.held[:], unix.O_CLOEXEC); err != nil {
		return nil, errors.Join(fmt.Errorf("pipe: %w", err), unix.Close(u.stop))
	}
	if err := u.open(); err != nil {
		u.decide(false)
		u.wg.Wait()
		return nil, errors.Join(err, u.free())
	}
	return u, nil
}

// makeQueues distributes the kernel's queues over the CPUs this process may use.
func makeQueues() ([]*queue, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/possible")
	if err != nil {
		return nil, err
	}
	possible, err := countCPUs(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, err
	}
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(unix.Getpid(), &mine); err != nil {
		return nil, fmt.Errorf("CPUs of this process: %w", err)
	}
	return distribute(possible, mine.IsSet)
}

func distribute(possible int, mine func(cpu int) bool) ([]*queue, error) {
	var queues []*queue
	for id := range possible {
		if mine(id) {
			queues = append(queues, &queue{cpu: id, ids: []uint16{uint16(id)}})
		}
	}
	if len(queues) == 0 {
		return nil, errors.New("this process may use no CPU that has a queue")
	}
	for id := range possible {
		if !mine(id) {
			q := queues[id%len(queues)]
			q.ids = append(q.ids, uint16(id))
		}
	}
	return queues, nil
}

// countCPUs returns how many CPUs a list like "0-3,8" has.
func countCPUs(list string) (int, error) {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, aerr := strconv.ParseUint(first, 10, 15)
		b, berr := strconv.ParseUint(last, 10, 15)
		if aerr != nil || berr != nil || b < a {
			return 0, fmt.Errorf("CPUs %q: no range %q", list, part)
		}
		n += int(b-a) + 1
	}
	return n, nil
}

// open starts the workers and waits until each has its ring.
func (u *uring) open() error {
	each := workersEach(len(u.queues))
	for _, q := range u.queues {
		u.spawn(q, q.ids, u.results)
		for range each - 1 {
			u.spawn(q, q.ids[:1], u.results)
		}
	}
	u.workers = each * len(u.queues)
	return u.collect()
}

func (u *uring) spawn(q *queue, ids []uint16, results chan<- error) {
	w := &worker{u: u, q: q}
	u.wg.Go(func() { w.start(ids, results) })
}

// collect returns what the workers of the start say of their next step.
func (u *uring) collect() error {
	var err error
	for range u.workers {
		err = errors.Join(err, <-u.results)
	}
	return err
}

// decide tells the workers whether io_uring is used.
func (u *uring) decide(use bool) {
	u.use = use
	close(u.decided)
}

// register has the workers register their entries, once INIT is answered. Of a registration that
// fails the kernel takes note, and sends requests over /dev/fuse; workers whose entries it took go on
// all the same, as it may have begun to use them.
func (u *uring) register() error {
	u.decide(true)
	err := u.collect()
	if err == nil {
		return nil
	}
	r, rerr := newRing(1)
	if rerr != nil {
		return errors.Join(err, rerr)
	}
	defer r.close()
	none := entry{queue: noQueue} // fails in the kernel for certain
	none.push(r, u.s.fd, cmdRegister, 0, 0)
	return errors.Join(err, r.enter(0))
}

// grow adds a worker to q, for as long as others are in slow requests; it stays. One that cannot be
// made is not missed but for its speed.
func (u *uring) grow(q *queue) {
	if u.extra.Add(1) > maxExtra {
		u.extra.Add(-1)
		return
	}
	u.spawn(q, q.ids[:1], make(chan error, 2))
}

// end makes all workers end, those to come too.
func (u *uring) end() error {
	one := make([]byte, 8)
	binary.NativeEndian.PutUint64(one, 1)
	if _, err := unix.Write(u.stop, one); err != nil {
		return fmt.Errorf("stop workers: %w", err)
	}
	return nil
}

// free frees what the workers used, once the kernel, which takes its time for that, has given up all
// rings, and with them entries and device.
//
// Preconditions:
//   - all workers have ended.
func (u *uring) free() error {
	err := errors.Join(unix.Close(u.stop), unix.Close(u.held[1]))
	if _, rerr := unix.Read(u.held[0], make([]byte, 1)); rerr != nil {
		err = errors.Join(err, fmt.Errorf("wait for rings: %w", rerr))
	}
	err = errors.Join(err, unix.Close(u.held[0]))
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, m := range u.memory {
		err = errors.Join(err, unix.Munmap(m))
	}
	u.memory = nil
	return err
}

func (u *uring) String() string {
	return fmt.Sprintf("io_uring, %d workers on %d CPUs", u.workers+int(u.extra.Load()), len(u.queues))
}
