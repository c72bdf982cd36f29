package session

import (
	"fmt"
	"os"
	"path/filepath"

	"stage/cmd/internal/gitview"
)

// FindWorkspace returns the workspace as an absolute path free of links: named if it is not "",
// else the top of the git work tree around cwd, else cwd. The root directory and home are refused
// unless named: a Job over them is hardly ever meant. An empty home refuses nothing.
func FindWorkspace(named, cwd, home string) (string, error) {
	if named != "" {
		return resolveDir("--workspace", named)
	}
	dir, ok, err := gitview.TopLevel(cwd)
	if err != nil {
		return "", fmt.Errorf("find the git work tree of %q: %w", cwd, err)
	}
	if !ok {
		dir = cwd
	}
	ws, err := resolveDir("workspace", dir)
	if err != nil {
		return "", err
	}
	if home != "" && (ws == "/" || ws == home) {
		return "", invalidf("workspace %q is the root or home directory: go to a project, or name it with --workspace %s", ws, ws)
	}
	return ws, nil
}

func resolveDir(what, dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", invalidf("%s %q: %w", what, dir, err)
	}
	fi, err := os.Stat(real)
	if err != nil {
		return "", invalidf("%s %q: %w", what, dir, err)
	}
	if !fi.IsDir() {
		return "", invalidf("%s %q is not a directory", what, dir)
	}
	return real, nil
}
