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
	// OpCopy: the upper node at view path Path is a copy of a lower one, which had inode number Ino
	// and goes on showing it. A copy may be torn by a power loss until OpSynced says otherwise.
	OpCopy Op = "copy"
	// OpDir: the upper directory at view path Path has inode number Ino and was made at Time (0: the
	// file system does not tell). It is written soon after the directory is made, before any record
	// of what is done in it.
	OpDir Op = "dir"
	// OpSynced: what records 1 to N did is durable in the upper; without N: the copy at Path is.
	OpSynced Op = "synced"
	// OpFrom: the upper file at view path Path was renamed from workspace path Lower, by moves that
	// are no longer in the log.
	OpFrom Op = "from"
	// OpLost: after a power loss nothing vouches for the upper node at view path Path; with Subtree,
	// nor for anything below.
	OpLost Op = "lost"
	// OpOpen: an overlay begins to write, on boot Boot of the machine.
	OpOpen Op = "open"
	// OpClose: all that was recorded, and what it did in the upper, is durable. Nothing changes
	// until the next OpOpen.
	OpClose Op = "close"
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
	N       uint64     `json:"n,omitempty"`
	Lost    bool       `json:"lost,omitempty"` // of an OpBase without Node: what was there is not known
	Boot    string     `json:"boot,omitempty"`
}

// Base is the recorded state of a workspace path before the Job's first modification of it.
type Base struct {
	Node    tree.Node
	Subtree bool      // Node is a directory and stands for everything below it…
	Time    tree.Time // …as of this instant
	Lost    bool      // the record was lost: neither Node nor anything below is known
}

// State is what a change log says, replayed: the bases by workspace path, and a tree of marks that
// mirrors the parts of the view about which something was recorded.
type State struct {
	Bases map[tree.Path]Base
	Root  *Mark
	last  *Record // the last OpMove or OpSwap if nothing followed it
	undo  func()  // takes last back

	n      uint64 // records replayed
	synced uint64 // what records up to this one did is durable
	boot   string // of the last OpOpen, "" in a log that has none
	closed bool   // the log ends with OpClose
	copies bool   // an OpOpen stands at the log's begin: every copy has its OpCopy
}

// Mark is what the change log says about one view path.
type Mark struct {
	White    map[string]bool  // lower names in this directory that do not show
	Opaque   bool             // no lower directory shows here
	Lower    *tree.Path       // the workspace directory that shows here; nil: the parent's lower + name
	Times    bool             // mtime was set explicitly
	Shown    uint64           // the inode number shown, that of the lower node this is a copy of; 0: its own
	Dir      *DirID           // which upper directory the rest is about
	From     *tree.Path       // the workspace path the file was renamed from
	Lost     bool             // nothing vouches for this node (see OpLost)…
	LostTree bool             // …nor for anything below
	Link     *tree.Node       // the lower inode with several names this file was copied from
	Children map[string]*Mark // marks below, by name

	fresh uint64 // the last OpCopy that put a copy here, be it here still or not
}

// trace reports whether m says no more than that a copy was here.
func (m *Mark) trace() bool {
	return m.fresh != 0 && !m.Opaque && m.Lower == nil && !m.Times && m.Shown == 0 && m.Dir == nil && m.From == nil &&
		!m.Lost && m.Link == nil && len(m.White) == 0 && len(m.Children) == 0
}

// DirID tells an upper directory from another that got its name, or its inode number.
type DirID struct {
	Ino  uint64
	Made tree.Time // 0 where the file system does not tell
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

// HasRoot reports whether the upper's own directory has the attributes of the view's.
func (s *State) HasRoot() bool {
	_, based := s.Bases[tree.Path{}]
	return s.Root.Shown != 0 || based && !s.copies
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
	s.last, s.undo, s.closed = nil, nil, false
	switch r.Op {
	case OpBase:
		return s.applyBase(r)
	case OpOpen:
		s.boot, s.copies = r.Boot, s.copies || s.n == 1
	case OpClose:
		s.closed, s.synced = true, s.n
	case OpSynced:
		if r.N > 0 {
			s.synced = max(s.synced, r.N)
		} else if m := s.Lookup(r.Path); m != nil {
			m.fresh = 0
		}
	case OpMove, OpSwap:
		return s.applyMove(r)
	case OpDrop:
		s.drop(r.Path)
	case OpWhite:
		m := s.mark(r.Path.Parent())
		if m.White == nil {
			m.White = map[string]bool{}
		}
		m.White[r.Path.Base()] = true
	default:
		return s.applyMark(r)
	}
	return nil
}

// applyBase replays an OpBase. The first record of a path is its base; a subtree mark may be added
// later, when a directory that was only modified is deleted or moved.
func (s *State) applyBase(r Record) error {
	old, ok := s.Bases[r.Path]
	switch {
	case r.Lost && !ok:
		old = Base{Lost: true}
	case r.Node == nil && !r.Lost:
		return fmt.Errorf("base of %q has no node: %w", r.Path, journal.ErrCorrupt)
	case !ok:
		old.Node = *r.Node
	}
	if r.Subtree && !old.Subtree && !old.Lost {
		old.Subtree, old.Time = true, r.Time
	}
	s.Bases[r.Path] = old
	return nil
}

// applyMark replays what is said of one upper node.
func (s *State) applyMark(r Record) error {
	switch {
	case r.Lower == nil && (r.Op == OpLower || r.Op == OpFrom), r.Node == nil && r.Op == OpLink:
		return fmt.Errorf("%s of %q is not complete: %w", r.Op, r.Path, journal.ErrCorrupt)
	}
	m := s.mark(r.Path)
	switch r.Op {
	case OpOpaque:
		m.Opaque, m.Lower = true, nil
	case OpLower:
		m.Opaque, m.Lower = false, r.Lower
	case OpTimes:
		m.Times = true
	case OpLink:
		m.Link = r.Node
	case OpCopy:
		m.Shown, m.fresh = r.Ino, s.n
	case OpDir:
		m.Dir = &DirID{r.Ino, r.Time}
	case OpFrom:
		m.From = r.Lower
	case OpLost:
		if r.Subtree { // whatever was said was said of another directory
			*m = Mark{LostTree: true}
		}
		m.Lost = true
	default:
		return fmt.Errorf("unknown operation %q: %w", r.Op, journal.ErrVersion)
	}
	return nil
}

// drop forgets what was said of p. If that was a copy that may be torn, it stays known that p may
// hold it: its removal may be lost too.
func (s *State) drop(p tree.Path) {
	var left *Mark
	parent := s.mark(p.Parent())
	if m := parent.Children[p.Base()]; m != nil && m.fresh > s.synced {
		left = &Mark{fresh: m.fresh}
	}
	parent.set(p.Base(), left)
}

func (s *State) applyMove(r Record) error {
	if r.To == nil {
		return fmt.Errorf("%s of %q has no destination: %w", r.Op, r.Path, journal.ErrCorrupt)
	}
	from, to := s.mark(r.Path.Parent()), s.mark(r.To.Parent())
	a, b := from.Children[r.Path.Base()], to.Children[r.To.Base()]
	to.set(r.To.Base(), s.arrive(a, r.Path, b))
	if r.Op == OpSwap {
		from.set(r.Path.Base(), s.arrive(b, *r.To, a))
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

// arrive returns the mark of a node that was moved from workspace path from, with mark m, over one
// with mark old. m is left as it is.
func (s *State) arrive(m *Mark, from tree.Path, old *Mark) *Mark {
	tainted := old != nil && old.fresh > s.synced
	base, ok := s.Bases[from]
	origin := ok && (m == nil || m.From == nil) && !base.Lost && base.Node.Kind != tree.Absent && base.Node.Kind != tree.Dir
	if !tainted && !origin {
		return m
	}
	moved := Mark{}
	if m != nil {
		moved = *m
	}
	if origin {
		moved.From = &from
	}
	if tainted {
		moved.fresh = max(moved.fresh, old.fresh)
	}
	return &moved
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
	return func(n uint64, raw json.RawMessage) error {
		s.n = n
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
// that was absent (then p was absent too), recorded as a subtree, or lost. ok is false when the Job never
// modified p.
func (s *State) BaseOf(p tree.Path) (b Base, at tree.Path, ok bool) {
	for q := p; ; q = q.Parent() {
		b, ok := s.Bases[q]
		if ok && (q == p || b.Subtree || b.Lost || b.Node.Kind == tree.Absent || b.Node.Kind != tree.Dir) {
			return b, q, true
		}
		if q.IsRoot() {
			return Base{}, tree.Path{}, false
		}
	}
}
