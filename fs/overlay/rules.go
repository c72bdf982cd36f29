package overlay

import (
	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// Verdict says what a rule takes away from one path; 0 is free.
type Verdict uint8

// The bits of a Verdict.
const (
	Hide      Verdict = 1 << iota // absent on lookup, cannot be created
	DenyRead                      // shown without r and x bits
	DenyWrite                     // shown without w bits, cannot be created, removed or renamed
	DenyExec                      // shown without x bits
)

// Rules decides what is taken away from a path.
type Rules interface {
	Verdict(p tree.Path, dir bool) Verdict
}

// verdict returns what the rules take from name in p: by its path in the view and, since renaming
// a directory must not free what lies in it, by the workspace path that shows there.
func (f *FS) verdict(p *node, name string, dir bool) Verdict {
	if f.rules == nil {
		return 0
	}
	var v Verdict
	if path, err := f.childPath(p, name); err == nil {
		v = f.rules.Verdict(path, dir)
	}
	if p.dir == nil || p.dir.lower == nil {
		return v
	}
	if path, err := p.dir.lower.child(name); err == nil {
		v |= f.rules.Verdict(path, dir)
	}
	return v
}

func (f *FS) nodeVerdict(n *node) Verdict {
	if f.rules == nil || n.parent == nil {
		return 0
	}
	return f.verdict(n.parent, n.name, n.isDir())
}

// mask takes from mode what v denies.
func (v Verdict) mask(mode uint32) uint32 {
	if v&DenyRead != 0 {
		mode &^= 0o555
	}
	if v&DenyWrite != 0 {
		mode &^= 0o222
	}
	if v&DenyExec != 0 && mode&unix.S_IFMT != unix.S_IFDIR {
		mode &^= 0o111
	}
	return mode
}

// mayCreate refuses a new name where the rules do not allow one.
func (f *FS) mayCreate(p *node, name string, dir bool) error {
	if f.rules == nil {
		return nil
	}
	v := f.verdict(p, name, dir)
	if p.parent != nil {
		v |= f.verdict(p.parent, p.name, true) & DenyWrite
	}
	return f.refuse(v&Hide != 0, v&DenyWrite != 0)
}

// mayRemove refuses to take name out of p where the rules do not allow it.
func (f *FS) mayRemove(p *node, name string, dir bool) error { return f.mayCreate(p, name, dir) }

// mayMove refuses to give another name to what a rule is about: the rule would lose sight of it.
func (f *FS) mayMove(p *node, name string, dir bool) error {
	if err := f.mayRemove(p, name, dir); err != nil {
		return err
	}
	if f.rules != nil && f.verdict(p, name, dir) != 0 {
		f.count.deniedActs.Add(1)
		return unix.EPERM
	}
	return nil
}

func (f *FS) refuse(hidden, readOnly bool) error {
	switch {
	case hidden:
		f.count.deniedActs.Add(1)
		return unix.EACCES
	case readOnly:
		f.count.deniedActs.Add(1)
		return unix.EROFS
	}
	return nil
}

// mayAlter refuses to change attributes, content or extended attributes of a node with such a
// verdict. chmod is refused under every verdict: it could give back what the rule took.
//
// Preconditions:
//   - FS.mu is not held.
func (f *FS) mayAlter(n *node, chmod bool) error {
	if f.rules == nil {
		return nil
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	v := f.nodeVerdict(n)
	if v&DenyWrite != 0 {
		return f.refuse(false, true)
	}
	if chmod && v != 0 {
		f.count.deniedActs.Add(1)
		return unix.EPERM
	}
	return nil
}
