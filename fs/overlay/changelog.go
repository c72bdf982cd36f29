package overlay

import (
	"encoding/json"
	"fmt"

	"stage/fs/tree"
	"stage/journal"
)

// LogKind is the journal kind of a change log, jobs/<id>/base/<root>.log.
const LogKind = "changes"

// Op says what a record of the change log records.
type Op string

// The operations. A *view path* is a path as the Job saw it when the record was written; records
// are replayed in order, so a later OpMove carries what earlier records said of a path along. A
// *workspace path* is a path of the lower tree and never moves.
const (
	// OpBase: Node is the state of workspace path Path before its first modification. With
	// Subtree it stands for everything below Path too, as of the instant Time.
	OpBase Op = "base"
	// OpWhite: the lower entry at view path Path no longer shows (deleted, moved away or replaced).
	OpWhite Op = "white"
	// OpOpaque: the upper directory at view path Path shows nothing of any lower directory.
	OpOpaque Op = "opaque"
	// OpLower: the upper directory at view path Path shows workspace directory Lower below it
	// (it was renamed there as a whole).
	OpLower Op = "lower"
	// OpMove: the upper node at view path Path moves to view path To, replacing what was there.
	// Ino is its inode number in the upper, which tells after a crash whether it happened.
	OpMove Op = "move"
	// OpSwap: the upper nodes at view paths Path and To change places; Ino is that of Path's.
	OpSwap Op = "swap"
	// OpDrop: the upper node at view path Path was removed; what was said of it is forgotten.
	OpDrop Op = "drop"
	// OpTimes: the Job set the mtime of view path Path explicitly.
	OpTimes Op = "times"
	// OpLink: the upper file at view path Path is the copy of the lower inode Node.Dev, Node.Ino,
	// which had Node.Nlink > 1 names; its other lower names show the copy too.
	OpLink Op = "link"
	// OpAbort: recovery found that the last OpMove or OpSwap did not happen in the upper.
	OpAbort Op = "abort"
)

// Record is one record of the change log. Unused fields are absent from its JSON.
type Record struct {
	Op      Op         `json:"op"`
	Path    tree.Path  `json:"path"`
	To      *tree.Path `json:"to,omitempty"`
	Lower   *tree.Path `json:"lower,omitempty"`
	Node    *tree.Node `json:"node,omitempty"`
	Subtree bool       `json:"subtree,omitempty"`
	Time    tree.Time  `json:"time,omitempty"`
	Ino     uint64     `json:"ino,omitempty"`
}

// Base is the recorded state of a workspace path before the Job's first modification of it.
type Base struct {
	Node    tree.Node
	Subtree bool      // Node is a directory and stands for everything below it…
	Time    tree.Time // …as of this instant
}

// State is what a change log says, replayed: the bases by workspace path, and a tree of marks that
// mirrors the parts of the view about which something was recorded.
type State struct {
	Bases map[tree.Path]Base
	Root  *Mark
	last  *Record // the last OpMove or OpSwap if nothing followed it
	undo  func()  // takes last back
}

// Mark is what the change log says about one view path.
type Mark struct {
	White    map[string]bool  // lower names in this directory that do not show
	Opaque   bool             // no lower directory shows here
	Lower    *tree.Path       // the workspace directory that shows here; nil: the parent's lower + name
	Times    bool             // mtime was set explicitly
	Link     *tree.Node       // the lower inode with several names this file was copied from
	Children map[string]*Mark // marks below, by name
}

// NewState returns the state of an empty change log.
func NewState() *State {
	return &State{Bases: map[tree.Path]Base{}, Root: &Mark{}}
}

// Lookup returns the mark of view path p, nil if nothing was recorded about it.
func (s *State) Lookup(p tree.Path) *Mark {
	m := s.Root
	for _, name := range p.Names() {
		if m = m.Children[name]; m == nil {
			return nil
		}
	}
	return m
}

func (s *State) mark(p tree.Path) *Mark {
	m := s.Root
	for _, name := range p.Names() {
		m = m.child(name)
	}
	return m
}

func (m *Mark) child(name string) *Mark {
	c := m.Children[name]
	if c == nil {
		c = &Mark{}
		m.set(name, c)
	}
	return c
}

// set makes c the mark of name; a nil c forgets it.
func (m *Mark) set(name string, c *Mark) {
	if c == nil {
		delete(m.Children, name)
		return
	}
	if m.Children == nil {
		m.Children = map[string]*Mark{}
	}
	m.Children[name] = c
}

// Apply replays one record.
func (s *State) Apply(r Record) error {
	s.last, s.undo = nil, nil
	switch r.Op {
	case OpBase:
		if r.Node == nil {
			return fmt.Errorf("base of %q has no node: %w", r.Path, journal.ErrCorrupt)
		}
		// The first record of a path is its base; a subtree mark may be added later, when a
		// directory that was only modified is deleted or moved.
		old, ok := s.Bases[r.Path]
		if !ok {
			old.Node = *r.Node
		}
		if r.Subtree && !old.Subtree {
			old.Subtree, old.Time = true, r.Time
		}
		s.Bases[r.Path] = old
	case OpWhite:
		m := s.mark(r.Path.Parent())
		if m.White == nil {
			m.White = map[string]bool{}
		}
		m.White[r.Path.Base()] = true
	case OpOpaque:
		m := s.mark(r.Path)
		m.Opaque, m.Lower = true, nil
	case OpLower:
		if r.Lower == nil {
			return fmt.Errorf("lower of %q has no path: %w", r.Path, journal.ErrCorrupt)
		}
		m := s.mark(r.Path)
		m.Opaque, m.Lower = false, r.Lower
	case OpMove, OpSwap:
		return s.applyMove(r)
	case OpDrop:
		s.mark(r.Path.Parent()).set(r.Path.Base(), nil)
	case OpTimes:
		s.mark(r.Path).Times = true
	case OpLink:
		if r.Node == nil {
			return fmt.Errorf("link of %q has no node: %w", r.Path, journal.ErrCorrupt)
		}
		s.mark(r.Path).Link = r.Node
	default:
		return fmt.Errorf("unknown operation %q: %w", r.Op, journal.ErrVersion)
	}
	return nil
}

func (s *State) applyMove(r Record) error {
	if r.To == nil {
		return fmt.Errorf("%s of %q has no destination: %w", r.Op, r.Path, journal.ErrCorrupt)
	}
	from, to := s.mark(r.Path.Parent()), s.mark(r.To.Parent())
	a, b := from.Children[r.Path.Base()], to.Children[r.To.Base()]
	to.set(r.To.Base(), a)
	if r.Op == OpSwap {
		from.set(r.Path.Base(), b)
	} else {
		from.set(r.Path.Base(), nil)
	}
	s.last = &r
	s.undo = func() {
		to.set(r.To.Base(), b)
		from.set(r.Path.Base(), a)
	}
	return nil
}

// Pending returns the OpMove or OpSwap the log ends with, nil if it ends otherwise. After a crash
// the caller looks in the upper whether it happened and, if it did not, calls Abort.
func (s *State) Pending() *Record { return s.last }

// Abort takes the pending record back.
//
// Preconditions:
//   - Pending is not nil.
func (s *State) Abort() {
	s.undo()
	s.last, s.undo = nil, nil
}

// Replay returns the function that journal.Open and journal.Read call to build s.
func (s *State) Replay() func(uint64, json.RawMessage) error {
	return func(_ uint64, raw json.RawMessage) error {
		var r Record
		if err := json.Unmarshal(raw, &r); err != nil {
			return fmt.Errorf("%w: %w", journal.ErrCorrupt, err)
		}
		if r.Op == OpAbort {
			if s.undo == nil {
				return fmt.Errorf("abort without a move before it: %w", journal.ErrCorrupt)
			}
			s.Abort()
			return nil
		}
		return s.Apply(r)
	}
}

// BaseOf returns the base that governs workspace path p: its own record, or the nearest ancestor
// that was absent (then p was absent too) or recorded as a subtree. ok is false when the Job never
// modified p.
func (s *State) BaseOf(p tree.Path) (b Base, at tree.Path, ok bool) {
	for q := p; ; q = q.Parent() {
		b, ok := s.Bases[q]
		if ok && (q == p || b.Subtree || b.Node.Kind == tree.Absent || b.Node.Kind != tree.Dir) {
			return b, q, true
		}
		if q.IsRoot() {
			return Base{}, tree.Path{}, false
		}
	}
}
