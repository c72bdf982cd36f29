package hostfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

func (d *osDir) ReadDir() ([]Dirent, error) {
	ents, err := d.readDir()
	return ents, fail("read directory", ".", err)
}

func (d *osDir) readDir() ([]Dirent, error) {
	d.readMu.Lock()
	defer d.readMu.Unlock()
	if _, err := unix.Seek(d.fd, 0, 0); err != nil {
		return nil, err
	}
	var ents []Dirent
	buf := make([]byte, 1<<15)
	for {
		n, err := retryInt(func() (int, error) { return unix.Getdents(d.fd, buf) })
		if err != nil || n == 0 {
			return ents, err
		}
		if ents, err = appendDirents(ents, buf[:n]); err != nil {
			return nil, err
		}
	}
}

// The fixed part of a struct linux_dirent64, getdents64(2):
//
//	| d_ino 8 | d_off 8 | d_reclen 2 | d_type 1 | d_name … NUL, padding |
const (
	direntReclen = unsafe.Offsetof(unix.Dirent{}.Reclen)
	direntType   = unsafe.Offsetof(unix.Dirent{}.Type)
	direntName   = unsafe.Offsetof(unix.Dirent{}.Name)
)

func appendDirents(ents []Dirent, buf []byte) ([]Dirent, error) {
	for len(buf) > 0 {
		if len(buf) < int(direntName) {
			return nil, fmt.Errorf("directory entry of %d bytes: %w", len(buf), unix.EIO)
		}
		size := int(binary.NativeEndian.Uint16(buf[direntReclen:]))
		if size < int(direntName) || size > len(buf) {
			return nil, fmt.Errorf("directory entry says %d of %d bytes: %w", size, len(buf), unix.EIO)
		}
		name, _, _ := bytes.Cut(buf[direntName:size], []byte{0})
		if s := string(name); s != "." && s != ".." {
			kind := kindOf(uint32(buf[direntType]) << 12) // DT_* are the S_IFMT bits
			ents = append(ents, Dirent{s, kind, binary.NativeEndian.Uint64(buf)})
		}
		buf = buf[size:]
	}
	return ents, nil
}
