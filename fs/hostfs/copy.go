package hostfs

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyChunk is how much one read, write or copy_file_range moves.
const copyChunk = 1 << 20

func (f *osFile) CopyFrom(src File, sum io.Writer) error {
	return fail("copy into", f.name, f.copyFrom(src.OSFile(), sum))
}

// copyFrom copies what src held when it began. src must not shrink meanwhile: that is
// io.ErrUnexpectedEOF. It may move src's offset.
func (f *osFile) copyFrom(src *os.File, sum io.Writer) error {
	have, err := statFd(int(f.Fd()))
	if err != nil {
		return err
	}
	if have.Size != 0 {
		return fmt.Errorf("already holds %d bytes", have.Size)
	}
	if err := retry(func() error { return unix.IoctlFileClone(int(f.Fd()), int(src.Fd())) }); err == nil {
		return f.sumContent(sum)
	}
	// Other file system, or one without reflinks: any real trouble shows again below.
	n, err := statFd(int(src.Fd()))
	if err != nil {
		return err
	}
	if err := f.copyExtents(src, n.Size, sum); err != nil {
		return err
	}
	return f.Truncate(n.Size) // the hole at the end
}

func (f *osFile) sumContent(sum io.Writer) error {
	if sum == nil {
		return nil
	}
	n, err := statFd(int(f.Fd()))
	if err != nil {
		return err
	}
	_, err = io.Copy(sum, io.NewSectionReader(f.File, 0, n.Size))
	return err
}

// copyExtents copies the data in the first size bytes of src and leaves its holes.
func (f *osFile) copyExtents(src *os.File, size int64, sum io.Writer) error {
	for at := int64(0); at < size; {
		start, end, err := nextData(src, at, size)
		if err != nil {
			return err
		}
		if err := sumZeros(sum, start-at); err != nil {
			return err
		}
		if err := f.copyRange(src, start, end, sum); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// nextData returns the first extent of data in src at or behind at, within size. Both are size
// where there is none. A file system that knows no holes has one extent.
func nextData(src *os.File, at, size int64) (start, end int64, err error) {
	start, err = seek(src, at, unix.SEEK_DATA)
	switch err {
	case nil:
	case unix.ENXIO: // only a hole follows
		return size, size, nil
	case unix.EINVAL, unix.EOPNOTSUPP:
		return at, size, nil
	default:
		return 0, 0, err
	}
	if start >= size {
		return size, size, nil
	}
	end, err = seek(src, start, unix.SEEK_HOLE)
	if err == unix.ENXIO {
		return 0, 0, io.ErrUnexpectedEOF // shrunk between the two calls
	}
	return start, min(end, size), err
}

func seek(f *os.File, at int64, whence int) (off int64, err error) {
	err = retry(func() error {
		off, err = unix.Seek(int(f.Fd()), at, whence)
		return err
	})
	return off, err
}

// copyRange copies the bytes of src from start to end: inside the kernel, unless they are to be
// summed or it cannot.
func (f *osFile) copyRange(src *os.File, start, end int64, sum io.Writer) error {
	if sum == nil {
		at, err := f.copyInKernel(src, start, end)
		if err != nil || at == end {
			return err
		}
		start = at
	}
	buf := make([]byte, min(end-start, copyChunk))
	for start < end {
		n, err := src.ReadAt(buf[:min(end-start, int64(len(buf)))], start)
		if n == 0 && err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		if n == 0 {
			return err
		}
		if _, err := f.WriteAt(buf[:n], start); err != nil {
			return err
		}
		if err := sumBytes(sum, buf[:n]); err != nil {
			return err
		}
		start += int64(n)
	}
	return nil
}

// copyInKernel returns how far copy_file_range(2) came. Some pairs of file systems refuse it or
// return 0 (copy_file_range(2), BUGS): the caller goes on from there by reading.
func (f *osFile) copyInKernel(src *os.File, at, end int64) (int64, error) {
	for at < end {
		in, out := at, at
		n, err := retryInt(func() (int, error) {
			return unix.CopyFileRange(int(src.Fd()), &in, int(f.Fd()), &out, int(min(end-at, copyChunk)), 0)
		})
		switch err {
		case nil:
		case unix.EXDEV, unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM:
			return at, nil
		default:
			return at, err
		}
		if n == 0 {
			return at, nil
		}
		at += int64(n)
	}
	return at, nil
}

func sumBytes(sum io.Writer, b []byte) error {
	if sum == nil {
		return nil
	}
	_, err := sum.Write(b)
	return err
}

func sumZeros(sum io.Writer, n int64) error {
	if sum == nil || n == 0 {
		return nil
	}
	_, err := io.CopyN(sum, zeros{}, n)
	return err
}

// zeros reads as zero bytes without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
