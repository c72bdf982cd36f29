package render

import "stage/bundle"

// Decision says whether a run may do one act to one object, and why.
type Decision struct {
	Object  string       `json:"object"` // as the run knows it: a path free of links, HOST:PORT, $NAME
	Act     string       `json:"act"`    // read, write, exec, connect, pass
	Allowed bool         `json:"allowed"`
	Why     string       `json:"why"`
	Rule    *bundle.Rule `json:"rule"` // nil where none decides
	Fix     string       `json:"fix"`  // the flag that asks for it, "" where none would help
}

// Explain writes one line per decision, with the rule that decides and where it stands.
func Explain(s *Screen, all []Decision) error {
	p := newPrinter(s)
	table := [][]string{}
	for _, d := range all {
		verdict := "denied"
		if d.Allowed {
			verdict = "allowed"
		}
		table = append(table, []string{QuoteName(d.Object), d.Act, verdict, because(d)})
	}
	p.table(table)
	return p.w.Flush()
}

func because(d Decision) string {
	text := Printable(d.Why)
	if r := d.Rule; r != nil {
		text += ": " + string(r.Verb) + " " + Printable(r.Object)
		if r.Value != nil {
			text += " " + Printable(*r.Value)
		}
		text += " (" + sourceText(r.Source) + ")"
	}
	if d.Fix != "" {
		text += "; " + Printable(d.Fix) + " asks for it"
	}
	return text
}

type explainJSON struct {
	Version   bundle.V1             `json:"version"`
	Decisions bundle.List[Decision] `json:"decisions"`
}

// ExplainJSON writes the decisions as one object.
func ExplainJSON(s *Screen, all []Decision) error { return object(s, explainJSON{Decisions: all}) }
