package overlay

import (
	"hash"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

const (
	copyChunk = 1 << 20
	// maxHoleDigest is how much of a sparse file may be holes before its digest is left out: a
	// digest reads holes as zeros, and a file may claim to be larger than a day can hash.
	maxHoleDigest = 128 << 20
)

// smallSize is up to where content is read once, into memory.
const smallSize = 128 << 10

// smallBuffers are for content that is small.
type smallBuffers struct{ sync.Pool }

func (p *smallBuffers) get() *[smallSize]byte {
	if b, ok := p.Get().(*[smallSize]byte); ok {
		return b
	}
	return new([smallSize]byte)
}

// isSmall reports whether the content of a file with state st is copied in one piece: it is short, has
// no holes, and the upper's file system has no reflinks.
func (f *FS) isSmall(st *unix.Stat_t) bool {
	return f.noClone.Load() && st.Size <= smallSize && st.Blocks*512 >= st.Size
}

// copySmall is copyAll for what isSmall: content that is read once, for the copy, its digest and the
// preimage. What is not all there any more the caller finds to have changed.
func (f *FS) copySmall(c *copied, src int, why reason) error {
	buf := f.small.get()
	defer f.small.Put(buf)
	text, err := readAll(src, buf[:c.st.Size])
	if err != nil {
		return err
	}
	c.node.Digest = tree.DigestBytes(text)
	if why != toTruncate {
		if err := pwriteAll(c.fd, text, 0); err != nil {
			return err
		}
	}
	if why == toMove || f.cfg.Preimages == nil {
		return nil
	}
	return f.keepBytes(c.node.Digest, text)
}

// readAll fills buf from the start of fd and returns what there was.
func readAll(fd int, buf []byte) ([]byte, error) {
	for at := 0; at < len(buf); {
		n, err := unix.Pread(fd, buf[at:], int64(at))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return buf[:at], nil
		}
		at += n
	}
	return buf, nil
}

// clone makes dst a reflink of src where the file systems can. Real trouble shows again when the content
// is copied.
func (f *FS) clone(dst, src int) bool {
	if f.noClone.Load() {
		return false
	}
	switch unix.IoctlFileClone(dst, src) {
	case nil:
		return true
	case unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS:
		f.noClone.Store(true)
	case unix.EXDEV: // of what is mounted in the workspace that says nothing about the rest
		if f.lowerDev != f.upperDev {
			f.noClone.Store(true)
		}
	}
	return false
}

// copyContent makes the content of dst that of src, which is size bytes long: a reflink where the
// file systems can, else the data extents alone, so that holes stay holes. It returns the digest
// of the content, "" if it was not read.
func (f *FS) copyContent(dst, src int, size int64) (tree.Digest, error) {
	if f.clone(dst, src) {
		return "", nil
	}
	sum := tree.NewHash()
	holes, whole := int64(0), true
	buf := make([]byte, min(copyChunk, max(size, 1)))
	for at := int64(0); at < size; {
		start, end, err := nextData(src, at, size)
		if err != nil {
			return "", err
		}
		holes += start - at
		if whole = whole && holes <= maxHoleDigest; whole {
			hashZeros(sum, start-at)
		}
		if err := copyExtent(dst, src, start, end, buf, sum); err != nil {
			return "", err
		}
		at = end
	}
	if err := unix.Ftruncate(dst, size); err != nil { // the hole at the end
		return "", err
	}
	if !whole {
		return "", nil
	}
	return tree.SumDigest(sum), nil
}

// nextData returns the first extent of data at or behind at; both ends are size when only a hole
// follows. A file system that knows no holes has one extent.
func nextData(fd int, at, size int64) (start, end int64, err error) {
	start, err = unix.Seek(fd, at, unix.SEEK_DATA)
	switch err {
	case nil:
	case unix.ENXIO:
		return size, size, nil
	case unix.EINVAL, unix.EOPNOTSUPP:
		return at, size, nil
	default:
		return 0, 0, err
	}
	end, err = unix.Seek(fd, start, unix.SEEK_HOLE)
	if err == unix.ENXIO { // cut off meanwhile: the caller finds that it changed
		return size, size, nil
	}
	if err != nil {
		return 0, 0, err
	}
	return min(start, size), min(end, size), nil
}

// copyExtent copies bytes start to end. A source that ends early is left: the caller finds that it
// changed.
func copyExtent(dst, src int, start, end int64, buf []byte, sum hash.Hash) error {
	for at := start; at < end; {
		n, err := unix.Pread(src, buf[:min(int64(len(buf)), end-at)], at)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		sum.Write(buf[:n])
		if err := pwriteAll(dst, buf[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

func pwriteAll(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrShortWrite
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

func hashZeros(sum hash.Hash, n int64) {
	var zeros [1 << 16]byte
	for ; n > 0; n -= int64(len(zeros)) {
		sum.Write(zeros[:min(n, int64(len(zeros)))])
	}
}
