package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"stage/bundle"
	"stage/cmd/internal/render"
	"stage/cmd/internal/store"
)

// outcomeDoc is the file of --outcome-file.
type outcomeDoc struct {
	Version int            `json:"version"`
	Job     bundle.ID      `json:"job"`
	Outcome bundle.Outcome `json:"outcome"`
}

// PrepareOutcome makes sure, before a command runs, that its outcome can be written to path: an old
// file is removed, so that none is there unless the run wrote it. An empty path is none.
func PrepareOutcome(path string) error {
	if path == "" {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return invalidf("--outcome-file %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".stage-outcome-*")
	if err != nil {
		return invalidf("--outcome-file %s: %w", path, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// WriteOutcome writes how a Job's command ended as JSON to a file, complete or not at all.
func WriteOutcome(path string, b *bundle.Bundle) error {
	text, err := json.MarshalIndent(outcomeDoc{bundle.Version, b.Job, b.Outcome}, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".stage-outcome-*")
	if err != nil {
		return fmt.Errorf("outcome file: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("outcome file: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// CurrentWorkspace returns the workspace of the current directory, also where a run would refuse it.
func CurrentWorkspace() (string, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("current directory: %w", err)
	}
	return FindWorkspace("", cwd, "")
}

// JobRows returns the Jobs of a store for the table of Jobs.
func JobRows(s *store.Store, f store.Filter) ([]render.JobRow, error) {
	entries, err := s.List(f)
	if err != nil {
		return nil, err
	}
	var rows []render.JobRow
	for _, e := range entries {
		row := render.JobRow{ID: string(e.ID)}
		if e.Err != nil {
			row.Problem = e.Err.Error()
			rows = append(rows, row)
			continue
		}
		run := e.Run
		if e.Status == store.Stale {
			run.State = bundle.Interrupted
		}
		row.Run = &run
		if row.Bundle, err = bundleOf(s, e.ID); err != nil {
			row.Problem = err.Error()
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func bundleOf(s *store.Store, id bundle.ID) (b *bundle.Bundle, err error) {
	job, err := s.Find(string(id), bundle.Workspace{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, job.Close()) }()
	b, err = job.Bundle()
	if errors.Is(err, store.ErrNotSealed) {
		return nil, nil
	}
	return b, err
}
