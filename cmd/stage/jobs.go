package main

import (
	"errors"

	"github.com/spf13/cobra"

	"stage/cmd/internal/render"
	"stage/cmd/internal/session"
	"stage/cmd/internal/store"
)

func (c *command) jobsVerb() *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List the Jobs of this workspace, the newest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			s, err := openStore()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			var filter store.Filter
			if !all {
				w, err := currentWorkspace()
				if err != nil {
					return err
				}
				filter.Workspace = &w
			}
			rows, err := session.JobRows(s, filter)
			if err != nil {
				return err
			}
			if asJSON {
				return render.JobsJSON(c.out, rows)
			}
			return render.Jobs(c.out, rows)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "of every workspace")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}
