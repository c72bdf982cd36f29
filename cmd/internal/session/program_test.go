package session

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestProgramIsReadableWhereItLies(t *testing.T) {
	base := t.TempDir()
	home := filepath.Join(base, "home")
	for _, f := range []string{"home/tools/x/bin/tool", "home/script", "home/ws/run.sh", "opt/tool"} {
		write(t, filepath.Join(base, f), "#!/bin/sh\n")
		if err := os.Chmod(filepath.Join(base, f), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(home, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../tools/x/bin/tool", filepath.Join(home, "bin/tool")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Join(home, "bin"))
	for _, c := range []struct {
		argv0 string
		want  []string // below base
	}{
		{"tool", []string{"home/tools/x/bin", "home/bin/tool"}},
		{filepath.Join(home, "tools/x/bin/tool"), []string{"home/tools/x/bin"}},
		{filepath.Join(home, "script"), []string{"home/script"}}, // not the whole home directory
		{filepath.Join(home, "ws/run.sh"), nil},                  // staged
		{filepath.Join(base, "opt/tool"), nil},                   // readable anyway
		{"no-such-tool", nil},
	} {
		a := &Admission{Home: home, Workspace: filepath.Join(home, "ws"), program: lookProgram(c.argv0)}
		var want []string
		for _, w := range c.want {
			want = append(want, filepath.Join(base, w))
		}
		if got := a.programReads([]string{filepath.Join(base, "opt")}); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", c.argv0, got, want)
		}
	}
}
