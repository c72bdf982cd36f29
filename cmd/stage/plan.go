package main

import (
	"github.com/spf13/cobra"

	"stage/cmd/internal/render"
	"stage/cmd/internal/session"
	"stage/cmd/internal/store"
)

func (c *command) planVerb() *cobra.Command {
	var o session.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "plan [flags] [-- CMD ARG…]",
		Short: "Show what a run would be allowed and how it would be enforced, without running it",
		RunE: func(_ *cobra.Command, args []string) error {
			o.Argv = args
			if len(args) == 0 {
				o.Argv = []string{"true"}
			}
			return c.plan(o, asJSON)
		},
	}
	admissionFlags(cmd, &o)
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON, the form of plan.json")
	return cmd
}

func (c *command) plan(o session.Options, asJSON bool) error {
	a, err := session.Admit(o)
	if err != nil {
		return err
	}
	id, err := store.NewID()
	if err != nil {
		return err
	}
	p, err := a.Record(id)
	if err != nil {
		return err
	}
	if asJSON {
		err = render.PlanJSON(c.out, p)
	} else {
		err = render.Plan(c.out, p)
	}
	if err != nil {
		return err
	}
	return a.CheckSupported()
}
