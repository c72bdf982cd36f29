package store

import (
	"errors"
	"io/fs"
	"path/filepath"

	"stage/bundle"
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

// Refs returns what the index knows of the Jobs that f lets through, the newest first. Jobs that
// cannot be read have no Ref; List names them.
func (s *Store) Refs(f Filter) ([]Ref, error) {
	refs, _, err := s.survey()
	if err != nil {
		return nil, err
	}
	var l []Ref
	all := sorted(refs)
	for i := len(all) - 1; i >= 0; i-- {
		if f.Workspace == nil || all[i].Workspace == *f.Workspace {
			l = append(l, all[i])
		}
	}
	return l, nil
}

// List reads the Jobs that f lets through, the newest first, and after them all that cannot be
// read. Jobs that lie elsewhere are not listed.
func (s *Store) List(f Filter) ([]Entry, error) {
	refs, err := s.Refs(f)
	if err != nil {
		return nil, err
	}
	_, broken, err := s.survey()
	if err != nil {
		return nil, err
	}
	l := make([]Entry, 0, len(refs)+len(broken))
	for _, r := range refs {
		e := s.entry(r.ID)
		if !errors.Is(e.Err, fs.ErrNotExist) { // removed since the survey
			l = append(l, e)
		}
	}
	return append(l, broken...), nil
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

// openID opens a Job in jobs/.
func (s *Store) openID(id bundle.ID) (*Job, error) {
	dir, err := s.jobs.OpenDir(string(id))
	if err != nil {
		return nil, err
	}
	return s.openJob(filepath.Join(s.path, jobsName, string(id)), dir)
}

// survey reads the names in jobs/ and looks each up in the index. What the index lacks it reads and
// adds. A Job whose record cannot be read is returned apart.
func (s *Store) survey() (map[bundle.ID]Ref, []Entry, error) {
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
	return refs, broken, nil
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
	jobs, err := s.jobs.OpenDir(".") // a handle of its own: reading moves its offset
	if err != nil {
		return nil, err
	}
	defer jobs.Close()
	ents, err := jobs.ReadDir()
	if err != nil {
		return nil, err
	}
	ids := make([]bundle.ID, 0, len(ents))
	for _, e := range ents {
		if id, err := bundle.ParseID(e.Name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
