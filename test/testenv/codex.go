package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// CodexVersion is the version of @openai/codex that `make deps` installs and tests expect.
const CodexVersion = "0.171.0"

// CodexBinary returns the native binary of the Codex CLI. The Node launcher is passed by: killed,
// it leaves the real program running.
func CodexBinary(t testing.TB) string {
	t.Helper()
	Need(t, Codex)
	b, err := findCodex()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// CodexDir is where `make deps` installs Codex: readable by every user when root does it.
func CodexDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/opt/stage-test/codex-" + CodexVersion, nil
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "stage-test", "codex-"+CodexVersion), err
}

func findCodex() (string, error) {
	if named := os.Getenv("STAGE_CODEX"); named != "" {
		return codexIn(named)
	}
	dir, err := CodexDir()
	if err != nil {
		return "", err
	}
	b, err := codexIn(filepath.Join(dir, "node_modules"))
	if err == nil {
		return b, nil
	}
	if b, perr := codexOnPath(); perr == nil {
		return b, nil
	}
	return "", fmt.Errorf("%w; `make deps` installs Codex %s, STAGE_CODEX names another", err, CodexVersion)
}

// codexOnPath follows the launcher on PATH, …/node_modules/@openai/codex/bin/codex.js, to the
// binary beside it.
func codexOnPath() (string, error) {
	p, err := exec.LookPath("codex")
	if err != nil {
		return "", err
	}
	if p, err = filepath.EvalSymlinks(p); err != nil {
		return "", err
	}
	modules, _, ok := strings.Cut(p, "/@openai/codex/")
	if !ok {
		return codexIn(p)
	}
	return codexIn(modules)
}

// codexIn returns path when it is a binary, else the one in the node_modules folder path.
func codexIn(path string) (string, error) {
	s, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case s.Mode().IsRegular() && strings.HasSuffix(path, ".js"):
		return "", fmt.Errorf("%s is the launcher, not the binary", path)
	case s.Mode().IsRegular():
		return path, nil
	}
	for _, pattern := range []string{
		"@openai/codex-linux-*/vendor/*/bin/codex",
		"@openai/codex/node_modules/@openai/codex-linux-*/vendor/*/bin/codex",
	} {
		if found, _ := filepath.Glob(filepath.Join(path, pattern)); len(found) == 1 {
			return found[0], nil
		}
	}
	return "", errors.New("no Codex binary in " + path)
}
