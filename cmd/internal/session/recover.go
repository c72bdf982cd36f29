package session

import (
	"context"
	"errors"
	"fmt"

	"stage/apply"
	"stage/bundle"
	"stage/cmd/internal/gitview"
	"stage/cmd/internal/store"
	"stage/fs/hostfs"
	"stage/fs/tree"
	"stage/jail"
)

// RecoverJob ends a Job whose supervisor died: it marks it interrupted and seals what can still be
// told. It does nothing to a Job that is over or alive.
func RecoverJob(ctx context.Context, job *store.Job, build bundle.Build) error {
	status, err := job.Status()
	if err != nil || status != store.Stale {
		return err
	}
	err = job.Recover(func(j *store.Job) (*bundle.Bundle, error) { return lostBundle(ctx, j, build) })
	if errors.Is(err, store.ErrBusy) {
		return nil // another process recovers it
	}
	return err
}

func lostBundle(ctx context.Context, job *store.Job, build bundle.Build) (*bundle.Bundle, error) {
	if err := jail.CleanUp(job.Work()); err != nil {
		return nil, fmt.Errorf("clean up after job %s: %w", job.ID(), err)
	}
	plan, err := job.Plan()
	if err != nil {
		plan = nil // it died before it had a plan, or while it wrote one
	}
	run := job.Run()
	b := bundle.Lost(&run, plan)
	known := newBundle(job, build, bundle.SealedByRecovery)
	b.SealedAt, b.Stage, b.Host = known.SealedAt, known.Stage, known.Host
	// The changes of an interrupted Job are reviewable; that they cannot be counted is no reason
	// not to seal it.
	b.Changes, err = CountChanges(ctx, job)
	if err != nil {
		b.Limits = append(b.Limits, "changes could not be counted: "+err.Error())
	}
	return b, nil
}

// RecoverWorkspace recovers every stale Job of a workspace.
func RecoverWorkspace(ctx context.Context, s *store.Store, w bundle.Workspace, build bundle.Build) error {
	entries, err := s.List(store.Filter{Workspace: &w})
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Err != nil || e.Status != store.Stale {
			continue
		}
		errs = append(errs, recoverID(ctx, s, e.ID, build))
	}
	return errors.Join(errs...)
}

func recoverID(ctx context.Context, s *store.Store, id bundle.ID, build bundle.Build) error {
	job, err := s.Find(string(id), bundle.Workspace{})
	if err != nil {
		return err
	}
	return errors.Join(RecoverJob(ctx, job, build), job.Close())
}

// trackedFiles returns how many files git tracks in a directory, 0 where it is no work tree.
func trackedFiles(dir string) (int, error) {
	_, n, err := Tracked(dir)
	return n, err
}

// Tracked tells which files git tracks in a workspace, and how many; nothing where it is no git
// work tree. The index is read as data.
func Tracked(dir string) (has func(tree.Path) bool, n int, err error) {
	repo, ok, err := gitview.Find(dir)
	if err != nil || !ok || repo.WorkTree != dir {
		return nil, 0, err
	}
	return repo.Tracked()
}

// unfinished returns the batches of a workspace's Jobs that an interrupted apply left, oldest
// first, and the Jobs they belong to. The caller closes the directories.
func unfinished(s *store.Store, w bundle.Workspace) ([]hostfs.Dir, error) {
	entries, err := s.List(store.Filter{Workspace: &w})
	if err != nil {
		return nil, err
	}
	var dirs []hostfs.Dir
	for i := len(entries) - 1; i >= 0; i-- { // List has the newest first
		if entries[i].Err != nil {
			continue
		}
		d, err := unfinishedOf(s, entries[i].ID)
		if err != nil {
			return nil, errors.Join(err, closeAll(dirs))
		}
		dirs = append(dirs, d...)
	}
	return dirs, nil
}

func unfinishedOf(s *store.Store, id bundle.ID) ([]hostfs.Dir, error) {
	job, err := s.Find(string(id), bundle.Workspace{})
	if err != nil {
		return nil, err
	}
	dirs, err := unfinishedBatches(job)
	return dirs, errors.Join(err, job.Close())
}

func unfinishedBatches(job *store.Job) ([]hostfs.Dir, error) {
	batches, err := job.Batches()
	if err != nil {
		return nil, err
	}
	var dirs []hostfs.Dir
	for _, n := range batches {
		d, err := job.OpenBatch(n)
		if err != nil {
			return nil, errors.Join(err, closeAll(dirs))
		}
		state, _, err := apply.Read(d)
		if err == nil && state == apply.BatchUnfinished {
			dirs = append(dirs, d)
			continue
		}
		if err := errors.Join(err, d.Close()); err != nil {
			return nil, errors.Join(fmt.Errorf("batch %d of job %s: %w", n, job.ID(), err), closeAll(dirs))
		}
	}
	return dirs, nil
}

func closeAll(dirs []hostfs.Dir) error {
	var errs []error
	for _, d := range dirs {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
