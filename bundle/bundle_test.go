package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"stage/fs/tree"
)

var update = flag.Bool("update", false, "write the fixtures that are missing")

// document is one document of the table tests: its text, and how to read and write it.
type document struct {
	schema string
	text   []byte
	again  func([]byte) ([]byte, error) // decode and encode
}

func documentOf[D Document](t testing.TB, schema string, d *D) document {
	t.Helper()
	text, err := Encode(d)
	if err != nil {
		t.Fatal(err)
	}
	return document{schema, text, reencode[D]}
}

func reencode[D Document](text []byte) ([]byte, error) {
	d, err := Decode[D](text)
	if err != nil {
		return nil, err
	}
	return Encode(d)
}

func documents(t testing.TB) map[string]document {
	lost := Lost(sampleRun(), samplePlan(t))
	lost.SealedAt, lost.Host.Mode = noon, ModeRootless
	early := Lost(sampleRun(), nil)
	early.SealedAt, early.Host.Mode = noon, ModeRoot
	empty := &Run{Job: jobID, Session: sessID, Operation: operID, Attempt: attpID,
		Workspace: Workspace{Path: MustHostPath("/w")}, Argv: Words([]string{"true"}), Cwd: MustHostPath("/w"),
		State: Preparing, Publication: PublishedNone, StorePath: MustHostPath("/s")}
	return map[string]document{
		"run":          documentOf(t, "run", sampleRun()),
		"run-new":      documentOf(t, "run", empty),
		"plan":         documentOf(t, "plan", samplePlan(t)),
		"bundle":       documentOf(t, "bundle", sampleBundle()),
		"bundle-lost":  documentOf(t, "bundle", lost),
		"bundle-early": documentOf(t, "bundle", early),
		"review":       documentOf(t, "review", sampleReview()),
		"review-empty": documentOf(t, "review", &ReviewReport{Job: jobID, Root: "workspace"}),
		"apply":        documentOf(t, "apply", sampleApply()),
		"apply-empty":  documentOf(t, "apply", &ApplyReport{Job: jobID, Result: ResultNothing}),
	}
}

func forEach(t *testing.T, f func(t *testing.T, d document)) {
	for name, d := range documents(t) {
		t.Run(name, func(t *testing.T) { f(t, d) })
	}
}

func TestDecodeReadsWhatEncodeWrites(t *testing.T) {
	forEach(t, func(t *testing.T, d document) {
		again, err := d.again(d.text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(d.text), string(again)); diff != "" {
			t.Errorf("second encoding differs (-first +second):\n%s", diff)
		}
	})
}

func compileSchema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(filepath.Join("schema", name+".v1.json"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func parse(t *testing.T, text []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSchemaAcceptsWhatEncodeWrites(t *testing.T) {
	forEach(t, func(t *testing.T, d document) {
		if err := compileSchema(t, d.schema).Validate(parse(t, d.text)); err != nil {
			t.Errorf("%v\n%s", err, d.text)
		}
	})
}

// TestEveryKeyIsRequiredAndKnown takes each key of each object away, and adds one to each object:
// decoder and schema both refuse. The objects whose keys are data are left out.
func TestEveryKeyIsRequiredAndKnown(t *testing.T) {
	forEach(t, func(t *testing.T, d document) {
		schema := compileSchema(t, d.schema)
		refused := func(what string, doc any, want error) {
			t.Helper()
			text, err := json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.again(text); !errors.Is(err, want) {
				t.Errorf("%s: decoder says %v, want %v", what, err, want)
			}
			if schema.Validate(parse(t, text)) == nil {
				t.Errorf("%s: the schema accepts it", what)
			}
		}
		doc := parse(t, d.text)
		eachObject(doc, "", func(at string, o map[string]any) {
			for key, v := range o {
				delete(o, key)
				refused("without "+at+"."+key, doc, ErrMalformed)
				o[key] = v
			}
			o["novelty"] = 1
			refused("with novelty in "+at, doc, ErrNewer)
			delete(o, "novelty")
		})
	})
}

// eachObject calls f for each object below v whose keys are ours. A path or word has one of two
// keys, and xattrs, flags and gated have data for keys.
func eachObject(v any, at string, f func(at string, o map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		last := at[strings.LastIndexByte(at, '.')+1:]
		_, path := v["path_b64"]
		_, word := v["b64"]
		if p, ok := v["path"].(string); ok && p != "" && len(v) == 1 {
			path = true
		}
		if !path && !word && last != "xattrs" && last != "flags" && last != "gated" && v["kind"] != "absent" {
			f(at, v)
		}
		for key, c := range v {
			eachObject(c, at+"."+key, f)
		}
	case []any:
		for _, c := range v {
			eachObject(c, at, f)
		}
	}
}

func TestUnknownVersionIsRefusedFirst(t *testing.T) {
	forEach(t, func(t *testing.T, d document) {
		text := bytes.Replace(d.text, []byte(`"version": 1`), []byte(`"version": 2, "shape": ["unheard of"], "job": 7`), 1)
		_, err := d.again(text)
		if !errors.Is(err, ErrNewer) {
			t.Fatalf("got %v, want ErrNewer", err)
		}
		if !strings.Contains(err.Error(), "version 2, this stage knows 1") || !strings.Contains(err.Error(), "newer store, older binary") {
			t.Errorf("message %q does not say what is newer", err)
		}
	})
}

func TestDecodeRefusesOtherSpellings(t *testing.T) {
	text := string(documents(t)["run"].text)
	for name, edit := range map[string][2]string{
		"capital key":         {`"pid":`, `"PID":`},
		"null list":           {`"workspace": {`, `"workspace": null, "x": {`},
		"time without ns":     {".123456789Z", "Z"},
		"time in a zone":      {".123456789Z", ".123456789+00:00"},
		"upper-case id":       {string(jobID), strings.ToUpper(string(jobID))},
		"number as text":      {`"pid": 4711`, `"pid": "4711"`},
		"unknown state":       {`"ended"`, `"exploded"`},
		"relative path":       {`"path": "/"`, `"path": "x"`},
		"path with dots":      {`"path": "/"`, `"path": "/a/../b"`},
		"b64 of plain text":   {`"path": "/"`, `"path_b64": "Lw=="`},
		"two path keys":       {`"path": "/"`, `"path": "/", "path_b64": "Lw=="`},
		"digest of some kind": {"sha256:", "sha512:"},
	} {
		edited := strings.Replace(text, edit[0], edit[1], 1)
		if edited == text {
			t.Fatalf("%s: nothing to replace", name)
		}
		if _, err := Decode[Run]([]byte(edited)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, junk := range []string{"", "null", "[]", "{}", "7", text + text, `{"version":null}`, `{"version":"1"}`} {
		if _, err := Decode[Run]([]byte(junk)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%.20q: got %v, want ErrMalformed", junk, err)
		}
	}
}

func TestNothingIsOmitted(t *testing.T) {
	d := documents(t)
	for _, c := range []struct{ doc, text string }{
		{"run-new", `"parent": null`}, {"run-new", `"roots": []`}, {"run-new", `"ended_at": null`},
		{"run-new", `"bundle_digest": null`}, {"run-new", `"pid": 0`},
		{"bundle", `"drift": 0`}, {"bundle", `"signal": null`}, {"bundle", `"canary": null`}, {"bundle", `"read_back": []`},
		{"bundle-early", `"plan_digest": null`}, {"bundle-early", `"controls": []`}, {"bundle-early", `"stage_exit": null`},
		{"review-empty", `"changes": []`}, {"review", `"rename_from": null`}, {"review", `"base": null`}, {"review", `"target": null`},
		{"apply-empty", `"batch": null`}, {"apply-empty", `"gated": {}`}, {"apply", `"found": null`},
	} {
		if !strings.Contains(string(d[c.doc].text), c.text) {
			t.Errorf("%s does not say %s:\n%s", c.doc, c.text, d[c.doc].text)
		}
	}
}

func TestNonUTF8NamesSurvive(t *testing.T) {
	text, err := Encode(sampleRun())
	if err != nil {
		t.Fatal(err)
	}
	r, err := Decode[Run](text)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.Workspace.Path.String(), "/home/u/caf\xe9"; got != want {
		t.Errorf("workspace is %q, want %q", got, want)
	}
	if diff := cmp.Diff([]string{"codex", "exec", "", "line\nbreak", "\xff\xfe"}, Strings(r.Argv)); diff != "" {
		t.Errorf("argv (-want +got):\n%s", diff)
	}
	text, err = Encode(sampleReview())
	if err != nil {
		t.Fatal(err)
	}
	v, err := Decode[ReviewReport](text)
	if err != nil {
		t.Fatal(err)
	}
	if got := v.Changes[0].RenameFrom.String(); got != "o\xffld" {
		t.Errorf("rename_from is %q", got)
	}
	if got := v.Changes[1].New.Target; got != "../\xff" {
		t.Errorf("link target is %q", got)
	}
}

// TestFixturesStillDecode: what a stage of format 1 wrote is read for ever.
func TestFixturesStillDecode(t *testing.T) {
	docs := documents(t)
	if *update {
		writeMissing(t, docs)
	}
	files, err := filepath.Glob("testdata/v1/*.json")
	if err != nil || len(files) < len(docs) {
		t.Fatalf("%d fixtures, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		d := docs[strings.TrimSuffix(filepath.Base(file), ".json")]
		again, err := d.again(text)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if diff := cmp.Diff(string(text), string(again)); diff != "" {
			t.Errorf("%s is written differently now (-fixture +now):\n%s", file, diff)
		}
		if err := compileSchema(t, d.schema).Validate(parse(t, text)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// writeMissing writes new fixtures; the ones that are there are frozen.
func writeMissing(t *testing.T, docs map[string]document) {
	for name, d := range docs {
		file := filepath.Join("testdata/v1", name+".json")
		if _, err := os.Stat(file); err == nil {
			continue
		}
		if err := os.WriteFile(file, d.text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPlanDigestCoversEveryByte(t *testing.T) {
	text, err := Encode(samplePlan(t))
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(text), `"443"`, `"80"`, 1)
	if _, err := Decode[Plan]([]byte(edited)); !errors.Is(err, ErrMalformed) {
		t.Errorf("an edited plan: got %v, want ErrMalformed", err)
	}
}

func TestReportsShowNoMachineNumbers(t *testing.T) {
	n := tree.Node{Kind: tree.File, Dev: 8, Ino: 9, Ctime: 10, Nlink: 2}
	text, err := json.Marshal(StateOf(n))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"file","mode":"0000","uid":0,"gid":0,"size":0,"mtime":"1970-01-01T00:00:00.000000000Z","xattrs":{},"digest":null,"target":null}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

func FuzzDecode(f *testing.F) {
	for _, d := range documents(f) {
		f.Add(d.text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzOne[Run](t, text)
		fuzzOne[Plan](t, text)
		fuzzOne[Bundle](t, text)
		fuzzOne[ReviewReport](t, text)
		fuzzOne[ApplyReport](t, text)
	})
}

// fuzzOne: what is accepted is written again with the same meaning and accepted again.
func fuzzOne[D Document](t *testing.T, text []byte) {
	first, err := reencode[D](text)
	if err != nil {
		return
	}
	second, err := reencode[D](first)
	if err != nil {
		t.Fatalf("refuses its own encoding: %v\n%s", err, first)
	}
	if !bytes.Equal(first, second) {
		t.Fatalf("two encodings:\n%s\n%s", first, second)
	}
}

// TestEncodePlanIsEncodeWithTheDigest: what is written in one pass is what two would write.
func TestEncodePlanIsEncodeWithTheDigest(t *testing.T) {
	text, err := os.ReadFile("testdata/v1/plan.json")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Decode[Plan](text)
	if err != nil {
		t.Fatal(err)
	}
	got, err := EncodePlan(p)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, text) {
		t.Errorf("got\n%s\nwant\n%s", got, text)
	}
	if _, err := Decode[Plan](got); err != nil {
		t.Errorf("decode it again: %v", err)
	}
}
