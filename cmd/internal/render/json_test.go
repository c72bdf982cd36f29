package render

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"stage/bundle"
	"stage/fs/tree"
)

func TestReviewJSONKeepsItsSchemaAndCanBeRead(t *testing.T) {
	for name, r := range map[string]*Review{"sample": sampleReview(t), "hostile": hostileReview(t), "empty": {Job: testJob, Root: "workspace"}} {
		out := rendered(t, r, FormatJSON)
		schema, err := jsonschema.NewCompiler().Compile(filepath.Join("../../../bundle/schema", "review.v1.json"))
		must(t, err)
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(out)))
		must(t, err)
		if err := schema.Validate(v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		rep, err := bundle.Decode[bundle.ReviewReport]([]byte(out))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(rep.Changes) != len(r.Changes) {
			t.Errorf("%s: %d changes, want %d: none may be hidden", name, len(rep.Changes), len(r.Changes))
		}
	}
}

func TestReviewJSONTellsWhereTheListCountsAChange(t *testing.T) {
	r := sampleReview(t)
	for _, c := range Report(r).Changes {
		got := ""
		if c.CollapsedIn != nil {
			got = c.CollapsedIn.String()
		}
		want, ok := map[string]string{
			"node_modules/a/index.js": "node_modules", "node_modules/.bin/tool": "", ".git/objects/ab/cdef": ".git",
			".git/hooks/pre-commit": "", "main.go": "", "dist/tracked.js": "",
		}[c.Path.String()]
		if ok && got != want {
			t.Errorf("%q is collapsed in %q, want %q", c.Path, got, want)
		}
	}
}

func TestJSONLHasOneChangeALine(t *testing.T) {
	r := sampleReview(t)
	lines := bytes.Split(bytes.TrimSuffix([]byte(rendered(t, r, FormatJSONL)), []byte("\n")), []byte("\n"))
	if len(lines) != len(r.Changes) {
		t.Fatalf("%d lines, want %d", len(lines), len(r.Changes))
	}
	for i, l := range lines {
		var c struct {
			Version int
			Job     bundle.ID
			Root    string
			Path    tree.Path
		}
		must(t, json.Unmarshal(l, &c))
		if c.Version != 1 || c.Job != testJob || c.Root != "workspace" || c.Path != r.Changes[i].Path {
			t.Errorf("line %d: %s", i, l)
		}
	}
}

func TestConflictAndUnknownBaseAreTold(t *testing.T) {
	r := sampleReview(t)
	e := entryOf(t, r, "main.go")
	e.UnknownBase, e.Verdict = true, bundle.VerdictUnknownBase
	rep := Report(r)
	if !rep.Drifted {
		t.Error("the review is not drifted, although a change is")
	}
	for _, c := range rep.Changes {
		if c.Path.String() == "main.go" && c.Base != nil {
			t.Errorf("an unknown base is written: %+v", c.Base)
		}
	}
}
