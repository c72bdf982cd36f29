package policy

import "testing"

func TestPresetsLoadAndNarrow(t *testing.T) {
	ps, err := LoadPresets()
	if err != nil {
		t.Fatal(err)
	}
	codex, _, err := ps.Choose("", "/usr/bin/codex", "/usr/bin/codex", []string{"/w"})
	if err != nil || codex.Name != "codex" {
		t.Fatal(codex.Name, err)
	}
	req, err := NewRequest("/home/u/w", "/home/u", Flags{Read: []string{"/data"}}, codex, Agent{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Narrow(req, ps.Executor)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", p.Net)
	t.Logf("%+v", p.Reads)
	t.Logf("%+v", p.Refused)
	for d, c := range p.Controls() {
		t.Log(d, len(c))
	}
}
