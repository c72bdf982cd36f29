package render

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"stage/bundle"
	"stage/fs/tree"
)

// hostile is everything a terminal could be talked into something with.
const hostile = "a\x00b\x1b[2J\x1b]0;title\x07\x7f\u0085\u009b31m\u202e\u2066\u200b\ufeff\xff\xc3\r\v\x08"

// unsafe returns the first thing in text that must not reach a terminal, besides our own colours.
func unsafe(text string, colour bool) string {
	if colour {
		text = regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(text, "")
	}
	for i, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd") {
			return "a byte that is not UTF-8: " + text[max(0, i-20):i]
		}
		if risky(r) && r != '\n' && r != '\t' {
			return string(r) + " after " + text[max(0, i-20):i]
		}
	}
	return ""
}

// hostileReview has hostile names, contents, targets, attributes, reasons and words of git.
func hostileReview(t *testing.T) *Review {
	w := newTrees(t)
	name := strings.ReplaceAll(strings.ReplaceAll(hostile, "\x00", ""), "/", "")
	text := strings.ReplaceAll(hostile, "\x00", "")
	w.base(func(dir string) {
		put(t, dir, "old"+name, text+"\n"+numbered(0, 9))
		put(t, dir, "edit"+name, text+"\n")
		put(t, dir, "dir"+name+"/x"+name, text)
	})
	must(t, os.Rename(filepath.Join(w.after, "old"+name), filepath.Join(w.after, "new"+name)))
	must(t, os.RemoveAll(filepath.Join(w.after, "dir"+name)))
	put(t, w.after, "edit"+name, "other "+text+text)
	put(t, w.after, "bin"+name, hostile)
	must(t, os.Symlink(name, filepath.Join(w.after, "link"+name)))
	r := w.review()
	r.Outcome, r.Git = hostile, []string{hostile}
	for i := range r.Changes {
		e := &r.Changes[i]
		e.Flags = []bundle.Flag{{Class: bundle.ClassSecret, Reason: hostile}}
		e.Why, e.Verdict, e.Drift = hostile, bundle.VerdictConflict, true
		if e.New.Kind != tree.Absent {
			e.New.Xattrs = tree.Xattrs{"user." + hostile: []byte(hostile)}
		}
	}
	return r
}

func TestNothingHostileReachesATerminal(t *testing.T) {
	r := hostileReview(t)
	for f := FormatList; f <= FormatJSONL; f++ {
		for _, colour := range []bool{false, true} {
			if bad := unsafe(onTerminal(t, r, f, colour), colour); bad != "" {
				t.Errorf("form %d, colour %v: %q", f, colour, bad)
			}
		}
	}
}

func TestTextWithoutContentsIsSafeInAFileToo(t *testing.T) {
	r := hostileReview(t)
	for _, f := range []Format{FormatList, FormatStat, FormatNameStatus, FormatJSON, FormatJSONL} {
		if bad := unsafe(rendered(t, r, f), false); bad != "" {
			t.Errorf("form %d: %q", f, bad)
		}
	}
}

func TestSpeechAndTablesAreSafe(t *testing.T) {
	run, b, plan := decoded[bundle.Run](t, "run"), decoded[bundle.Bundle](t, "bundle"), decoded[bundle.Plan](t, "plan")
	run.Argv = bundle.Words([]string{hostile, hostile})
	reason := hostile
	b.Outcome = bundle.Outcome{Kind: bundle.NotStarted, Reason: &reason}
	b.Limits = append(b.Limits, hostile)
	plan.Preset.Name, plan.Preset.Source = hostile, hostile
	plan.Env.Passed = bundle.Words([]string{hostile})
	for d, c := range plan.Plan.FileReads {
		c.Mechanism = hostile
		c.Rules = append(c.Rules, bundle.Rule{Verb: bundle.Deny, Object: hostile, Value: &reason})
		plan.Plan.FileReads[d] = c
	}
	why := hostile
	rep := &bundle.ApplyReport{Paths: []bundle.ApplyPath{{Path: tree.MustParsePath("a" + strings.ReplaceAll(hostile, "\x00", "")), Verdict: bundle.VerdictConflict, Why: &why}}}
	out := text(t, func(s *Screen) error {
		for _, err := range []error{
			Status(s, run, b), EndOfRun(s, b), Jobs(s, []JobRow{{Run: run, Bundle: b}, {ID: hostile, Problem: hostile}}), Plan(s, plan),
			Doctor(s, []Finding{{hostile, hostile, hostile, hostile}}), DoctorJSON(s, []Finding{{hostile, hostile, hostile, hostile}}),
			Apply(s, rep, true), Hint(s, hostile), Problem(s, "run", hostile, append(Conflicts(rep), hostile)...),
		} {
			if err != nil {
				return err
			}
		}
		return nil
	})
	if bad := unsafe(out, false); bad != "" {
		t.Errorf("%q", bad)
	}
}

func TestANewlineInANameOrReasonMakesNoLine(t *testing.T) {
	if got := Printable("a\nstage: hint: rm -rf ~"); strings.Contains(got, "\n") {
		t.Errorf("got %q", got)
	}
	if got := QuoteName("a\nb"); got != `"a\nb"` {
		t.Errorf("got %s", got)
	}
}

func TestEscapedJSONKeepsItsValue(t *testing.T) {
	for _, v := range []string{"\u202e", "\u0085\x7f", "\U000e0041", "<&>", "plain", "\u2028"} {
		var b bytes.Buffer
		must(t, object(&Screen{W: &b}, v))
		var got string
		must(t, json.Unmarshal(b.Bytes(), &got))
		if got != v || unsafe(b.String(), false) != "" {
			t.Errorf("%q is written as %q", v, b.String())
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add(hostile)
	f.Fuzz(func(t *testing.T, text string) {
		if bad := unsafe(Printable(text), false); bad != "" {
			t.Errorf("%q: %q", text, bad)
		}
		if bad := unsafe(QuoteName(text), false); bad != "" {
			t.Errorf("%q: %q", text, bad)
		}
	})
}
