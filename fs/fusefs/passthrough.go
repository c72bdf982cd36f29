package fusefs

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Passthrough: opens are answered, each with a file of the host that the kernel then reads, writes and
// maps by itself. All opens of one kernel inode must have the same host file (fs/fuse/iomode.c), and a
// copy-up gives it another. So an open that finds the inode open on the lower file is answered ESTALE:
// the kernel looks the name up again, and is told another node number, of which it makes another
// inode. Whoever has the old one open keeps reading the workspace's file, as with kernel overlayfs.
//
//	node number on the wire: 0 │ epoch, 7 bits │ the overlay's number, 56 bits
const (
	epochShift = 56
	epochMask  = 0x7f << epochShift
)

// stackDepth is how many file systems the mount counts as: its files may lie on overlayfs, which is two.
const stackDepth = 2

// FUSE_DEV_IOC_BACKING_OPEN and _CLOSE.
const (
	iocBackingOpen  = 0x4010e501
	iocBackingClose = 0x4004e502
)

var errEpochs = errors.New("a file was copied up and opened anew too often")

// passthrough keeps the host files of open inodes.
type passthrough struct {
	dev int // /dev/fuse

	mu     sync.Mutex
	open   map[uint64]*backing // by node number on the wire; guarded by mu, like all below
	epochs map[uint64]uint64   // of the overlay's nodes that have had several
}

// backing is the host file of an open inode.
type backing struct {
	id       int32
	dev, ino uint64
	opens    int
}

func newPassthrough(dev int) *passthrough {
	return &passthrough{dev: dev, open: map[uint64]*backing{}, epochs: map[uint64]uint64{}}
}

// probe asks whether the kernel takes host files from this process.
func (p *passthrough) probe() error {
	fd, err := unix.MemfdCreate("stage", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	id, err := p.register(fd)
	if err != nil {
		return fmt.Errorf("register a file: %w", err)
	}
	return p.unregister(id)
}

func (p *passthrough) register(fd int) (int32, error) {
	m := fuse.BackingMap{Fd: int32(fd)}
	id, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.dev), iocBackingOpen, uintptr(unsafe.Pointer(&m)))
	if errno != 0 {
		return 0, errno
	}
	return int32(id), nil
}

func (p *passthrough) unregister(id int32) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.dev), iocBackingClose, uintptr(unsafe.Pointer(&id)))
	if errno != 0 {
		return fmt.Errorf("unregister a file: %w", errno)
	}
	return nil
}

// wire returns the number by which the kernel is told of a node from now on.
func (p *passthrough) wire(id uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epochs[id]<<epochShift | id
}

// hold returns the id of the host file fd for one more open of node, or ESTALE.
func (p *passthrough) hold(node uint64, fd int) (int32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epochs[id(node)] != node>>epochShift {
		return 0, unix.ESTALE
	}
	b := p.open[node]
	if b == nil {
		n, err := p.register(fd)
		if err != nil {
			return 0, err
		}
		b = &backing{id: n, dev: uint64(st.Dev), ino: st.Ino}
		p.open[node] = b
	}
	if b.dev != uint64(st.Dev) || b.ino != st.Ino {
		return 0, p.renewLocked(node)
	}
	b.opens++
	return b.id, nil
}

// renewLocked begins a new epoch of a node.
func (p *passthrough) renewLocked(node uint64) error {
	next := node>>epochShift + 1
	if next > epochMask>>epochShift {
		return errEpochs
	}
	p.epochs[id(node)] = next
	return unix.ESTALE
}

// drop ends one open of node.
func (p *passthrough) drop(node uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.open[node]
	if b == nil {
		return nil
	}
	if b.opens--; b.opens > 0 {
		return nil
	}
	delete(p.open, node)
	return p.unregister(b.id)
}

// Open makes opens free without passthrough: see the package comment.
func (m *mount) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if m.pass == nil {
		return fuse.ENOSYS
	}
	return m.status(m.openThrough(in.NodeId, in.Flags&unix.O_ACCMODE != unix.O_RDONLY, out))
}

// openThrough answers an open of node with its host file.
func (m *mount) openThrough(node uint64, write bool, out *fuse.OpenOut) error {
	take := m.fs.Content
	if write {
		take = m.fs.Writable
	}
	c, err := take(id(node))
	if err != nil {
		return err
	}
	defer c.Release()
	out.BackingID, err = m.pass.hold(node, c.FD())
	out.OpenFlags = fuse.FOPEN_PASSTHROUGH
	return err
}

// opened completes the answer to a request that made a file and opens it.
func (m *mount) opened(status fuse.Status, out *fuse.CreateOut) fuse.Status {
	if status != fuse.OK || m.pass == nil {
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
		return status
	}
	err := m.openThrough(out.NodeId, true, &out.OpenOut)
	if err != nil {
		m.fs.Forget(id(out.NodeId), 1) // nobody is told of it
	}
	return m.status(err)
}

// Release ends an open; there are none without passthrough.
func (m *mount) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	if m.pass == nil {
		return
	}
	if err := m.pass.drop(in.NodeId); err != nil {
		m.fs.Report(err)
	}
}
