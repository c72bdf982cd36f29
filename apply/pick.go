package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Picker is asked what of the selected changes is to be published.
type Picker interface {
	// Whole asks about changes that are published together or not at all: one, or all of those within
	// one git directory.
	Whole(changes []tree.Change) (bool, error)
	// Text asks about a text that was changed in place, and returns what is to be published of it:
	// before for nothing, after for all.
	Text(c tree.Change, before, after string) (string, error)
}

// pick asks o.Pick about the changes in sel and returns what is selected then: what was picked, and
// what that cannot go without. A new or moved directory is not asked about: it comes with what is in it.
func (p *plan) pick(ctx context.Context, sel []bool) ([]bool, error) {
	out := make([]bool, len(sel))
	asked := map[tree.Path]bool{} // git directories
	for i, c := range p.all {
		if !sel[i] || p.holdsOthers(i, sel) {
			continue
		}
		git, inGit := gitDirOf(c.Path)
		if inGit && asked[git] {
			continue
		}
		asked[git] = inGit
		group := p.together(i, sel)
		yes, err := p.pickOne(ctx, i, group)
		if err != nil {
			return nil, fmt.Errorf("pick of %q: %w", c.Path, err)
		}
		for _, j := range group {
			out[j] = yes
		}
	}
	g := newGraph(p.all, p.source)
	g.close(out, g.needs)
	return out, nil
}

// holdsOthers reports whether change i makes a directory in which others are selected.
func (p *plan) holdsOthers(i int, sel []bool) bool {
	return p.all[i].New.Kind == tree.Dir && i+1 < len(sel) && sel[i+1] && p.all[i].Path.Contains(p.all[i+1].Path)
}

// together returns change i and those in sel that go with it.
func (p *plan) together(i int, sel []bool) []int {
	git, ok := gitDirOf(p.all[i].Path)
	if !ok {
		return []int{i}
	}
	var group []int
	for j := range p.all {
		if d, in := gitDirOf(p.all[j].Path); sel[j] && in && d == git {
			group = append(group, j)
		}
	}
	return group
}

func (p *plan) pickOne(ctx context.Context, i int, group []int) (bool, error) {
	if len(group) > 1 {
		return p.pickWhole(group)
	}
	c := p.all[i]
	before, after, ok, err := p.bothTexts(ctx, c)
	if err != nil {
		return false, err
	}
	if !ok {
		return p.pickWhole(group)
	}
	picked, err := p.o.Pick.Text(c, before, after)
	if err != nil || picked == before {
		return false, err
	}
	if picked != after {
		p.texts.texts[c.Path] = []byte(picked)
		c.New.Size, c.New.Digest = int64(len(picked)), tree.DigestBytes([]byte(picked))
		c.New.Mtime, c.TimesSet = tree.Time(time.Now().UnixNano()), false
		p.all[i] = c
	}
	return true, nil
}

// pickWhole asks about changes that go together.
func (p *plan) pickWhole(group []int) (bool, error) {
	var changes []tree.Change
	for _, i := range group {
		changes = append(changes, p.all[i])
	}
	return p.o.Pick.Whole(changes)
}

// bothTexts returns the content of c before and after where both are text and the file was changed in
// place.
func (p *plan) bothTexts(ctx context.Context, c tree.Change) (before, after string, ok bool, err error) {
	if c.Base.Kind != tree.File || c.New.Kind != tree.File || c.Base.Digest == c.New.Digest || c.LinkGroup != 0 || c.RenameFrom != nil {
		return "", "", false, nil
	}
	old, err := p.baseContent(ctx, c)
	if err == nil {
		var now []byte
		now, err = readText(func() (hostfs.File, error) { return p.source.OpenNew(c.Path) })
		before, after = string(old), string(now)
	}
	if errors.As(err, new(*noMerge)) {
		return "", "", false, nil
	}
	return before, after, err == nil, err
}

// baseContent reads what the base of c held, from the target if it still has that, else as it was
// kept.
func (p *plan) baseContent(ctx context.Context, c tree.Change) ([]byte, error) {
	n, err := nodeAt(p.o.Target, c.Path)
	if err != nil {
		return nil, err
	}
	if n.SameIdentity(c.Base) {
		text, err := p.targetText(c.Path)
		if err == nil || !errors.Is(err, fs.ErrPermission) {
			return text, err
		}
	}
	return p.baseText(ctx, c)
}
