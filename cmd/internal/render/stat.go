package render

import (
	"context"
	"fmt"
	"strings"
)

// statWidth is the width git's --stat fills when it does not write to a terminal.
const statWidth = 80

// statLine is one line of --stat before it is laid out.
type statLine struct {
	name  string
	count lineCount
}

// Stat writes git's --stat: per file a count and a bar, then the sum. Directories have no line.
func Stat(ctx context.Context, s *Screen, r *Review) error {
	items, err := r.expanded(ctx)
	if err != nil {
		return err
	}
	var l []statLine
	for i := range items {
		if err := ctx.Err(); err != nil {
			return err
		}
		if items[i].isDir() {
			continue // a directory has no lines
		}
		c, err := r.count(&items[i], maxText)
		if err != nil {
			return err
		}
		l = append(l, statLine{statName(&items[i]), c})
	}
	p := newPrinter(s)
	layoutOf(l).write(p, l)
	statSum(p, l)
	return p.w.Flush()
}

// statName is the name --stat gives an item; a rename shares what its two paths have in common:
// "a/{b => c}/d", as git's pprint_rename.
func statName(it *item) string {
	to := it.path.String()
	if it.letter != 'R' {
		return QuoteName(to)
	}
	from := it.from.String()
	if QuoteName(from) != from || QuoteName(to) != to {
		return QuoteName(from) + " => " + QuoteName(to)
	}
	head := 0
	for i := 0; i < len(from) && i < len(to) && from[i] == to[i]; i++ {
		if from[i] == '/' {
			head = i + 1
		}
	}
	// The common tail begins with a slash, which may be the one that ends the head.
	least := head
	if least > 0 {
		least--
	}
	tail := 0
	for i := 1; i <= len(from)-least && i <= len(to)-least && from[len(from)-i] == to[len(to)-i]; i++ {
		if from[len(from)-i] == '/' {
			tail = i
		}
	}
	if head+tail == 0 {
		return from + " => " + to
	}
	middle := func(s string) string { return s[head:max(head, len(s)-tail)] }
	return from[:head] + "{" + middle(from) + " => " + middle(to) + "}" + from[len(from)-tail:]
}

// statLayout holds the widths of --stat's columns.
type statLayout struct{ name, number, graph, most int }

// layoutOf divides the width as git's show_stats does.
func layoutOf(l []statLine) statLayout {
	w := statLayout{}
	bin := 0
	for _, s := range l {
		w.name = max(w.name, len(s.name))
		if !s.count.known {
			bin = max(bin, 14+len(fmt.Sprint(s.count.old))+len(fmt.Sprint(s.count.now)))
			w.number = max(w.number, 3)
			continue
		}
		w.most = max(w.most, s.count.added+s.count.deleted)
	}
	w.number = max(w.number, len(fmt.Sprint(w.most)))
	w.graph = max(w.most, bin-4)
	if w.name+w.number+6+w.graph <= statWidth {
		return w
	}
	if most := statWidth*3/8 - w.number - 6; w.graph > most {
		w.graph = max(6, most)
	}
	if left := statWidth - w.number - 6 - w.graph; w.name > left {
		w.name = left
	} else {
		w.graph = statWidth - w.number - 6 - w.name
	}
	return w
}

func (w statLayout) write(p *printer, l []statLine) {
	for _, s := range l {
		name := s.name
		if len(name) > w.name {
			name = name[len(name)-w.name+3:]
			if i := strings.IndexByte(name, '/'); i >= 0 {
				name = name[i:]
			}
			name = "..." + name
		}
		fmt.Fprintf(p.w, " %-*s | ", w.name, name)
		if !s.count.known {
			fmt.Fprintf(p.w, "%*s %s -> %s bytes\n", w.number, "Bin", p.paint(red, fmt.Sprint(s.count.old)), p.paint(green, fmt.Sprint(s.count.now)))
			continue
		}
		n := s.count.added + s.count.deleted
		plus, minus := w.bars(s.count)
		fmt.Fprintf(p.w, "%*d", w.number, n)
		if n > 0 {
			p.w.WriteString(" " + p.paint(green, strings.Repeat("+", plus)) + p.paint(red, strings.Repeat("-", minus)))
		}
		p.w.WriteByte('\n')
	}
}

// bars returns the lengths of the two bars.
func (w statLayout) bars(c lineCount) (plus, minus int) {
	if w.graph > w.most {
		return c.added, c.deleted
	}
	total := w.scale(c.added + c.deleted)
	if total < 2 && c.added > 0 && c.deleted > 0 {
		total = 2
	}
	if c.added < c.deleted {
		plus = w.scale(c.added)
		return plus, total - plus
	}
	minus = w.scale(c.deleted)
	return total - minus, minus
}

func (w statLayout) scale(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + n*(w.graph-1)/w.most
}

// statSum writes the last line; nothing when nothing changed.
func statSum(p *printer, l []statLine) {
	if len(l) == 0 {
		return
	}
	var added, deleted int
	for _, s := range l {
		added += s.count.added
		deleted += s.count.deleted
	}
	fmt.Fprintf(p.w, " %s changed", Plural(len(l), "file"))
	if added > 0 || deleted == 0 {
		fmt.Fprintf(p.w, ", %s(+)", Plural(added, "insertion"))
	}
	if deleted > 0 || added == 0 {
		fmt.Fprintf(p.w, ", %s(-)", Plural(deleted, "deletion"))
	}
	p.w.WriteByte('\n')
}
