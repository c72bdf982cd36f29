package overlay

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// Bounds of the descriptor cache. Half of RLIMIT_NOFILE is left to the rest of the process.
const (
	minDescriptors = 64
	maxDescriptors = 8192
)

// fdCache is a bounded LRU of descriptors. The kernel never tells when a file is closed (opens
// cost no message), so descriptors belong to inodes and go when others are needed more.
type fdCache struct {
	mu   sync.Mutex
	max  int         // guarded by mu, like all below
	n    int         // descriptors in the list
	head descriptor  // ring: head.next is the most recently used
	free *descriptor // to be used again, by next
}

// descriptor is one open descriptor in a slot. It is closed when it is out of the cache and nobody
// uses it.
type descriptor struct {
	fd         int
	slot       *slot // nil: out of the cache
	kept       bool  // not the cache's: somebody else closes it
	refs       int
	prev, next *descriptor
}

// slot is where an inode keeps its descriptor; the cache may empty it at any time.
type slot struct{ d *descriptor } // guarded by fdCache.mu

func newFDCache() *fdCache {
	c := &fdCache{max: maxDescriptors}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err == nil && lim.Cur/2 < maxDescriptors {
		c.max = max(int(lim.Cur/2), minDescriptors)
	}
	c.head.prev, c.head.next = &c.head, &c.head
	return c
}

// get returns the descriptor in s, nil if it is empty. put gives it back.
func (c *fdCache) get(s *slot) *descriptor {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := s.d
	if d == nil {
		return nil
	}
	d.refs++
	if c.head.next != d {
		d.unlink()
		c.pushLocked(d)
	}
	return d
}

// add puts fd into s and returns it in use. If s got another meanwhile, that one is returned and
// fd closed.
func (c *fdCache) add(s *slot, fd int) *descriptor {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.d != nil {
		closeFD(fd)
		s.d.refs++
		return s.d
	}
	d := c.newLocked()
	d.fd, d.slot, d.refs = fd, s, 1
	s.d = d
	c.pushLocked(d)
	c.n++
	c.shrinkLocked(c.max)
	return d
}

// put ends one use of d.
func (c *fdCache) put(d *descriptor) {
	if d.kept {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d.refs--
	if d.refs == 0 && d.slot == nil {
		c.closeLocked(d)
	}
}

// replace empties s and, if fd is not negative, fills it with fd.
func (c *fdCache) replace(s *slot, fd int) {
	c.drop(s)
	if fd >= 0 {
		c.put(c.add(s, fd))
	}
}

// drop empties s. Its descriptor is closed once nobody uses it.
func (c *fdCache) drop(s *slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.d != nil {
		c.evictLocked(s.d)
	}
}

func (c *fdCache) evictLocked(d *descriptor) {
	d.unlink()
	d.slot.d, d.slot = nil, nil
	c.n--
	if d.refs == 0 {
		c.closeLocked(d)
	}
}

// newLocked returns a descriptor to be filled. Most files are read once: they share the memory.
func (c *fdCache) newLocked() *descriptor {
	d := c.free
	if d == nil {
		return &descriptor{}
	}
	c.free, d.next = d.next, nil
	return d
}

// closeLocked closes d, which nobody uses and no slot has.
func (c *fdCache) closeLocked(d *descriptor) {
	closeFD(d.fd)
	*d = descriptor{fd: -1, next: c.free}
	c.free = d
}

// shrinkLocked evicts the least recently used descriptors until at most keep are left. Those in
// use stay open until they are put back.
func (c *fdCache) shrinkLocked(keep int) {
	for c.n > keep && c.head.prev != &c.head {
		c.evictLocked(c.head.prev)
	}
}

func (c *fdCache) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shrinkLocked(0)
}

func (c *fdCache) pushLocked(d *descriptor) {
	d.prev, d.next = &c.head, c.head.next
	d.prev.next, d.next.prev = d, d
}

func (d *descriptor) unlink() {
	d.prev.next, d.next.prev = d.next, d.prev
	d.prev, d.next = nil, nil
}

// openat opens name in dirfd, which is not followed.
func (c *fdCache) openat(dirfd int, name string, flags int, mode uint32) (int, error) {
	return c.open(dirfd, name, flags|unix.O_NOFOLLOW, mode)
}

// reopen opens what fd is an O_PATH descriptor of.
func (c *fdCache) reopen(fd, flags int) (int, error) {
	return c.open(unix.AT_FDCWD, procFD(fd), flags, 0)
}

// open opens a file. When the process is out of descriptors it takes half of the cache back and
// tries once more.
func (c *fdCache) open(dirfd int, name string, flags int, mode uint32) (int, error) {
	for again := true; ; again = false {
		fd, err := openat(dirfd, name, flags|unix.O_CLOEXEC, mode)
		switch {
		case err == unix.EINTR:
			again = true
		case again && (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)):
			c.mu.Lock()
			c.shrinkLocked(c.n / 2)
			c.mu.Unlock()
			continue
		default:
			return fd, err
		}
	}
}

// closeFD closes a descriptor whose close cannot lose data: written files are fsynced when the Job
// asks, and the kernel reports write-back errors there.
func closeFD(fd int) { _ = unix.Close(fd) }
