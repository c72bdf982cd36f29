package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"stage/bundle"
	"stage/fs/hostfs"
)

// Filter says which Jobs of the store to list. The zero Filter lists all.
type Filter struct {
	Workspace *bundle.Workspace // only Jobs of this workspace
}

// Entry is one Job of a list. Err says why its record cannot be read; then only ID is known.
type Entry struct {
	ID     bundle.ID
	Run    bundle.Run
	Status Status
	Err    error
}

// List reads the Jobs that f lets through, the newest first, and after them all that cannot be
// read, whatever their workspace. Jobs that lie elsewhere are not listed.
func (s *Store) List(f Filter) ([]Entry, error) {
	refs, broken, err := s.survey()
	if err != nil {
		return nil, err
	}
	refs = filter(refs, f)
	l := make([]Entry, 0, len(refs)+len(broken))
	for _, r := range refs {
		e := s.entry(r.ID)
		if !errors.Is(e.Err, fs.ErrNotExist) { // removed since the survey
			l = append(l, e)
		}
	}
	return append(l, broken...), nil
}

// Refs is List without reading the Jobs: what the index tells, and the Jobs it cannot tell of
// because their records cannot be read.
func (s *Store) Refs(f Filter) ([]Ref, []Entry, error) {
	refs, broken, err := s.survey()
	return filter(refs, f), broken, err
}

func filter(refs []Ref, f Filter) []Ref {
	if f.Workspace == nil {
		return refs
	}
	return slices.DeleteFunc(refs, func(r Ref) bool { return r.Workspace != *f.Workspace })
}

func (s *Store) entry(id bundle.ID) Entry {
	j, err := s.openID(id)
	if err != nil {
		return Entry{ID: id, Err: err}
	}
	defer j.Close()
	status, err := j.Status()
	return Entry{ID: id, Run: j.run, Status: status, Err: err}
}

// openID opens a Job in jobs/; fs.ErrNotExist when it is not there, or not any more.
func (s *Store) openID(id bundle.ID) (*Job, error) {
	dir, err := s.jobs.OpenDir(string(id))
	if err != nil {
		return nil, err
	}
	j, err := s.openJob(filepath.Join(s.path, jobsName, string(id)), dir)
	if err == nil && j.ID() != id {
		return nil, errors.Join(fmt.Errorf("job %s says it is job %s: %w", id, j.ID(), bundle.ErrMalformed), j.Close())
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return j, err
	}
	if _, gone := s.jobs.Stat(string(id)); gone != nil {
		return nil, gone
	}
	return nil, fmt.Errorf("job %s has lost its %s", id, runName)
}

// survey reads the names in jobs/ and looks each up in the index. What the index lacks it reads and
// adds. It returns the newest first, and apart the Jobs whose records cannot be read.
func (s *Store) survey() ([]Ref, []Entry, error) {
	ids, err := s.jobIDs()
	if err != nil {
		return nil, nil, err
	}
	known, err := s.readIndex()
	if err != nil {
		return nil, nil, err
	}
	refs := make(map[bundle.ID]Ref, len(ids))
	var added []Ref
	var broken []Entry
	for _, id := range ids {
		if r, ok := known[id]; ok {
			refs[id] = r
			continue
		}
		r, err := s.readRef(id)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed since its name was read
		case err != nil:
			broken = append(broken, Entry{ID: id, Err: err})
		default:
			refs[id] = r
			added = append(added, r)
		}
	}
	if len(added) > 0 {
		// An index that cannot be written costs time, never the answer.
		_ = s.extendIndex(refs, added)
	}
	l := sorted(refs)
	slices.Reverse(l)
	return l, broken, nil
}

func (s *Store) readRef(id bundle.ID) (Ref, error) {
	j, err := s.openID(id)
	if err != nil {
		return Ref{}, err
	}
	defer j.Close()
	return Ref{id, j.run.Workspace, j.run.CreatedAt}, nil
}

// jobIDs returns the names in jobs/ that are ids. Others are on their way in or out.
func (s *Store) jobIDs() ([]bundle.ID, error) {
	ents, err := s.readJobs()
	return idsIn(ents), err
}

func idsIn(ents []hostfs.Dirent) []bundle.ID {
	ids := make([]bundle.ID, 0, len(ents))
	for _, e := range ents {
		if id, err := bundle.ParseID(e.Name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// readJobs reads jobs/ through a handle of its own, since reading moves a handle's offset.
func (s *Store) readJobs() ([]hostfs.Dirent, error) {
	d, err := s.jobs.OpenDir(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.ReadDir()
}
