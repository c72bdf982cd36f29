package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"stage/apply"
	"stage/bundle"
	"stage/cmd/internal/gitview"
	"stage/cmd/internal/render"
	"stage/cmd/internal/store"
	"stage/fs/tree"
)

// ReviewOf prepares the review of a Job's staged root, of all paths or those at and below some.
// The Staged is open for as long as the Review is used; the caller closes it.
func ReviewOf(ctx context.Context, job *store.Job, root bundle.Root, paths []tree.Path) (*render.Review, *Staged, error) {
	run := job.Run()
	if run.Publication == bundle.Dropped {
		return nil, nil, fmt.Errorf("job %s was dropped: %w", run.Job, store.ErrWrongState)
	}
	st, err := OpenStaged(job, root)
	if err != nil {
		return nil, nil, err
	}
	r, err := reviewOf(ctx, job, root, st, paths)
	if err != nil {
		return nil, nil, errors.Join(err, st.Close())
	}
	return r, st, nil
}

func reviewOf(ctx context.Context, job *store.Job, root bundle.Root, st *Staged, paths []tree.Path) (*render.Review, error) {
	changes, err := st.Changes(ctx)
	if err != nil {
		return nil, err
	}
	has, n, err := st.Tracked()
	if err != nil {
		return nil, err
	}
	flags, err := apply.Classify(ctx, changes, st.Reader, n)
	if err != nil {
		return nil, err
	}
	r := &render.Review{
		Job: job.ID(), Root: root.Name, Contents: st.Reader, Walker: st.Reader, Outcome: outcomeOf(job), Tracked: has,
		RawGit: slices.ContainsFunc(paths, gitDir.Contains),
	}
	if r.Git, err = gitLines(ctx, changes, st); err != nil {
		return nil, err
	}
	if r.Reads, err = readDrift(job, root, st); err != nil {
		return nil, err
	}
	for _, c := range changes {
		if !chosen(c, paths) {
			continue
		}
		e, err := entryOf(ctx, st, c, flags[c.Path])
		if err != nil {
			return nil, err
		}
		r.Changes = append(r.Changes, e)
	}
	if len(paths) > 0 && len(r.Changes) == 0 {
		return nil, &apply.NoMatchError{Pattern: paths[0].String()}
	}
	return r, nil
}

// gitDir is where a workspace keeps what git knows of it.
var gitDir = mustChild(".git")

func mustChild(name string) tree.Path {
	p, err := tree.Path{}.Child(name)
	if err != nil {
		panic(err) // the name is a constant
	}
	return p
}

// gitLines is what git would say of the changes below .git.
func gitLines(ctx context.Context, changes []tree.Change, st *Staged) ([]string, error) {
	sum, err := gitview.Summarize(ctx, gitDir, changes, st.Reader)
	if err != nil {
		return nil, err
	}
	return sum.Lines(), nil
}

func chosen(c tree.Change, paths []tree.Path) bool {
	return len(paths) == 0 || slices.ContainsFunc(paths, func(p tree.Path) bool { return p.Contains(c.Path) })
}

func entryOf(ctx context.Context, st *Staged, c tree.Change, flags []apply.Flag) (render.Entry, error) {
	v, err := st.Verdict(ctx, c)
	if err != nil {
		return render.Entry{}, err
	}
	e := render.Entry{Change: c, Verdict: bundle.Verdict(v.Verdict), Why: v.Why, Drift: v.Verdict == tree.Conflict}
	for _, f := range flags {
		e.Flags = append(e.Flags, bundle.Flag{Class: bundle.Class(f.Class), Reason: f.Reason})
	}
	return e, nil
}

func outcomeOf(job *store.Job) string {
	b, err := job.Bundle()
	if err != nil {
		return "not sealed"
	}
	return render.OutcomeText(b.Outcome)
}

// StagedRoots returns the staged roots of a Job, the workspace first.
func StagedRoots(job *store.Job) []bundle.Root {
	var roots []bundle.Root
	for _, r := range job.Run().Roots {
		if r.Kind == bundle.RootStaged {
			roots = append(roots, r)
		}
	}
	return roots
}
