package render

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"stage/bundle"
	"stage/fs/tree"
)

// JobRow is one Job in a list. A Job whose records cannot be read has only ID and Problem.
type JobRow struct {
	ID      string
	Run     *bundle.Run
	Bundle  *bundle.Bundle // nil while the Job is not sealed
	Problem string
}

// Jobs writes a table of Jobs in the order given.
func Jobs(s *Screen, rows []JobRow) error {
	table := [][]string{{"JOB", "CREATED", "STATE", "OUTCOME", "CHANGES", "COMMAND"}}
	for _, r := range rows {
		if r.Run == nil {
			table = append(table, []string{Printable(r.ID), "-", "unreadable", "-", "-", Printable(r.Problem)})
			continue
		}
		outcome, changes := "-", "-"
		if r.Bundle != nil {
			outcome, changes = outcomeKind(r.Bundle.Outcome), countText(r.Bundle.Changes)+", "+publicationText(r.Run.Publication)
		}
		table = append(table, []string{string(r.Run.Job), stamp(r.Run.CreatedAt), string(r.Run.State), outcome, changes,
			Command(bundle.Strings(r.Run.Argv))})
	}
	p := newPrinter(s)
	p.table(table)
	return p.w.Flush()
}

// countText is the number of changes, with a mark where there may be more.
func countText(c bundle.Changes) string {
	if !c.Complete {
		return fmt.Sprintf("%d or more", total(c))
	}
	return strconv.Itoa(total(c))
}

func total(c bundle.Changes) int {
	n := 0
	for _, r := range c.Roots {
		n += rootCounts(r).Total()
	}
	return n
}

// table writes rows in columns; the first row is the heading. Cells are safe already. An empty
// table is its heading.
func (p *printer) table(rows [][]string) {
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len(cell))
		}
	}
	for n, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if i == len(row)-1 {
				line.WriteString(cell)
				break
			}
			fmt.Fprintf(&line, "%-*s  ", width[i], cell)
		}
		colour := plain
		if n == 0 {
			colour = bold
		}
		p.w.WriteString(p.paint(colour, strings.TrimRight(line.String(), " ")) + "\n")
	}
}

// stamp writes an instant in UTC to the second.
func stamp(t tree.Time) string {
	return time.Unix(0, int64(t)).UTC().Format("2006-01-02 15:04:05Z")
}

// commandMax is the length at which a command line in a table is cut.
const commandMax = 120

// Command writes an argument vector as a shell would take it, on one line and safe on a terminal.
// A long one is cut.
func Command(argv []string) string {
	var words []string
	for _, a := range argv {
		words = append(words, shellWord(a))
	}
	line := []rune(strings.Join(words, " "))
	if len(line) > commandMax {
		return string(line[:commandMax-1]) + "…"
	}
	return string(line)
}

func shellWord(word string) string {
	const bare = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:=@_^"
	if word != "" && strings.Trim(word, bare) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(Printable(word), "'", `'\''`) + "'"
}

type jobJSON struct {
	ID      string          `json:"id"`
	Run     *bundle.Run     `json:"run"`
	Outcome *bundle.Outcome `json:"outcome"`
	Changes *bundle.Changes `json:"changes"`
	Problem *string         `json:"problem"`
}

type jobsJSON struct {
	Version bundle.V1            `json:"version"`
	Jobs    bundle.List[jobJSON] `json:"jobs"`
}

// JobsJSON writes the Jobs as one object: for each its run.json and, once sealed, outcome and changes.
func JobsJSON(s *Screen, rows []JobRow) error {
	var j jobsJSON
	for _, r := range rows {
		row := jobJSON{ID: r.ID, Run: r.Run}
		if r.Run != nil {
			row.ID = string(r.Run.Job)
		}
		if r.Bundle != nil {
			row.Outcome, row.Changes = &r.Bundle.Outcome, &r.Bundle.Changes
		}
		if r.Problem != "" {
			row.Problem = &r.Problem
		}
		j.Jobs = append(j.Jobs, row)
	}
	return object(s, j)
}
