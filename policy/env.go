package policy

import (
	"errors"
	"fmt"
	"strings"
)

// checkEnvName refuses what cannot name or match an environment variable.
func checkEnvName(s string) error {
	if s == "" {
		return errors.New("empty name")
	}
	if strings.ContainsAny(s, "=\x00") {
		return fmt.Errorf("name %q holds = or NUL", s)
	}
	return nil
}

// matchName reports whether a name matches a pattern in which * is any text and ? any byte.
func matchName(pattern, name string) bool {
	for i := range len(pattern) {
		switch {
		case pattern[i] == '*':
			return matchStar(pattern[i+1:], name[i:])
		case i >= len(name) || pattern[i] != '?' && pattern[i] != name[i]:
			return false
		}
	}
	return len(pattern) == len(name)
}

// matchStar matches what follows a star. The first fit of the text up to the next star is as good
// as any later one, so it does not go back: time is at most len(pattern) × len(name).
func matchStar(pattern, name string) bool {
	head, tail, more := strings.Cut(pattern, "*")
	if !more {
		return len(name) >= len(head) && matchName(head, name[len(name)-len(head):])
	}
	for ; len(name) >= len(head); name = name[1:] {
		if matchName(head, name[:len(head)]) {
			return matchStar(tail, name[len(head):])
		}
		if name == "" {
			break
		}
	}
	return false
}

// deniesName is matchName without regard to case: a deny must not fail on github_token.
func deniesName(pattern, name string) bool {
	return matchName(strings.ToUpper(pattern), strings.ToUpper(name))
}
