package session

import (
	"path/filepath"
	"strconv"
	"time"

	"stage/bundle"
	"stage/fs/tree"
	"stage/policy"
)

// Record returns plan.json for this admission, with its digest.
func (a *Admission) Record(job bundle.ID) (*bundle.Plan, error) {
	p, err := a.record(job)
	if err != nil {
		return nil, err
	}
	return p, p.SetDigest()
}

// record is Record without the digest, which whoever writes the plan computes on the way.
func (a *Admission) record(job bundle.ID) (*bundle.Plan, error) {
	p := &bundle.Plan{Job: job}
	for _, r := range a.Request.Rules {
		at := p.Request.At(bundle.Dimension(r.Dimension))
		*at = append(*at, ruleRecord(r))
	}
	for _, l := range a.Layers {
		rec, err := layerRecord(l)
		if err != nil {
			return nil, err
		}
		p.Layers = append(p.Layers, rec)
	}
	a.planControls(p)
	if err := a.recordPreset(p); err != nil {
		return nil, err
	}
	p.Env = bundle.EnvPlan{Passed: bundle.Words(a.EnvPassed), Dropped: bundle.Words(a.EnvDropped)}
	for _, id := range a.Plan.AllowDegraded {
		p.DegradedAllowed = append(p.DegradedAllowed, bundle.ControlID(id))
	}
	return p, nil
}

func ruleRecord(r policy.Rule) bundle.Rule {
	rec := bundle.Rule{Verb: bundle.RuleVerb(r.Verb), Object: r.Object, Source: bundle.Source{Layer: bundle.LayerName(r.Source.Layer)}}
	if r.Value != "" {
		rec.Value = &r.Value
	}
	if r.Source.File != "" {
		f := bundle.RawPath(r.Source.File)
		rec.Source.File = &f
	}
	if r.Source.Line > 0 {
		rec.Source.Line = &r.Source.Line
	}
	return rec
}

func layerRecord(l policy.Layer) (bundle.PolicyLayer, error) {
	rec := bundle.PolicyLayer{Name: bundle.LayerName(l.Name), Digest: l.Digest}
	for _, r := range l.Rules {
		rec.Rules = append(rec.Rules, ruleRecord(r))
	}
	if l.Name == policy.Executor {
		return rec, nil
	}
	abs, err := filepath.Abs(l.File)
	if err != nil {
		return rec, err
	}
	path, err := bundle.ParseHostPath(abs)
	rec.Path = &path
	return rec, err
}

// planControls writes the controls the plan wants, each with the rules it carries out.
func (a *Admission) planControls(p *bundle.Plan) {
	for dim, needs := range a.Plan.Controls() {
		at := p.Plan.At(bundle.Dimension(dim))
		for _, n := range needs {
			c := bundle.PlannedControl{
				ID: bundle.ControlID(n.ID), Required: n.Required, Requested: len(n.Rules) > 0,
				Level: plannedLevel(n.ID), Mechanism: n.Mechanism,
			}
			for _, r := range n.Rules {
				if r.Source.Layer != policy.Executor { // its rules are the same in every plan: see layers
					c.Rules = append(c.Rules, ruleRecord(r))
				}
			}
			*at = append(*at, c)
		}
	}
}

func (a *Admission) recordPreset(p *bundle.Plan) error {
	p.Preset = bundle.PresetUse{Name: a.Preset.Name, Source: a.PresetSource, Env: bundle.Words(a.Preset.Env)}
	for _, h := range a.Agents {
		for _, f := range h.files {
			path, err := bundle.ParseHostPath(filepath.Join(h.path, f))
			if err != nil {
				return err
			}
			p.Preset.Files = append(p.Preset.Files, path)
		}
		for _, e := range h.edits {
			path, err := bundle.ParseHostPath(filepath.Join(h.path, e.File))
			if err != nil {
				return err
			}
			p.Preset.ConfigEdits = append(p.Preset.ConfigEdits, bundle.ConfigEdit{File: path, Key: e.Key, Value: e.New})
		}
	}
	return nil
}

// rootRecords lists the trees the command may write to; the workspace is the first.
func (a *Admission) rootRecords() ([]bundle.Root, error) {
	var roots []bundle.Root
	add := func(name string, kind bundle.RootKind, rules []policy.PathRule) error {
		for i, r := range rules {
			path, err := bundle.ParseHostPath(r.Path)
			if err != nil {
				return err
			}
			n := name + strconv.Itoa(i)
			if kind == bundle.RootStaged && r.Path == a.Workspace {
				n = workspaceRoot
			}
			roots = append(roots, bundle.Root{Name: n, Path: path, Kind: kind})
		}
		return nil
	}
	if err := add("r", bundle.RootStaged, a.Plan.StageRoots); err != nil {
		return nil, err
	}
	if err := add("share", bundle.RootShare, a.Plan.Shares); err != nil {
		return nil, err
	}
	return roots, add("scratch", bundle.RootScratch, a.Plan.Scratch)
}

// workspaceRoot is the name of the staged root that is the workspace.
const workspaceRoot = "workspace"

func ptr[T any](v T) *T { return &v }

func timeOf(t time.Time) tree.Time { return tree.Time(t.UnixNano()) }

func now() tree.Time { return timeOf(clock()) }
