package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"stage/bundle"
	"stage/cmd/internal/render"
	"stage/cmd/internal/store"
	"stage/fs/overlay"
)

// readDrift looks which files that the Job read, and did not change, are others in the workspace now:
// by stat alone. Jobs of older versions kept no account of what they read.
func readDrift(job *store.Job, root bundle.Root, st *Staged) (d render.ReadDrift, err error) {
	file, err := os.Open(job.Reads(root.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	defer file.Close() // read only
	err = overlay.LoadReads(file, func(r overlay.Read) {
		d.More += r.More
		if r.More > 0 || !st.Untouched(r.Path) {
			return
		}
		if n, err := st.StatBase(r.Path); err != nil || !r.Same(n) {
			d.Paths = append(d.Paths, r.Path)
		}
	})
	if err != nil {
		return d, fmt.Errorf("log of reads of %q: %w", root.Name, err)
	}
	return d, nil
}
