package fusefs

import (
	"strconv"
	"sync/atomic"
)

// opNames are the requests in the words of linux/fuse.h.
var opNames = [64]string{
	1: "LOOKUP", 2: "FORGET", 3: "GETATTR", 4: "SETATTR", 5: "READLINK", 6: "SYMLINK", 8: "MKNOD", 9: "MKDIR",
	10: "UNLINK", 11: "RMDIR", 12: "RENAME", 13: "LINK", 14: "OPEN", 15: "READ", 16: "WRITE", 17: "STATFS",
	18: "RELEASE", 20: "FSYNC", 21: "SETXATTR", 22: "GETXATTR", 23: "LISTXATTR", 24: "REMOVEXATTR", 25: "FLUSH",
	26: "INIT", 27: "OPENDIR", 28: "READDIR", 29: "RELEASEDIR", 30: "FSYNCDIR", 31: "GETLK", 32: "SETLK",
	33: "SETLKW", 34: "ACCESS", 35: "CREATE", 36: "INTERRUPT", 37: "BMAP", 38: "DESTROY", 39: "IOCTL", 40: "POLL",
	41: "NOTIFY_REPLY", 42: "BATCH_FORGET", 43: "FALLOCATE", 44: "READDIRPLUS", 45: "RENAME2", 46: "LSEEK",
	47: "COPY_FILE_RANGE", 48: "SETUPMAPPING", 49: "REMOVEMAPPING", 50: "SYNCFS", 51: "TMPFILE", 52: "STATX",
}

// messages counts requests by opcode; those without a name share the first.
type messages [len(opNames)]atomic.Uint64

func (m *messages) count(op uint32) {
	if op >= uint32(len(m)) {
		op = 0
	}
	m[op].Add(1)
}

// Messages returns how many requests of each kind were received so far.
func (s *Server) Messages() map[string]uint64 {
	got := map[string]uint64{}
	for op := range s.received {
		n := s.received[op].Load()
		if n == 0 {
			continue
		}
		name := opNames[op]
		if name == "" {
			name = strconv.Itoa(op)
		}
		got[name] += n
	}
	return got
}
