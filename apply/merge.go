package apply

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"stage/fs/hostfs"
	"stage/fs/judge"
	"stage/fs/tree"
)

// MergeMode says what Apply makes of a text file that both the Job and somebody else changed.
type MergeMode uint8

// The modes.
const (
	MergeNone    MergeMode = iota // it is a conflict
	MergeText                     // what both did is published, unless they changed the same lines
	MergeMarkers                  // then too, with both between conflict markers
)

// maxMerge is how large a file may be that is merged, in bytes; larger ones have no preimage.
const maxMerge = 8 << 20

// mergedSource is a Source in which some files have a merged content.
type mergedSource struct {
	Source
	texts map[tree.Path][]byte
}

// OpenNew opens the merged content of p, if it has one.
func (m *mergedSource) OpenNew(p tree.Path) (hostfs.File, error) {
	if text, ok := m.texts[p]; ok {
		return hostfs.Anonymous(p.Base(), text)
	}
	return m.Source.OpenNew(p)
}

// merge tries to make of a conflict over change i a change of what the target has now, which is then
// clean. Where that cannot be, pr says why.
func (p *plan) merge(ctx context.Context, i int, pr PathResult) (PathResult, error) {
	c, f := p.all[i], p.found[p.all[i].Path]
	m, err := p.merged(ctx, c, f)
	var no *noMerge
	switch {
	case errors.As(err, &no):
		pr.Why = fmt.Sprintf("%s: %s", pr.Why, no.why)
		return pr, nil
	case err != nil:
		return pr, fmt.Errorf("merge %q: %w", c.Path, err)
	}
	p.texts.texts[c.Path] = m.text
	staged := c.New
	p.staged[c.Path] = &staged
	c.Base, c.New = m.found, m.node
	p.all[i] = c
	f.Found, f.Judgement = m.found, tree.Judgement{Verdict: tree.Clean, Why: m.why()}
	p.found[c.Path] = f
	return PathResult{Path: c.Path, Verdict: tree.Clean, Why: m.why(), Base: pr.Base, Found: m.found, Marked: m.conflicts}, nil
}

// noMerge says why two versions of a file cannot be merged.
type noMerge struct{ why string }

func (e *noMerge) Error() string { return e.why }

// mergedFile is the result of a merge.
type mergedFile struct {
	text      []byte
	conflicts int
	found     tree.Node // what the target has, with its digest
	node      tree.Node // what it is to have
}

func (m *mergedFile) why() string {
	if m.conflicts > 0 {
		return fmt.Sprintf("merged, with conflict markers at %d places", m.conflicts)
	}
	return "merged with what the workspace has"
}

func (p *plan) merged(ctx context.Context, c tree.Change, f judge.Finding) (*mergedFile, error) {
	if why := mergeable(c, f); why != "" {
		return nil, &noMerge{why}
	}
	m := &mergedFile{found: f.Found, node: c.New}
	if err := m.mergeMeta(c.Base, f.Found, c.New); err != nil {
		return nil, err
	}
	base, err := p.baseText(ctx, c)
	if err != nil {
		return nil, err
	}
	ours, err := p.targetText(c.Path)
	if err != nil {
		return nil, err
	}
	theirs, err := readText(func() (hostfs.File, error) { return p.o.Source.OpenNew(c.Path) })
	if err != nil {
		return nil, err
	}
	m.found.Digest = tree.DigestBytes(ours)
	text, n := merge3(string(base), string(ours), string(theirs), marks{"workspace", "before job " + p.o.Job, "job " + p.o.Job})
	if n > 0 && p.o.Merge != MergeMarkers {
		return nil, &noMerge{fmt.Sprintf("both changed the same lines at %d places (--merge=markers writes both)", n)}
	}
	m.text, m.conflicts = []byte(text), n
	m.node.Size, m.node.Digest = int64(len(text)), tree.DigestBytes(m.text)
	m.node.Mtime = tree.Time(time.Now().UnixNano()) // newer than both, for make
	return m, nil
}

// mergeable returns why c, a conflict with what was found, cannot be merged at all, "" if it may.
func mergeable(c tree.Change, f judge.Finding) string {
	_, inGit := gitDirOf(c.Path)
	switch {
	case c.UnknownBase:
		return "no merge without a base"
	case c.Base.Kind != tree.File || c.New.Kind != tree.File || f.Found.Kind != tree.File || c.RenameFrom != nil || f.At != c.Path:
		return "only a file that both sides changed in place can be merged"
	case c.LinkGroup != 0 || f.Found.Nlink > 1:
		return "a file with several names is not merged"
	case inGit:
		return "git's own files are not merged"
	case c.Base.Digest == "":
		return "no merge: the content before is not known"
	}
	return ""
}

// mergeMeta merges mode, owner and extended attributes: of each, what one side alone changed holds.
func (m *mergedFile) mergeMeta(base, ours, theirs tree.Node) error {
	var ok [3]bool
	m.node.Mode, ok[0] = either(base.Mode, ours.Mode, theirs.Mode)
	owner := func(n tree.Node) [2]uint32 { return [2]uint32{n.UID, n.GID} }
	id, idOK := either(owner(base), owner(ours), owner(theirs))
	m.node.UID, m.node.GID, ok[1] = id[0], id[1], idOK
	switch {
	case ours.Xattrs.Own().Equal(base.Xattrs.Own()), ours.Xattrs.Own().Equal(theirs.Xattrs.Own()):
		m.node.Xattrs, ok[2] = theirs.Xattrs, true
	case theirs.Xattrs.Own().Equal(base.Xattrs.Own()):
		m.node.Xattrs, ok[2] = ours.Xattrs, true
	}
	if !ok[0] || !ok[1] || !ok[2] {
		return &noMerge{"both changed its mode, owner or attributes"}
	}
	return nil
}

// either returns what one of two sides made of base, or both alike.
func either[T comparable](base, ours, theirs T) (v T, ok bool) {
	if ours == base || ours == theirs {
		return theirs, true
	}
	return ours, theirs == base
}

// baseText reads what the base of c held, if that was kept.
func (p *plan) baseText(ctx context.Context, c tree.Change) ([]byte, error) {
	pre, ok := p.source.(Preimages)
	if !ok {
		return nil, &noMerge{"no merge: the content before was not kept"}
	}
	text, err := readText(judge.Checked(ctx, func() (hostfs.File, error) { return pre.OpenPreimage(c.Path) }, c.Base.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &noMerge{"no merge: the content before was not kept"}
	}
	return text, err
}

func (p *plan) targetText(at tree.Path) (text []byte, err error) {
	err = within(p.o.Target, at, func(d hostfs.Dir, name string) error {
		text, err = readText(func() (hostfs.File, error) { return d.Open(name) })
		return err
	})
	return text, err
}

// readText reads a text of at most maxMerge bytes. What has a NUL among its first 8,000 bytes is
// none, as for git.
func readText(open func() (hostfs.File, error)) ([]byte, error) {
	f, err := open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxMerge+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxMerge:
		return nil, &noMerge{"too large to be merged: both versions are kept, the Job's in the Job"}
	case bytes.IndexByte(text[:min(len(text), 8000)], 0) >= 0:
		return nil, &noMerge{"binary files are not merged: both versions are kept, the Job's in the Job"}
	}
	return text, nil
}
