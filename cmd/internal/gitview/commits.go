package gitview

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"io"
	"strings"

	"stage/fs/tree"
)

// Bounds on what is read to name commits.
const (
	maxCommits = 50
	maxCommit  = 1 << 20 // bytes of one commit object, unpacked
)

// Commit is one commit that the Job made.
type Commit struct {
	ID, Subject string
}

// errNoCommit: the object is no loose commit that the Job added, or a damaged one.
var errNoCommit = errors.New("no commit")

// commits fills in the commits between the old and the new value of each branch, as far as they are
// loose objects that the Job added.
func (s *summarizer) commits(ctx context.Context) error {
	for i := range s.sum.Refs {
		r := &s.sum.Refs[i]
		queue, seen := []string{r.New}, map[string]bool{r.Old: true, "": true}
		for len(queue) > 0 && len(r.Commits) < maxCommits {
			if err := ctx.Err(); err != nil {
				return err
			}
			id := queue[0]
			queue = queue[1:]
			if seen[id] || !s.objects[id] {
				continue
			}
			seen[id] = true
			c, parents, err := s.commit(id)
			if err != nil {
				continue // a tag, or damaged: the reference's move is told all the same
			}
			r.Commits = append(r.Commits, c)
			queue = append(queue, parents...)
		}
	}
	return nil
}

// commit reads a loose commit object: zlib("commit <size>\0" headers "\n" message).
func (s *summarizer) commit(id string) (Commit, []string, error) {
	p, err := s.path("objects/" + id[:2] + "/" + id[2:])
	if err != nil {
		return Commit{}, nil, err
	}
	text, err := s.inflate(p)
	if err != nil {
		return Commit{}, nil, err
	}
	head, body, ok := strings.Cut(text, "\x00")
	if !ok || !strings.HasPrefix(head, "commit ") {
		return Commit{}, nil, errNoCommit
	}
	headers, message, _ := strings.Cut(body, "\n\n")
	var parents []string
	for l := range strings.Lines(headers) {
		if parent, ok := strings.CutPrefix(strings.TrimSuffix(l, "\n"), "parent "); ok {
			parents = append(parents, parent)
		}
	}
	subject, _, _ := strings.Cut(message, "\n")
	return Commit{ID: id, Subject: subject}, parents, nil
}

func (s *summarizer) inflate(p tree.Path) (string, error) {
	data, err := readContent(p, s.contents.OpenNew, maxCommit)
	if err != nil {
		return "", err
	}
	z, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(z, maxCommit))
	return string(text), errors.Join(err, z.Close())
}
