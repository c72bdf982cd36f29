package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"stage/apply"
	"stage/bundle"
	"stage/cmd/internal/gitview"
	"stage/cmd/internal/store"
	"stage/fs/hostfs"
	"stage/fs/overlay"
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

// countFor bounds the counting of changes when a lost Job is sealed.
const countFor = 10 * time.Second

func lostBundle(ctx context.Context, job *store.Job, build bundle.Build) (*bundle.Bundle, error) {
	if err := jail.CleanUp(job.Work()); err != nil {
		return nil, fmt.Errorf("clean up after job %s: %w", job.ID(), err)
	}
	if err := job.ClearOrphans(); err != nil {
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
	for _, root := range run.Roots {
		if root.Kind != bundle.RootStaged {
			continue
		}
		if err := closeLog(job, root); err != nil {
			b.Limits = append(b.Limits, fmt.Sprintf("change log of %q could not be ended: %v", root.Name, err))
		}
	}
	// The changes of an interrupted Job are reviewable; that they cannot be counted, or not soon, is
	// no reason not to seal it: another run waits for this.
	ctx, cancel := context.WithTimeout(ctx, countFor)
	defer cancel()
	b.Changes, err = countOrGiveUp(ctx, job)
	if err != nil {
		b.Limits = append(b.Limits, "changes could not be counted: "+err.Error())
	}
	return b, nil
}

// closeLog ends the change log of a staged root as the supervisor would have: while the machine runs on
// all is there that was recorded, which later nobody could tell.
func closeLog(job *store.Job, root bundle.Root) error {
	lower, err := hostfs.OpenRoot(root.Path.String())
	if err != nil {
		return err
	}
	defer lower.Close()
	logs, err := hostfs.OpenRoot(job.Base())
	if err != nil {
		return err
	}
	defer logs.Close()
	upper, err := hostfs.OpenRoot(job.Upper(root.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it died before it had one
	}
	if err != nil {
		return err
	}
	defer upper.Close()
	name := filepath.Base(job.Log(root.Name))
	log, err := logs.OpenWrite(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return overlay.Recover(overlay.Config{Lower: lower, Upper: upper, LogFile: log, LogDir: logs, LogName: name})
}

// RecoverWorkspace ends every Job of a workspace that its supervisor left behind.
func RecoverWorkspace(ctx context.Context, s *store.Store, w bundle.Workspace, build bundle.Build) error {
	return eachBusy(s, w, func(job *store.Job) error { return RecoverJob(ctx, job, build) })
}

// eachBusy calls f for each Job of a workspace that runs, is being published, or was when its
// process was killed, the oldest first.
func eachBusy(s *store.Store, w bundle.Workspace, f func(*store.Job) error) error {
	ids, err := s.Busy()
	if err != nil {
		return err
	}
	slices.Sort(ids)
	for _, id := range ids {
		job, err := s.Find(string(id), w)
		if errors.Is(err, store.ErrNoJob) {
			continue // it is just being made, or was removed
		}
		if err != nil {
			return err
		}
		if job.Run().Workspace == w {
			err = f(job)
		}
		if err := errors.Join(err, job.Close()); err != nil {
			return err
		}
	}
	return nil
}

// onceTracked returns a function that reads, once, what git tracks in a workspace.
func onceTracked(dir string) func() (func(tree.Path) bool, int, error) {
	var has func(tree.Path) bool
	var n int
	read := sync.OnceValue(func() (err error) {
		has, n, err = tracked(dir)
		return err
	})
	return func() (func(tree.Path) bool, int, error) {
		err := read()
		return has, n, err
	}
}

// tracked tells which files git tracks in a workspace, and how many; nothing where it is no git
// work tree. The index is read as data.
func tracked(dir string) (has func(tree.Path) bool, n int, err error) {
	repo, ok, err := gitview.Find(dir)
	if err != nil || !ok || repo.WorkTree != dir {
		return nil, 0, err
	}
	return repo.Tracked()
}

// unfinished returns the batches of a workspace's Jobs that an interrupted apply left, the oldest
// first. The caller closes them.
func unfinished(s *store.Store, w bundle.Workspace) ([]hostfs.Dir, error) {
	var dirs []hostfs.Dir
	err := eachBusy(s, w, func(job *store.Job) error {
		d, err := unfinishedBatches(job)
		dirs = append(dirs, d...)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, closeAll(dirs))
	}
	return dirs, nil
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
		need, err := apply.NeedsRecovery(d)
		if err == nil && need {
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
