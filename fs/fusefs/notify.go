package fusefs

import (
	"encoding/binary"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"stage/fs/overlay"
)

// notifier makes the kernel forget what the workspace has no more. Each message may wait for a
// request under way: for a page that it is to fill, or for the lock of a directory it looks into
// (fuse_reverse_inval_inode, fs/fuse/inode.c; fuse_reverse_inval_entry, fs/fuse/dir.c).
type notifier struct {
	fd   int
	pass *passthrough // may be nil
}

var _ overlay.Kernel = notifier{}

// expireOnly is FUSE_EXPIRE_ONLY (linux/fuse.h, protocol 7.38): the entry stays until it was looked
// up again, with all that is open or mounted below. Older kernels drop it.
const expireOnly = 1

// wire returns the number by which the kernel knows a node.
func (n notifier) wire(node uint64) uint64 {
	if n.pass == nil {
		return node
	}
	return n.pass.wire(node)
}

// DropEntry sends FUSE_NOTIFY_INVAL_ENTRY.
func (n notifier) DropEntry(dir uint64, name string) error {
	msg := message(fuse.NOTIFY_INVAL_ENTRY, 16+len(name)+1) // fuse_notify_inval_entry_out
	binary.NativeEndian.PutUint64(msg[outHeader:], n.wire(dir))
	binary.NativeEndian.PutUint32(msg[outHeader+8:], uint32(len(name)))
	binary.NativeEndian.PutUint32(msg[outHeader+12:], expireOnly)
	copy(msg[outHeader+16:], name)
	return n.send(msg)
}

// DeleteEntry sends FUSE_NOTIFY_DELETE, of which inotify watchers of the node are told.
func (n notifier) DeleteEntry(dir uint64, name string, node uint64) error {
	msg := message(fuse.NOTIFY_DELETE, 24+len(name)+1) // fuse_notify_delete_out
	binary.NativeEndian.PutUint64(msg[outHeader:], n.wire(dir))
	binary.NativeEndian.PutUint64(msg[outHeader+8:], n.wire(node))
	binary.NativeEndian.PutUint32(msg[outHeader+16:], uint32(len(name)))
	copy(msg[outHeader+24:], name)
	return n.send(msg)
}

// DropNode sends FUSE_NOTIFY_INVAL_INODE: without content of no byte, else of all.
func (n notifier) DropNode(node uint64, content bool) error {
	msg := message(fuse.NOTIFY_INVAL_INODE, 24) // fuse_notify_inval_inode_out
	binary.NativeEndian.PutUint64(msg[outHeader:], n.wire(node))
	if !content {
		binary.NativeEndian.PutUint64(msg[outHeader+8:], ^uint64(0)) // a negative offset: attributes only
	}
	return n.send(msg)
}

// message returns a notification with room for size bytes behind its fuse_out_header.
func message(code, size int) []byte {
	msg := make([]byte, outHeader+size)
	binary.NativeEndian.PutUint32(msg, uint32(len(msg)))
	binary.NativeEndian.PutUint32(msg[4:], uint32(-code))
	return msg
}

// send sends a notification. A connection that is gone has nothing to forget.
func (n notifier) send(msg []byte) error {
	for {
		_, err := unix.Write(n.fd, msg)
		switch err {
		case unix.EINTR, unix.EAGAIN:
			continue
		case unix.ENODEV, unix.ECONNABORTED, unix.ENOTCONN, unix.EPERM: // EPERM: not mounted yet, or no more
			return nil
		}
		return err
	}
}
