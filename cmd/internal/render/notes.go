package render

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"stage/fs/tree"
)

// notes returns what git's form of a diff cannot say about an item, one sentence each.
func notes(it *item) []string {
	var n []string
	name := QuoteName(it.path.String())
	if it.entry != nil && it.entry.UnknownBase {
		n = append(n, "base unknown, its record was lost: "+name)
	}
	if it.entry != nil && it.entry.Drift && it.entry.Path == it.path {
		n = append(n, "changed in the workspace since the run: "+name)
	}
	for _, s := range []struct {
		node tree.Node
		verb string
	}{{it.base, "removed"}, {it.now, "created"}} {
		if k := s.node.Kind; k != tree.Absent && k != tree.File && k != tree.Symlink && it.base.Kind != it.now.Kind {
			n = append(n, s.verb+" "+k.String()+": "+name)
		}
	}
	for _, d := range metadata(it) {
		if d != modeChange(it.base, it.now) || !gitSaysMode(it.base, it.now) {
			n = append(n, d+": "+name)
		}
	}
	if it.entry != nil && it.entry.LinkGroup > 0 && it.entry.Path == it.path {
		n = append(n, fmt.Sprintf("hard link group %d: %s", it.entry.LinkGroup, name))
	}
	return n
}

// metadata returns what changed about mode, owner, extended attributes and set times of a path that
// was there before and is there now, and what is special about a new one.
func metadata(it *item) []string {
	a, b := it.base, it.now
	if it.guess && b.Kind == tree.Dir {
		return []string{fmt.Sprintf("mode, owner or attributes changed, now %04o %d:%d", uint32(b.Mode), b.UID, b.GID)}
	}
	if a.Kind == tree.Absent || b.Kind == tree.Absent {
		return special(b)
	}
	var d []string
	if b.Kind != tree.Symlink && a.Kind == b.Kind && a.Mode != b.Mode {
		d = append(d, modeChange(a, b))
	}
	if a.UID != b.UID || a.GID != b.GID {
		d = append(d, fmt.Sprintf("owner %d:%d -> %d:%d", a.UID, a.GID, b.UID, b.GID))
	}
	d = append(d, xattrs(a.Xattrs, b.Xattrs)...)
	if it.entry != nil && it.entry.Path == it.path && it.entry.TimesSet && a.Mtime != b.Mtime {
		t, err := b.Mtime.MarshalText()
		if err == nil {
			d = append(d, "mtime set to "+string(t))
		}
	}
	return d
}

func modeChange(a, b tree.Node) string {
	return fmt.Sprintf("mode %04o -> %04o", uint32(a.Mode), uint32(b.Mode))
}

// gitSaysMode reports whether git's header lines tell all of a change of mode.
func gitSaysMode(a, b tree.Node) bool {
	plain := func(n tree.Node) bool { return n.Kind == tree.File && (n.Mode == 0o644 || n.Mode == 0o755) }
	return plain(a) && plain(b)
}

// special names the mode bits and attributes of a new node that deserve a look.
func special(n tree.Node) []string {
	var d []string
	if n.Kind != tree.Absent && n.Kind != tree.Symlink && n.Mode&0o7000 != 0 {
		d = append(d, fmt.Sprintf("mode %04o", uint32(n.Mode)))
	}
	return append(d, xattrs(nil, n.Xattrs)...)
}

func xattrs(a, b tree.Xattrs) []string {
	all := maps.Clone(a)
	if all == nil {
		all = tree.Xattrs{}
	}
	maps.Copy(all, b)
	var d []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		old, was := a[name]
		now, is := b[name]
		switch {
		case !was:
			d = append(d, "xattr "+QuoteName(name)+" added")
		case !is:
			d = append(d, "xattr "+QuoteName(name)+" removed")
		case !bytes.Equal(old, now):
			d = append(d, "xattr "+QuoteName(name)+" changed")
		}
	}
	return d
}

// Bytes writes a size for people: "512 B", "1.5 KiB", "3.0 GiB".
func Bytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v := float64(n)
	units := "KMGTPE"
	i := -1
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}

// Plural writes a number with its noun: "1 file", "2 files".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "y") {
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(noun, "y"))
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
