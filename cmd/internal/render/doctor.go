package render

// Finding is what doctor found out about one control.
type Finding struct {
	Control string `json:"control"`
	Level   string `json:"level"`
	Detail  string `json:"detail"`
	Fix     string `json:"fix"`
}

// Doctor writes the table of findings, each with its fix.
func Doctor(s *Screen, findings []Finding) error { return errUnbuilt }

// DoctorJSON writes the findings as JSON.
func DoctorJSON(s *Screen, findings []Finding) error { return errUnbuilt }
