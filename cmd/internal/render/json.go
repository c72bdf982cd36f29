package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"

	"stage/bundle"
)

// document writes a record of package bundle.
func document[D bundle.Document](s *Screen, d *D) error {
	text, err := bundle.Encode(d)
	if err != nil {
		return err
	}
	_, err = s.W.Write(escapeJSON(text))
	return err
}

// object writes any other value as indented JSON.
func object(s *Screen, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("encode JSON: %w", err)
	}
	_, err := s.W.Write(escapeJSON(b.Bytes()))
	return err
}

// escapeJSON writes characters that must not reach a terminal as \u escapes. They stand only in
// strings, so the value stays the same. C0 characters are escaped already.
func escapeJSON(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r < 0x20 || !risky(r):
			out = append(out, text[:n]...)
		case r > 0xffff:
			a, b := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, a, b)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[n:]
	}
	return out
}

// Report returns the review as `review --json` has it.
func Report(r *Review) *bundle.ReviewReport {
	rep := &bundle.ReviewReport{Job: r.Job, Root: r.Root, Drifted: r.drifted(), ReadDrift: r.Reads.Paths}
	for i := range r.Changes {
		rep.Changes = append(rep.Changes, r.reportChange(&r.Changes[i]))
	}
	return rep
}

func (r *Review) reportChange(e *Entry) bundle.ReviewChange {
	c := bundle.ReviewChange{
		Path: e.Path, New: bundle.NodeState(e.New), RenameFrom: e.RenameFrom,
		Flags: e.Flags, Verdict: e.Verdict, Drift: e.Drift,
	}
	if e.Verdict != bundle.VerdictUnknownBase {
		c.Base = bundle.StateOf(e.Base)
	}
	if e.LinkGroup > 0 {
		c.LinkGroup = &e.LinkGroup
	}
	if v, ok := collapse(e.Path, r.Tracked); ok && !mustShow(e) && !(r.RawGit && inGit(e.Path)) {
		c.CollapsedIn = &v.dir
	}
	return c
}

// ReviewJSON writes the review as one JSON object, with every change, those below .git too.
func ReviewJSON(s *Screen, r *Review) error { return document(s, Report(r)) }

// jsonLine is one line of --jsonl: a change that says what it belongs to.
type jsonLine struct {
	Version bundle.V1 `json:"version"`
	Job     bundle.ID `json:"job"`
	Root    string    `json:"root"`
	bundle.ReviewChange
}

// ReviewJSONL writes one JSON object per change and line: the change's keys of ReviewJSON after
// version, job and root.
func ReviewJSONL(s *Screen, r *Review) error {
	for i := range r.Changes {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(jsonLine{Job: r.Job, Root: r.Root, ReviewChange: r.reportChange(&r.Changes[i])}); err != nil {
			return fmt.Errorf("encode change of %q: %w", r.Changes[i].Path, err)
		}
		if _, err := s.W.Write(escapeJSON(b.Bytes())); err != nil {
			return err
		}
	}
	return nil
}
