package main

import (
	"errors"

	"github.com/spf13/cobra"

	"stage/cmd/internal/render"
	"stage/cmd/internal/session"
)

func (c *command) undoVerb() *cobra.Command {
	var keepGoing, asJSON bool
	cmd := &cobra.Command{
		Use:   "undo [JOB]",
		Short: "Revert what was last applied of a Job, where it is still as apply left it",
		Args:  atMostOneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withJob(cmd, args, func(t *target) error {
				rep, err := session.Undo(cmd.Context(), t.store, t.job, keepGoing, session.Point())
				switch {
				case rep != nil && asJSON:
					return errors.Join(err, render.ApplyJSON(c.out, rep))
				case err != nil:
					return err
				}
				return errors.Join(render.Undo(c.out, rep), c.leftOut(rep, false))
			})
		},
	}
	cmd.Flags().BoolVar(&keepGoing, "keep-going", false, "revert the rest where some targets changed since")
	cmd.Flags().BoolVar(&asJSON, "json", false, "the result as JSON")
	return cmd
}

func atMostOneJob(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("one JOB at most, not %d arguments", len(args))
	}
	return nil
}
