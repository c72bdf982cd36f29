package render

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	udiff "github.com/aymanbagabas/go-udiff"

	"stage/fs/tree"
)

// Picker asks a person hunk by hunk what to apply, as `git add -p` does. The end of the input leaves
// what was not answered yet.
type Picker struct {
	p    *printer
	in   *bufio.Reader
	all  byte // 'y' or 'n' once everything that follows is decided
	file byte // the same for the rest of one file
}

// NewPicker returns a Picker that asks on s and reads the answers from in.
func NewPicker(s *Screen, in io.Reader) *Picker {
	return &Picker{p: newPrinter(s), in: bufio.NewReader(in)}
}

const pickHelp = `y - apply it
n - leave it in the Job
q - leave it and everything that follows
a - apply it and the rest of the file
d - leave it and the rest of the file
s - split it into smaller hunks
? - this help`

// Whole asks about changes that go together.
func (k *Picker) Whole(changes []tree.Change) (bool, error) {
	k.file = 0
	if k.all != 0 {
		return k.all == 'y', nil
	}
	c := changes[0]
	what := kindOfChange(c) + " " + QuoteName(c.Path.String())
	if len(changes) > 1 {
		what += fmt.Sprintf(" and %d more of the same git directory", len(changes)-1)
	}
	a, err := k.ask("Apply: "+what, "ynq?")
	return a == 'y', err
}

func kindOfChange(c tree.Change) string {
	switch {
	case c.Moved:
		return "moved"
	case c.Base.Kind == tree.Absent && c.RenameFrom != nil:
		return "renamed"
	case c.Base.Kind == tree.Absent:
		return "new"
	case c.New.Kind == tree.Absent:
		return "deleted"
	}
	return "changed"
}

// Text asks about the hunks of a changed text and returns it with those that were picked.
func (k *Picker) Text(c tree.Change, before, after string) (string, error) {
	k.file = k.all
	var picked []udiff.Edit
	hunks := hunksOf(before, udiff.Lines(before, after))
	for i := 0; i < len(hunks); i++ {
		answer, err := k.hunk(c, before, hunks, i)
		if err != nil {
			return "", err
		}
		switch answer {
		case 's':
			var parts [][]udiff.Edit
			for _, e := range hunks[i] {
				parts = append(parts, []udiff.Edit{e})
			}
			hunks = append(hunks[:i:i], append(parts, hunks[i+1:]...)...)
			i--
		case 'y':
			picked = append(picked, hunks[i]...)
		}
	}
	return udiff.Apply(before, picked)
}

// near is how many lines apart edits are that are shown as one hunk: twice the context.
const near = 2 * contextLines

// hunksOf groups edits that are near each other.
func hunksOf(text string, edits []udiff.Edit) [][]udiff.Edit {
	var hunks [][]udiff.Edit
	for i, e := range edits {
		if i > 0 && strings.Count(text[edits[i-1].End:e.Start], "\n") <= near {
			hunks[len(hunks)-1] = append(hunks[len(hunks)-1], e)
			continue
		}
		hunks = append(hunks, []udiff.Edit{e})
	}
	return hunks
}

// hunk shows hunk i and returns what is to become of it: y, n or s.
func (k *Picker) hunk(c tree.Change, before string, hunks [][]udiff.Edit, i int) (byte, error) {
	if k.file != 0 {
		return k.file, nil
	}
	u, err := udiff.ToUnified("", "", before, hunks[i], contextLines)
	if err != nil {
		return 0, err
	}
	for n, line := range strings.Split(strings.TrimSuffix(u, "\n"), "\n") {
		if n >= 2 { // behind the names
			k.p.line(diffColour(line), line)
		}
	}
	keys := "ynqad?"
	if len(hunks[i]) > 1 {
		keys = "ynqads?"
	}
	return k.ask(fmt.Sprintf("(%d/%d) Apply to %s", i+1, len(hunks), QuoteName(c.Path.String())), keys)
}

func diffColour(line string) string {
	switch {
	case strings.HasPrefix(line, "@@"):
		return cyan
	case strings.HasPrefix(line, "+"):
		return green
	case strings.HasPrefix(line, "-"):
		return red
	}
	return plain
}

// ask asks until one of keys is the answer, and returns y, n or s.
func (k *Picker) ask(question, keys string) (byte, error) {
	for {
		k.p.w.WriteString(k.p.paint(bold, k.p.safe(question)+" ["+strings.Join(strings.Split(keys, ""), ",")+"]? "))
		if err := k.p.w.Flush(); err != nil {
			return 0, err
		}
		line, err := k.in.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		answer := strings.ToLower(strings.TrimSpace(line))
		if err != nil && answer == "" {
			answer = "q"
			k.p.w.WriteString("\n")
		}
		if len(answer) != 1 || !strings.Contains(keys, answer) || answer == "?" {
			k.p.w.WriteString(pickHelp + "\n")
			continue
		}
		switch answer[0] {
		case 'q':
			k.all, k.file = 'n', 'n'
			return 'n', nil
		case 'a':
			k.file = 'y'
			return 'y', nil
		case 'd':
			k.file = 'n'
			return 'n', nil
		}
		return answer[0], nil
	}
}
