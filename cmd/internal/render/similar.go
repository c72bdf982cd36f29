package render

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"slices"

	"stage/fs/tree"
)

// Rename detection by content is bounded as git's is: above these nothing is compared.
const (
	maxSimilarPairs = 40_000
	maxSimilarSize  = 1 << 20
	maxSimilarRead  = 64 << 20
	maxScore        = 60000 // git's MAX_SCORE
	minScore        = maxScore / 2
)

// similar turns pairs of a deleted and an added file with similar content into renames, and gives
// recorded renames their similarity.
func (l *layout) similar(ctx context.Context) error {
	for i := range l.items {
		if it := &l.items[i]; it.letter == 'R' && it.score == 0 {
			l.score(it)
		}
	}
	m := &matcher{l: l}
	for i, it := range l.items {
		switch {
		case it.letter == 'D' && l.r.before(&it).inGitPatch():
			m.old = append(m.old, candidate{i: i, side: l.r.before(&it)})
		case it.letter == 'A' && l.r.after(&it).inGitPatch():
			m.now = append(m.now, candidate{i: i, side: l.r.after(&it)})
		}
	}
	if len(m.old)*len(m.now) > maxSimilarPairs {
		m.dropVolume()
	}
	if len(m.old) == 0 || len(m.now) == 0 || len(m.old)*len(m.now) > maxSimilarPairs {
		return nil
	}
	if err := m.match(ctx); err != nil {
		return err
	}
	l.items = slices.DeleteFunc(l.items, func(it item) bool { return it.letter == 'D' && l.gone[it.path] })
	return nil
}

// score computes the similarity of a recorded rename whose sides are not known to be the same. It
// stays 0 for what is too large to compare or can no longer be read.
func (l *layout) score(it *item) {
	if it.now.Kind != tree.File {
		it.score = 100
		return
	}
	a, whole, err := l.r.before(it).read(maxText)
	if err != nil || !whole {
		return
	}
	b, whole, err := l.r.after(it).read(maxText)
	if err != nil || !whole {
		return
	}
	if bytes.Equal(a, b) {
		it.score = 100
		return
	}
	it.score = similarity(spansOf(a), spansOf(b), len(a), len(b)) * 100 / maxScore
}

// candidate is one half of a possible rename.
type candidate struct {
	i     int
	side  side
	data  []byte
	sum   [sha256.Size]byte
	spans map[uint32]int
	done  bool
}

// matcher pairs deleted with added items.
type matcher struct {
	l        *layout
	old, now []candidate
	read     int64
}

// dropVolume leaves out what the list collapses, so that a node_modules does not crowd out the rest.
func (m *matcher) dropVolume() {
	isVolume := func(c candidate) bool {
		_, ok := collapse(c.side.path, m.l.r.Tracked)
		return ok
	}
	m.old, m.now = slices.DeleteFunc(m.old, isVolume), slices.DeleteFunc(m.now, isVolume)
}

func (m *matcher) match(ctx context.Context) error {
	if err := m.load(ctx); err != nil {
		return err
	}
	m.exact()
	type pair struct{ old, now, score int }
	var pairs []pair
	for i := range m.old {
		if err := ctx.Err(); err != nil {
			return err
		}
		for j := range m.now {
			a, b := &m.old[i], &m.now[j]
			if a.done || b.done || a.spans == nil || b.spans == nil {
				continue
			}
			if s := similarity(a.spans, b.spans, len(a.data), len(b.data)); s >= minScore {
				pairs = append(pairs, pair{i, j, s})
			}
		}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(b.score, a.score) })
	for _, p := range pairs {
		if a, b := &m.old[p.old], &m.now[p.now]; !a.done && !b.done {
			m.pair(a, b, p.score*100/maxScore)
		}
	}
	return nil
}

// load reads what can have a partner at all: content above the limits has none.
func (m *matcher) load(ctx context.Context) error {
	for _, list := range [][]candidate{m.old, m.now} {
		for i := range list {
			c := &list[i]
			if err := ctx.Err(); err != nil {
				return err
			}
			if m.read += c.side.node.Size; m.read > maxSimilarRead {
				return nil
			}
			data, whole, err := c.side.read(maxSimilarSize)
			if err != nil || !whole {
				continue // a pair that cannot be compared is no rename
			}
			c.data, c.sum = data, sha256.Sum256(data)
			if c.side.node.Kind == tree.File {
				c.spans = spansOf(data)
			}
		}
	}
	return nil
}

// exact pairs equal contents, those with the same last name first.
func (m *matcher) exact() {
	for _, sameName := range []bool{true, false} {
		for j := range m.now {
			b := &m.now[j]
			i := slices.IndexFunc(m.old, func(a candidate) bool {
				return !a.done && !b.done && a.data != nil && b.data != nil && a.sum == b.sum && a.side.node.Kind == b.side.node.Kind &&
					(!sameName || a.side.path.Base() == b.side.path.Base())
			})
			if i >= 0 {
				m.pair(&m.old[i], b, 100)
			}
		}
	}
}

func (m *matcher) pair(a, b *candidate, score int) {
	a.done, b.done = true, true
	it := &m.l.items[b.i]
	m.l.gone[a.side.path] = true
	it.letter, it.score, it.from, it.base = 'R', score, a.side.path, a.side.node
}

// spansOf counts the bytes of data by the hash of the line, or piece of 64 bytes, they stand in,
// as git's diffcore-delta.c does, so that scores agree with git's.
func spansOf(data []byte) map[uint32]int {
	const base = 107927
	spans := map[uint32]int{}
	text := !isBinary(data)
	var a, b uint32
	n := 0
	add := func() {
		spans[(a+b*0x61)%base] += n
		n, a, b = 0, 0, 0
	}
	for i, c := range data {
		if text && c == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			continue
		}
		a, b = (a<<7^b>>25)+uint32(c), b<<7^a>>25
		if n++; n == 64 || c == '\n' {
			add()
		}
	}
	if n > 0 {
		add()
	}
	return spans
}

// similarity returns how much of the larger of two contents of a and b bytes comes from the other,
// from 0 to maxScore.
func similarity(from, to map[uint32]int, a, b int) int {
	size := max(a, b)
	if size == 0 {
		return 0
	}
	copied := 0
	for h, n := range from {
		copied += min(n, to[h])
	}
	return copied * maxScore / size
}
