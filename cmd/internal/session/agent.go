package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"stage/fs/tree"
	"stage/policy"
)

// agentHome is one private directory of an agent: a copy of chosen files of the real one, with an
// edited configuration, mounted where the agent looks for it.
type agentHome struct {
	preset  policy.AgentHome
	path    string            // where it is on the host and in the Job
	files   []string          // what is copied, relative to path
	extra   map[string]string // what is copied from elsewhere: name in it by host path
	edited  map[string][]byte // by file name: the content that replaces the host's
	edits   []policy.AppliedEdit
	dir     string                 // the copy, once there is one
	digests map[string]tree.Digest // of files that may be written back, as they were copied
}

// readAgent reads the preset's agent configuration on this machine and says what it asks for.
func (a *Admission) readAgent() (policy.Agent, error) {
	ask := policy.Agent{OwnSandbox: a.Options.KeepAgentSandbox}
	for _, t := range a.Preset.Toolchains {
		if dir := a.toolchain(t); dir != "" {
			ask.Reads = append(ask.Reads, dir)
		}
	}
	readable := ask.Reads
	for _, r := range a.Preset.Reads {
		readable = append(readable, expandHome(r, a.Home))
	}
	ask.Reads = append(ask.Reads, a.programReads(readable)...)
	var err error
	if ask.Hosts, err = a.Preset.HostsFromEnv(os.LookupEnv); err != nil {
		return ask, err
	}
	for _, h := range a.Preset.Homes {
		if err := a.readHome(h, &ask); err != nil {
			return ask, err
		}
	}
	return ask, nil
}

func (a *Admission) readHome(p policy.AgentHome, ask *policy.Agent) error {
	dir, err := a.agentDir(p)
	if err != nil {
		return err
	}
	h := &agentHome{preset: p, path: dir, edited: map[string][]byte{}, extra: map[string]string{}, digests: map[string]tree.Digest{}}
	a.Agents = append(a.Agents, h)
	if h.files, err = agentFiles(dir, p.Files); err != nil {
		return err
	}
	for from, name := range p.Extra {
		h.extra[expandHome(from, a.Home)] = name
	}
	if p.Config == "" {
		return nil
	}
	out, err := a.editConfig(h)
	if err != nil {
		return fmt.Errorf("agent home %q: %w", dir, err)
	}
	ask.Hosts, ask.Env = out.Hosts, out.Env
	return nil
}

// toolchain returns the root of a toolchain that is in use: its variable names it, or PATH leads
// into it. "" when it is not.
func (a *Admission) toolchain(t policy.Toolchain) string {
	dir := expandHome(t.Path, a.Home)
	if t.Env != "" && filepath.IsAbs(os.Getenv(t.Env)) {
		dir = os.Getenv(t.Env)
	} else if !onPath(dir) {
		return ""
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || within(real, a.Workspace) || within(real, a.Home) {
		return "" // absent, or a variable that would open the home directory or more
	}
	return real
}

// onPath reports whether PATH has a directory below dir.
func onPath(dir string) bool {
	for _, p := range filepath.SplitList(os.Getenv("PATH")) {
		if within(dir, filepath.Clean(p)) {
			return true
		}
	}
	return false
}

func expandHome(path, home string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		return filepath.Join(home, rest)
	}
	return path
}

// agentDir returns where the agent's home directory is, whether or not it exists yet.
func (a *Admission) agentDir(h policy.AgentHome) (string, error) {
	dir := expandHome(h.Default, a.Home)
	if h.Env != "" && os.Getenv(h.Env) != "" {
		dir = os.Getenv(h.Env)
	}
	if !filepath.IsAbs(dir) {
		return "", invalidf("%s=%q is not an absolute path", h.Env, dir)
	}
	real, err := filepath.EvalSymlinks(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return filepath.Clean(dir), nil
	case err != nil:
		return "", fmt.Errorf("agent home %q: %w", dir, err)
	case within(real, a.Workspace):
		return "", invalidf("agent home %q holds the workspace: name another one by %s", dir, h.Env)
	}
	return real, nil
}

// agentFiles lists the regular files of dir that the patterns select, relative to dir.
func agentFiles(dir string, patterns []string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || rel == "." {
			return err
		}
		switch {
		case !selected(rel, patterns):
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			files = append(files, rel)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("agent home %q: %w", dir, err)
	}
	return files, nil
}

// selected reports whether rel or a directory it lies in matches one of the patterns.
func selected(rel string, patterns []string) bool {
	for p := rel; p != "."; p = filepath.Dir(p) {
		for _, pattern := range patterns {
			if ok, err := doublestar.Match(pattern, p); err == nil && ok {
				return true
			}
		}
	}
	return false
}

// editConfig makes the edited copy of the agent's configuration.
func (a *Admission) editConfig(h *agentHome) (policy.CodexOutput, error) {
	in := policy.CodexInput{Argv: a.Options.Argv, Preset: a.Preset, KeepSandbox: a.Options.KeepAgentSandbox}
	if a.Options.Flags.Net == "" || a.Options.Flags.Net == string(policy.NetAllow) {
		in.Proxy = "http://" + proxyAddr
	}
	profile := policy.CodexProfile(a.Options.Argv)
	for _, f := range []struct {
		name string
		to   *[]byte
	}{{h.preset.Config, &in.Config}, {profile, &in.Profile}, {"auth.json", &in.Auth}} {
		if f.name == "" {
			continue
		}
		text, err := readOptional(filepath.Join(h.path, f.name))
		if err != nil {
			return policy.CodexOutput{}, err
		}
		*f.to = text
	}
	out, err := policy.EditCodexConfig(in)
	if err != nil {
		return out, err
	}
	h.edits = out.Applied
	h.edited[h.preset.Config] = out.Config
	if out.Profile != nil {
		h.edited[profile] = out.Profile
	}
	return out, nil
}

func readOptional(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// populate fills dir, which becomes the private copy. The agent's real home is only read.
func (h *agentHome) populate(dir string) error {
	h.dir = dir
	for _, rel := range h.files {
		if err := h.copyIn(filepath.Join(h.path, rel), rel); err != nil {
			return err
		}
	}
	for from, rel := range h.extra {
		if err := h.copyIn(from, rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for rel, text := range h.edited {
		if err := writePrivate(filepath.Join(dir, rel), text); err != nil {
			return fmt.Errorf("edit agent configuration: %w", err)
		}
	}
	return nil
}

func (h *agentHome) copyIn(from, rel string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copy agent home: %w", err)
	}
	if selected(rel, h.preset.WriteBack) {
		h.digests[rel] = tree.DigestBytes(text)
	}
	if err := writePrivate(filepath.Join(h.dir, rel), text); err != nil {
		return fmt.Errorf("copy agent home: %w", err)
	}
	return nil
}

func writePrivate(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// writeBack copies files the Job refreshed (credentials) to the host, where the host's file is
// still what was copied. It returns the host paths it wrote.
func (h *agentHome) writeBack() ([]string, error) {
	var wrote []string
	var errs []error
	private, err := os.OpenRoot(h.dir)
	if err != nil {
		return nil, fmt.Errorf("agent home: %w", err)
	}
	defer private.Close() // read only
	real, err := os.OpenRoot(h.path)
	if err != nil {
		return nil, nil // the host's is gone: there is nothing to refresh
	}
	defer real.Close() // read only
	for rel, before := range h.digests {
		host := filepath.Join(h.path, rel)
		now, err := readPlain(private, rel)
		if err != nil || tree.DigestBytes(now) == before {
			continue // gone, replaced by what is no file, or as it was
		}
		current, err := readPlain(real, rel)
		if err != nil || tree.DigestBytes(current) != before {
			continue // somebody else refreshed it: theirs stays
		}
		if err := replaceFile(host, now); err != nil {
			errs = append(errs, fmt.Errorf("write back %q: %w", host, err))
			continue
		}
		wrote = append(wrote, host)
	}
	return wrote, errors.Join(errs...)
}

// maxCredential bounds what is written back: no credentials file is larger.
const maxCredential = 1 << 20

// readPlain reads a small regular file that is no link. The Job may have put anything in its place,
// or a link in place of a directory above it.
func readPlain(root *os.Root, rel string) ([]byte, error) {
	fi, err := root.Lstat(rel)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxCredential {
		return nil, fmt.Errorf("%q is not a small regular file", rel)
	}
	return root.ReadFile(rel)
}

// replaceFile puts text in the place of the file path, under its mode, by way of a complete copy.
func replaceFile(path string, text []byte) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".stage-*")
	if err != nil {
		return err
	}
	_, werr := f.Write(text)
	err = errors.Join(werr, f.Chmod(fi.Mode().Perm()), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
