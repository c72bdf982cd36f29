package apply

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"stage/fs/tree"
)

func at(s string) tree.Path { return tree.MustParsePath(s) }

// TestBatchSurvivesJSON: what the lists leave out is put back.
func TestBatchSurvivesJSON(t *testing.T) {
	n := tree.Node{Kind: tree.File, Mode: 0o644, Size: 1}
	from, here := at("x/y"), at("d/e")
	b := batch{
		Steps: stepList{
			{Act: place, Path: at("d/e/new"), Temp: at("d/e/.stage.j.1"), Made: at("d/e/.stage.j.1"), Rest: at("m/.stage.j.1"), Known: at("d/e/new"), End: at("m/new"), In: &n},
			{Act: swap, Path: at("d/e/\xff"), Temp: at("d/e/.stage.j.2"), Made: at("a/.stage.j.2"), Rest: at("d/e/.stage.j.2"), Known: at("d/e/\xff"), End: at("d/e/\xff"), Fetch: 3, In: &n, Out: &n, Since: 5},
			{Act: away, Path: at("top"), Temp: at(".stage.j.3"), Made: at(".stage.j.3"), Rest: at(".stage.j.3"), Known: at("top"), End: at("top"), Out: &n},
			{Act: move, Path: at("m"), From: at("d/e"), Known: at("d/e"), End: at("m"), Out: &n},
			{Act: meta, Path: at("."), From: at("."), Known: at("."), End: at("."), Out: &n, New: &n},
		},
		Dirs: dirList{{Path: at("."), Rest: at("."), Old: n}, {Path: at("d/e"), Rest: at("m"), Covered: true, Gone: true, Old: n, Mode: 0o700, Mtime: 7}},
		Base: states{{Path: at("d/e"), Node: n, From: &here}, {Path: at("d/e/f"), Node: n}, {Path: at("d/ef"), From: &from}, {Path: at("."), Node: n}},
	}
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	var back batch
	if err := decodeStrict(text, &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(b, back) {
		t.Errorf("got %+v, want %+v", back, b)
	}
}

func TestLedgerRefusesWhatItDoesNotWrite(t *testing.T) {
	for _, s := range []string{
		`{"phase":"planned","batch":{"undo":false,"steps":[],"dirs":[],"base":[{"keep":1,"path":{"path":"a"},"node":{"kind":"absent"}}]}}`,
		`{"phase":"planned","batch":{"undo":false,"steps":[],"dirs":[],"base":[{"keep":-1,"path":{"path":"a"},"node":{"kind":"absent"}}]}}`,
		`{"phase":"planned","batch":{"undo":false,"steps":[{"act":"place","path":{"path":"a"}}],"dirs":[],"base":[]}}`,
		`{"phase":"planned","batch":{"undo":false,"steps":[{"act":"place","path":{"path":"a"},"temp":{"path":"b/c"}}],"dirs":[],"base":[]}}`,
		`{"phase":"planned","batch":{"undo":false,"steps":[],"dirs":[{"path":{"path":"a"},"x":1}],"base":[]}}`,
	} {
		if err := new(story).replay(0, json.RawMessage(s)); err == nil {
			t.Errorf("took %s", s)
		}
	}
}

func FuzzStates(f *testing.F) {
	f.Add("a/b\na/b/c\na\n.")
	f.Add("\xff/x\n\xff/x/y\n\xff")
	f.Fuzz(func(t *testing.T, s string) {
		var l states
		for line := range strings.SplitSeq(s, "\n") {
			if p, err := tree.ParsePath(line); err == nil {
				l = append(l, published{Path: p})
			}
		}
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		var back states
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if len(back) != len(l) || len(l) > 0 && !reflect.DeepEqual(back, l) {
			t.Errorf("%v became %v as %s", l, back, text)
		}
	})
}
