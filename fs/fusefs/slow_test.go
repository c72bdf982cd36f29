package fusefs

import (
	"encoding/binary"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"stage/fs/overlay"
)

// TestSlow holds for which requests another loop stands by: those that may copy up, sync or move much.
func TestSlow(t *testing.T) {
	m := mountOverlay(t, Loop)
	var lower, upper overlay.Entry
	m.must(m.fs.Lookup(overlay.RootID, "f", &lower))
	m.must(m.fs.Create(overlay.Caller{}, overlay.RootID, "new", 0, 0o644, &upper))
	for _, c := range []struct {
		name string
		op   uint32
		node uint64
		arg  uint32 // fuse_setattr_in.valid or fuse_write_in.size
		want bool
	}{
		{"lookup", 1, lower.ID, 0, false},
		{"read", 15, lower.ID, 0, false},
		{"write to the lower", opWrite, lower.ID, 1, true},
		{"write to the upper", opWrite, upper.ID, 1, false},
		{"long write to the upper", opWrite, upper.ID, 1 << 20, true},
		{"chmod in the lower", opSetattr, lower.ID, fuse.FATTR_MODE, true},
		{"chmod in the upper", opSetattr, upper.ID, fuse.FATTR_MODE, false},
		{"truncate in the upper", opSetattr, upper.ID, fuse.FATTR_SIZE, true},
		{"rename", 12, lower.ID, 0, true},
		{"fsync", 20, upper.ID, 0, true},
		{"unknown", 1000, lower.ID, 0, false},
	} {
		header, arg := make([]byte, inHeader), make([]byte, 128)
		binary.NativeEndian.PutUint32(header[inOpcode:], c.op)
		binary.NativeEndian.PutUint64(header[inNode:], c.node)
		if c.op == opSetattr {
			binary.NativeEndian.PutUint32(arg[setattrValid:], c.arg)
		} else {
			binary.NativeEndian.PutUint32(arg[writeSize:], c.arg)
		}
		if got := m.srv.slow(header, arg); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
