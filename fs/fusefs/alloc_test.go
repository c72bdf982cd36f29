package fusefs

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"

	"stage/fs/overlay"
)

// request writes a request into b and returns its size.
func (b *buffers) request(op uint32, node uint64, arg []byte) int {
	n := inHeader + len(arg)
	clear(b.in[:inHeader])
	binary.NativeEndian.PutUint32(b.in, uint32(n))
	binary.NativeEndian.PutUint32(b.in[inOpcode:], op)
	binary.NativeEndian.PutUint64(b.in[inUnique:], 77)
	binary.NativeEndian.PutUint64(b.in[inNode:], node)
	copy(b.in[inHeader:], arg)
	return n
}

// unmounted is a Server without a mount over a directory with one file, f.
func unmounted(t testing.TB) *Server {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &Server{fs: eventsOnly(t, dir, nil)}
	s.mount = &mount{RawFileSystem: fuse.NewDefaultRawFileSystem(), fs: s.fs}
	s.proto = fuse.NewProtocolServer(s.mount, mountSettings(false, false))
	return s
}

// hotRequests are requests of the kinds that hot answers, on file id in the root.
func hotRequests(id uint64) map[string]struct {
	op   uint32
	node uint64
	arg  []byte
} {
	read := binary.NativeEndian.AppendUint64(nil, 0)
	read = binary.NativeEndian.AppendUint64(read, 0)
	read = binary.NativeEndian.AppendUint32(read, 8192)
	read = append(read, make([]byte, sizeReadIn-len(read))...)
	list := append([]byte(nil), read...)
	binary.NativeEndian.PutUint64(list[8:], 2) // behind "." and ".."
	forget := binary.NativeEndian.AppendUint32(nil, 1)
	forget = binary.NativeEndian.AppendUint32(forget, 0)
	forget = binary.NativeEndian.AppendUint64(forget, id)
	forget = binary.NativeEndian.AppendUint64(forget, 0)
	return map[string]struct {
		op   uint32
		node uint64
		arg  []byte
	}{
		"LOOKUP":       {opLookup, 1, []byte("f\x00")},
		"LOOKUP none":  {opLookup, 1, []byte("nothing\x00")},
		"GETATTR":      {opGetattr, id, make([]byte, sizeGetattrIn)},
		"GETATTR root": {opGetattr, 1, make([]byte, sizeGetattrIn)},
		"READ":         {opRead, id, read},
		"READDIRPLUS":  {opReaddirplus, 1, list},
		"FORGET":       {opForget, id, make([]byte, 8)},
		"BATCH_FORGET": {opBatchForget, 1, forget},
	}
}

func TestRequestsAllocateNothing(t *testing.T) {
	s := unmounted(t)
	var e overlay.Entry
	if err := s.fs.Lookup(overlay.RootID, "f", &e); err != nil {
		t.Fatal(err)
	}
	b := makeBuffers(&turn{})
	for name, r := range hotRequests(e.ID) {
		act := func() {
			reply := b.answer(s, b.request(r.op, r.node, r.arg))
			if reply > 0 && binary.NativeEndian.Uint32(b.out[4:]) != 0 {
				t.Fatalf("%s: error %d", name, int32(binary.NativeEndian.Uint32(b.out[4:])))
			}
		}
		act()
		most := 0.5
		if name == "LOOKUP none" {
			most = 1.5 // the name
		}
		if got := testing.AllocsPerRun(200, act); got >= most && !raceEnabled {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

// TestHotAnswersAsGoFuseDoes gives the same requests to both.
func TestHotAnswersAsGoFuseDoes(t *testing.T) {
	s := unmounted(t)
	var e overlay.Entry
	if err := s.fs.Lookup(overlay.RootID, "f", &e); err != nil {
		t.Fatal(err)
	}
	for name, r := range hotRequests(e.ID) {
		ours, theirs := makeBuffers(&turn{}), makeBuffers(&turn{})
		n := ours.answer(s, ours.request(r.op, r.node, r.arg))
		size := theirs.request(r.op, r.node, r.arg)
		if r.node == 1 {
			binary.NativeEndian.PutUint64(theirs.in[inNode:], rootAlias)
		}
		m, status := s.proto.HandleRequest([][]byte{theirs.in[:size]}, [][]byte{theirs.out})
		if status != fuse.OK || n != m || string(ours.out[:n]) != string(theirs.out[:m]) {
			t.Errorf("%s: answered %d bytes, go-fuse %d (%v):\n%x\n%x", name, n, m, status, ours.out[:n], theirs.out[:m])
		}
	}
}

// TestHotTakesRequestsInParts gives a READ as io_uring does.
func TestHotTakesRequestsInParts(t *testing.T) {
	s := unmounted(t)
	var e overlay.Entry
	if err := s.fs.Lookup(overlay.RootID, "f", &e); err != nil {
		t.Fatal(err)
	}
	b := makeBuffers(&turn{})
	r := hotRequests(e.ID)["READ"]
	n := b.request(r.op, r.node, r.arg)
	head, payload := b.in[:outHeader], make([]byte, 8192) // of request and reply the same
	size := s.handle(b.turn, [][]byte{b.in[:inHeader], b.in[inHeader:n], nil}, [][]byte{head, payload})
	if size != outHeader+7 || string(payload[:7]) != "content" || binary.NativeEndian.Uint64(head[8:]) != 77 {
		t.Errorf("read: %d bytes, %q", size, payload[:7])
	}
	b.request(opLookup, 1, nil)
	size = s.handle(b.turn, [][]byte{b.in[:inHeader], nil, payload[:copy(payload, "f\x00")]}, [][]byte{head, payload})
	out := (*fuse.EntryOut)(unsafe.Pointer(&payload[0]))
	if size != outHeader+sizeEntryOut || out.NodeId != e.ID {
		t.Errorf("lookup: %d bytes, node %d, want %d", size, out.NodeId, e.ID)
	}
	// What is too short is an error, not a crash.
	for _, op := range []uint32{opLookup, opGetattr, opRead, opReaddirplus, opForget, opBatchForget} {
		s.handle(b.turn, [][]byte{b.in[:b.request(op, 1, nil)]}, [][]byte{b.out})
		b.request(op, 1, nil)
		s.handle(b.turn, [][]byte{b.in[:inHeader], nil, nil}, [][]byte{head, payload})
	}
}

func BenchmarkRequest(b *testing.B) {
	s := unmounted(b)
	var e overlay.Entry
	if err := s.fs.Lookup(overlay.RootID, "f", &e); err != nil {
		b.Fatal(err)
	}
	buf := makeBuffers(&turn{})
	for name, r := range hotRequests(e.ID) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf.answer(s, buf.request(r.op, r.node, r.arg))
			}
		})
		b.Run("go-fuse/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := buf.request(r.op, r.node, r.arg)
				if r.node == 1 {
					binary.NativeEndian.PutUint64(buf.in[inNode:], rootAlias)
				}
				s.proto.HandleRequest([][]byte{buf.in[:n]}, [][]byte{buf.out})
			}
		})
	}
}
