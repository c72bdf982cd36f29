package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"stage/bundle"
	"stage/cmd/internal/session"
	"stage/cmd/internal/store"
	"stage/fs/tree"
)

func openStore() (*store.Store, error) {
	path, err := store.DefaultPath(os.Getenv)
	if err != nil {
		return nil, err
	}
	return store.Open(path)
}

// openStoreOutside is openStore for a run: it refuses a store that the workspace would hold before
// anything is made of it.
func openStoreOutside(workspace string) (*store.Store, error) {
	path, err := store.DefaultPath(os.Getenv)
	if err != nil {
		return nil, err
	}
	if err := store.CheckOutside(path, workspace); err != nil {
		return nil, err
	}
	return store.Open(path)
}

// target is the Job a verb is about, and the paths below its workspace it was given.
type target struct {
	store     *store.Store
	job       *store.Job
	workspace bundle.Workspace
	paths     []tree.Path
}

func (t *target) close() error { return errors.Join(t.job.Close(), t.store.Close()) }

// find opens the Job that a verb's only argument names, the newest of the workspace without one.
func (c *command) find(cmd *cobra.Command, args []string) (*target, error) {
	return c.open(cmd, func(t *target) error {
		ref := store.Last
		if len(args) > 0 {
			ref = args[0]
		}
		return t.find(ref)
	})
}

// find opens the Job that ref names. An empty one, as of an unset variable in a script, is none:
// it must not mean the newest.
func (t *target) find(ref string) (err error) {
	if ref == "" {
		return usagef("the JOB is empty: name one, or say last")
	}
	t.job, err = t.store.Find(ref, t.workspace)
	return err
}

// withJob runs f on the Job that a verb's only argument names, and closes it.
func (c *command) withJob(cmd *cobra.Command, args []string, f func(*target) error) (err error) {
	t, err := c.find(cmd, args)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	return f(t)
}

// findPaths is find for the verbs that take paths after the Job. A first argument that is no Job's
// directory but looks like a path is the first path, of the newest Job.
func (c *command) findPaths(cmd *cobra.Command, args []string) (*target, error) {
	return c.open(cmd, func(t *target) error {
		ref, rest := store.Last, args
		if len(args) > 0 {
			ref, rest = args[0], args[1:]
		}
		if ref != "" && ref != store.Last && !store.IsJobDir(ref) && looksLikePath(ref) {
			ref, rest = store.Last, args
		}
		if err := t.find(ref); err != nil {
			return err
		}
		var err error
		t.paths, err = relativePaths(t.job.Run().Workspace.Path.String(), rest)
		if err != nil {
			return errors.Join(err, t.job.Close())
		}
		return nil
	})
}

// open opens the store, lets pick find a Job, and ends that Job if its supervisor died.
func (c *command) open(cmd *cobra.Command, pick func(*target) error) (*target, error) {
	s, err := openStore()
	if err != nil {
		return nil, err
	}
	t := &target{store: s}
	if t.workspace, err = currentWorkspace(); err == nil {
		err = pick(t)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := session.RecoverJob(cmd.Context(), t.job, build()); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// looksLikePath reports whether an argument is meant as a path rather than a Job's id: it has a slash
// or a dot, or there is such a file. Others follow the Job: `stage review last NAME`.
func looksLikePath(arg string) bool {
	if strings.ContainsAny(arg, "/.") {
		return true
	}
	_, err := os.Lstat(arg)
	return err == nil
}

// relativePaths turns paths as the user wrote them, from the current directory, into paths below
// the workspace. The paths need not exist: a Job may have made or deleted them.
func relativePaths(workspace string, args []string) ([]tree.Path, error) {
	var paths []tree.Path
	for _, arg := range args {
		abs, err := filepath.Abs(arg)
		if err != nil {
			return nil, err
		}
		// The workspace is free of links, the current directory may not be.
		if dir, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
			abs = filepath.Join(dir, filepath.Base(abs))
		}
		rel, err := filepath.Rel(workspace, abs)
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			return nil, usagef("%q lies outside the workspace %q", arg, workspace)
		}
		p, err := tree.ParsePath(rel)
		if err != nil {
			return nil, usagef("%q: %w", arg, err)
		}
		paths = append(paths, p)
	}
	return paths, nil
}

func currentWorkspace() (bundle.Workspace, error) {
	dir, err := session.CurrentWorkspace()
	if err != nil {
		return bundle.Workspace{}, err
	}
	return store.Identify(dir)
}

// settleTarget finishes what an interrupted apply left in the Job's workspace.
func settleTarget(ctx context.Context, t *target) error {
	return session.RecoverTarget(ctx, t.store, t.job.Run().Workspace)
}
