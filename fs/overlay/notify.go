package overlay

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Kernel is told what the workspace has no more. Its methods may wait for requests under way to be
// answered. What the kernel does not know is unix.ENOENT.
type Kernel interface {
	// DropEntry makes the kernel look name in a directory up again before it uses it, and waits for
	// lookups under way in that directory.
	DropEntry(dir uint64, name string) error
	// DeleteEntry is DropEntry of a name that is gone, where node had no other.
	DeleteEntry(dir uint64, name string, node uint64) error
	// DropNode makes the kernel ask for a node's attributes again and, if content is set, for its
	// content or entries.
	DropNode(node uint64, content bool) error
}

// change is something that may have changed in the workspace: name in directory id, or node id
// itself where name is empty.
type change struct {
	id   uint64
	name string
}

// drops are what the kernel has to forget of a change.
type drops uint8

const (
	dropAttr    drops = 1 << iota
	dropContent       // of the node
	dropName          // which node the name stands for, and the listing of the directory
	dropBelow         // all names in directory id: it has to be compared
)

// tellEvery is the least time between two rounds of notifications: what changes all the time is told
// of once a round.
const tellEvery = 2 * time.Millisecond

// pending holds changes that the kernel is to be told of. Its mu is, beside that of watcher, the last
// in the lock order of the package. It does not lose any.
type pending struct {
	mu    sync.Mutex
	what  map[change]drops // guarded by mu
	order []change         // guarded by mu
	ready chan struct{}    // has an element when order may not be empty
}

func newPending() *pending {
	return &pending{what: map[change]drops{}, ready: make(chan struct{}, 1)}
}

func (p *pending) add(c change, what drops) {
	p.mu.Lock()
	old, ok := p.what[c]
	p.what[c] = old | what
	if !ok {
		p.order = append(p.order, c)
	}
	p.mu.Unlock()
	if ok {
		return
	}
	select {
	case p.ready <- struct{}{}:
	default:
	}
}

// take returns and forgets all that is pending.
func (p *pending) take() (order []change, what map[change]drops) {
	p.mu.Lock()
	defer p.mu.Unlock()
	order, what = p.order, p.what
	p.order, p.what = nil, map[change]drops{}
	return order, what
}

// Notify tells k what changed in the workspace, until stop is closed. It is called once, from a
// goroutine that answers no requests: k may wait for one. It holds no lock while it calls k.
func (f *FS) Notify(k Kernel, stop <-chan struct{}) {
	f.kernel.Store(&k)
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-f.pending.ready:
		}
		if err := f.tellAll(k); err != nil {
			f.Report(fmt.Errorf("notify the kernel: %w", err))
		}
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

// tellAll tells k of all that is pending: names first, which waits for what is being looked up or
// listed meanwhile, then directories whose listing changed, then files that got one more name.
func (f *FS) tellAll(k Kernel) error {
	order, what := f.pending.take()
	r := round{f: f, k: k, linked: map[inodeKey]bool{}}
	var errs []error
	var dirs []uint64
	listed := map[uint64]bool{}
	for _, c := range order {
		w := what[c]
		errs = append(errs, known(r.tell(c, w)))
		if w&(dropName|dropBelow) != 0 && !listed[c.id] {
			listed[c.id] = true
			dirs = append(dirs, c.id)
		}
	}
	for _, id := range append(dirs, f.onlyNames(r.linked)...) {
		errs = append(errs, known(k.DropNode(id, listed[id])))
	}
	return errors.Join(errs...)
}

// known takes it as done to forget what the kernel does not know.
func known(err error) error {
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return nil
	}
	return err
}

// onlyNames returns the nodes of the given files of which the kernel was told that they have one name:
// of one more, in another directory, inotify does not tell.
func (f *FS) onlyNames(linked map[inodeKey]bool) []uint64 {
	if len(linked) == 0 {
		return nil
	}
	var ids []uint64
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	f.tab.each(func(n *node) {
		if n.isDir() || n.seen == (seen{}) {
			return
		}
		if c := n.seen.class.Value(); c.nlink == 1 && linked[inodeKey{c.dev, n.seen.ino}] {
			ids = append(ids, n.id)
		}
	})
	return ids
}

// round is one round of notifications.
type round struct {
	f      *FS
	k      Kernel
	linked map[inodeKey]bool // files with several names, one of which is new
	kids   map[*node][]string
}

func (r *round) tell(c change, what drops) error {
	n := r.f.tab.get(c.id)
	switch {
	case n == nil:
		return nil
	case what&dropBelow != 0:
		return r.tellBelow(n)
	case c.name == "":
		return r.dropNode(n, what)
	}
	return r.tellName(n, c.name, what)
}

// tellName tells of name in p, unless the Job has changed it: then the host's edit does not show.
func (r *round) tellName(p *node, name string, what drops) error {
	kid, shows := r.f.lowerKid(p, name)
	if !shows {
		return nil
	}
	if what&dropName != 0 && kid != nil {
		r.f.noteReplaced(p, name, kid)
	}
	if what&dropName != 0 || kid == nil {
		if err := known(r.dropEntry(p, name, kid)); err != nil {
			return err
		}
		if kid == nil { // looked up for the first time meanwhile, perhaps before the change
			if kid, _ = r.f.lowerKid(p, name); kid == nil {
				return nil
			}
		}
	}
	err := r.dropNode(kid, what)
	if err != unix.ENOENT {
		return err
	}
	// The answer that tells the kernel of the node is on its way.
	if err := known(r.k.DropEntry(p.id, name)); err != nil {
		return err
	}
	return r.dropNode(kid, what)
}

// lowerKid returns the known node of a lower name in p, nil for none. shows is false where the view
// has something else there than the lower's name.
func (f *FS) lowerKid(p *node, name string) (kid *node, shows bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if p.dir.lower == nil || p.dir.hasUpper(name) || p.dir.isWhite(name) {
		return nil, false
	}
	kid = f.kid(p, name)
	return kid, kid == nil || !kid.upper.Load()
}

// dropEntry makes the kernel look name up again. Watchers inside the Job see a file's deletion.
func (r *round) dropEntry(p *node, name string, kid *node) error {
	if r.deleted(p, name, kid) {
		err := r.k.DeleteEntry(p.id, name, kid.id)
		if err == nil || err == unix.ENOENT {
			return err
		}
	}
	return r.k.DropEntry(p.id, name)
}

// deleted reports whether the last name of kid, which is no directory, is gone.
func (r *round) deleted(p *node, name string, kid *node) bool {
	f := r.f
	f.mu.RLock()
	defer f.mu.RUnlock()
	var st unix.Stat_t
	if err := f.statLower(p, name, &st); err != unix.ENOENT {
		if err == nil && st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			r.linked[keyOf(&st)] = true
		}
		return false
	}
	if kid == nil || kid.isDir() {
		return false
	}
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	return kid.seen != (seen{}) && kid.seen.class.Value().nlink == 1
}

// dropNode makes the kernel forget attributes, and content if that changed, of a node.
func (r *round) dropNode(n *node, what drops) error {
	reads := n.reads.Load()
	content := what&dropContent != 0 || n.kind == unix.S_IFLNK
	if err := r.k.DropNode(n.id, content); err != nil {
		return err
	}
	if content {
		n.dropped.Store(reads)
	}
	return nil
}

// tellBelow compares a directory, about which events were lost or whose place changed, with what the
// kernel may have been told: every name the lower has now may be told to be absent, every node known
// to be otherwise or not there. The watch comes first, so that what changes meanwhile is an event.
func (r *round) tellBelow(p *node) error {
	names := r.f.namesBelow(p)
	if r.kids == nil {
		r.kids = r.f.allNames()
	}
	for _, name := range append(names, r.kids[p]...) {
		if err := known(r.tellName(p, name, dropName|dropAttr|dropContent)); err != nil {
			return err
		}
	}
	return nil
}

// namesBelow watches p and returns the names its lower directory has.
func (f *FS) namesBelow(p *node) []string {
	f.mu.RLock()
	f.watch(p)
	f.mu.RUnlock()
	f.mu.Lock() // what looked into p before it was watched is done now
	defer f.mu.Unlock()
	var names []string
	_ = f.eachLower(p, func(name []byte, _ uint8) error { // what cannot be listed was never listed
		names = append(names, string(name))
		return nil
	})
	return names
}

// allNames returns the names of all known nodes by the directory they are in.
func (f *FS) allNames() map[*node][]string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	names := map[*node][]string{}
	f.tab.each(func(n *node) {
		if n.parent != nil {
			names[n.parent] = append(names[n.parent], n.name)
		}
		for _, a := range n.odd().more {
			names[a.dir] = append(names[a.dir], a.name)
		}
	})
	return names
}
