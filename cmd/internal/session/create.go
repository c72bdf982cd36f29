package session

import (
	"fmt"

	"stage/bundle"
	"stage/cmd/internal/store"
)

// NewJob makes the Job of an admitted command, in the store or in dir if it is not "".
func NewJob(s *store.Store, a *Admission, dir string) (*store.Job, error) {
	ws, err := store.Identify(a.Workspace)
	if err != nil {
		return nil, fmt.Errorf("workspace %q: %w", a.Workspace, err)
	}
	roots, err := a.rootRecords()
	if err != nil {
		return nil, err
	}
	cwd, err := bundle.ParseHostPath(a.Cwd)
	if err != nil {
		return nil, err
	}
	return s.Create(store.Options{
		Workspace: ws, Roots: roots, Argv: a.Options.Argv, Cwd: cwd, Preset: a.Preset.Name, Dir: dir,
	})
}
