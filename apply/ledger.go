package apply

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"stage/fs/hostfs"
	"stage/fs/tree"
	"stage/journal"
)

// LedgerKind is the journal kind of a ledger, apply/<n>/ledger.
const LedgerKind = "ledger"

const (
	ledgerName    = "ledger"
	displacedName = "displaced"
)

// phase is how far a batch has come.
type phase string

const (
	planned    phase = "planned"     // temporary files may exist
	prepared   phase = "prepared"    // all temporary files are durable; steps may be done
	committed  phase = "committed"   // all steps are done and durable
	done       phase = "done"        // nothing of the batch is left in the target but its result
	rolledBack phase = "rolled_back" // the target is as before the batch
)

// record is one line of a ledger. Batch comes with planned and prepared.
type record struct {
	Phase phase     `json:"phase"`
	Batch *batch    `json:"batch,omitempty"`
	Base  states    `json:"base,omitempty"`
	Dirs  states    `json:"dirs,omitempty"`  // with done: the directories of the batch
	Until tree.Time `json:"until,omitempty"` // with done: no later ctime is the batch's own
}

// story is what a ledger says: the run it is in, and the last one that was finished.
type story struct {
	phase phase
	batch *batch
	// Of the last finished apply or undo:
	finished *batch
	base     []published
	dirs     []published
	until    tree.Time
}

// active reports whether the target needs Recover.
func (s *story) active() bool {
	return s.phase == planned || s.phase == prepared || s.phase == committed
}

func (s *story) replay(_ uint64, raw json.RawMessage) error {
	var r record
	if err := decodeStrict(raw, &r); err != nil {
		return fmt.Errorf("%w: %w", journal.ErrCorrupt, err)
	}
	return s.add(r)
}

func (s *story) add(r record) error {
	switch r.Phase {
	case planned, prepared:
		if r.Batch == nil {
			return fmt.Errorf("%s without a batch: %w", r.Phase, journal.ErrCorrupt)
		}
		s.batch = r.Batch
	case committed, rolledBack, done:
		if s.batch == nil {
			return fmt.Errorf("%s without a plan: %w", r.Phase, journal.ErrCorrupt)
		}
	default:
		return fmt.Errorf("unknown phase %q: %w", r.Phase, journal.ErrVersion)
	}
	s.phase = r.Phase
	if r.Phase == rolledBack {
		s.base, s.dirs = refresh(s.base, r.Base), refresh(s.dirs, r.Dirs)
	}
	if r.Phase == done {
		if s.batch.Undo { // what an undo left out stays as published
			r.Base = overlayBase(s.base, r.Base)
		}
		s.finished, s.base, s.dirs, s.until = s.batch, r.Base, r.Dirs, r.Until
	}
	return nil
}

// ledger is the open record of a batch.
type ledger struct {
	w     *journal.Writer
	story story
}

// openLedger opens the ledger in d, or with create makes it. Without a ledger, or with one whose
// first line was never finished, it returns nil: nothing was ever written to the target.
func openLedger(d hostfs.Dir, create bool) (*ledger, error) {
	began, err := hasLedger(d)
	if err != nil {
		return nil, err
	}
	if !began {
		if !create {
			return nil, nil
		}
		return createLedger(d)
	}
	f, err := d.OpenWrite(ledgerName)
	if err != nil {
		return nil, err
	}
	l := &ledger{}
	if l.w, err = journal.Open(f, LedgerKind, l.story.replay); err != nil {
		return nil, errors.Join(fmt.Errorf("read ledger: %w", err), f.Close())
	}
	return l, nil
}

// hasLedger reports whether d has a ledger with a complete first line.
func hasLedger(d hostfs.Reader) (bool, error) {
	f, err := d.Open(ledgerName)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	head := make([]byte, 4096)
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return false, fmt.Errorf("read ledger: %w", err)
	}
	return bytes.IndexByte(head[:n], '\n') >= 0, nil
}

func createLedger(d hostfs.Dir) (*ledger, error) {
	if err := d.Unlink(ledgerName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := d.Create(ledgerName, 0o600)
	if err != nil {
		return nil, err
	}
	w, err := journal.Create(f, LedgerKind)
	if err == nil {
		err = w.Sync()
	}
	if err == nil {
		err = d.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &ledger{w: w}, nil
}

// write makes r durable.
func (l *ledger) write(r record) error {
	if _, err := l.w.Append(r); err != nil {
		return err
	}
	if err := l.w.Sync(); err != nil {
		return err
	}
	return l.story.add(r)
}

func (l *ledger) close() error { return l.w.Close() }

// State is where a batch stands.
type State string

// The states of a batch.
const (
	BatchEmpty      State = "empty"      // nothing was published, nothing is to be done
	BatchUnfinished State = "unfinished" // neither published nor taken back: needs Recover
	BatchPublished  State = "published"
	BatchUndone     State = "undone"
)

// Standing is where a batch stands.
type Standing struct {
	State State
	// Base are the states the batch made the new base of their paths: what it published; after an
	// undo what it restored; of a batch that was rolled back what it touched, whose ctime is another
	// now. Target of a directory's node names the workspace directory it was: another path where the
	// Job moved it, its own where an undo put it back.
	Base map[tree.Path]tree.Node
	// Staged is what the Job has at paths of Base that were merged.
	Staged map[tree.Path]tree.Node
}

// Read returns where batch stands. One that is committed counts as published, or undone, though
// Recover may still have to finish it: NeedsRecovery tells. Nothing is written.
func Read(batch hostfs.Reader) (Standing, error) {
	s, err := readStory(batch)
	if err != nil {
		return Standing{}, err
	}
	st := Standing{State: s.state(), Base: s.baseMap(), Staged: map[tree.Path]tree.Node{}}
	for _, p := range s.bases() {
		if p.Staged != nil {
			st.Staged[p.Path] = *p.Staged
		}
	}
	return st, nil
}

// NeedsRecovery reports whether Recover has something to do for batch.
func NeedsRecovery(batch hostfs.Reader) (bool, error) {
	s, err := readStory(batch)
	return err == nil && s.active(), err
}

// readStory reads the ledger in batch; without one the story is empty.
func readStory(batch hostfs.Reader) (*story, error) {
	began, err := hasLedger(batch)
	if err != nil || !began {
		return &story{}, err
	}
	f, err := batch.Open(ledgerName)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := &story{}
	if err := journal.Read(f, LedgerKind, s.replay); err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	return s, nil
}

func (s *story) state() State {
	switch {
	case s.phase == committed && s.batch.Undo:
		return BatchUndone
	case s.phase == committed:
		return BatchPublished
	case s.active():
		return BatchUnfinished
	case s.finished == nil:
		return BatchEmpty
	case s.finished.Undo:
		return BatchUndone
	}
	return BatchPublished
}

// bases is base, or what is known of it before a committed batch is done: of an undo, nothing.
func (s *story) bases() []published {
	switch {
	case s.phase != committed:
		return s.base
	case !s.batch.Undo:
		return s.batch.Base
	}
	undone := map[tree.Path]bool{}
	for _, p := range s.batch.Base {
		undone[p.Path] = true
	}
	return slices.DeleteFunc(slices.Clone(s.base), func(p published) bool { return undone[p.Path] })
}

func (s *story) baseMap() map[tree.Path]tree.Node {
	m := map[tree.Path]tree.Node{}
	for _, p := range s.bases() {
		if p.Forget {
			continue
		}
		if p.From != nil && p.Node.Kind == tree.Dir {
			p.Node.Target = p.From.String()
		}
		m[p.Path] = p.Node
	}
	return m
}

// overlayBase returns old with the states of now in place of older ones.
func overlayBase(old, now []published) []published {
	newer := map[tree.Path]bool{}
	for _, p := range now {
		newer[p.Path] = true
	}
	out := now
	for _, p := range old {
		if !newer[p.Path] {
			out = append(out, p)
		}
	}
	return out
}

// refresh is overlayBase that keeps what is known of a path beside its state.
func refresh(old, now []published) []published {
	known := map[tree.Path]published{}
	for _, p := range old {
		known[p.Path] = p
	}
	for i, p := range now {
		if k, ok := known[p.Path]; ok {
			now[i].Node.Digest, now[i].From, now[i].Staged = k.Node.Digest, k.From, k.Staged
		}
	}
	return overlayBase(old, now)
}
