package policy

import (
	"slices"
	"strings"
)

// codexValueFlags are the flags of `codex exec` that take the next argument as their value.
var codexValueFlags = []string{
	"-c", "--config", "--enable", "--disable", "-i", "--image", "-m", "--model", "--local-provider", "-p", "--profile",
	"-s", "--sandbox", "-C", "--cd", "--add-dir", "--output-schema", "--color", "-o", "--output-last-message",
	"-a", "--ask-for-approval", "--remote", "--thread-source",
}

// CodexReadsStdin reports whether a Codex command line takes its prompt from standard input: every
// one but `codex exec` with a prompt. That one reads an open pipe to its end although it needs
// nothing from it, and so may wait for ever.
func CodexReadsStdin(argv []string) bool {
	words, last := codexWords(argv)
	i := slices.IndexFunc(words, func(w string) bool { return w == "exec" || w == "e" })
	if i != 0 {
		return true
	}
	words = words[1:]
	if len(words) > 0 && (words[0] == "resume" || words[0] == "fork") {
		words = words[1:]
		if !last && len(words) > 0 { // the session's id
			words = words[1:]
		}
	}
	return len(words) == 0 || slices.Contains(words, "-")
}

// codexWords returns the arguments that are neither flags nor their values, and whether --last is given.
func codexWords(argv []string) (words []string, last bool) {
	for i := 1; i < len(argv); i++ {
		arg := argv[i]
		switch {
		case arg == "--":
			return append(words, argv[i+1:]...), last
		case arg == "--last":
			last = true
		case slices.Contains(codexValueFlags, arg):
			i++
		case arg == "-" || !strings.HasPrefix(arg, "-"):
			words = append(words, arg)
		}
	}
	return words, last
}
