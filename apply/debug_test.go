package apply_test

import (
	"stage/fs/tree"
)

func (w *world) changesOf(m map[tree.Path]tree.Node) string {
	r := w.job.Reader(m)
	l, err := r.Changes(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return describe(l)
}
