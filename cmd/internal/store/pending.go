package store

import (
	"errors"
	"io/fs"

	"stage/bundle"
	"stage/fs/hostfs"
)

// pending/ holds an empty file under the id of each Job that may need recovery. It is made as soon
// as a process has the Job's lock, before that process changes anything, and goes with the lock
// when the Job is in good order. So a process that was killed leaves its mark, and nobody has to
// read every Job to find out who needs help. A store without pending/ gets it with a mark for
// every Job.

// Pending reads the Jobs of a workspace that may need recovery: those whose supervisor died, those
// where an apply may have been broken off, and those that another process is busy with.
func (s *Store) Pending(w bundle.Workspace) ([]Entry, error) {
	ids, err := s.pendingIDs()
	if err != nil {
		return nil, err
	}
	var l []Entry
	for _, id := range ids {
		e := s.entry(id)
		if errors.Is(e.Err, fs.ErrNotExist) {
			continue // being made, removed, or elsewhere
		}
		if e.Err != nil || e.Run.Workspace == w {
			l = append(l, e)
		}
	}
	return l, nil
}

func (s *Store) pendingIDs() ([]bundle.ID, error) {
	d, err := s.root.OpenDir(pendingName)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	ents, err := d.ReadDir()
	return idsIn(ents), err
}

// makePending makes pending/ where it is absent.
func (s *Store) makePending() error {
	if _, err := s.root.Stat(pendingName); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ids, err := s.jobIDs()
	if err != nil {
		return err
	}
	if err := makeDir(s.root, pendingName); err != nil {
		return err
	}
	d, err := s.root.OpenDir(pendingName)
	if err != nil {
		return err
	}
	for _, id := range ids {
		err = errors.Join(err, mark(d, id))
	}
	return errors.Join(err, d.Close())
}

func mark(d hostfs.Dir, id bundle.ID) error {
	f, err := d.Create(string(id), fileMode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// markPending marks the Job and keeps the handle for settle.
//
// Preconditions:
//   - this process holds the Job's lock.
func (j *Job) markPending(id bundle.ID) error {
	d, err := j.store.root.OpenDir(pendingName)
	if err != nil {
		return err
	}
	if err := mark(d, id); err != nil {
		return errors.Join(err, d.Close())
	}
	j.pending = d
	return nil
}

// settle takes the mark away when the Job is in good order.
//
// Preconditions:
//   - this process holds the Job's lock.
func (j *Job) settle() error {
	if j.pending == nil {
		return nil
	}
	d := j.pending
	j.pending = nil
	var err error
	if j.run.State.Over() && j.run.Publication != bundle.RecoveryNeeded && !j.unsure {
		err = unlessGone(d.Unlink(string(j.ID())))
	}
	return errors.Join(err, d.Close())
}

// dropStrayMarks removes the marks of Jobs that are not there.
//
// Preconditions:
//   - no process makes a Job.
func (s *Store) dropStrayMarks() error {
	marked, err := s.pendingIDs()
	if err != nil {
		return err
	}
	pending, err := s.root.OpenDir(pendingName)
	if err != nil {
		return err
	}
	defer pending.Close()
	elsewhere, err := s.root.OpenDir(elsewhereName)
	if err != nil {
		return err
	}
	defer elsewhere.Close()
	for _, id := range marked {
		_, here := s.jobs.Stat(string(id))
		_, there := elsewhere.Stat(string(id))
		if !errors.Is(here, fs.ErrNotExist) || !errors.Is(there, fs.ErrNotExist) {
			continue
		}
		if err := unlessGone(pending.Unlink(string(id))); err != nil {
			return err
		}
	}
	return nil
}
