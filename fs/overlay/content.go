package overlay

import (
	"hash"
	"io"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

const (
	copyChunk = 1 << 20
	// maxHoleDigest is how much of a sparse file may be holes before its digest is left out: a
	// digest reads holes as zeros, and a file may claim to be larger than a day can hash.
	maxHoleDigest = 1 << 30
)

// copyContent makes the content of dst that of src, which is size bytes long: a reflink where the
// file systems can, else the data extents alone, so that holes stay holes. It returns the digest
// of the content, "" if it was not read.
func copyContent(dst, src int, size int64) (tree.Digest, error) {
	if err := unix.IoctlFileClone(dst, src); err == nil {
		return "", nil
	}
	// Without reflinks, or between file systems; real trouble shows again below.
	sum := tree.NewHash()
	whole := true
	buf := make([]byte, min(copyChunk, max(size, 1)))
	for at := int64(0); at < size; {
		start, end, err := nextData(src, at, size)
		if err != nil {
			return "", err
		}
		if whole = whole && start-at <= maxHoleDigest; whole {
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
