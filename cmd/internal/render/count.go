package render

import (
	"fmt"

	"stage/fs/tree"
)

// lineCount is how many lines an item adds and deletes. Content that is binary, too large or gone
// is not counted: known is false then.
type lineCount struct {
	added, deleted int
	known          bool
	same           bool // both sides hold the same content
	old, now       int64
}

// count compares the contents of an item where neither side is larger than limit.
func (r *Review) count(it *item, limit int64) (lineCount, error) {
	before, after := r.before(it), r.after(it)
	c := lineCount{old: before.node.Size, now: after.node.Size}
	if it.score == 100 || it.letter == 'm' {
		c.known, c.same = true, true
		return c, nil
	}
	a, wholeA, err := before.read(limit)
	if err != nil {
		return c, err
	}
	b, wholeB, err := after.read(limit)
	if err != nil {
		return c, err
	}
	if !wholeA || !wholeB || isBinary(a) || isBinary(b) || tooLong(a) || tooLong(b) {
		return c, nil
	}
	c.known = true
	c.same = string(a) == string(b)
	for _, e := range lineEdits(lines(a), lines(b)) {
		c.deleted += e.End - e.Start
		c.added += e.ReplEnd - e.ReplStart
	}
	return c, nil
}

// String returns "+3 -1", "" for no lines.
func (c lineCount) String() string {
	switch {
	case !c.known || c.added+c.deleted == 0:
		return ""
	case c.deleted == 0:
		return fmt.Sprintf("+%d", c.added)
	case c.added == 0:
		return fmt.Sprintf("-%d", c.deleted)
	}
	return fmt.Sprintf("+%d -%d", c.added, c.deleted)
}

// Counts is how many paths a review shows, by what became of them.
type Counts struct {
	Added, Modified, Deleted, Renamed, TypeChanged, Metadata int
}

func (c *Counts) add(it *item) {
	switch it.letter {
	case 'A':
		c.Added++
	case 'M':
		c.Modified++
	case 'D':
		c.Deleted++
	case 'R':
		c.Renamed++
	case 'T':
		c.TypeChanged++
	case 'm':
		c.Metadata++
	}
}

// Total returns the number of changed paths.
func (c Counts) Total() int {
	return c.Added + c.Modified + c.Deleted + c.Renamed + c.TypeChanged + c.Metadata
}

// String returns "3 changes: 1 added, 2 modified", "no changes" for none.
func (c Counts) String() string {
	if c.Total() == 0 {
		return "no changes"
	}
	s, sep := Plural(c.Total(), "change"), ": "
	for _, part := range []struct {
		n    int
		word string
	}{{c.Added, "added"}, {c.Modified, "modified"}, {c.Deleted, "deleted"}, {c.Renamed, "renamed"},
		{c.TypeChanged, "type changed"}, {c.Metadata, "metadata only"}} {
		if part.n > 0 {
			s += fmt.Sprintf("%s%d %s", sep, part.n, part.word)
			sep = ", "
		}
	}
	return s
}

// growth returns the bytes an item leaves: the size of its new state.
func growth(it *item) int64 {
	if it.now.Kind != tree.File {
		return 0
	}
	return it.now.Size
}

// CountChanges counts the changes of one root as the list counts them, and the bytes of content they
// bring. Content is not read: a rename that nobody recorded counts as a deletion and an addition.
func CountChanges(changes []tree.Change) (c Counts, bytes int64) {
	r := &Review{RawGit: true, Changes: make([]Entry, len(changes))}
	for i := range changes {
		r.Changes[i].Change = changes[i]
	}
	l := newLayout(r)
	l.dropDirs(true)
	for i := range l.items {
		it := &l.items[i]
		c.add(it)
		if it.letter != 'm' && it.letter != 'D' && it.score != 100 {
			bytes += growth(it)
		}
	}
	return c, bytes
}
