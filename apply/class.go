package apply

import (
	"context"
	"errors"

	"stage/fs/tree"
)

// Class is a risk class of changes.
type Class string

// The risk classes. Those up to MassDelete always gate; the others only mark a change.
const (
	GitHook       Class = "git-hook"
	GitConfig     Class = "git-config"
	GitAttributes Class = "git-attributes"
	Envrc         Class = "envrc"
	EditorTask    Class = "editor-task"
	AgentConfig   Class = "agent-config"
	Setuid        Class = "setuid"
	SymlinkOut    Class = "symlink-out"
	MassDelete    Class = "mass-delete"

	CI      Class = "ci"
	Script  Class = "script"
	ExecBit Class = "exec-bit"
	Secret  Class = "secret"

	// All in Options.Allow lets every class pass.
	All Class = "all"
)

// Flag is one reason to look twice at a change.
type Flag struct {
	Class  Class
	Reason string
}

// Classify returns the risk flags of changes by path. It decides from the resulting tree: names,
// modes and link targets, and for git configuration the keys that can execute something. tracked
// is the number of files that git tracks in the workspace, 0 if not known.
func Classify(ctx context.Context, changes []tree.Change, c Contents, tracked int) (map[tree.Path][]Flag, error) {
	return nil, errors.ErrUnsupported
}
