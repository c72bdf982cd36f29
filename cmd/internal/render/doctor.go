package render

import "stage/bundle"

// Finding is what doctor found out about one control.
type Finding struct {
	Control string `json:"control"`
	Level   string `json:"level"` // what a run would get: enforced, cooperative, unenforced
	Detail  string `json:"detail"`
	Fix     string `json:"fix"` // the exact command or setting, "" where none is needed
}

// Doctor writes the table of findings, each fix on its own line so that it can be copied.
func Doctor(s *Screen, findings []Finding) error {
	p := newPrinter(s)
	table := [][]string{{"CONTROL", "LEVEL", "DETAIL"}}
	for _, f := range findings {
		table = append(table, []string{Printable(f.Control), Printable(f.Level), Printable(f.Detail)})
	}
	p.table(table)
	for _, f := range findings {
		if f.Fix != "" {
			p.w.WriteString("fix " + Printable(f.Control) + ": " + Printable(f.Fix) + "\n")
		}
	}
	return p.w.Flush()
}

type doctorJSON struct {
	Version  bundle.V1            `json:"version"`
	Controls bundle.List[Finding] `json:"controls"`
}

// DoctorJSON writes the findings as one object.
func DoctorJSON(s *Screen, findings []Finding) error {
	return object(s, doctorJSON{Controls: findings})
}
