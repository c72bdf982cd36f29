package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"stage/cmd/internal/render"
	"stage/cmd/internal/session"
	"stage/cmd/internal/store"
)

// runFlags are the flags of run that are not permissions.
type runFlags struct {
	options     session.Options
	stage       string
	outcomeFile string
	asUser      string
	rm          bool
	tty, noTTY  bool
}

func (c *command) runVerb() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   "run [flags] -- CMD ARG…",
		Short: "Run a command as a Job; its changes are staged",
		Long: `Run a command inside namespaces, over a staged view of the workspace. Nothing it writes
reaches the workspace until you apply it. The command's argv is passed on byte for byte.

Afterwards three results are printed apart: how the command ended, which net changes it
left, and which controls were really in force.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.options.Argv = args
			return c.run(cmd, f)
		},
	}
	admissionFlags(cmd, &f.options)
	fl := cmd.Flags()
	fl.StringVar(&f.stage, "stage", "", "keep the Job in `PATH`, an absent or empty directory")
	fl.StringVar(&f.outcomeFile, "outcome-file", "", "write the outcome as JSON to `FILE`")
	fl.StringVar(&f.asUser, "as-user", "", "as root: become `USER` first")
	fl.BoolVar(&f.rm, "rm", false, "remove the Job afterwards if it left no changes")
	fl.BoolVar(&f.tty, "tty", false, "give the command a terminal of its own; an error unless stdin and stdout are terminals")
	fl.BoolVar(&f.noTTY, "no-tty", false, "never give the command a terminal of its own")
	cmd.MarkFlagsMutuallyExclusive("tty", "no-tty")
	return cmd
}

// admissionFlags are the flags that ask for permissions; run and plan share them.
func admissionFlags(cmd *cobra.Command, o *session.Options) {
	fl, p := cmd.Flags(), &o.Flags
	fl.SetInterspersed(false)
	fl.SortFlags = false
	fl.StringVar(&o.Workspace, "workspace", "", "stage `DIR` instead of the git work tree around here")
	fl.StringArrayVar(&p.Read, "read", nil, "let the command read `PATH` of the host")
	fl.BoolVar(&p.ReadHost, "read-host", false, "let the command read the whole host, minus secrets")
	fl.StringArrayVar(&p.Hide, "hide", nil, "make what matches `GLOB` invisible")
	fl.StringArrayVar(&p.DenyRead, "deny-read", nil, "make what matches `GLOB` unreadable")
	fl.StringArrayVar(&p.Share, "share", nil, "let the command write `PATH` of the host directly; never undone")
	fl.StringArrayVar(&p.Scratch, "scratch", nil, "a private directory at `PATH`, thrown away")
	fl.StringArrayVar(&p.DenyWrite, "deny-write", nil, "make what matches `GLOB` unwritable")
	fl.StringVar(&o.FSMode, "fs-mode", "auto", "`MODE` of staged files: auto, or passthrough, which only root can have: fast large files, slower opens")
	fl.StringVar(&p.Net, "net", "", "network: none, allow (named hosts only) or host (default none)")
	fl.StringArrayVar(&p.AllowHost, "allow-host", nil, "let the command reach `HOST[:PORT]`; without a port, 443")
	fl.StringArrayVar(&p.DenyHost, "deny-host", nil, "never let the command reach `HOST[:PORT]`")
	fl.StringArrayVar(&p.Allow, "allow", nil, "allow `WHAT` is denied by default: userns")
	fl.StringArrayVar(&p.Env, "env", nil, "pass the variable `NAME`, or set NAME=V")
	fl.StringVar(&p.Timeout, "timeout", "", "end the command after `DUR` (124)")
	fl.StringVar(&p.Nofile, "nofile", "", "limit of open files per process")
	fl.StringArrayVar(&o.Policies, "policy", nil, "narrow by the policy in `FILE` too")
	fl.StringVar(&o.Executor, "executor", "", "take this `PRESET` instead of the one argv[0] means")
	fl.BoolVar(&o.KeepAgentSandbox, "keep-agent-sandbox", false, "leave the agent's own sandbox on; asks for user namespaces")
	fl.BoolVar(&o.NoAuthWriteback, "no-auth-writeback", false, "never write refreshed credentials back to the host")
	fl.BoolVar(&o.FreshCache, "fresh-cache", false, "use new build caches instead of the workspace's")
	fl.StringArrayVar(&p.AllowDegraded, "allow-degraded", nil, "go on without `CONTROL` where it is missing; recorded")
}

// run runs one Job. What stage says goes to stderr, before and after the command.
func (c *command) run(cmd *cobra.Command, f *runFlags) (err error) {
	if f.options.KeepAgentSandbox {
		f.options.Flags.Allow = append(f.options.Flags.Allow, "userns")
	}
	terminal := term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
	if f.tty && !terminal {
		return usagef("--tty: stdin and stdout are not both terminals")
	}
	if err := session.PrepareOutcome(f.outcomeFile); err != nil {
		return err
	}
	trace := session.NewTrace()
	defer func() { err = errors.Join(err, trace.Write(c.err.W)) }()
	holder := session.LaunchHolder()
	defer func() { err = errors.Join(err, holder.Close()) }()
	a, err := session.Admit(f.options)
	if err != nil {
		return err
	}
	for _, h := range a.Hints {
		if err := render.Hint(c.err, h); err != nil {
			return err
		}
	}
	trace.Mark("admitted")
	s, err := openStoreOutside(a.Workspace)
	if err != nil {
		return err
	}
	defer s.Close() // handles only
	job, err := session.NewJob(s, a, f.stage)
	if err != nil {
		return err
	}
	defer job.Close() // handles and lock only
	trace.Mark("job made")
	if err := c.settle(cmd, s, job); err != nil {
		return err
	}
	trace.Mark("earlier jobs settled")
	fmt.Fprintf(c.err.W, "stage: job %s\n", job.ID())
	r := c.runner(s, f)
	r.Trace, r.Holder = trace, holder
	res, err := r.Run(cmd.Context(), a, job)
	if res == nil {
		return err
	}
	return errors.Join(err, c.afterRun(f, job, res))
}

// settle finishes what earlier runs and applies of the workspace left half-done.
func (c *command) settle(cmd *cobra.Command, s *store.Store, job *store.Job) error {
	w := job.Run().Workspace
	return errors.Join(session.RecoverWorkspace(cmd.Context(), s, w, build()), session.RecoverTarget(cmd.Context(), s, w), s.Clean())
}

func (c *command) runner(s *store.Store, f *runFlags) *session.Runner {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGUSR1, syscall.SIGUSR2)
	terminal := term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
	return &session.Runner{
		Store: s, Build: build(), Signals: signals,
		Streams: session.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, TTY: terminal && !f.noTTY},
	}
}

// afterRun prints the three results and what was refused, and takes the command's exit code over.
func (c *command) afterRun(f *runFlags, job *store.Job, res *session.Result) error {
	c.code = res.Exit
	if res.Bundle == nil {
		return nil
	}
	var errs []error
	if f.outcomeFile != "" {
		errs = append(errs, session.WriteOutcome(f.outcomeFile, res.Bundle))
	}
	errs = append(errs, render.EndOfRun(c.err, res.Bundle))
	if !res.Bundle.Changes.Complete {
		errs = append(errs, render.Hint(c.err, "not all changes could be counted, `stage status` says why; they are reviewable all the same"))
	}
	for i, r := range res.Refusals {
		if i == maxRefusals {
			errs = append(errs, render.Hint(c.err, fmt.Sprintf("%d more hosts were denied: `stage status` has all", len(res.Refusals)-i)))
			break
		}
		errs = append(errs, c.refusal(r))
	}
	for _, s := range res.Bundle.Shares {
		errs = append(errs, render.Hint(c.err, fmt.Sprintf("%s was written directly: it is not staged and cannot be undone", s)))
	}
	switch {
	case render.Changed(res.Bundle.Changes):
		ref := jobRef(f, job)
		errs = append(errs, render.Hint(c.err, "`stage review"+ref+"`, then `stage apply"+ref+"` or `stage drop"+ref+"`"))
	case f.rm:
		errs = append(errs, job.Remove())
	}
	return errors.Join(errs...)
}

// maxRefusals is how many denied hosts are told of after a run, which a Job chooses the number of.
const maxRefusals = 10

func (c *command) refusal(r session.Refusal) error {
	target := net.JoinHostPort(r.Host, strconv.Itoa(int(r.Port)))
	_, err := fmt.Fprintf(c.err.W, "stage: denied: %s, %s: %s\n", render.Printable(target), render.Plural(int(r.Count), "time"), render.Printable(r.Reason))
	if err != nil || r.Port == 0 {
		return err
	}
	return render.Hint(c.err, "--allow-host "+target+" asks for it")
}

// jobRef is how the user names the Job next, with a blank before it: by path where it lies outside
// the store, else not at all, since it is the newest.
func jobRef(f *runFlags, job *store.Job) string {
	if f.stage != "" {
		return " " + render.Command([]string{filepath.Clean(f.stage)})
	}
	return ""
}
