package overlay

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Records reach the disk in order, but some seconds later than they are written; what they are about
// reaches the upper when the file system likes. After a power loss the log is therefore cut off
// somewhere behind the last sync, and the upper holds any part of what was done since. A node of the
// upper is vouched for only if
//
//	its base is recorded;
//	it lies in directories that the log knows by inode number and birth, so that no directory was
//	  moved, replaced or made by a record that is lost;
//	it is not a copy made since the last OpSynced, nor where such a copy was: content may be missing.
//
// All others are lost: their base is unknown. What was not synced and is only missing (a removal, a
// new file) is missing as after a power loss anywhere.

// BootID returns the random id of this boot of the machine (random(4)).
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Unsure reports whether, on the given boot, records and changes may be missing: the machine was
// started anew since they were written, and no OpClose says that all were durable. A log without
// any record tells nothing either.
func (s *State) Unsure(boot string) bool {
	return s.n == 0 || s.boot != "" && !s.closed && s.boot != boot
}

// Loss is an upper node that nothing vouches for.
type Loss struct {
	Path   tree.Path // in the view
	Tree   bool      // nor is what lies below it vouched for
	NoBase bool      // no record tells the base of Path
}

// Losses looks for the upper nodes that nothing vouches for, after a power loss.
func (s *State) Losses(lower, upper hostfs.Reader) ([]Loss, error) {
	l := losses{State: s, lower: lower}
	if s.Root.fresh > s.synced {
		l.found = append(l.found, Loss{})
	}
	if err := l.below(upper, s.Root, tree.Path{}, &tree.Path{}); err != nil {
		return nil, fmt.Errorf("look for what a power loss left: %w", err)
	}
	return l.found, nil
}

// losses is one search for them.
type losses struct {
	*State
	lower hostfs.Reader
	found []Loss
}

// below judges what is in the upper directory dir, at view path p, which shows workspace directory low.
func (l *losses) below(dir hostfs.Reader, m *Mark, p tree.Path, low *tree.Path) error {
	list, err := dir.ReadDir()
	if err != nil {
		return err
	}
	for _, e := range list {
		q, err := p.Child(e.Name)
		if err != nil {
			return err
		}
		c := m.Children[e.Name]
		if c == nil {
			c = &Mark{}
		}
		at := low
		switch {
		case c.Lower != nil: // says more than that what was there is gone
			at = c.Lower
		case c.Opaque || m.White[e.Name]:
			at = nil
		case low != nil:
			sub, err := low.Child(e.Name)
			if err != nil {
				return err
			}
			at = &sub
		}
		if err := l.judge(dir, c, q, at); err != nil {
			return err
		}
	}
	return nil
}

// judge judges the upper node at view path p, which lies in dir and covers workspace path low.
func (l *losses) judge(dir hostfs.Reader, m *Mark, p tree.Path, low *tree.Path) error {
	n, err := dir.Stat(p.Base())
	if err != nil {
		return err
	}
	_, at, based := l.BaseOf(p)
	fresh := m.fresh > l.synced
	if n.Kind != tree.Dir {
		if based && !fresh && at != p && m.fresh == 0 && low != nil {
			// Below a renamed directory the one record of a copy is OpCopy.
			if fresh, err = l.exists(*low); err != nil {
				return err
			}
		}
		if !based || fresh {
			l.found = append(l.found, Loss{Path: p, NoBase: !based})
		}
		return nil
	}
	id, err := dirIDOf(dir.Fd(), p.Base())
	if err != nil {
		return err
	}
	if !based || m.Dir == nil || *m.Dir != id {
		l.found = append(l.found, Loss{Path: p, Tree: true, NoBase: !based})
		return nil
	}
	if fresh {
		l.found = append(l.found, Loss{Path: p})
	}
	sub, err := dir.OpenDir(p.Base())
	if err != nil {
		return err
	}
	defer sub.Close()
	return l.below(sub, m, p, low)
}

// exists reports whether the workspace may have something at p.
func (l *losses) exists(p tree.Path) (bool, error) {
	dir, err := l.lower.OpenDirAt(p.Parent(), false)
	if err == nil {
		defer dir.Close()
		_, err = dir.Stat(p.Base())
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return false, nil
	case errors.Is(err, unix.EACCES):
		return true, nil
	}
	return true, err
}

// Lose notes in s that nothing vouches for l.
func (s *State) Lose(l Loss) error {
	for _, r := range l.records() {
		if err := s.Apply(r); err != nil {
			return err
		}
	}
	return nil
}

func (l Loss) records() []Record {
	recs := []Record{{Op: OpLost, Path: l.Path, Subtree: l.Tree}}
	if l.NoBase {
		recs = append(recs, Record{Op: OpBase, Path: l.Path, Lost: true})
	}
	return recs
}

// dirIDOf returns what tells directory name in dirfd from any other.
func dirIDOf(dirfd int, name string) (DirID, error) {
	var st unix.Statx_t
	err := unix.Statx(dirfd, name, statFlags, unix.STATX_INO|unix.STATX_BTIME, &st)
	if err != nil {
		return DirID{}, err
	}
	id := DirID{Ino: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.Made = tree.Time(st.Btime.Sec*1e9 + int64(st.Btime.Nsec))
	}
	return id, nil
}
