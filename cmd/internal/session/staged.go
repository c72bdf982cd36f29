package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"

	"stage/apply"
	"stage/bundle"
	"stage/cmd/internal/gitview"
	"stage/cmd/internal/store"
	"stage/fs/hostfs"
	"stage/fs/staged"
	"stage/fs/tree"
)

// Staged is one staged root of a Job, open for review or apply.
type Staged struct {
	*staged.Reader
	Lower hostfs.Dir // the workspace
	// Tracked tells which files git tracks there, and how many. The index is read at the first call.
	Tracked func() (has func(tree.Path) bool, n int, err error)
	upper   hostfs.Dir
	pre     hostfs.Dir // preimages, nil when there are none
	log     hostfs.File
}

// OpenStaged opens a staged root of a Job that does not run.
func OpenStaged(job *store.Job, root bundle.Root) (s *Staged, err error) {
	s = &Staged{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.Lower, err = hostfs.OpenRoot(root.Path.String()); err != nil {
		return s, fmt.Errorf("workspace %q: %w", root.Path, err)
	}
	if err := sameWorkspace(job, root, s.Lower); err != nil {
		return s, err
	}
	if s.upper, s.log, err = job.OpenRoot(root.Name); err != nil {
		return s, err
	}
	if s.pre, err = hostfs.OpenRoot(job.Pre(root.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	rebased, merged, err := published(job, root)
	if err != nil {
		return s, err
	}
	run := job.Run()
	gid, err := groupOf(job)
	if err != nil {
		return s, err
	}
	cfg := staged.Config{
		Lower: s.Lower, Upper: s.upper, Log: s.log,
		Rootless: run.UID != 0, UID: run.UID, GID: gid, Rebased: rebased, Merged: merged, Alike: gitview.Alike,
	}
	if s.pre != nil {
		cfg.Preimages = s.pre
	}
	s.Reader, err = staged.Open(cfg)
	if err != nil {
		return s, fmt.Errorf("job %s: change log of %q: %w", job.ID(), root.Name, err)
	}
	s.Tracked = onceTracked(root.Path.String())
	return s, nil
}

// sameWorkspace refuses a directory that is not the one the Job ran over, though it stands at its path.
func sameWorkspace(job *store.Job, root bundle.Root, dir hostfs.Dir) error {
	if root.Name != workspaceRoot {
		return nil
	}
	n, err := dir.Stat(".")
	if err != nil {
		return err
	}
	if w := job.Run().Workspace; n.Dev != w.Dev || n.Ino != w.Ino {
		return fmt.Errorf("workspace %q is another directory than the one job %s ran over: %w", root.Path, job.ID(), store.ErrWrongState)
	}
	return nil
}

// Changes returns the net changes. A git index that differs in stat data alone, as after any
// `git status`, is none.
func (s *Staged) Changes(ctx context.Context) ([]tree.Change, error) {
	all, err := s.Reader.Changes(ctx)
	if err != nil {
		return nil, err
	}
	kept := all[:0]
	for _, c := range all {
		same, err := gitview.StatOnly(c, s.Reader)
		if err != nil {
			return nil, err
		}
		if !same {
			kept = append(kept, c)
		}
	}
	return kept, nil
}

// groupOf returns the gid of the Job's owner: its directory was made with it.
func groupOf(job *store.Job) (uint32, error) {
	n, err := job.Dir().Stat(".")
	return n.GID, err
}

// Close closes what OpenStaged opened.
func (s *Staged) Close() error {
	var errs []error
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	if s.upper != nil {
		errs = append(errs, s.upper.Close())
	}
	if s.pre != nil {
		errs = append(errs, s.pre.Close())
	}
	if s.Lower != nil {
		errs = append(errs, s.Lower.Close())
	}
	return errors.Join(errs...)
}

// published returns what the Job's earlier batches made the base of their paths, those that were
// taken back too: what they touched has another ctime since; and what the Job has where they merged.
func published(job *store.Job, root bundle.Root) (base, merged map[tree.Path]tree.Node, err error) {
	base, merged = map[tree.Path]tree.Node{}, map[tree.Path]tree.Node{}
	if root.Name != workspaceRoot {
		return base, merged, nil
	}
	batches, err := readBatches(job)
	if err != nil {
		return nil, nil, err
	}
	for _, b := range batches {
		if b.State == apply.BatchUnfinished {
			continue
		}
		for p := range b.Base {
			delete(merged, p)
		}
		maps.Copy(base, b.Base)
		maps.Copy(merged, b.Staged)
	}
	return base, merged, nil
}

// batch is where one published batch of a Job stands.
type batch struct {
	n int
	apply.Standing
}

// readBatches reads the batches of a Job, the oldest first.
func readBatches(job *store.Job) ([]batch, error) {
	numbers, err := job.Batches()
	if err != nil {
		return nil, err
	}
	var all []batch
	for _, n := range numbers {
		dir, err := job.OpenBatch(n)
		if err != nil {
			return nil, err
		}
		b := batch{n: n}
		b.Standing, err = apply.Read(dir)
		if err := errors.Join(err, dir.Close()); err != nil {
			return nil, fmt.Errorf("batch %d of job %s: %w", n, job.ID(), err)
		}
		all = append(all, b)
	}
	return all, nil
}
