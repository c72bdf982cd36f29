package main

import (
	"github.com/spf13/cobra"

	"stage/cmd/internal/render"
	"stage/cmd/internal/session"
)

func (c *command) doctorVerb() *cobra.Command {
	var require []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show what this machine can enforce, per control, with the fix for what is missing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings, missing, err := session.Diagnose(cmd.Context(), require)
			if err != nil {
				return err
			}
			if asJSON {
				err = render.DoctorJSON(c.out, findings)
			} else {
				err = render.Doctor(c.out, findings)
			}
			if err != nil {
				return err
			}
			return missing
		},
	}
	cmd.Flags().StringArrayVar(&require, "require", nil, "exit with 4 unless `CONTROL` can be enforced")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}
