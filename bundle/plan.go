package bundle

import (
	"bytes"
	"errors"
	"fmt"

	"stage/fs/tree"
)

// Plan is plan.json: what was requested, what each policy layer says and what their narrowing
// leaves. It is what was intended, never what is in force. Written once, before the command starts.
type Plan struct {
	Version V1                                 `json:"version"`
	Job     ID                                 `json:"job"`
	Request PerDimension[List[Rule]]           `json:"request"`
	Layers  List[PolicyLayer]                  `json:"layers"`
	Plan    PerDimension[List[PlannedControl]] `json:"plan"`
	Preset  PresetUse                          `json:"preset"`
	Env     EnvPlan                            `json:"env"`
	// DegradedAllowed are the controls that --allow-degraded names.
	DegradedAllowed List[ControlID] `json:"degraded_allowed"`
	// Digest is over the document with this field null; SetDigest computes it.
	Digest tree.Digest `json:"digest"`
}

// PolicyLayer is one policy layer as it was read. Path is nil for the built-in executor base.
type PolicyLayer struct {
	Name   LayerName   `json:"name"`
	Path   *HostPath   `json:"path"`
	Digest tree.Digest `json:"digest"`
	Rules  List[Rule]  `json:"rules"`
}

// Rule is one permission or restriction, and who said so.
type Rule struct {
	Verb   RuleVerb `json:"verb"`
	Object string   `json:"object"` // a path, glob, host, variable or resource
	Value  *string  `json:"value"`  // the amount of a limit, the ports of a host
	Source Source   `json:"source"`
}

// Source is the place a rule comes from. File and Line are nil where there is none, as for a flag.
type Source struct {
	Layer LayerName `json:"layer"`
	File  *RawPath  `json:"file"`
	Line  *int      `json:"line"`
}

// PlannedControl is one control the plan wants, with the rules it carries out.
type PlannedControl struct {
	ID        ControlID    `json:"id"`
	Required  bool         `json:"required"`
	Requested bool         `json:"requested"` // a flag, preset or policy asked for it
	Level     PlannedLevel `json:"level"`
	Mechanism string       `json:"mechanism"`
	Rules     List[Rule]   `json:"rules"`
}

// PresetUse is the preset that was taken, why, and what it brings along.
type PresetUse struct {
	Name        string           `json:"name"`
	Source      string           `json:"source"` // "argv[0] /usr/bin/codex", "--executor"
	Files       List[HostPath]   `json:"files"`
	Env         List[Word]       `json:"env"`
	ConfigEdits List[ConfigEdit] `json:"config_edits"`
}

// ConfigEdit is one key set in the copy of an agent's configuration.
type ConfigEdit struct {
	File  HostPath `json:"file"`
	Key   string   `json:"key"`
	Value string   `json:"value"`
}

// EnvPlan names the variables of the caller that the Job gets and does not get; never a value.
type EnvPlan struct {
	Passed  List[Word] `json:"passed"`
	Dropped List[Word] `json:"dropped"`
}

// RuleVerb is what a rule does to its object.
type RuleVerb string

// The rule verbs.
const (
	Allow RuleVerb = "allow"
	Deny  RuleVerb = "deny"
	Hide  RuleVerb = "hide"
	Limit RuleVerb = "limit"
)

var ruleVerbs = []RuleVerb{Allow, Deny, Hide, Limit}

// MarshalText refuses to write an unknown verb.
func (v RuleVerb) MarshalText() ([]byte, error) { return []byte(v), oneOf("rule verb", v, ruleVerbs) }

// UnmarshalText refuses to read an unknown verb.
func (v *RuleVerb) UnmarshalText(text []byte) error {
	*v = RuleVerb(text)
	return oneOf("rule verb", *v, ruleVerbs)
}

// LayerName is who says a rule.
type LayerName string

// The policy layers, and before them the two sources of a request.
const (
	LayerUser      LayerName = "user"
	LayerWorkspace LayerName = "workspace"
	LayerSession   LayerName = "session"
	LayerExecutor  LayerName = "executor"

	SourceFlag   LayerName = "flag"
	SourcePreset LayerName = "preset"
)

var (
	policyLayers = []LayerName{LayerUser, LayerWorkspace, LayerSession, LayerExecutor}
	ruleSources  = append([]LayerName{SourceFlag, SourcePreset}, policyLayers...)
)

// MarshalText refuses to write an unknown layer.
func (n LayerName) MarshalText() ([]byte, error) { return []byte(n), oneOf("layer", n, ruleSources) }

// UnmarshalText refuses to read an unknown layer.
func (n *LayerName) UnmarshalText(text []byte) error {
	*n = LayerName(text)
	return oneOf("layer", *n, ruleSources)
}

// SetDigest sets the plan's digest to that of its present content.
func (p *Plan) SetDigest() error {
	d, err := p.contentDigest()
	if err != nil {
		return err
	}
	p.Digest = d
	return nil
}

// EncodePlan is SetDigest and Encode in one: the content is encoded once, and the digest of it takes
// the place of the null at its end. A plan is written at the start of every run.
func EncodePlan(p *Plan) ([]byte, error) {
	p.Digest = ""
	text, err := encode(p)
	if err != nil {
		return nil, err
	}
	content, ok := bytes.CutSuffix(text, []byte("null\n}\n"))
	if !ok {
		return nil, errors.New("encode plan.json: digest is not its last key")
	}
	p.Digest = tree.DigestBytes(text)
	if err := p.Check(); err != nil {
		return nil, fmt.Errorf("encode plan.json: %w", err)
	}
	return fmt.Appendf(content, "%q\n}\n", p.Digest), nil
}

func (p *Plan) contentDigest() (tree.Digest, error) {
	q := *p
	q.Digest = ""
	text, err := encode(&q)
	if err != nil {
		return "", err
	}
	return tree.DigestBytes(text), nil
}

// verify compares the digest with the content, once a plan was read.
func (p *Plan) verify() error {
	want, err := p.contentDigest()
	if err != nil {
		return err
	}
	if p.Digest != want {
		return fmt.Errorf("digest is %q, the content's is %q", p.Digest, want)
	}
	return nil
}

// Check reports the first rule that p breaks. What it encodes to is not compared with the digest:
// SetDigest did that, and it costs as much as writing the plan.
func (p *Plan) Check() error {
	if p.Digest == "" {
		return errors.New("no digest")
	}
	for _, l := range p.Layers {
		if err := oneOf("policy layer", l.Name, policyLayers); err != nil {
			return err
		}
	}
	if p.Preset.Name == "" {
		return errors.New("no preset name")
	}
	for _, d := range Dimensions() {
		for _, c := range *p.Plan.At(d) {
			if !c.ID.Governs(d) {
				return fmt.Errorf("control %s does not belong to dimension %s", c.ID, d)
			}
		}
	}
	return nil
}
