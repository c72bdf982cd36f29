package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"stage/apply"
	"stage/bundle"
	"stage/cmd/internal/gitview"
	"stage/cmd/internal/store"
	"stage/fs/hostfs"
	"stage/fs/tree"
)

// PublishOptions is one `stage apply`.
type PublishOptions struct {
	Paths            []tree.Path
	Include, Exclude []string
	CheckOnly        bool
	KeepGoing        bool
	Merge            apply.MergeMode
	Pick             apply.Picker // nil: all
	Allow            map[apply.Class]bool
	Point            func(name string)
}

// Publish applies the staged changes of a Job's workspace and keeps run.json's publication true.
// The report is there also beside an error that says why nothing was written.
func Publish(ctx context.Context, s *store.Store, job *store.Job, o PublishOptions) (*bundle.ApplyReport, error) {
	st, err := openTarget(ctx, s, job)
	if err != nil {
		return nil, err
	}
	defer st.close() // handles only
	_, tracked, err := st.Tracked()
	if err != nil {
		return nil, err
	}
	a := apply.Options{
		Job: string(job.ID()), Source: st, Target: st.Lower, Pending: st.pending, Tracked: tracked,
		Paths: o.Paths, Include: o.Include, Exclude: o.Exclude,
		CheckOnly: o.CheckOnly, KeepGoing: o.KeepGoing, Merge: o.Merge, Pick: o.Pick, Allow: o.Allow, Point: o.Point, Alike: gitview.Alike,
	}
	if o.CheckOnly {
		res, err := apply.Apply(ctx, a)
		return report(job, nil, res), err
	}
	return publishBatch(ctx, job, a)
}

// target is a Job's workspace with what is staged for it, settled and ready to be published to.
type target struct {
	*Staged
	pending []hostfs.Dir // batches that need recovery all the same: another stage was killed just now
}

// openTarget takes the Job's lock, refuses what may not be published, and first of all finishes what
// an interrupted batch left: it decides what the changes are compared with.
func openTarget(ctx context.Context, s *store.Store, job *store.Job) (*target, error) {
	if err := RecoverTarget(ctx, s, job.Run().Workspace); err != nil {
		return nil, err
	}
	if err := mayPublish(job); err != nil {
		return nil, err
	}
	root, err := workspaceOf(job)
	if err != nil {
		return nil, err
	}
	st, err := OpenStaged(job, root)
	if err != nil {
		return nil, err
	}
	pending, err := unfinished(s, job.Run().Workspace)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return &target{st, pending}, nil
}

func (t *target) close() error { return errors.Join(closeAll(t.pending), t.Staged.Close()) }

// publishBatch applies into a new batch and records what is published now.
func publishBatch(ctx context.Context, job *store.Job, a apply.Options) (*bundle.ApplyReport, error) {
	n, dir, err := job.NewBatch()
	if err != nil {
		return nil, err
	}
	a.Batch = dir
	res, err := apply.Apply(ctx, a)
	rep := report(job, &n, res)
	if !res.Wrote {
		rep.Batch = nil
		err = errors.Join(err, job.DropBatch(n))
	}
	perr := recordPublication(ctx, job, err)
	return rep, errors.Join(err, perr, dir.Close())
}

func workspaceOf(job *store.Job) (bundle.Root, error) {
	for _, r := range job.Run().Roots {
		if r.Kind == bundle.RootStaged && r.Name == workspaceRoot {
			return r, nil
		}
	}
	return bundle.Root{}, fmt.Errorf("job %s stages no workspace: %w", job.ID(), store.ErrWrongState)
}

// mayPublish takes the Job's lock and refuses a Job that runs or was dropped.
func mayPublish(job *store.Job) error {
	if err := job.Lock(); err != nil {
		return err
	}
	run := job.Run()
	switch {
	case !run.State.Over():
		return fmt.Errorf("job %s is %s: %w", run.Job, run.State, store.ErrWrongState)
	case run.Publication == bundle.Dropped:
		return fmt.Errorf("job %s was dropped: %w", run.Job, store.ErrWrongState)
	}
	return nil
}

// recordPublication looks at what is left of the changes and writes it into run.json.
func recordPublication(ctx context.Context, job *store.Job, cause error) error {
	var need *apply.RecoveryNeededError
	if errors.As(cause, &need) {
		return setPublication(job, bundle.RecoveryNeeded)
	}
	p, err := publication(ctx, job)
	if err != nil {
		return err
	}
	if err := setPublication(job, p); err != nil {
		return err
	}
	if _, ok := errors.AsType[*apply.UnfinishedError](cause); ok {
		return nil // it stays marked: something is left to clean up
	}
	return job.Done()
}

func setPublication(job *store.Job, p bundle.Publication) error {
	if job.Run().Publication == p {
		return nil
	}
	return job.UpdateRun(func(r *bundle.Run) { r.Publication = p })
}

func publication(ctx context.Context, job *store.Job) (bundle.Publication, error) {
	batches, err := readBatches(job)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(batches, func(b batch) bool { return b.State == apply.BatchPublished }) {
		return bundle.PublishedNone, nil
	}
	root, err := workspaceOf(job)
	if err != nil {
		return "", err
	}
	st, err := OpenStaged(job, root)
	if err != nil {
		return "", err
	}
	defer st.Close() // read only
	left, err := st.Changes(ctx)
	if err != nil {
		return "", err
	}
	if len(left) == 0 {
		return bundle.PublishedAll, nil
	}
	return bundle.PublishedPartial, nil
}

// report turns the result of an apply or undo into its document.
func report(job *store.Job, batch *int, res *apply.Result) *bundle.ApplyReport {
	rep := &bundle.ApplyReport{Job: job.ID(), Batch: batch, Result: bundle.ApplyResult(res.Outcome), Gated: bundle.Map[bundle.Class, bundle.List[tree.Path]]{}}
	for _, p := range res.Paths {
		a := bundle.ApplyPath{Path: p.Path, Verdict: bundle.Verdict(p.Verdict), Found: bundle.StateOf(p.Found)}
		if p.Why != "" {
			a.Why = &p.Why
		}
		if p.Verdict != tree.UnknownBase {
			a.Base = bundle.StateOf(p.Base)
		}
		rep.Paths = append(rep.Paths, a)
	}
	for class, paths := range res.Gated {
		rep.Gated[bundle.Class(class)] = paths
	}
	return rep
}

// ErrNothingApplied: the Job has no published batch that could be undone.
var ErrNothingApplied = errors.New("nothing of the job is applied")

// Undo reverts the Job's last published batch.
func Undo(ctx context.Context, s *store.Store, job *store.Job, keepGoing bool, point func(string)) (*bundle.ApplyReport, error) {
	st, err := openTarget(ctx, s, job)
	if err != nil {
		return nil, err
	}
	defer st.close() // handles only
	n, dir, err := lastPublished(job)
	if err != nil {
		return nil, err
	}
	defer dir.Close() // handle only
	later, err := batchesAfter(job, n)
	if err != nil {
		return nil, err
	}
	defer closeAll(later) // handles only
	o := apply.UndoOptions{
		Job: string(job.ID()), Target: st.Lower, Batch: dir, Pending: st.pending, KeepGoing: keepGoing, Point: point,
		Alike: gitview.Alike, OpenPublished: st.OpenNew,
	}
	for _, d := range later {
		o.Later = append(o.Later, d)
	}
	if err := job.Begin(true); err != nil {
		return nil, err
	}
	res, err := apply.Undo(ctx, o)
	return report(job, &n, res), errors.Join(err, recordPublication(ctx, job, err))
}

// batchesAfter opens the batches of a Job that came after number n.
func batchesAfter(job *store.Job, n int) ([]hostfs.Dir, error) {
	all, err := job.Batches()
	if err != nil {
		return nil, err
	}
	var dirs []hostfs.Dir
	for _, m := range all {
		if m <= n {
			continue
		}
		d, err := job.OpenBatch(m)
		if err != nil {
			return nil, errors.Join(err, closeAll(dirs))
		}
		dirs = append(dirs, d)
	}
	return dirs, nil
}

func lastPublished(job *store.Job) (int, hostfs.Dir, error) {
	batches, err := readBatches(job)
	if err != nil {
		return 0, nil, err
	}
	for _, b := range slices.Backward(batches) {
		if b.State == apply.BatchPublished {
			dir, err := job.OpenBatch(b.n)
			return b.n, dir, err
		}
	}
	return 0, nil, fmt.Errorf("job %s: %w", job.ID(), ErrNothingApplied)
}

// RecoverTarget finishes or takes back what an interrupted apply left in a workspace, and keeps the
// publication of the Jobs it belongs to true.
func RecoverTarget(ctx context.Context, s *store.Store, w bundle.Workspace) error {
	return eachBusy(s, w, func(job *store.Job) error {
		if !job.Run().State.Over() {
			return nil
		}
		err := job.Lock()
		if errors.Is(err, store.ErrBusy) {
			return nil // it is being applied right now
		}
		if err != nil {
			return err
		}
		return recoverBatches(ctx, job, w)
	})
}

func recoverBatches(ctx context.Context, job *store.Job, w bundle.Workspace) error {
	pending, err := unfinishedBatches(job)
	if err != nil {
		return err
	}
	if len(pending) == 0 {
		return job.Done()
	}
	target, err := hostfs.OpenRoot(w.Path.String())
	if err != nil {
		return errors.Join(err, closeAll(pending))
	}
	for _, batch := range pending {
		if _, rerr := apply.Recover(ctx, target, batch); rerr != nil {
			err = rerr
			break
		}
	}
	perr := recordPublication(ctx, job, err)
	if _, ok := errors.AsType[*apply.UnfinishedError](err); ok {
		err = nil // everything is published; what could not be cleaned up must not stop anybody's work
	}
	return errors.Join(err, perr, closeAll(pending), target.Close())
}
