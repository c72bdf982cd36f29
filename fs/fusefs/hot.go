package fusefs

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Opcodes of the requests there are most of (linux/fuse.h). They are answered without go-fuse, which
// allocates a kilobyte for each request it parses.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opRead        = 15
	opBatchForget = 42
	opReaddirplus = 44
)

// Sizes of what follows the header of a request, and of what does in a reply.
const (
	sizeGetattrIn = int(unsafe.Sizeof(fuse.GetAttrIn{})) - inHeader
	sizeReadIn    = int(unsafe.Sizeof(fuse.ReadIn{})) - inHeader
	sizeForget    = 8  // fuse_forget_in
	sizeForgetOne = 16 // fuse_forget_one
	sizeEntryOut  = int(unsafe.Sizeof(fuse.EntryOut{}))
	sizeAttrOut   = int(unsafe.Sizeof(fuse.AttrOut{}))
)

// hot is one request of those kinds.
type hot struct {
	head *fuse.InHeader
	arg  []byte // what follows the header, as far as it lies together
	body []byte // what is to follow the header of the reply
}

// hotOf returns the request in in if it is one that hot answers. in and out are as handle takes them:
// all in one part, or in the parts of an entry of a ring.
func hotOf(in, out [][]byte) (hot, bool) {
	if len(in[0]) < inHeader {
		return hot{}, false
	}
	h := hot{head: (*fuse.InHeader)(unsafe.Pointer(&in[0][0])), arg: in[0][inHeader:]}
	for _, part := range in[1:] {
		if len(h.arg) == 0 {
			h.arg = part
		} else if len(part) > 0 {
			return h, false
		}
	}
	h.body = out[0][outHeader:]
	if len(out) > 1 {
		h.body = out[1]
	}
	return h, h.head.TotalExtlen == 0
}

// answer answers the request and returns the size of the reply, header included, 0 for none. It reports
// false when the request is not one of its kinds, or too short to be: go-fuse then says what is wrong.
func (h *hot) answer(m *mount, header []byte) (int, bool) {
	var size int
	status := fuse.OK
	switch op := h.head.Opcode; {
	case op == opLookup && len(h.body) >= sizeEntryOut:
		size, status = sizeEntryOut, h.lookup(m)
	case op == opGetattr && len(h.arg) >= sizeGetattrIn && len(h.body) >= sizeAttrOut:
		size, status = sizeAttrOut, h.getattr(m)
	case op == opRead && len(h.arg) >= sizeReadIn:
		size, status = h.read(m)
	case op == opReaddirplus && len(h.arg) >= sizeReadIn:
		size, status = h.readdirplus(m)
	case op == opForget && len(h.arg) >= sizeForget:
		m.Forget(h.head.NodeId, binary.NativeEndian.Uint64(h.arg))
		return 0, true
	case op == opBatchForget && len(h.arg) >= 8:
		return 0, h.batchForget(m)
	default:
		return 0, false
	}
	if status != fuse.OK {
		size = 0
	}
	binary.NativeEndian.PutUint32(header, uint32(outHeader+size))
	binary.NativeEndian.PutUint32(header[4:], uint32(-int32(status)))
	binary.NativeEndian.PutUint64(header[8:], h.head.Unique)
	return outHeader + size, true
}

func (h *hot) lookup(m *mount) fuse.Status {
	arg, _, _ := bytes.Cut(h.arg, []byte{0})
	name := m.fs.NameIn(id(h.head.NodeId), arg) // before the reply, which may lie in the same memory
	out := (*fuse.EntryOut)(unsafe.Pointer(&h.body[0]))
	*out = fuse.EntryOut{}
	return m.Lookup(nil, h.head, name, out)
}

func (h *hot) getattr(m *mount) fuse.Status {
	in := fuse.GetAttrIn{InHeader: *h.head}
	in.Flags_ = binary.NativeEndian.Uint32(h.arg)
	in.Fh_ = binary.NativeEndian.Uint64(h.arg[8:])
	out := (*fuse.AttrOut)(unsafe.Pointer(&h.body[0]))
	*out = fuse.AttrOut{}
	return m.GetAttr(nil, &in, out)
}

// readIn returns the arguments of a READ or READDIRPLUS, and the memory for what is read.
func (h *hot) readIn() (fuse.ReadIn, []byte) {
	in := fuse.ReadIn{
		InHeader: *h.head, Fh: binary.NativeEndian.Uint64(h.arg),
		Offset: binary.NativeEndian.Uint64(h.arg[8:]), Size: binary.NativeEndian.Uint32(h.arg[16:]),
	}
	return in, h.body[:min(int(in.Size), len(h.body))]
}

// read reads straight into the reply.
func (h *hot) read(m *mount) (int, fuse.Status) {
	in, buf := h.readIn()
	c, err := m.fs.Content(id(in.NodeId))
	if err != nil {
		return 0, m.status(err)
	}
	n, err := unix.Pread(c.FD(), buf, int64(in.Offset))
	for err == unix.EINTR {
		n, err = unix.Pread(c.FD(), buf, int64(in.Offset))
	}
	c.Done(max(n, 0), err == nil && in.Offset == 0 && n < len(buf))
	return n, m.status(err)
}

func (h *hot) readdirplus(m *mount) (int, fuse.Status) {
	in, buf := h.readIn()
	list := fuse.NewDirEntryList(buf, in.Offset)
	status := m.ReadDirPlus(nil, &in, list)
	return len(list.Bytes()), status
}

func (h *hot) batchForget(m *mount) bool {
	count, list := int(binary.NativeEndian.Uint32(h.arg)), h.arg[8:]
	if len(list)/sizeForgetOne < count {
		return false
	}
	for ; count > 0; count-- {
		node := binary.NativeEndian.Uint64(list)
		if node == 1 {
			node = rootAlias
		}
		m.Forget(node, binary.NativeEndian.Uint64(list[8:]))
		list = list[sizeForgetOne:]
	}
	return true
}
