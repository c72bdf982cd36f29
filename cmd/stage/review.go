package main

import (
	"errors"

	"github.com/spf13/cobra"

	"stage/cmd/internal/render"
	"stage/cmd/internal/session"
)

// reviewFlags choose the form of a review.
type reviewFlags struct {
	diff, patch, stat, nameStatus, nul, json, jsonl bool
	exitCode, raw                                   bool
}

func (c *command) reviewVerb() *cobra.Command {
	f := &reviewFlags{}
	cmd := &cobra.Command{
		Use:   "review [JOB] [PATH…]",
		Short: "Show the net changes of a Job",
		RunE:  func(cmd *cobra.Command, args []string) error { return c.review(cmd, args, f) },
	}
	reviewFlagsOf(cmd, f)
	return cmd
}

func (c *command) diffVerb() *cobra.Command {
	f := &reviewFlags{diff: true}
	cmd := &cobra.Command{
		Use:   "diff [JOB] [PATH…]",
		Short: "Show the net changes of a Job as a diff: review --diff",
		RunE:  func(cmd *cobra.Command, args []string) error { return c.review(cmd, args, f) },
	}
	cmd.Flags().BoolVar(&f.exitCode, "exit-code", false, "exit with 1 when there are changes")
	return cmd
}

func reviewFlagsOf(cmd *cobra.Command, f *reviewFlags) {
	fl := cmd.Flags()
	fl.BoolVar(&f.diff, "diff", false, "the changes as a diff")
	fl.BoolVar(&f.patch, "patch", false, "a patch that `git apply` takes")
	fl.BoolVar(&f.stat, "stat", false, "one line per file with its counts")
	fl.BoolVar(&f.nameStatus, "name-status", false, "status letter and name, as git writes them")
	fl.BoolVarP(&f.nul, "null", "z", false, "like --name-status, names as they are, separated by NUL")
	fl.BoolVar(&f.json, "json", false, "one JSON document")
	fl.BoolVar(&f.jsonl, "jsonl", false, "one JSON document per change")
	fl.BoolVar(&f.exitCode, "exit-code", false, "exit with 1 when there are changes")
	fl.BoolVar(&f.raw, "raw", false, "show the paths below .git as they are")
	cmd.MarkFlagsMutuallyExclusive("diff", "patch", "stat", "name-status", "json", "jsonl")
	cmd.MarkFlagsMutuallyExclusive("diff", "patch", "stat", "null", "json", "jsonl")
}

func (f *reviewFlags) format() render.Format {
	switch {
	case f.diff:
		return render.FormatDiff
	case f.patch:
		return render.FormatPatch
	case f.stat:
		return render.FormatStat
	case f.nul:
		return render.FormatNameStatusZ
	case f.nameStatus:
		return render.FormatNameStatus
	case f.json:
		return render.FormatJSON
	case f.jsonl:
		return render.FormatJSONL
	default:
		return render.FormatList
	}
}

func (c *command) review(cmd *cobra.Command, args []string, f *reviewFlags) (err error) {
	t, err := c.findPaths(cmd, args)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	for _, root := range session.StagedRoots(t.job) {
		r, staged, err := session.ReviewOf(cmd.Context(), t.job, root, t.paths)
		if err != nil {
			return err
		}
		r.RawGit = r.RawGit || f.raw
		err = errors.Join(c.show(cmd, r, f), staged.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *command) show(cmd *cobra.Command, r *render.Review, f *reviewFlags) error {
	if err := render.Write(cmd.Context(), c.out, r, f.format()); err != nil {
		return err
	}
	if f.exitCode && render.HasChanges(r) {
		c.code = exitChanges
	}
	if f.format() == render.FormatList {
		return render.Hint(c.err, render.Next(r))
	}
	return nil
}
