package gitview

import (
	"fmt"
	"strings"

	"stage/fs/tree"
)

// namesShown is how many paths of one sort are named before the rest is counted.
const namesShown = 5

// Lines tells the summary in lines, as git would word it. Names and subjects come from the Job:
// whoever prints the lines makes them safe.
func (s *Summary) Lines() []string {
	var l []string
	if s.HEAD != nil {
		l = append(l, "HEAD: "+orNone(headText(s.HEAD.Old))+" -> "+orNone(headText(s.HEAD.New)))
	}
	for _, r := range s.Refs {
		l = append(l, r.lines()...)
	}
	if o := s.Objects; o.Added+o.Packs+o.Removed > 0 {
		l = append(l, fmt.Sprintf("objects: %d added, %d packs added, %d removed, %d bytes", o.Added, o.Packs, o.Removed, o.Bytes))
	}
	switch x := s.Index; {
	case x.Unreadable:
		l = append(l, "index: changed, cannot be read")
	case x.Changed:
		l = append(l, fmt.Sprintf("index: %d entries added, %d removed, %d changed", x.Added, x.Removed, x.Modified))
	}
	l = append(l, named("config", s.Config)...)
	l = append(l, named("hook", s.Hooks)...)
	return append(l, named("also", s.Other)...)
}

func headText(text string) string {
	if ref, ok := strings.CutPrefix(text, "ref: "); ok {
		return refText(strings.TrimSpace(ref))
	}
	return short(text)
}

// refText is a reference as people call it: "branch main".
func refText(name string) string {
	for _, k := range []struct{ prefix, word string }{
		{"refs/heads/", "branch "}, {"refs/tags/", "tag "}, {"refs/remotes/", "remote branch "},
	} {
		if rest, ok := strings.CutPrefix(name, k.prefix); ok {
			return k.word + rest
		}
	}
	if name == "refs/stash" {
		return "stash"
	}
	return name
}

func (r RefChange) lines() []string {
	text := refText(r.Name) + ": "
	switch {
	case r.Old == "":
		text += "created at " + headText(r.New)
	case r.New == "":
		text += "deleted, was " + headText(r.Old)
	default:
		text += headText(r.Old) + " -> " + headText(r.New)
	}
	if n := len(r.Commits); n == maxCommits {
		text += fmt.Sprintf(", %d or more new commits", n)
	} else if n == 1 {
		text += ", 1 new commit"
	} else if n > 1 {
		text += fmt.Sprintf(", %d new commits", n)
	}
	l := []string{text}
	for i, c := range r.Commits {
		if i == namesShown {
			l = append(l, fmt.Sprintf("  … and %d more", len(r.Commits)-i))
			break
		}
		l = append(l, "  "+short(c.ID)+" "+c.Subject)
	}
	return l
}

func short(id string) string {
	if objectName(id) {
		return id[:7]
	}
	return id
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func named(what string, paths []tree.Path) []string {
	var l []string
	for i, p := range paths {
		if i == namesShown {
			return append(l, fmt.Sprintf("%s: … and %d more", what, len(paths)-i))
		}
		l = append(l, what+": "+p.String())
	}
	return l
}
