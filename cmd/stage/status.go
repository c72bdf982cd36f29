package main

import (
	"errors"

	"github.com/spf13/cobra"

	"stage/bundle"
	"stage/cmd/internal/render"
	"stage/cmd/internal/store"
)

func (c *command) statusVerb() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [JOB]",
		Short: "Show the three results of a Job: outcome, changes, controls",
		Args:  atMostOneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withJob(cmd, args, func(t *target) error {
				run := t.job.Run()
				b, err := t.job.Bundle()
				if err != nil && !errors.Is(err, store.ErrNotSealed) {
					return err
				}
				return c.showStatus(&run, b, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func (c *command) showStatus(run *bundle.Run, b *bundle.Bundle, asJSON bool) error {
	if asJSON {
		return render.StatusJSON(c.out, run, b)
	}
	return render.Status(c.out, run, b)
}
