package fusefs

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/io_uring.h, as far as x/sys/unix lacks it.
const (
	setupSQE128       = 1 << 10
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13
	featSingleMmap    = 1 << 0
	enterGetevents    = 1 << 0
	offSQEs           = 0x10000000
	opPollAdd         = 6
	opUringCmd        = 46
	sqeSize           = 128
	cqeSize           = 16
)

// ringParams is struct io_uring_params.
type ringParams struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sq                                                                     struct {
		head, tail, ringMask, ringEntries, flags, dropped, array, _ uint32
		_                                                           uint64
	}
	cq struct {
		head, tail, ringMask, ringEntries, overflow, cqes, flags, _ uint32
		_                                                           uint64
	}
}

// ring is an io_uring of one thread: the one that made it submits, waits and looks at completions,
// and the kernel fills in a request only while that thread waits.
type ring struct {
	fd             int
	queues, sqes   []byte
	sqTail         *uint32
	cqHead, cqTail *uint32
	sqMask, cqMask uint32
	cqes           uint32 // offset in queues
	pending        uint32 // pushed and not yet submitted
}

func newRing(entries uint32) (*ring, error) {
	p := ringParams{flags: setupSQE128 | setupSingleIssuer | setupDeferTaskrun}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("io_uring_setup: %w", errno)
	}
	r := &ring{fd: int(fd), cqes: p.cq.cqes}
	if err := r.mmap(&p); err != nil {
		r.close()
		return nil, fmt.Errorf("map io_uring: %w", err)
	}
	return r, nil
}

func (r *ring) mmap(p *ringParams) error {
	if p.features&featSingleMmap == 0 {
		return unix.ENOSYS
	}
	size := max(p.sq.array+p.sqEntries*4, p.cq.cqes+p.cqEntries*cqeSize)
	var err error
	if r.queues, err = unix.Mmap(r.fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return err
	}
	if r.sqes, err = unix.Mmap(r.fd, offSQEs, int(p.sqEntries)*sqeSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return err
	}
	r.sqTail = r.word(p.sq.tail)
	r.cqHead, r.cqTail = r.word(p.cq.head), r.word(p.cq.tail)
	r.sqMask, r.cqMask = *r.word(p.sq.ringMask), *r.word(p.cq.ringMask)
	for i := range p.sqEntries { // entry i of the queue is always submission i
		*r.word(p.sq.array + 4*i) = i
	}
	return nil
}

func (r *ring) word(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.queues[off])) }

// push returns the next submission, cleared, to be filled in; enter submits it.
//
// Preconditions:
//   - fewer submissions are pending than the ring has entries.
func (r *ring) push(op byte, fd int, user uint64) []byte {
	tail := *r.sqTail
	at := int(tail&r.sqMask) * sqeSize
	sqe := r.sqes[at : at+sqeSize]
	clear(sqe)
	sqe[0] = op
	binary.NativeEndian.PutUint32(sqe[4:], uint32(fd))
	binary.NativeEndian.PutUint64(sqe[32:], user)
	atomic.StoreUint32(r.sqTail, tail+1) // read by the kernel in enter, not before
	r.pending++
	return sqe
}

// poll pushes a wait for events of fd.
func (r *ring) poll(fd int, events uint32, user uint64) {
	binary.NativeEndian.PutUint32(r.push(opPollAdd, fd, user)[28:], events)
}

// enter submits what is pending and waits until there are at least wait completions.
func (r *ring) enter(wait int) error {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(r.pending), uintptr(wait), enterGetevents, 0, 0)
		switch errno {
		case 0:
			r.pending -= uint32(n)
			if r.pending > 0 {
				continue
			}
			return nil
		case unix.EINTR, unix.EAGAIN, unix.EBUSY:
			continue
		}
		return fmt.Errorf("io_uring_enter: %w", errno)
	}
}

// next takes a completion.
func (r *ring) next() (user uint64, res int32, ok bool) {
	head := *r.cqHead
	if head == atomic.LoadUint32(r.cqTail) {
		return 0, 0, false
	}
	c := r.queues[r.cqes+(head&r.cqMask)*cqeSize:]
	user, res = binary.NativeEndian.Uint64(c), int32(binary.NativeEndian.Uint32(c[8:]))
	atomic.StoreUint32(r.cqHead, head+1)
	return user, res, true
}

// close ends the ring. The kernel takes back what it still holds of it, in its own time.
func (r *ring) close() {
	for _, m := range [][]byte{r.queues, r.sqes} {
		if m != nil {
			_ = unix.Munmap(m) // it was mapped just so
		}
	}
	closeFD(r.fd)
}

// closeFD closes a descriptor whose close cannot fail in a way that matters.
func closeFD(fd int) { _ = unix.Close(fd) }
