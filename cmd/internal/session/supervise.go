package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"stage/bundle"
	"stage/jail"
	"stage/policy"
)

// grace is how long a command may go on after it was told to end at its wall-time limit.
const grace = 2 * time.Second

// supervise lets the command start, forwards signals, keeps its wall-time limit, and records how
// it ended.
func (s *run) supervise(ctx context.Context) error {
	started := clock()
	if err := s.jail.Exec(); err != nil {
		return err
	}
	s.Trace.Mark("command started")
	ended := make(chan waited, 1)
	go func() {
		x, err := s.jail.Wait()
		ended <- waited{x, err}
	}()
	var limit, kill <-chan time.Time
	if s.a.Plan.Timeout.Set {
		t := time.NewTimer(s.a.Plan.Timeout.Max)
		defer t.Stop()
		limit = t.C
	}
	ending := "" // why stage ended the command, "" while it runs by itself
	for {
		select {
		case w := <-ended:
			return s.ended(started, w, ending)
		case sig := <-s.Signals:
			if sig == syscall.SIGTSTP {
				if err := s.suspend(); err != nil {
					return errors.Join(err, s.jail.Kill())
				}
				continue
			}
			if n, ok := sig.(syscall.Signal); ok {
				s.hurried = s.hurried || n == syscall.SIGINT || n == syscall.SIGTERM || n == syscall.SIGHUP
				// A command that is gone already takes no signal; its end is on its way.
				_ = s.jail.Signal(n)
			}
		case <-limit:
			ending = fmt.Sprintf("reached its wall-time limit of %s", s.a.Plan.Timeout.Max)
			_ = s.jail.Signal(syscall.SIGTERM) // as above
			t := time.NewTimer(grace)
			defer t.Stop()
			kill = t.C
		case <-kill:
			kill = nil
			if err := s.jail.Kill(); err != nil {
				return fmt.Errorf("kill job: %w", err)
			}
		case <-ctx.Done():
			return errors.Join(ctx.Err(), s.jail.Kill())
		}
	}
}

type waited struct {
	exit jail.Exit
	err  error
}

// ended records the command's end.
func (s *run) ended(started time.Time, w waited, ending string) error {
	s.Trace.Mark("command ended")
	end := clock()
	wall := end.Sub(started)
	s.evidence.wallNs = int64(wall)
	o := bundle.Outcome{
		StartedAt: ptr(timeOf(started)), EndedAt: ptr(timeOf(end)), WallNs: ptr(int64(wall)),
	}
	switch {
	case w.err != nil && ending == "":
		o.Kind, o.Reason, o.StageExit = bundle.Killed, ptr(w.err.Error()), ptr(ExitStageFailed)
		s.outcome = o
		return fmt.Errorf("wait for the command: %w", w.err)
	case ending != "":
		o.Kind, o.Reason, o.StageExit = bundle.TimedOut, &ending, ptr(ExitTimeout)
	case w.exit.Signal != 0:
		o.Kind, o.Signal, o.StageExit = bundle.Signaled, &w.exit.Signal, ptr(128+w.exit.Signal)
	default:
		o.Kind, o.ExitCode, o.StageExit = bundle.Exited, &w.exit.Code, &w.exit.Code
	}
	if w.err == nil {
		s.evidence.exit = &w.exit
	}
	s.outcome = o
	return nil
}

// addEvidence adds the controls that are installed outside the jail.
func (s *run) addEvidence(listeners []net.Listener) {
	if s.a.Plan.Net.Mode == policy.NetAllow {
		s.evidence.extra["net.mediator"] = s.a.mediatorState(listeners)
	}
	if s.a.Plan.Timeout.Set {
		want := s.a.Plan.Timeout.Max.String()
		s.evidence.extra["res.wall"] = bundle.Installed{Level: bundle.Enforced,
			ReadBack: []bundle.ReadBack{{Source: "supervisor's timer", Want: want, Got: want}}}
	}
	s.evidence.extra["fs.rules"] = s.rulesState()
	if r, ok := s.evidence.installed.Control("fs.staged"); ok {
		in := installedRecord(r)
		in.ReadBack = append(in.ReadBack, s.protocols()...)
		s.evidence.extra["fs.staged"] = in
	}
	if _, ok := s.evidence.installed.Control("mask.secrets"); !ok {
		// No readable root holds a secret, so there is nothing to cover.
		s.evidence.extra["mask.secrets"] = bundle.Installed{Level: bundle.Enforced,
			ReadBack: []bundle.ReadBack{{Source: "hidden paths below readable roots", Want: "none", Got: "none"}}}
	}
	// An agent's socket is a unix socket of the host like any other: what keeps all of them out of
	// reach keeps these.
	if r, ok := s.evidence.installed.Control("net.unix"); ok {
		s.evidence.extra["sockets.agents"] = installedRecord(r)
	}
}

// rulesState is the evidence for path rules inside the staged roots: the overlay decides them and
// the kernel asks it for every name.
func (s *run) rulesState() bundle.Installed {
	in := bundle.Installed{Level: bundle.Enforced}
	for _, r := range s.roots {
		in.ReadBack = append(in.ReadBack, bundle.ReadBack{
			Source: "fuse connection of " + r.name, Want: "served by stage", Got: served(r),
		})
	}
	if len(in.ReadBack) == 0 {
		return bundle.Installed{Level: bundle.Unenforced, Reason: bundle.NotInstalled}
	}
	return in
}

// protocols are what the kernel agreed to for each staged root, and how its requests come.
func (s *run) protocols() []bundle.ReadBack {
	var l []bundle.ReadBack
	for _, r := range s.roots {
		got := "none"
		if r.server != nil && r.server.Protocol() != "" {
			got = r.server.Protocol()
		}
		l = append(l, bundle.ReadBack{Source: "fuse protocol of " + r.name, Want: "not none", Got: got})
	}
	return l
}

func served(r *servedRoot) string {
	if r.server == nil || r.server.Protocol() == "" {
		return "not served"
	}
	return "served by stage"
}
