package session

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"stage/policy"
)

// readLayers reads the policy files of user, workspace and session, and adds the executor base.
func (a *Admission) readLayers(presets policy.Presets) error {
	type file struct {
		layer    policy.LayerName
		path     string
		required bool
	}
	files := []file{
		{policy.User, filepath.Join(configHome(a.Home), "stage", "policy.toml"), false},
		{policy.Workspace, filepath.Join(a.Workspace, ".stage", "policy.toml"), false},
	}
	for _, p := range a.Options.Policies {
		files = append(files, file{policy.Session, p, true})
	}
	for _, f := range files {
		layer, err := readPolicy(f.layer, f.path)
		if errors.Is(err, os.ErrNotExist) && !f.required {
			continue
		}
		if err != nil {
			return err
		}
		a.Layers = append(a.Layers, layer)
	}
	a.Layers = append(a.Layers, presets.Executor)
	return nil
}

func configHome(home string) string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(home, ".config")
}

// readPolicy reads one policy file without following a link at its end, looks at the very file it
// opened, and parses it.
func readPolicy(layer policy.LayerName, path string) (policy.Layer, error) {
	// O_NONBLOCK: a FIFO in a repository must not hang stage.
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if errors.Is(err, syscall.ELOOP) {
		return policy.Layer{}, policy.CheckFile(policy.FileFacts{Name: path})
	}
	if err != nil {
		return policy.Layer{}, fmt.Errorf("policy %q: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // read only
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return policy.Layer{}, fmt.Errorf("policy %q: %w", path, err)
	}
	facts := policy.FileFacts{
		Name: path, Regular: st.Mode&syscall.S_IFMT == syscall.S_IFREG, Size: st.Size,
		UID: st.Uid, Mode: st.Mode & 0o7777, CallerUID: uint32(os.Getuid()),
	}
	if err := policy.CheckFile(facts); err != nil {
		return policy.Layer{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, st.Size+1))
	if err != nil {
		return policy.Layer{}, fmt.Errorf("policy %q: %w", path, err)
	}
	return policy.ParseFile(layer, path, text)
}
