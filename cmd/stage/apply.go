package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"stage/apply"
	"stage/bundle"
	"stage/cmd/internal/render"
	"stage/cmd/internal/session"
)

func (c *command) applyVerb() *cobra.Command {
	o := session.PublishOptions{}
	var allow []string
	var merge string
	var pick bool
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "apply [JOB] [PATH…]",
		Short: "Publish a Job's changes to the workspace, all of those selected or none",
		Long: `Publish a Job's changes. Every selected path is first compared with the state the Job found
there; when somebody else changed one since, nothing is written (exit 3). Stop other writers
before you apply: the publication of many files is not atomic for them.`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.Allow, err = allowed(allow); err != nil {
				return err
			}
			if o.Merge, err = mergeMode(merge); err != nil {
				return err
			}
			if pick {
				o.Pick = render.NewPicker(c.err, c.in)
			}
			return c.apply(cmd, args, o, asJSON)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&o.CheckOnly, "check", false, "verdicts only; write nothing")
	fl.BoolVar(&o.KeepGoing, "keep-going", false, "apply the changes that do not conflict although others do")
	fl.BoolVarP(&pick, "patch", "p", false, "ask hunk by hunk what to apply, as git add -p does")
	fl.StringVar(&merge, "merge", "", "merge text files that somebody else changed too; with --merge=markers where both changed the same lines, too")
	fl.Lookup("merge").NoOptDefVal = "text"
	fl.StringArrayVar(&o.Include, "include", nil, "only paths that match `GLOB`")
	fl.StringArrayVar(&o.Exclude, "exclude", nil, "leave out paths that match `GLOB`")
	fl.StringSliceVar(&allow, "allow", nil, "let gated changes of `CLASS[,…]` pass, or all")
	fl.BoolVar(&asJSON, "json", false, "the result as JSON")
	return cmd
}

// mergeMode reads the value of --merge.
func mergeMode(value string) (apply.MergeMode, error) {
	switch value {
	case "":
		return apply.MergeNone, nil
	case "text":
		return apply.MergeText, nil
	case "markers":
		return apply.MergeMarkers, nil
	}
	return apply.MergeNone, usagef("--merge=%s: it is --merge, or --merge=markers", value)
}

// allowed checks the classes of --allow.
func allowed(names []string) (map[apply.Class]bool, error) {
	m := map[apply.Class]bool{}
	for _, n := range names {
		if n != string(apply.All) && !slices.Contains(bundle.Classes(), bundle.Class(n)) {
			return nil, usagef("--allow %s: no such class: the classes are %s, or all", n, classNames())
		}
		m[apply.Class(n)] = true
	}
	return m, nil
}

func classNames() string {
	var names []string
	for _, c := range bundle.Classes() {
		if c.Gated() {
			names = append(names, string(c))
		}
	}
	return strings.Join(names, " ")
}

func (c *command) apply(cmd *cobra.Command, args []string, o session.PublishOptions, asJSON bool) (err error) {
	t, err := c.findPaths(cmd, args)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	o.Paths, o.Point = t.paths, session.Point()
	rep, err := session.Publish(cmd.Context(), t.store, t.job, o)
	if o.CheckOnly && rep != nil && exitCode("apply", err) == exitConflict {
		c.code = exitConflict // the verdicts say it all
		return c.report(rep, true, asJSON, nil)
	}
	return errors.Join(err, c.report(rep, o.CheckOnly, asJSON, err))
}

// report prints the result of an apply. What went wrong is told by the error; as text only
// a success is printed.
func (c *command) report(rep *bundle.ApplyReport, check, asJSON bool, err error) error {
	switch {
	case rep == nil:
		return nil
	case asJSON:
		return render.ApplyJSON(c.out, rep)
	case err == nil || check:
		return errors.Join(render.Apply(c.out, rep, check), c.leftOut(rep, check))
	default:
		return nil
	}
}

// leftOut names what an apply with --keep-going did not take, and why.
func (c *command) leftOut(rep *bundle.ApplyReport, check bool) error {
	if check {
		return nil // the verdicts name them
	}
	var errs []error
	for _, line := range render.Conflicts(rep) {
		errs = append(errs, render.Hint(c.err, "left out: "+line))
	}
	return errors.Join(errs...)
}
