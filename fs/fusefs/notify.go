package fusefs

import (
	"encoding/binary"
	"fmt"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// notifyStale makes the kernel forget what the workspace has no more, until stop is closed. It holds
// no lock and answers no request: the kernel may wait for a page that a request under way is to fill
// (fuse_reverse_inval_inode, fs/fuse/inode.c).
func (s *Server) notifyStale() {
	for {
		select {
		case <-s.stop:
			return
		case id := <-s.fs.Stale():
			err := s.fs.Invalidate(id, func() error { return s.dropInode(id) })
			if err != nil {
				s.fail(fmt.Errorf("invalidate inode: %w", err))
			}
		}
	}
}

// dropInode makes the kernel forget attributes and content of a node. One it does not know, or a
// connection that is gone, has nothing to forget.
func (s *Server) dropInode(id uint64) error {
	msg := make([]byte, outHeader+24) // fuse_out_header, fuse_notify_inval_inode_out
	binary.NativeEndian.PutUint32(msg, uint32(len(msg)))
	binary.NativeEndian.PutUint32(msg[4:], uint32(fuse.NOTIFY_INVAL_INODE*-1))
	binary.NativeEndian.PutUint64(msg[outHeader:], id) // offset 0 and length 0: all of it
	for {
		_, err := unix.Write(s.fd, msg)
		switch err {
		case unix.EINTR, unix.EAGAIN:
			continue
		case unix.ENOENT, unix.ENODEV, unix.ECONNABORTED, unix.ENOTCONN:
			return nil
		}
		return err
	}
}
