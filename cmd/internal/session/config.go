package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"stage/bundle"
	"stage/fs/fusefs"
	"stage/jail"
	"stage/policy"
)

// jailConfig makes the Job's directories and describes the jail over them.
func (s *run) jailConfig() (jail.Config, error) {
	p, err := s.makePlaces()
	if err != nil {
		return jail.Config{}, err
	}
	mounts, err := s.a.jailMounts(p)
	if err != nil {
		return jail.Config{}, err
	}
	cfg := jail.Config{
		Exe: "/proc/self/exe", Mode: jailMode(), UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
		Hostname: "stage", Mounts: mounts,
		Net: netMode(s.a.Plan.Net.Mode), Listeners: s.a.listenAddrs(), AllowUserns: s.a.Plan.Userns,
		Argv: s.a.Options.Argv, Env: append(s.a.Env, "STAGE_JOB="+string(s.job.ID())), Cwd: s.a.Cwd,
		Stdin: s.stdin(), Stdout: s.Streams.Out, Stderr: s.Streams.Err, TTY: s.Streams.TTY,
		Nofile: s.a.Plan.Nofile.Max, NofileSet: s.a.Plan.Nofile.Set,
		WorkDir: s.job.Work(), OnStep: s.Trace.onStep(), Holder: s.Holder, Stuck: s.watches.stuck,
	}
	for _, root := range s.job.Run().Roots {
		if root.Kind == bundle.RootStaged {
			cfg.Views = append(cfg.Views, jail.View{
				Name: root.Name, Dest: root.Path.String(),
				Options: fusefs.MountOptions(0, 0), // the mount's owner is id 0 of its user namespace in every mode
			})
		}
	}
	return cfg, nil
}

// stdin is the command's standard input. Codex with a prompt on its command line gets none of a
// pipe: it would wait for its end.
func (s *run) stdin() *os.File {
	if s.a.Preset.Name == "codex" && !s.Streams.TTY && !policy.CodexReadsStdin(s.a.Options.Argv) {
		return nil
	}
	return s.Streams.In
}

// LaunchHolder starts a Job's holder while the run is being admitted. It returns nil where that fails: who needs the
// holder tries again, and says why.
func LaunchHolder() *jail.Launched {
	l, err := jail.Launch("/proc/self/exe", jailMode(), uint32(os.Getuid()), uint32(os.Getgid()))
	if err != nil {
		return nil
	}
	return l
}

func jailMode() jail.Mode {
	if os.Getuid() == 0 {
		return jail.Root
	}
	return jail.Rootless
}

func netMode(m policy.NetMode) jail.Network {
	switch m {
	case policy.NetHost:
		return jail.NetHost
	case policy.NetAllow:
		return jail.NetMediated
	default:
		return jail.NetNone
	}
}

// makePlaces makes the Job's own directories that the jail shows, and fills the agent's home.
func (s *run) makePlaces() (places, error) {
	p := places{store: s.Store.Path(), own: s.job.Path(), home: filepath.Join(s.job.Home(), "user")}
	if err := os.Mkdir(p.home, 0o700); err != nil {
		return p, fmt.Errorf("private home: %w", err)
	}
	for _, h := range s.a.Agents {
		dir := filepath.Join(s.job.Home(), h.preset.Name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return p, fmt.Errorf("private agent home: %w", err)
		}
		if err := h.populate(dir); err != nil {
			return p, err
		}
	}
	if err := s.makeCache(&p); err != nil {
		return p, fmt.Errorf("scratch cache: %w", err)
	}
	p.trash = func(i int) (string, error) {
		dir := filepath.Join(s.job.Home(), "scratch"+strconv.Itoa(i))
		return dir, os.Mkdir(dir, 0o700)
	}
	return p, nil
}

// makeCache picks the directory of the workspace's scratch caches; with --fresh-cache it is the Job's own.
func (s *run) makeCache(p *places) (err error) {
	p.cache = filepath.Join(s.job.Home(), "cache")
	if s.a.Options.FreshCache {
		err = os.Mkdir(p.cache, 0o700)
	} else {
		p.cache, err = s.Store.Cache(s.job.Run().Workspace, "home")
	}
	if err != nil {
		return err
	}
	for _, dir := range cacheDirs {
		if err := os.MkdirAll(filepath.Join(p.cache, dir), 0o700); err != nil {
			return err
		}
	}
	return nil
}
