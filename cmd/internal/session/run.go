// Package session carries one run from the command line to the sealed bundle: it admits it, sets
// the jail and the overlays up, supervises the command and tears everything down again.
//
// Set-up, each step undone in reverse when a later one fails:
//
//	Job directory → private home → jail prepared (FUSE mounted) → overlays opened → served →
//	jail started (controls read back, canaries tried) → mediator serving → command executed
//
// Teardown: command ended or killed → jail closed (no process is left) → mediator closed → servers
// closed → overlays synced → changes counted → bundle sealed.
package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"stage/bundle"
	"stage/cmd/internal/store"
	"stage/fs/fusefs"
	"stage/fs/hostfs"
	"stage/fs/overlay"
	"stage/fs/tree"
	"stage/jail"
	"stage/jail/opener"
	"stage/policy"
)

// clock is where every time of a record comes from.
var clock = time.Now

// Streams are the files the command gets.
type Streams struct {
	In, Out, Err *os.File
	TTY          bool // give the command a pty: In and Out are terminals
}

// Runner runs admitted commands.
type Runner struct {
	Store   *store.Store
	Build   bundle.Build
	Streams Streams
	Signals <-chan os.Signal // forwarded to the command
	Trace   *Trace           // nil: not wanted
	Holder  *jail.Launched   // nil: one is started when it is needed
}

// Result is what a run left.
type Result struct {
	Job      *store.Job
	Bundle   *bundle.Bundle
	Refusals []Refusal
	Exit     int // the exit code stage ends with
}

// run is one execution from the Job's directory to its seal.
type run struct {
	*Runner
	a   *Admission
	job *store.Job

	jail    *jail.Jail
	roots   []*servedRoot
	watches watches // of the roots' servers
	network *network
	keeper  *keeper

	planDigest tree.Digest // "" until plan.json is there

	hurried bool // somebody told stage to end: what follows the command is kept short

	evidence evidence
	outcome  bundle.Outcome
	shares   []bundle.HostPath
}

// Run runs the command of a in a Job and seals it. The Result is there whenever the Job is, also
// beside an error: an error means that stage failed, not the command.
func (r *Runner) Run(ctx context.Context, a *Admission, job *store.Job) (*Result, error) {
	s := &run{Runner: r, a: a, job: job}
	s.evidence = evidence{admission: a, extra: map[string]bundle.Installed{}, overlays: map[string]overlay.Stats{}}
	s.outcome = bundle.Outcome{Kind: bundle.NotStarted}
	err := s.execute(ctx)
	if s.outcome.Kind == bundle.NotStarted {
		s.notStarted(err)
	}
	s.Trace.Mark("torn down")
	sealing, stop := s.untilSignal(ctx)
	if s.hurried {
		limited, cancel := context.WithTimeout(sealing, countFor)
		defer cancel()
		sealing = limited
	}
	b, serr := s.seal(sealing)
	stop()
	s.Trace.Mark("sealed")
	res := &Result{Job: job, Bundle: b, Refusals: s.evidence.refusals(), Exit: *s.outcome.StageExit}
	return res, errors.Join(err, serr)
}

// notStarted records why nothing of the command ran.
func (s *run) notStarted(err error) {
	exit, reason := ExitStageFailed, "stage failed before the command ran"
	if ee, ok := errors.AsType[*jail.ExecError](err); ok {
		exit = ee.Code
	}
	if se, ok := errors.AsType[*signalError](err); ok {
		if n, ok := se.sig.(syscall.Signal); ok {
			exit = 128 + int(n)
		}
	}
	if err != nil {
		reason = err.Error()
	}
	s.outcome = bundle.Outcome{Kind: bundle.NotStarted, Reason: &reason, StageExit: &exit}
}

// ExitStageFailed is the exit code of a run in which stage itself refused or failed before the
// command ran; ExitTimeout that of a command that reached its wall-time limit.
const (
	ExitStageFailed = 125
	ExitTimeout     = 124
)

// execute sets up, runs the command and tears down again. Nothing that was set up outlives it.
func (s *run) execute(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, s.teardown()) }()
	if err := s.setUp(ctx); err != nil {
		return err
	}
	return s.supervise(ctx)
}

// setUp does everything up to the command. A signal in the meantime ends it.
func (s *run) setUp(ctx context.Context) error {
	ctx, stop := s.untilSignal(ctx)
	err := s.install(ctx)
	stop()
	if cause, ok := errors.AsType[*signalError](context.Cause(ctx)); ok {
		err = errors.Join(cause, err)
	}
	return err
}

// untilSignal returns a context that a signal to stage ends while no command is there to take it.
// stop must be called; afterwards signals wait again for the command.
func (s *run) untilSignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-done:
				return
			case sig := <-s.Signals:
				switch sig {
				case syscall.SIGTSTP:
					_ = stopSelf() // one may always signal oneself
				case syscall.SIGCONT:
				default:
					cancel(&signalError{sig})
					return
				}
			}
		}
	}()
	return ctx, func() {
		close(done)
		<-over
		cancel(nil)
	}
}

// signalError is a signal to stage while no command ran.
type signalError struct{ sig os.Signal }

func (e *signalError) Error() string { return "interrupted by signal: " + e.sig.String() }

// install sets up in order; each step needs the ones before it.
func (s *run) install(ctx context.Context) error {
	if err := s.a.CheckSupported(); err != nil {
		return errors.Join(err, s.writePlan())
	}
	cfg, err := s.jailConfig()
	if err != nil {
		return err
	}
	if err := s.prepare(ctx, cfg); err != nil {
		return err
	}
	s.Trace.Mark("jail prepared")
	if err := s.serveRoots(ctx); err != nil {
		return err
	}
	s.Trace.Mark("roots served")
	running := s.markRunning()
	if s.evidence.installed, err = s.jail.Start(ctx); err != nil {
		return errors.Join(err, <-running)
	}
	s.Trace.Mark("jail started")
	listeners := s.jail.Listeners()
	s.network = startNetwork(s.a, listeners)
	s.addEvidence(listeners)
	if err := s.evidence.checkRequired(); err != nil {
		return errors.Join(err, <-running)
	}
	return <-running
}

// markRunning writes that the Job runs, while the jail starts: whoever finds the Job after a crash in between does
// the same for both states.
func (s *run) markRunning() <-chan error {
	written := make(chan error, 1)
	go func() { written <- s.job.UpdateRun(func(r *bundle.Run) { r.State = bundle.Running }) }()
	return written
}

// prepare writes the plan while the jail is being prepared: neither needs the other.
func (s *run) prepare(ctx context.Context, cfg jail.Config) error {
	written := make(chan error, 1)
	go func() {
		written <- s.writePlan()
		s.Trace.Mark("plan written")
	}()
	j, err := jail.Prepare(ctx, cfg)
	if err == nil {
		s.jail = j
	}
	return errors.Join(err, <-written)
}

// teardown takes down what execute set up, in an order that leaves no request unanswered: first
// every process of the Job is gone, then what served them.
func (s *run) teardown() error {
	gone := s.jail != nil && s.jail.Gone()
	closed := s.closeJail()
	var errs []error
	if !gone {
		errs = append(errs, <-closed)
		close(closed) // so that it is waited for no more
	}
	if s.network != nil {
		errs = append(errs, s.network.close(&s.evidence))
	}
	errs = append(errs, s.stopServing())
	return errors.Join(append(errs, <-closed)...)
}

// closeJail closes the jail beside what follows. Where processes of it may be left, that waits.
func (s *run) closeJail() chan error {
	closed := make(chan error, 1)
	if s.jail == nil {
		closed <- nil
		return closed
	}
	go func() {
		closed <- s.jail.Close()
		s.Trace.Mark("jail closed")
	}()
	return closed
}

// stopServing ends the servers, then what they served. Below one that is stuck everything stays as it is: its requests still use
// it, and whatever waits for them would wait too.
func (s *run) stopServing() error {
	var errs []error
	for _, r := range s.roots {
		err := r.stopServing()
		r.stuck = errors.Is(err, fusefs.ErrStuck)
		errs = append(errs, err)
	}
	if s.keeper != nil && !s.stuck() {
		s.keeper.stop()
	}
	for _, r := range s.roots {
		if r.stuck {
			continue
		}
		errs = append(errs, r.close())
		if r.fs != nil {
			s.evidence.overlays[r.name] = r.fs.Stats()
		}
	}
	return errors.Join(errs...)
}

// stuck reports whether a root is still in use by requests that do not end.
func (s *run) stuck() bool {
	return slices.ContainsFunc(s.roots, func(r *servedRoot) bool { return r.stuck })
}

func (s *run) writePlan() error {
	p, err := s.a.record(s.job.ID())
	if err != nil {
		return err
	}
	if err := s.job.WritePlan(p); err != nil {
		return err
	}
	s.planDigest = p.Digest
	return nil
}

// servedRoot is one staged root while it is served. Fields are nil as far as set-up did not get.
type servedRoot struct {
	name         string
	lower, upper hostfs.Dir
	pre, orphans hostfs.Dir
	logs         hostfs.Dir
	opener       opener.Opener // of lower files that the caller owns and may not read
	fs           *overlay.FS
	server       *fusefs.Server
	stuck        bool // the server has requests that do not end
}

func (r *servedRoot) stopServing() error {
	if r.server == nil {
		return nil
	}
	return r.server.Close()
}

// close makes everything durable and closes the handles.
//
// Preconditions:
//   - stopServing has returned, and not ErrStuck.
func (r *servedRoot) close() error {
	var errs []error
	if r.fs != nil {
		errs = append(errs, r.fs.Close())
	}
	errs = append(errs, r.opener.Close())
	if r.upper != nil {
		errs = append(errs, r.upper.Close())
	}
	for _, d := range []hostfs.Dir{r.orphans, r.pre, r.logs} {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	if r.lower != nil {
		errs = append(errs, r.lower.Close())
	}
	return errors.Join(errs...)
}

// openOwn returns what opens the caller's own files of any mode. Root needs nothing for that.
func (r *servedRoot) openOwn() func(path int) (int, error) {
	if os.Geteuid() == 0 {
		return nil
	}
	return r.opener.Open
}

// serveRoots opens an overlay for each staged root and serves it on the device the jail mounted.
func (s *run) serveRoots(ctx context.Context) error {
	s.keeper = startKeeper()
	for _, root := range s.job.Run().Roots {
		if root.Kind != bundle.RootStaged {
			continue
		}
		r := &servedRoot{name: root.Name}
		s.roots = append(s.roots, r)
		if err := s.serveRoot(ctx, r, len(s.roots)-1, root.Path.String()); err != nil {
			return fmt.Errorf("stage %q: %w", root.Path, err)
		}
	}
	return nil
}

func (s *run) serveRoot(ctx context.Context, r *servedRoot, view int, path string) (err error) {
	if r.lower, err = hostfs.OpenRoot(path); err != nil {
		return err
	}
	var log hostfs.File
	if r.upper, log, err = s.job.MakeRoot(r.name); err != nil {
		return err
	}
	if r.pre, err = openPrivate(s.job.Pre(r.name)); err != nil {
		return errors.Join(err, log.Close())
	}
	if r.orphans, err = openPrivate(s.job.Orphans(r.name)); err != nil {
		return errors.Join(err, log.Close())
	}
	if r.logs, err = hostfs.OpenRoot(s.job.Base()); err != nil {
		return errors.Join(err, log.Close())
	}
	reads, err := r.logs.Create(filepath.Base(s.job.Reads(r.name)), 0o600)
	if err != nil {
		return errors.Join(err, log.Close())
	}
	r.fs, err = overlay.Open(overlay.Config{
		Reads: reads,
		Lower: r.lower, Upper: r.upper, Preimages: r.pre, Orphans: r.orphans, IDs: callerIDs(),
		LogFile: log, LogDir: r.logs, LogName: filepath.Base(s.job.Log(r.name)),
		Rules: rulesBelow(&s.a.Plan, path), OnEvent: s.keeper.event, OpenOwn: r.openOwn(),
	})
	if err != nil {
		return errors.Join(err, log.Close(), reads.Close())
	}
	s.keeper.add(r.fs)
	pass := s.a.Options.passthrough()
	r.server, err = fusefs.Serve(s.jail.Device(view), r.fs, fusefs.Options{Name: r.name, Passthrough: pass})
	if err != nil {
		return err
	}
	s.watches.add(r.server)
	if !pass {
		return nil
	}
	if err := r.server.Established(ctx); err != nil {
		return fmt.Errorf("--fs-mode passthrough takes Linux 6.9 and CAP_SYS_ADMIN outside of user namespaces: %w", err)
	}
	return nil
}

// openPrivate makes a directory of the Job, where it is not there yet, and opens it.
func openPrivate(path string) (hostfs.Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	return hostfs.OpenRoot(path)
}

// rulesBelow returns the plan's rules for a staged root, nil where none can match: then no path
// is ever built for a lookup.
func rulesBelow(p *policy.Plan, root string) overlay.Rules {
	rules := p.RulesBelow(root)
	if rules == nil {
		return nil
	}
	return pathRules{rules}
}
