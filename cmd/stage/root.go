package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"stage/cmd/internal/render"
	"stage/cmd/internal/session"
)

// command is what every verb of the program shares: where it speaks and what it leaves as exit code.
type command struct {
	*streams
	code int // exit code of a verb that succeeded, or of the command that run ran
}

// execute runs one command line and returns the process's exit code.
func execute(ctx context.Context, args []string, s *streams) int {
	c := &command{streams: s}
	root := c.root()
	root.SetArgs(args)
	verb, err := root.ExecuteContextC(ctx)
	if err == nil {
		return c.code
	}
	c.complain(verb, err)
	return exitCode(verb.Name(), err)
}

func (c *command) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "stage",
		Short: "Run a command over a staged view of the workspace, review its changes, apply or drop them",
		Long: `stage runs a command, first of all a coding agent, so that nothing it does reaches
your files, your network or your secrets unless you decided it.

    stage run -- codex exec "fix the flaky test"
    stage review last
    stage apply          # or: stage drop`,
		SilenceUsage:       true,
		SilenceErrors:      true,
		Version:            build().Version,
		DisableSuggestions: true,
		PersistentPreRunE:  c.before,
	}
	root.SetOut(c.out.W)
	root.SetErr(c.err.W)
	root.SetVersionTemplate("stage {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddCommand(c.runVerb(), c.reviewVerb(), c.diffVerb(), c.applyVerb(), c.undoVerb(), c.dropVerb(),
		c.jobsVerb(), c.statusVerb(), c.planVerb(), c.explainVerb(), c.doctorVerb(), c.versionVerb())
	root.SetHelpCommand(c.helpVerb(root))
	return root
}

// before refuses every verb inside a Job, and acts as the user behind sudo.
func (c *command) before(cmd *cobra.Command, _ []string) error {
	if cmd.Name() == "version" || cmd.Name() == "help" {
		return nil
	}
	if err := session.RefuseInsideJob(); err != nil {
		return err
	}
	as := cmd.Flags().Lookup("as-user")
	switch {
	case as == nil:
		return session.ActAs("")
	case as.Changed && as.Value.String() == "":
		return usagef("--as-user: the name is empty")
	}
	return session.ActAs(as.Value.String())
}

// complain says what went wrong, then one line per detail, then the next useful command.
func (c *command) complain(verb *cobra.Command, err error) {
	name := verb.Name()
	if verb.Parent() == nil {
		name = ""
	}
	text, details, hint := explain(name, err)
	if name == "" {
		fmt.Fprintf(c.err.W, "stage: %s\n", render.Printable(text))
	} else if werr := render.Problem(c.err, name, text, details...); werr != nil {
		return // nobody can read it
	}
	if hint != "" {
		_ = render.Hint(c.err, hint) // speech: nothing is left to tell the failure to
	}
}

// usageError is a command line that cannot be taken.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }
