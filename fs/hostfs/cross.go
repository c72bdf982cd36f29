package hostfs

import "golang.org/x/sys/unix"

// ErrCrossDevice is the cause when a rename or link leads to another file system or mount: only a
// copy gets there.
var ErrCrossDevice error = unix.EXDEV
