package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stage/apply"
	"stage/bundle"
	"stage/cmd/internal/render"
	"stage/cmd/internal/store"
	"stage/fs/tree"
)

// seal writes back refreshed credentials, counts the changes and writes the bundle.
func (s *run) seal(ctx context.Context) (*bundle.Bundle, error) {
	var errs []error
	var uncounted []string
	for _, h := range s.a.Agents {
		if h.dir == "" || s.a.Options.NoAuthWriteback {
			continue
		}
		wrote, err := h.writeBack()
		errs = append(errs, err, s.addShares(wrote))
	}
	for _, r := range s.a.Plan.Shares {
		errs = append(errs, s.addShares([]string{r.Path}))
	}
	b := newBundle(s.job, s.Build, bundle.SealedByRun)
	b.PlanDigest, b.Outcome = s.planDigest, s.outcome
	switch {
	case s.stuck():
		uncounted = []string{"changes could not be counted: a file operation below a staged root does not end"}
	case s.evidence.exit != nil || s.outcome.Kind != bundle.NotStarted:
		// How the command ended does not depend on whether its changes could be counted.
		var err error
		if b.Changes, err = countOrGiveUp(ctx, s.job); err != nil {
			uncounted = []string{"changes could not all be counted: " + err.Error()}
		}
	default:
		b.Changes = bundle.Changes{Complete: true}
	}
	b.Controls = s.evidence.controls()
	b.Dimensions = bundle.Summarize(b.Controls)
	b.Shares, b.Limits = s.shares, slices.Concat(uncounted, s.evidence.limits())
	if s.keeper != nil {
		b.Limits = append(b.Limits, s.keeper.told()...)
	}
	if err := s.job.Seal(b); err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	return b, errors.Join(errs...)
}

func (s *run) addShares(paths []string) error {
	for _, p := range paths {
		h, err := bundle.ParseHostPath(p)
		if err != nil {
			return err
		}
		s.shares = append(s.shares, h)
	}
	return nil
}

// newBundle returns a bundle with what is the same for every way to seal.
func newBundle(job *store.Job, build bundle.Build, by bundle.SealedBy) *bundle.Bundle {
	run := job.Run()
	return &bundle.Bundle{
		Job: run.Job, Session: run.Session, Operation: run.Operation, Attempt: run.Attempt,
		SealedAt: now(), SealedBy: by, Stage: build,
		Host: bundle.Host{Kernel: kernelRelease(), UID: run.UID, Mode: HostMode(run.UID), BootID: run.BootID},
	}
}

// HostMode says how a Job of uid is confined.
func HostMode(uid uint32) bundle.Mode {
	switch {
	case uid == 0:
		return bundle.ModeRoot
	case os.Getenv(droppedEnv) != "":
		return bundle.ModeRootDropped
	default:
		return bundle.ModeRootless
	}
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return string(bytes.TrimRight(u.Release[:], "\x00"))
}

// countOrGiveUp is CountChanges that also ends, with its context, when a file system below does not answer: the
// context alone cannot end a system call.
func countOrGiveUp(ctx context.Context, job *store.Job) (bundle.Changes, error) {
	type counted struct {
		changes bundle.Changes
		err     error
	}
	done := make(chan counted, 1)
	go func() {
		c, err := CountChanges(ctx, job)
		done <- counted{c, err}
	}()
	select {
	case c := <-done:
		return c.changes, c.err
	case <-ctx.Done():
	}
	select {
	case c := <-done:
		return c.changes, c.err
	case <-time.After(time.Second):
		return bundle.Changes{}, context.Cause(ctx)
	}
}

// CountChanges counts the net changes of every staged root of a Job that does not run.
func CountChanges(ctx context.Context, job *store.Job) (bundle.Changes, error) {
	all := bundle.Changes{Complete: true}
	var errs []error
	for _, root := range job.Run().Roots {
		if root.Kind != bundle.RootStaged {
			continue
		}
		c, err := countRoot(ctx, job, root)
		if err != nil {
			all.Complete = false
			errs = append(errs, fmt.Errorf("changes of %q: %w", root.Name, err))
		}
		all.Roots = append(all.Roots, c)
	}
	return all, errors.Join(errs...)
}

func countRoot(ctx context.Context, job *store.Job, root bundle.Root) (bundle.RootChanges, error) {
	c := bundle.RootChanges{Name: root.Name}
	staged, err := OpenStaged(job, root)
	if err != nil {
		return c, err
	}
	defer staged.Close() // read only
	changes, err := staged.Changes(ctx)
	if err != nil {
		return c, err
	}
	drift := 0
	c.Drift = &drift
	if len(changes) == 0 {
		c.Digest, err = digestChanges(nil)
		return c, err
	}
	n, bytes := render.CountChanges(changes)
	c.Added, c.Modified, c.Deleted, c.Renamed, c.TypeChanged, c.Metadata, c.Bytes = n.Added, n.Modified, n.Deleted, n.Renamed, n.TypeChanged, n.Metadata, bytes
	for _, ch := range changes {
		v, err := staged.Verdict(ctx, ch)
		if err != nil {
			return c, err
		}
		if v.Verdict == tree.Conflict {
			drift++
		}
	}
	_, tracked, err := staged.Tracked()
	if err != nil {
		return c, err
	}
	flags, err := apply.Classify(ctx, changes, staged.Reader, tracked)
	if err != nil {
		return c, err
	}
	c.Flags = countFlags(flags)
	c.Digest, err = digestChanges(changes)
	return c, err
}

func countFlags(flags map[tree.Path][]apply.Flag) bundle.Map[bundle.Class, int] {
	n := bundle.Map[bundle.Class, int]{}
	for _, list := range flags {
		for _, f := range list {
			n[bundle.Class(f.Class)]++
		}
	}
	return n
}

// digestChanges is the digest over the list of changes, one JSON document a line.
func digestChanges(changes []tree.Change) (tree.Digest, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	for _, c := range changes {
		if err := e.Encode(c); err != nil {
			return "", err
		}
	}
	return tree.DigestBytes([]byte(b.String())), nil
}
