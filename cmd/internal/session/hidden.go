package session

import (
	"fmt"

	"stage/cmd/internal/gitview"
	"stage/fs/tree"
	"stage/policy"
)

// warnHidden warns when a rule hides a file that git tracks: git in the Job would take it for
// deleted. Without hide rules for the workspace it looks at nothing.
func (a *Admission) warnHidden() error {
	rules := a.Plan.RulesBelow(a.Workspace)
	if rules == nil {
		return nil
	}
	repo, ok, err := gitview.Find(a.Workspace)
	if err != nil || !ok || repo.WorkTree != a.Workspace {
		return err
	}
	index, err := repo.Index()
	if err != nil {
		return err
	}
	n, first := 0, ""
	for _, e := range index.Entries {
		p, err := tree.ParsePath(e.Path)
		if err != nil || !hides(rules, p) {
			continue // a path that is none is git's to complain about
		}
		if n++; n == 1 {
			first = e.Path
		}
	}
	if n > 0 {
		a.Hints = append(a.Hints, fmt.Sprintf("%d tracked files are hidden, %q first: git in the Job takes them for deleted; deny-read keeps them in place", n, first))
	}
	return nil
}

// hides reports whether p or a directory it lies in is hidden.
func hides(rules *policy.PathRules, p tree.Path) bool {
	for q := p; !q.IsRoot(); q = q.Parent() {
		if rules.Verdict(q, q != p)&policy.VerdictHide != 0 {
			return true
		}
	}
	return false
}
