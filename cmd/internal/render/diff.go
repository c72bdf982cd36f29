package render

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"

	"stage/fs/tree"
)

// Diff writes a unified diff with git's headers, for reading. What git's form cannot say (owners,
// extended attributes, directories, special files) stands in lines that begin with "# stage:".
func Diff(ctx context.Context, s *Screen, r *Review) error {
	return writeDiff(ctx, &differ{printer: newPrinter(s), r: r}, r)
}

// Patch writes a patch that `git apply --binary` accepts. Changes that no patch can carry, those
// below .git among them, are named in lines that begin with "# stage:", which git passes over.
func Patch(ctx context.Context, s *Screen, r *Review) error {
	return writeDiff(ctx, &differ{printer: newPrinter(s), r: r, patch: true}, r)
}

func writeDiff(ctx context.Context, d *differ, r *Review) error {
	items, err := r.expanded(ctx)
	if err != nil {
		return err
	}
	for i := range items {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.item(&items[i]); err != nil {
			return errors.Join(err, d.w.Flush())
		}
	}
	return d.w.Flush()
}

// printer writes lines to a screen, made safe and coloured where the screen is a terminal.
type printer struct {
	w      *bufio.Writer // keeps the first error until Flush
	tty    bool
	colour bool
}

func newPrinter(s *Screen) *printer {
	return &printer{bufio.NewWriterSize(s.W, 1<<16), s.TTY, s.Colour}
}

// Colours, as git has them.
const (
	plain  = ""
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
	reset  = "\x1b[m"
)

// line writes one line; text has no newline at its end.
func (p *printer) line(colour, text string) {
	p.w.WriteString(p.paint(colour, p.safe(text)))
	p.w.WriteByte('\n')
}

// safe makes text printable if it goes to a terminal.
func (p *printer) safe(text string) string {
	if p.tty {
		return Printable(text)
	}
	return text
}

// paint puts colour around text that is already safe.
func (p *printer) paint(colour, text string) string {
	if !p.colour || colour == plain {
		return text
	}
	return colour + text + reset
}

// differ writes items as a unified diff.
type differ struct {
	*printer
	r     *Review
	patch bool // exact and complete, for git apply
}

func (d *differ) item(it *item) error {
	if d.patch && (inGit(it.path) || it.letter == 'R' && inGit(it.from)) {
		d.line(yellow, "# stage: not in this patch, below .git: "+QuoteName(it.path.String()))
		return nil
	}
	for _, n := range notes(it) {
		d.line(yellow, "# stage: "+n)
	}
	before, after := d.r.before(it), d.r.after(it)
	if before.node.Kind != after.node.Kind && before.inGitPatch() && after.inGitPatch() {
		// git writes a change of type as a deletion and a creation.
		if err := d.pair(&item{letter: 'D', path: it.path}, before, side{path: it.path}); err != nil {
			return err
		}
		return d.pair(&item{letter: 'A', path: it.path}, side{path: it.path}, after)
	}
	return d.pair(it, before, after)
}

// pair writes the difference of two states as far as git's form can say it.
func (d *differ) pair(it *item, before, after side) error {
	if !before.inGitPatch() {
		before = side{path: before.path}
	}
	if !after.inGitPatch() {
		after = side{path: after.path}
	}
	head := header(it, before, after)
	same := it.score == 100 || before.node.Kind != tree.Absent && before.node.SameContent(after.node) == tree.Same
	if len(head) == 0 && same || before.node.Kind == after.node.Kind && before.node.Kind == tree.Absent {
		return nil
	}
	if same {
		d.header(it, head)
		return nil
	}
	return d.content(it, head, before, after)
}

// header returns git's extended header lines: what changed about the name and the mode.
func header(it *item, before, after side) []string {
	var h []string
	oldMode, newMode := gitMode(before.node), gitMode(after.node)
	switch {
	case before.node.Kind == tree.Absent:
		h = append(h, "new file mode "+newMode)
	case after.node.Kind == tree.Absent:
		h = append(h, "deleted file mode "+oldMode)
	case oldMode != newMode:
		h = append(h, "old mode "+oldMode, "new mode "+newMode)
	}
	if it.letter == 'R' {
		h = append(h, fmt.Sprintf("similarity index %d%%", it.score),
			"rename from "+QuoteName(it.from.String()), "rename to "+QuoteName(it.path.String()))
	}
	return h
}

func (d *differ) header(it *item, head []string) {
	from := it.path
	if it.letter == 'R' {
		from = it.from
	}
	d.line(bold, "diff --git "+QuoteName("a/"+from.String())+" "+QuoteName("b/"+it.path.String()))
	for _, l := range head {
		d.line(bold, l)
	}
}

// content writes header and content of a pair whose contents differ, or may.
func (d *differ) content(it *item, head []string, before, after side) error {
	a, wholeA, err := before.read(maxText)
	if err != nil {
		return d.unreadable(it, head, err)
	}
	b, wholeB, err := after.read(maxText)
	if err != nil {
		return d.unreadable(it, head, err)
	}
	if wholeA && wholeB && string(a) == string(b) && before.node.Kind == after.node.Kind {
		if len(head) > 0 {
			d.header(it, head)
		}
		return nil
	}
	d.header(it, head)
	if !wholeA || !wholeB || isBinary(a) || isBinary(b) || tooLong(a) || tooLong(b) {
		return d.binary(it, before, after)
	}
	d.line(bold, d.index(blobID(a), blobID(b), before, after))
	if len(a)+len(b) == 0 {
		return nil
	}
	d.line(bold, "--- "+label("a/", before))
	d.line(bold, "+++ "+label("b/", after))
	la, lb := lines(a), lines(b)
	d.hunks(la, lb, lineEdits(la, lb))
	return nil
}

// unreadable says that content is not there any more; a patch without it would be a lie.
func (d *differ) unreadable(it *item, head []string, err error) error {
	if d.patch {
		return err
	}
	d.header(it, head)
	d.line(yellow, "# stage: content not shown: "+Printable(err.Error()))
	return nil
}

func tooLong(text []byte) bool { return strings.Count(string(text), "\n") > maxLines }

// label is a name in the --- and +++ lines: /dev/null for an absent file, and a tab after a name
// with spaces, as git has it, so that patch(1) finds the end of the name.
func label(prefix string, s side) string {
	if s.node.Kind == tree.Absent {
		return "/dev/null"
	}
	name := QuoteName(prefix + s.path.String())
	if strings.Contains(name, " ") && !strings.HasPrefix(name, `"`) {
		name += "\t"
	}
	return name
}

// gitMode returns the mode as git stores it.
func gitMode(n tree.Node) string {
	switch {
	case n.Kind == tree.Symlink:
		return "120000"
	case n.Mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

// noBlob is how git writes the object name of an absent file.
const noBlob = "0000000000000000000000000000000000000000"

// blobID returns the name git gives to content. git's patches carry SHA-1 names whatever it is
// worth as a digest; stage compares contents by SHA-256 elsewhere.
func blobID(content []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(content))
	h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

// index returns git's index line, with full names where git apply needs them.
func (d *differ) index(a, b string, before, after side) string {
	if before.node.Kind == tree.Absent {
		a = noBlob
	}
	if after.node.Kind == tree.Absent {
		b = noBlob
	}
	if !d.patch {
		a, b = a[:7], b[:7]
	}
	l := "index " + a + ".." + b
	if before.node.Kind == after.node.Kind && gitMode(before.node) == gitMode(after.node) {
		l += " " + gitMode(after.node)
	}
	return l
}

// context is the number of unchanged lines around a change.
const contextLines = 3

// hunks writes the edits that turn a into b.
func (d *differ) hunks(a, b []string, edits []lcs.Diff) {
	for len(edits) > 0 {
		n := 1
		for n < len(edits) && edits[n].Start-edits[n-1].End <= 2*contextLines {
			n++
		}
		d.hunk(a, b, edits[:n])
		edits = edits[n:]
	}
}

func (d *differ) hunk(a, b []string, edits []lcs.Diff) {
	first, last := edits[0], edits[len(edits)-1]
	lead := min(contextLines, first.Start)
	trail := min(contextLines, len(a)-last.End)
	a0, a1 := first.Start-lead, last.End+trail
	b0, b1 := first.ReplStart-lead, last.ReplEnd+trail
	d.line(cyan, fmt.Sprintf("@@ -%s +%s @@", span(a0, a1), span(b0, b1)))
	at := a0
	for _, e := range edits {
		d.text(' ', plain, a[at:e.Start])
		d.text('-', red, a[e.Start:e.End])
		d.text('+', green, b[e.ReplStart:e.ReplEnd])
		at = e.End
	}
	d.text(' ', plain, a[at:a1])
}

// span writes lines from to to, counted from 0, as a hunk's header does.
func span(from, to int) string {
	switch to - from {
	case 0:
		return fmt.Sprintf("%d,0", from)
	case 1:
		return fmt.Sprint(from + 1)
	}
	return fmt.Sprintf("%d,%d", from+1, to-from)
}

func (d *differ) text(mark byte, colour string, text []string) {
	for _, l := range text {
		l, ended := strings.CutSuffix(l, "\n")
		d.line(colour, string(mark)+l)
		if !ended {
			d.line(plain, `\ No newline at end of file`)
		}
	}
}

// binary writes a pair that is not text, or too large to be shown as text.
func (d *differ) binary(it *item, before, after side) error {
	if d.patch {
		return d.gitBinary(before, after)
	}
	what := "Binary"
	if before.node.Size > maxText || after.node.Size > maxText {
		what = "Large"
	}
	d.line(plain, fmt.Sprintf("%s files %s and %s differ (%s, %s)", what,
		label("a/", before), label("b/", after), Bytes(before.node.Size), Bytes(after.node.Size)))
	return nil
}

// streamID is blobID of a file of any size, read once.
func (s side) streamID() (string, error) {
	if s.node.Kind != tree.File {
		return blobID([]byte(s.node.Target)), nil
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", s.node.Size)
	err := s.stream(func(r io.Reader) error {
		n, err := io.Copy(h, r)
		if err == nil && n != s.node.Size {
			err = errMoved
		}
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}
