package store

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"stage/fs/hostfs"
)

// NewBatch makes the directory of the Job's next published batch and marks the Job as busy, until
// Done. Batches count from 1.
//
// Preconditions:
//   - this process holds the Job's lock.
func (j *Job) NewBatch() (n int, dir hostfs.Dir, err error) {
	if err := j.needLock(); err != nil {
		return 0, nil, err
	}
	all, err := j.Batches()
	if err != nil {
		return 0, nil, err
	}
	if err := j.Begin(true); err != nil {
		return 0, nil, err
	}
	n = 1
	if len(all) > 0 {
		n = all[len(all)-1] + 1
	}
	batches, err := j.dir.OpenDir(applyName)
	if err != nil {
		return 0, nil, err
	}
	defer batches.Close()
	if err := errors.Join(batches.Mkdir(strconv.Itoa(n), dirMode), batches.Sync()); err != nil {
		return 0, nil, fmt.Errorf("batch %d of job %s: %w", n, j.ID(), err)
	}
	dir, err = batches.OpenDir(strconv.Itoa(n))
	return n, dir, err
}

// Batches returns the numbers of the Job's batches in order. Whether one was committed, undone or
// broken off is what its ledger says.
func (j *Job) Batches() ([]int, error) {
	batches, err := j.dir.OpenDir(applyName)
	if err != nil {
		return nil, err
	}
	defer batches.Close()
	ents, err := batches.ReadDir()
	if err != nil {
		return nil, err
	}
	var all []int
	for _, e := range ents {
		n, err := strconv.Atoi(e.Name)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("batch directory %q of job %s has no number", e.Name, j.ID())
		}
		all = append(all, n)
	}
	slices.Sort(all)
	return all, nil
}

// OpenBatch opens the directory of one batch.
func (j *Job) OpenBatch(n int) (hostfs.Dir, error) {
	batches, err := j.dir.OpenDir(applyName)
	if err != nil {
		return nil, err
	}
	defer batches.Close()
	return batches.OpenDir(strconv.Itoa(n))
}

// DropBatch removes the directory of a batch that was never used.
//
// Preconditions:
//   - this process holds the Job's lock.
func (j *Job) DropBatch(n int) error {
	if err := j.needLock(); err != nil {
		return err
	}
	batches, err := j.dir.OpenDir(applyName)
	if err != nil {
		return err
	}
	defer batches.Close()
	if err := batches.Rmdir(strconv.Itoa(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
