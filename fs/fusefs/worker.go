package fusefs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The memory of an entry: what the kernel calls headers (struct fuse_uring_req_header), where the
// registration's iovecs lie for that call, and the payload.
//
//	┌ in_out 128 ──────────────┬ op_in 128 ─────┬ ent_in_out 32 ─────────────┐   ┌ payload, maxIO ───┐
//	│ request: fuse_in_header  │ first argument │ flags commit_id payload_sz │ … │ further arguments │
//	│ reply:   fuse_out_header │ -              │ payload_sz                 │   │ all of the reply  │
//	└──────────────────────────┴────────────────┴────────────────────────────┘   └───────────────────┘
const (
	entOpIn      = 128
	entInOut     = 256
	entCommitID  = entInOut + 8
	entPayloadSz = entInOut + 16
	entHeaders   = entInOut + 32
	entIovecs    = 512
	entPayload   = headRoom
	entSize      = entPayload + maxIO
)

// enum fuse_uring_cmd.
const (
	cmdRegister       = 1
	cmdCommitAndFetch = 2
)

// noQueue is more than the kernel has of queues.
const noQueue = 1<<16 - 1

// userStop marks the completion that ends a worker; others carry the index of an entry.
const userStop = ^uint64(0)

// worker is one thread that answers the requests of one CPU.
type worker struct {
	u    *uring
	q    *queue
	ring *ring
	ents []entry
	live int   // entries the kernel has or will have again
	todo []int // completed's memory
	turn *turn
}

// entry holds one request at a time.
type entry struct {
	queue uint16
	mem   []byte
	in    [3][]byte // header, first argument, the rest
	out   [2][]byte // header, the rest
}

// start runs the worker on a thread that ends with it: being pinned it must not run anything else. The
// main thread cannot end, so it stands aside.
func (w *worker) start(ids []uint16, results chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		w.run(ids, results)
		return
	}
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.start(ids, results)
	}()
	<-done
}

func (w *worker) run(ids []uint16, results chan<- error) {
	err := w.open(ids)
	results <- err
	if err != nil {
		return
	}
	defer w.ring.close()
	if <-w.u.decided; !w.u.use {
		return
	}
	w.turn = w.u.s.turns.enter()
	defer w.u.s.turns.leave(w.turn)
	w.serve(results)
}

// open pins the thread and makes its ring and entries.
func (w *worker) open(ids []uint16) error {
	var cpu unix.CPUSet
	cpu.Set(w.q.cpu)
	if err := unix.SchedSetaffinity(0, &cpu); err != nil {
		return fmt.Errorf("pin thread to CPU %d: %w", w.q.cpu, err)
	}
	for _, id := range ids {
		e, err := w.u.newEntry(id)
		if err != nil {
			return err
		}
		w.ents = append(w.ents, e)
	}
	var err error
	w.ring, err = newRing(uint32(len(ids)) + 2)
	return err
}

// newEntry makes an entry. Its memory is used as far as requests fill it.
func (u *uring) newEntry(queue uint16) (entry, error) {
	mem, err := unix.Mmap(-1, 0, entSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return entry{}, fmt.Errorf("map memory of an entry: %w", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.memory = append(u.memory, mem)
	e := entry{queue: queue, mem: mem}
	e.in[0] = mem[:inHeader]
	e.out = [2][]byte{mem[:outHeader], mem[entPayload:]}
	return e, nil
}

// serve registers the worker's entries, says how that went, and answers requests until the mount or
// the Server goes.
func (w *worker) serve(results chan<- error) {
	w.ring.poll(w.u.stop, unix.POLLIN, userStop)
	w.ring.poll(w.u.held[1], unix.POLLERR, userStop)
	for i := range w.ents {
		w.ents[i].push(w.ring, w.u.s.fd, cmdRegister, uint64(i), 0)
	}
	w.live = len(w.ents)
	err := w.ring.enter(0) // what the kernel refuses is completed at once, what it takes when there is a request
	todo, refused := w.completed()
	results <- errors.Join(err, refused)
	for err == nil && w.live > 0 {
		for _, i := range todo {
			w.answer(i)
		}
		w.q.idle.Add(1)
		err = w.ring.enter(1)
		w.q.idle.Add(-1)
		if todo, refused = w.completed(); refused != nil {
			w.u.s.fail(refused)
		}
	}
	if err != nil {
		w.u.s.fail(err)
	}
}

// completed takes the completions there are and returns the entries that hold a request. A stop leaves none.
func (w *worker) completed() (todo []int, err error) {
	todo = w.todo[:0]
	for {
		user, res, ok := w.ring.next()
		switch {
		case !ok:
			w.todo = todo
			return todo, err
		case user == userStop:
			w.live = 0
		case res < 0:
			w.live--
			err = errors.Join(err, lost(unix.Errno(-res)))
		default:
			todo = append(todo, int(user))
		}
	}
}

// lost returns the error of an entry the kernel gave back: none if the mount is gone.
func lost(errno unix.Errno) error {
	switch errno {
	case unix.ENOTCONN, unix.ECONNABORTED, unix.ECANCELED, unix.ENODEV:
		return nil
	}
	return fmt.Errorf("io_uring entry: %w", errno)
}

// answer handles the request in entry i and leaves the reply to be submitted.
func (w *worker) answer(i int) {
	e := &w.ents[i]
	if w.q.idle.Load() <= 1 && w.u.s.slow(e.mem[:inHeader], e.mem[entOpIn:entInOut]) {
		w.u.grow(w.q)
	}
	commit := binary.NativeEndian.Uint64(e.mem[entCommitID:])
	size := outHeader
	if e.split() {
		size = w.u.s.handle(w.turn, e.in[:], e.out[:])
	} else {
		refuse(e.in[0], e.out[0], unix.EIO)
	}
	binary.NativeEndian.PutUint32(e.mem[entPayloadSz:], uint32(size-outHeader))
	e.push(w.ring, w.u.s.fd, cmdCommitAndFetch, uint64(i), commit)
}

// split finds the parts of a request. The header has its whole length, as if they lay together.
func (e *entry) split() bool {
	total, payload := int(binary.NativeEndian.Uint32(e.mem)), int(binary.NativeEndian.Uint32(e.mem[entPayloadSz:]))
	first := total - inHeader - payload
	if first < 0 || first > entInOut-entOpIn || payload > maxIO {
		return false
	}
	e.in[1], e.in[2] = e.mem[entOpIn:entOpIn+first], e.mem[entPayload:entPayload+payload]
	return true
}

// push submits a command (struct fuse_uring_cmd_req) for the entry.
func (e *entry) push(r *ring, dev int, cmd uint32, user, commit uint64) {
	sqe := r.push(opUringCmd, dev, user)
	binary.NativeEndian.PutUint32(sqe[8:], cmd)
	binary.NativeEndian.PutUint64(sqe[56:], commit)
	binary.NativeEndian.PutUint16(sqe[64:], e.queue)
	if cmd != cmdRegister || e.mem == nil {
		return
	}
	base := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(e.mem)))) // mapped, so it does not move
	for i, v := range []uint64{base, entHeaders, base + entPayload, maxIO} {
		binary.NativeEndian.PutUint64(e.mem[entIovecs+8*i:], v)
	}
	binary.NativeEndian.PutUint64(sqe[16:], base+entIovecs)
	binary.NativeEndian.PutUint32(sqe[24:], 2)
}
