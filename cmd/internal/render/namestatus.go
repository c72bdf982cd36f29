package render

import (
	"context"
	"fmt"
)

// NameStatus writes git's --name-status: letter, tab, path; R with its similarity and two paths.
// With z fields and records end with NUL and names are bytes as they are.
func NameStatus(ctx context.Context, s *Screen, r *Review, z bool) error {
	items, err := r.expanded(ctx)
	if err != nil {
		return err
	}
	p := newPrinter(s)
	for i := range items {
		fields := nameStatus(&items[i])
		for j, f := range fields {
			switch {
			case z:
				p.w.WriteString(p.safe(f + "\x00"))
			case j == 0:
				p.w.WriteString(f)
			default:
				p.w.WriteString("\t" + QuoteName(f))
			}
		}
		if !z {
			p.w.WriteByte('\n')
		}
	}
	if z && p.tty {
		p.w.WriteByte('\n')
	}
	return p.w.Flush()
}

// nameStatus returns the fields of one record: git's letter, then one path or two.
func nameStatus(it *item) []string {
	switch {
	case it.letter == 'R':
		return []string{fmt.Sprintf("R%03d", it.score), it.from.String(), it.path.String()}
	case it.letter == 'm':
		return []string{"M", it.path.String()}
	}
	return []string{string(it.letter), it.path.String()}
}
