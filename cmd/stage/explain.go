package main

import (
	"github.com/spf13/cobra"

	"stage/cmd/internal/render"
	"stage/cmd/internal/session"
)

func (c *command) explainVerb() *cobra.Command {
	var o session.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain [flags] PATH|HOST[:PORT]|$NAME|CMD…",
		Short: "Show whether a run could read, write, execute, reach or see something, and which rule decides",
		Long: `Show what a run with the same flags could do with each argument: a path, a host, a variable
($NAME, quoted from the shell) or a command. The decision is made by the code of the run. Permissions
that the host's own files have are not looked at. A run of another command than a shell's takes
--executor PRESET here.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("nothing to explain: name a path, HOST[:PORT], $NAME or a command")
			}
			o.Argv = []string{"true"}
			a, err := session.Admit(o)
			if err != nil {
				return err
			}
			d, err := a.Explain(args)
			if err != nil {
				return err
			}
			if asJSON {
				return render.ExplainJSON(c.out, d)
			}
			return render.Explain(c.out, d)
		},
	}
	admissionFlags(cmd, &o)
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON, one list of decisions")
	return cmd
}
