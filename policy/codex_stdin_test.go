package policy

import (
	"strings"
	"testing"
)

func TestCodexReadsStdin(t *testing.T) {
	for line, want := range map[string]bool{
		"codex":                                     true,
		"codex do it":                               true,
		"codex exec":                                true,
		"codex exec -":                              true,
		"codex exec go":                             false,
		"codex exec --json go":                      false,
		"codex -a never exec go":                    false,
		"codex exec -s read-only":                   true,
		"codex exec --sandbox read-only go":         false,
		"codex exec --sandbox=read-only go":         false,
		"codex exec -c model=x":                     true,
		"codex exec resume --last":                  true,
		"codex exec resume --last go":               false,
		"codex exec resume 0199":                    true,
		"codex exec resume 0199 go":                 false,
		"codex exec -- -starts-with-a-dash":         false,
		"codex exec --output-last-message out -":    true,
		"codex exec --dangerously-bypass-it-all go": false,
	} {
		if got := CodexReadsStdin(strings.Fields(line)); got != want {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
}
