package policy

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// GlobRule is a pattern over absolute paths. It covers what it matches and everything below that.
type GlobRule struct {
	Pattern string // absolute, doublestar, without a trailing slash or "/**"
	Literal string // the one path the pattern means, "" when it has wildcards
	DirOnly bool   // written with a trailing slash: matches directories only
	Rule    Rule

	base string // the longest leading directory without wildcards
	name string // what each name below base must match, where the pattern is base/**/name
}

const globMeta = `*?[]{}\`

// checkGlob refuses what can never match or does not mean what it looks like.
func checkGlob(s string) error {
	switch {
	case s == "":
		return errors.New("empty pattern")
	case strings.ContainsRune(s, 0):
		return errors.New("pattern holds a NUL")
	case !doublestar.ValidatePattern(s):
		return fmt.Errorf("pattern %q has an unclosed bracket or brace", s)
	case strings.HasPrefix(s, "~") && s != "~" && !strings.HasPrefix(s, "~/"):
		return fmt.Errorf("pattern %q: only ~ and ~/ stand for a home directory", s)
	}
	for part := range strings.FieldsFuncSeq(s, func(r rune) bool { return strings.ContainsRune("/{},", r) }) {
		if part == ".." {
			return fmt.Errorf("pattern %q holds \"..\"", s)
		}
	}
	return nil
}

// anchors are the directories that relative patterns and "~" stand for.
type anchors struct{ workspace, home string }

// absolute returns a checked pattern as an absolute one; the anchors' own names are taken literally.
func (a anchors) absolute(s string) string {
	switch {
	case s == "~":
		s = escapeGlob(a.home)
	case strings.HasPrefix(s, "~/"):
		s = escapeGlob(a.home) + s[1:]
	case !strings.HasPrefix(s, "/"):
		s = escapeGlob(a.workspace) + "/" + s
	}
	return cleanGlob(s)
}

// cleanGlob removes empty and "." names, as path.Clean would if it knew escapes.
func cleanGlob(s string) string {
	var names []string
	for name := range strings.SplitSeq(s, "/") {
		if name != "" && name != "." {
			names = append(names, name)
		}
	}
	return "/" + strings.Join(names, "/")
}

func escapeGlob(s string) string {
	if !strings.ContainsAny(s, globMeta) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if strings.IndexByte(globMeta, s[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// unescapeGlob returns the literal text of a pattern without wildcards.
func unescapeGlob(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// isLiteral reports whether a pattern has no wildcards beyond escaped ones.
func isLiteral(s string) bool {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '*', '?', '[', ']', '{', '}':
			return false
		}
	}
	return true
}

// newGlob compiles the pattern of a rule.
func newGlob(a anchors, r Rule) (GlobRule, error) {
	if err := checkGlob(r.Value); err != nil {
		return GlobRule{}, err
	}
	g := GlobRule{Pattern: a.absolute(r.Value), Rule: r}
	g.DirOnly = g.Pattern != "/" && strings.HasSuffix(r.Value, "/")
	for strings.HasSuffix(g.Pattern, "/**") {
		g.Pattern = cleanGlob(strings.TrimSuffix(g.Pattern, "/**"))
	}
	g.base = "/"
	rest := strings.Split(g.Pattern, "/")[1:]
	for len(rest) > 0 && isLiteral(rest[0]) {
		g.base, rest = path.Join(g.base, unescapeGlob(rest[0])), rest[1:]
	}
	switch {
	case len(rest) == 0:
		g.Literal = g.base
	case len(rest) == 2 && rest[0] == "**":
		g.name = rest[1]
	}
	return g, nil
}

// resolved returns g for the place that its leading directory leads to; ok is false when that is
// where it says.
func (g GlobRule) resolved(resolve func(string) string) (real GlobRule, ok bool) {
	if resolve == nil {
		return g, false
	}
	base := resolve(g.base)
	if base == g.base || !strings.HasPrefix(base, "/") {
		return g, false
	}
	rest := strings.TrimPrefix(g.Pattern, escapeGlob(g.base))
	if g.Literal == "" && rest == g.Pattern { // the pattern spells its literal part in another way
		names := strings.Split(g.Pattern, "/")
		rest = "/" + strings.Join(names[1+strings.Count(strings.TrimSuffix(g.base, "/"), "/"):], "/")
	}
	real = g
	real.base, real.Pattern = base, cleanGlob(escapeGlob(base)+rest)
	if g.Literal != "" {
		real.Literal, real.Pattern = base, escapeGlob(base)
	}
	return real, true
}

// within reports whether p is dir or lies below it; both are clean absolute paths.
func within(p, dir string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}

// Covers reports whether the rule's pattern matches p or a directory above it.
func (g *GlobRule) Covers(p string, isDir bool) bool {
	if !within(p, g.base) {
		return false
	}
	if g.Literal != "" {
		return p != g.Literal || isDir || !g.DirOnly
	}
	for i := len(g.base) + 1; i < len(p); i++ {
		if p[i] == '/' && g.matches(p[:i]) {
			return true
		}
	}
	return g.matches(p) && (isDir || !g.DirOnly)
}

func (g *GlobRule) matches(p string) bool {
	if g.name != "" {
		return len(p) > len(g.base) && doublestar.MatchUnvalidated(g.name, path.Base(p))
	}
	return doublestar.MatchUnvalidated(g.Pattern, p)
}

// bounded reports whether finding the matches takes a look at a fixed number of levels only.
func (g *GlobRule) bounded() bool { return g.Literal != "" || !strings.Contains(g.Pattern, "**") }

// overlaps reports whether the pattern can match at, above or below dir.
func (g *GlobRule) overlaps(dir string) bool { return within(g.base, dir) || within(dir, g.base) }

// checkRoot refuses patterns that do not name one directory or file with everything below it:
// allow lists of paths become mounts.
func checkRoot(s string) error {
	if err := checkGlob(s); err != nil {
		return err
	}
	g, err := newGlob(anchors{"/", "/"}, Rule{Value: s})
	if err != nil {
		return err
	}
	if g.Literal == "" {
		return fmt.Errorf("pattern %q does not name one directory", s)
	}
	return nil
}
