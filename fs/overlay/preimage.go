package overlay

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// maxPreimage is how large content may be that is read for nothing but its digest, or copied as a
// preimage where the file system has no reflinks.
const maxPreimage = 8 << 20

// reason is why a file is copied up.
type reason uint8

const (
	toChange   reason = iota // its content stays, and may be written to
	toTruncate               // it arrives empty
	toMove                   // it gets another name; undo has the original, so no preimage is kept
)

// keepContent returns the digest of the content of fd, size bytes long, "" where that is too much to
// read, and keeps the content as a preimage. digest is what is known already.
func (f *FS) keepContent(fd int, size int64, digest tree.Digest, keep bool) (tree.Digest, error) {
	if keep && f.cfg.Preimages != nil && size <= maxPreimage {
		return f.keepPreimage(fd, size, digest)
	}
	if digest != "" || size > maxPreimage {
		return digest, nil
	}
	return digestOf(fd, size)
}

// keepPreimage copies the content of fd under its digest's name, unless it is there already.
func (f *FS) keepPreimage(fd int, size int64, digest tree.Digest) (tree.Digest, error) {
	dir := f.cfg.Preimages.Fd()
	if digest != "" && unix.Faccessat(dir, preimageName(digest), unix.F_OK, 0) == nil {
		return digest, nil
	}
	tmp, err := f.fds.openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer closeFD(tmp)
	copied, err := f.copyContent(tmp, fd, size)
	if err == nil && copied == "" { // reflinked
		copied, err = digestOf(tmp, size)
	}
	if err != nil {
		return "", err
	}
	err = unix.Linkat(unix.AT_FDCWD, procFD(tmp), dir, preimageName(copied), unix.AT_SYMLINK_FOLLOW)
	if err != nil && err != unix.EEXIST {
		return "", err
	}
	return copied, nil
}

// keepBytes keeps text, whose digest is digest. The file is not made aside first: whoever reads it
// checks the digest, and one that a crash cut short is written again.
func (f *FS) keepBytes(digest tree.Digest, text []byte) error {
	dir, name := f.cfg.Preimages.Fd(), preimageName(digest)
	fd, err := f.fds.openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
	if err == unix.EEXIST {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, name, &st, statFlags); err != nil || st.Size == int64(len(text)) {
			return err
		}
		fd, err = f.fds.openat(dir, name, unix.O_WRONLY, 0)
	}
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return pwriteAll(fd, text, 0)
}

func preimageName(d tree.Digest) string { return strings.TrimPrefix(string(d), "sha256:") }

func digestOf(fd int, size int64) (tree.Digest, error) {
	sum := tree.NewHash()
	buf := make([]byte, min(copyChunk, max(size, 1)))
	for at := int64(0); at < size; {
		n, err := unix.Pread(fd, buf[:min(int64(len(buf)), size-at)], at)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return "", err
		}
		if n == 0 {
			break // shorter meanwhile: the caller finds that it changed
		}
		sum.Write(buf[:n])
		at += int64(n)
	}
	return tree.SumDigest(sum), nil
}

// learn reads the lower file that shows at name in p and is about to be replaced, so that its base can
// hold its digest, and keeps its content. It returns an absent node where there is nothing to learn: no
// lower file, one the caller may not read, or one that changes just now.
//
// What is deleted is not read: apply knows it by its identity, and removing a tree must not read it.
//
// Preconditions:
//   - FS.mu is not held: reading may take long.
func (f *FS) learn(p *node, name string) (tree.Node, error) {
	fd, err := f.openGoing(p, name)
	if fd < 0 || err != nil {
		return tree.Node{}, err
	}
	defer closeFD(fd)
	var st, after unix.Stat_t
	if err := stillStat(fd, &st); err != nil {
		return tree.Node{}, err
	}
	n := nodeOf(&st, owner{st.Mode, st.Uid, st.Gid})
	if f.isSmall(&st) {
		c := &copied{st: st}
		err = f.copySmall(c, fd, toTruncate)
		n.Digest = c.node.Digest
	} else {
		n.Digest, err = f.keepContent(fd, st.Size, "", true)
	}
	if err != nil {
		return tree.Node{}, err
	}
	if err := unix.Fstat(fd, &after); err != nil {
		return tree.Node{}, err
	}
	if !sameState(&st, &after) {
		return tree.Node{}, nil
	}
	return n, nil
}

// openGoing opens the lower file at name in p, -1 where there is none to learn of.
func (f *FS) openGoing(p *node, name string) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var st unix.Stat_t
	if p.dir.hasUpper(name) || f.statLower(p, name, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, nil
	}
	d, err := f.lowerFD(p.dir.lower)
	if err != nil {
		return -1, nil // gone meanwhile
	}
	defer f.fds.put(d)
	fd, err := f.openContent(place{d, name}, unix.O_RDONLY|unix.O_NOATIME, &st)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.EIO) {
		return -1, err
	}
	if err != nil {
		return -1, nil
	}
	return fd, nil
}

// addDigest gives the base r, if there is one, the digest of n, if n is the same state.
func addDigest(r *Record, n tree.Node) {
	if r != nil && n.Kind == tree.File && r.Node.SameIdentity(n) {
		r.Node.Digest = n.Digest
	}
}
