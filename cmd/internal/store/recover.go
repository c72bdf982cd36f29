package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"stage/bundle"
	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Recover ends a Job that its supervisor left behind: it takes the lock, asks seal for a bundle and
// seals the Job as interrupted. A Job whose supervisor had sealed it before it died is ended as
// that seal says. It does nothing to a Job that is over, and returns ErrBusy for one that lives.
// The lock is kept.
func (j *Job) Recover(seal func(*Job) (*bundle.Bundle, error)) error {
	if err := j.recover(seal); err != nil {
		return fmt.Errorf("recover job %s: %w", j.ID(), err)
	}
	return nil
}

func (j *Job) recover(seal func(*Job) (*bundle.Bundle, error)) error {
	status, err := j.Status()
	switch {
	case err != nil:
		return err
	case status == Live:
		return ErrBusy
	}
	if err := j.Lock(); err != nil {
		return err
	}
	if j.run.State.Over() { // another process was first
		return nil
	}
	data, err := readFile(j.dir, bundleName, maxRecord)
	if err == nil {
		b, err := bundle.Decode[bundle.Bundle](data)
		if err != nil {
			return err
		}
		return j.endAs(b, tree.DigestBytes(data))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	b, err := seal(j)
	if err != nil {
		return err
	}
	if b.SealedBy != bundle.SealedByRecovery {
		return fmt.Errorf("bundle says it is sealed by %s", b.SealedBy)
	}
	return j.Seal(b)
}

// Clean removes what crashes left in jobs/: Jobs that never became visible or were on their way out.
func (s *Store) Clean() error {
	if err := s.discardNew(); err != nil {
		return err
	}
	names, err := s.leftovers(gonePrefix)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, s.removeLeftover(name))
	}
	return errors.Join(errs...)
}

// discardNew renames Jobs that were never finished to gone ones, and drops marks without a Job. It does nothing while another process
// makes a Job: that one looks the same.
func (s *Store) discardNew() error {
	guard, err := s.jobs.OpenDir(".")
	if err != nil {
		return err
	}
	defer guard.Close()
	switch err := unix.Flock(guard.Fd(), unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
	case unix.EWOULDBLOCK, unix.EINTR:
		return nil
	default:
		return fmt.Errorf("lock %q: %w", jobsName, err)
	}
	if err := s.unmarkAbsent(); err != nil {
		return err
	}
	names, err := s.leftovers(newPrefix)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.jobs.Rename(name, s.jobs, gonePrefix+strings.TrimPrefix(name, newPrefix), hostfs.NoReplace); err != nil {
			return err
		}
	}
	return nil
}

// unmarkAbsent removes the marks of Jobs that are not there.
//
// Preconditions:
//   - nobody makes a Job now.
func (s *Store) unmarkAbsent() error {
	ids, err := s.Busy()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := s.unmarkIfAbsent(id); err != nil {
			return err
		}
	}
	return nil
}

// unmarkIfAbsent leaves the mark of a Job that cannot be read: it is there.
func (s *Store) unmarkIfAbsent(id bundle.ID) error {
	j, err := s.openAnywhere(id)
	switch {
	case err == nil:
		return j.Close()
	case errors.Is(err, ErrNoJob):
		return s.unmark(id)
	default:
		return nil
	}
}

func (s *Store) leftovers(prefix string) ([]string, error) {
	ents, err := s.readJobs()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range ents {
		if strings.HasPrefix(e.Name, prefix) {
			names = append(names, e.Name)
		}
	}
	return names, nil
}

func (s *Store) removeLeftover(name string) error {
	if err := checkUnmounted(filepath.Join(s.path, jobsName, name)); err != nil {
		return err
	}
	return removeTree(s.jobs, name)
}
