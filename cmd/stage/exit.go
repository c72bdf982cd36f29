package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"stage/apply"
	"stage/bundle"
	"stage/cmd/internal/render"
	"stage/cmd/internal/session"
	"stage/cmd/internal/store"
	"stage/fs/tree"
	"stage/jail"
	"stage/policy"
)

// The exit codes of every verb but run, whose codes are the command's own.
const (
	exitDone     = 0
	exitChanges  = 1
	exitUsage    = 2
	exitConflict = 3
	exitControl  = 4
	exitNoJob    = 5
	exitGated    = 6
	exitRecovery = 7
	exitInternal = 70
	exitBusy     = 75

	exitNotExecutable = 126
	exitNotFound      = 127
)

var exitTable = []struct {
	code string
	text string
}{
	{"run:", ""},
	{"  N", "the command's own exit code"},
	{"  128+N", "the command died by signal N (signals sent to stage are forwarded: ^C is 130)"},
	{fmt.Sprintf("  %d", session.ExitTimeout), "the wall-time limit was reached"},
	{fmt.Sprintf("  %d", session.ExitStageFailed), "stage itself refused or failed before the command ran, usage errors too"},
	{fmt.Sprintf("  %d", exitNotExecutable), "the command is not executable"},
	{fmt.Sprintf("  %d", exitNotFound), "the command was not found"},
	{"", "these can coincide with the command's own: --outcome-file and the bundle decide"},
	{"other verbs:", ""},
	{fmt.Sprintf("  %d", exitDone), "done, also when there was nothing to apply"},
	{fmt.Sprintf("  %d", exitChanges), "changes exist (review --exit-code only)"},
	{fmt.Sprintf("  %d", exitUsage), "wrong usage, or a path or pattern that matches no change"},
	{fmt.Sprintf("  %d", exitConflict), "conflict: nothing was written"},
	{fmt.Sprintf("  %d", exitControl), "a required control is missing, or policy refuses"},
	{fmt.Sprintf("  %d", exitNoJob), "no such Job, or the wrong state"},
	{fmt.Sprintf("  %d", exitGated), "gated changes need --allow"},
	{fmt.Sprintf("  %d", exitRecovery), "an interrupted apply could not be recovered by itself"},
	{fmt.Sprintf("  %d", exitInternal), "internal error"},
	{fmt.Sprintf("  %d", exitBusy), "another stage works on the same Job or workspace"},
}

// exitCode is the exit code of a verb that ended with err.
func exitCode(verb string, err error) int {
	if verb == "run" {
		return runExitCode(err)
	}
	var (
		recovery *apply.RecoveryNeededError
		conflict *apply.ConflictError
		gated    *apply.GatedError
		usage    *usageError
		invalid  *session.InvalidError
		noMatch  *apply.NoMatchError
		control  *session.ControlError
		badRule  *policy.Error
		refused  *session.RefusedError
		leftOver *apply.UnfinishedError
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &recovery), errors.As(err, &leftOver):
		return exitRecovery
	case errors.As(err, &conflict):
		return exitConflict
	case errors.As(err, &gated):
		return exitGated
	case errors.As(err, &usage), errors.As(err, &invalid), errors.As(err, &noMatch), isCobraUsage(err):
		return exitUsage
	case errors.As(err, &control), errors.As(err, &refused), errors.As(err, &badRule), errors.Is(err, session.ErrInsideJob):
		return exitControl
	case errors.Is(err, store.ErrBusy), errors.Is(err, apply.ErrBusy):
		return exitBusy
	case errors.Is(err, store.ErrNoJob), errors.Is(err, store.ErrAmbiguous), errors.Is(err, store.ErrWrongState),
		errors.Is(err, store.ErrNotSealed), errors.Is(err, session.ErrNothingApplied):
		return exitNoJob
	default:
		return exitInternal
	}
}

// runExitCode is the exit code of a run that never got as far as a Result with a code of its own.
func runExitCode(err error) int {
	var exec *jail.ExecError
	if errors.As(err, &exec) {
		return exec.Code
	}
	return session.ExitStageFailed
}

// isCobraUsage recognizes cobra's errors about a command line, which have no type.
func isCobraUsage(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "unknown command ") || strings.HasPrefix(text, "if any flags in the group ") ||
		strings.HasPrefix(text, "accepts ")
}

// explain turns an error into what the user reads: the text, one line per detail, and the next step.
func explain(verb string, err error) (text string, details []string, hint string) {
	text = err.Error()
	var (
		conflict *apply.ConflictError
		gated    *apply.GatedError
		noJob    *store.NoJobError
		many     *store.AmbiguousError
		control  *session.ControlError
		leftOver *apply.UnfinishedError
	)
	switch {
	case errors.As(err, &conflict):
		for _, p := range conflict.Paths {
			details = append(details, render.QuoteName(p.Path.String())+": "+p.Why)
		}
		hint = "nothing was written; `stage " + verb + " --keep-going` takes the changes that do not conflict, --merge merges text"
		if verb == "undo" {
			hint = "nothing was written; `stage undo --keep-going` takes back what is still as apply left it"
		}
	case errors.As(err, &gated):
		details = render.Gates(gates(gated))
		hint = "look at them, then `stage apply --allow " + classList(gated) + "`"
	case errors.As(err, &noJob):
		hint = noJob.Hint()
	case errors.As(err, &many):
		for _, id := range many.IDs {
			details = append(details, string(id))
		}
	case errors.As(err, &leftOver):
		hint = "the changes are published; the next verb tries again to clean up"
	case errors.As(err, &control):
		hint = control.Fix
	case strings.HasPrefix(text, "unknown command "):
		hint = "`stage help` lists the verbs"
	case errors.Is(err, store.ErrBusy), errors.Is(err, apply.ErrBusy):
		hint = "try again when the other stage is done"
	}
	return text, details, hint
}

func gates(e *apply.GatedError) map[bundle.Class]bundle.List[tree.Path] {
	g := map[bundle.Class]bundle.List[tree.Path]{}
	for class, paths := range e.Paths {
		g[bundle.Class(class)] = paths
	}
	return g
}

func classList(e *apply.GatedError) string {
	var names []string
	for class := range e.Paths {
		names = append(names, string(class))
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// helpVerb is cobra's help with one more topic, the exit codes.
func (c *command) helpVerb(root *cobra.Command) *cobra.Command {
	help := &cobra.Command{
		Use:   "help [VERB | exit]",
		Short: "Help about a verb, or the table of exit codes",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return root.Help()
			}
			verb, _, err := root.Find(args)
			if err != nil || verb == root {
				return usagef("no help on %q: `stage help` lists the verbs", strings.Join(args, " "))
			}
			return verb.Help()
		},
	}
	help.AddCommand(&cobra.Command{
		Use: "exit", Short: "The table of exit codes", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			for _, row := range exitTable {
				if _, err := fmt.Fprintf(c.out.W, "%-14s%s\n", row.code, row.text); err != nil {
					return err
				}
			}
			return nil
		},
	})
	return help
}
