package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"stage/bundle"
	"stage/cmd/internal/render"
)

func (c *command) dropVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "drop [JOB]",
		Short: "Discard the staged changes of a Job that were not applied; its records stay",
		Args:  atMostOneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withJob(cmd, args, func(t *target) error {
				if err := settleTarget(cmd.Context(), t); err != nil {
					return err
				}
				if err := t.job.Lock(); err != nil {
					return err
				}
				before := t.job.Run().Publication
				if err := t.job.Drop(); err != nil {
					return err
				}
				return c.dropped(t, before)
			})
		},
	}
}

// dropped says what was discarded, and what a drop cannot undo.
func (c *command) dropped(t *target, before bundle.Publication) error {
	if _, err := fmt.Fprintf(c.out.W, "dropped job %s\n", t.job.ID()); err != nil {
		return err
	}
	if before == bundle.PublishedPartial {
		if err := render.Hint(c.err, "what was applied of it stays in the workspace"); err != nil {
			return err
		}
	}
	b, err := t.job.Bundle()
	if err != nil || len(b.Shares) == 0 {
		return nil // a Job without a bundle shared nothing that is known
	}
	for _, s := range b.Shares {
		if err := render.Hint(c.err, fmt.Sprintf("the Job wrote directly to %s; drop does not undo that", s)); err != nil {
			return err
		}
	}
	return nil
}
