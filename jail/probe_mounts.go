package jail

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const canaryName = ".stage-canary"

func (w *world) mountRoot() *probe {
	p := w.probe("mount.root")
	root, _ := mountAt(w.rows, "/")
	p.same("mountinfo /", "tmpfs ro", root.Type+" "+writability(root))
	p.refused("create /"+canaryName, tryCreate("/"+canaryName), unix.EROFS)
	return p
}

func writability(r mountRow) string {
	if r.has("ro") {
		return "ro"
	}
	return "rw"
}

// mountHome proves that $HOME is not the host's, and that the places of other people's files are empty.
func (w *world) mountHome() *probe {
	p := w.probe("mount.home")
	home := lookupEnv(w.cfg.Env, "HOME")
	if cover, ok := w.covering(home); ok && cover != Empty && cover != Tmpfs && cover != Kept {
		return p.limit(Unenforced, "the home directory is shown because it was asked for")
	}
	want := fmt.Sprintf("not %d:%d", w.order.Host.Home.Dev, w.order.Host.Home.Ino)
	id, err := identify(home)
	got := fmt.Sprintf("%d:%d", id.Dev, id.Ino)
	if err != nil {
		got = errnoName(err)
	}
	p.judge("stat "+home, want, got, id != w.order.Host.Home || id == fileID{})
	for _, dir := range []string{"/root", "/mnt", "/media", "/srv"} {
		if _, shown := w.covering(dir); !shown && !w.containsMount(dir) {
			p.refused("list "+dir, tryList(dir), unix.ENOENT, unix.EACCES)
		}
	}
	return p
}

// covering returns what the innermost mount at or above p is.
func (w *world) covering(p string) (kind Kind, ok bool) {
	best := ""
	for _, m := range placements(w.cfg) {
		if isBelow(p, m.Dest) && len(m.Dest) > len(best) {
			best, kind, ok = m.Dest, m.Kind, true
		}
	}
	for _, v := range w.cfg.Views {
		if isBelow(p, v.Dest) && len(v.Dest) > len(best) {
			best, kind, ok = v.Dest, Bind, true
		}
	}
	return kind, ok
}

// containsMount tells whether something was asked for below dir.
func (w *world) containsMount(dir string) bool {
	for _, m := range placements(w.cfg) {
		if isBelow(m.Dest, dir) {
			return true
		}
	}
	return slices.ContainsFunc(w.cfg.Views, func(v View) bool { return isBelow(v.Dest, dir) })
}

func identify(name string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return fileID{}, err
	}
	return fileID{Dev: uint64(st.Dev), Ino: st.Ino}, nil
}

func (w *world) maskSecrets() *probe {
	p := w.probe("mask.secrets")
	found := false
	for i, m := range w.cfg.Mounts {
		if m.Kind != Mask {
			continue
		}
		found = true
		if !slices.Contains(w.facts.Absent, i) {
			p.same("mountinfo "+m.Dest, "tmpfs ro nosuid nodev", w.describe(m.Dest))
		}
		p.refused("open "+m.Dest, tryOpen(m.Dest, unix.O_RDONLY), unix.EACCES, unix.ENOENT)
	}
	if !found {
		return nil
	}
	return p
}

// describe gives the type and the interesting flags of the mount at a place.
func (w *world) describe(dest string) string {
	row, ok := mountAt(w.rows, resolve(dest))
	if !ok {
		return "no mount"
	}
	text := row.Type + " " + writability(row)
	for _, flag := range []string{"nosuid", "nodev"} {
		if row.has(flag) {
			text += " " + flag
		}
	}
	return text
}

// resolve follows links, which mountinfo does not name.
func resolve(name string) string {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return name
	}
	defer unix.Close(fd)
	real, err := os.Readlink(fdPath(fd))
	if err != nil {
		return name
	}
	return real
}

func (w *world) fsStaged() *probe {
	if len(w.cfg.Views) == 0 {
		return nil
	}
	p := w.probe("fs.staged")
	for _, v := range w.cfg.Views {
		p.same("mountinfo "+v.Dest, "fuse.stage rw nosuid nodev", w.describe(v.Dest))
	}
	return p
}

func (w *world) mountReadonly() *probe {
	p := w.probe("mount.readonly")
	for i, m := range w.cfg.Mounts {
		if m.Kind != Bind || !m.ReadOnly || slices.Contains(w.facts.Absent, i) || slices.Contains(w.facts.Links, i) {
			continue
		}
		_, flags, _ := strings.Cut(w.describe(m.Dest), " ")
		p.same("mountinfo "+m.Dest, "ro nosuid nodev", flags)
		if isDirectoryAt(m.Dest) {
			file := path.Join(m.Dest, canaryName)
			p.refused("create "+file, tryCreate(file), unix.EROFS, unix.EACCES)
		}
	}
	p.refused("chmod /dev/null", unix.Chmod("/dev/null", 0o666), unix.EROFS)
	if w.cfg.Mode == Root {
		const knob = "/proc/sys/kernel/panic"
		p.refused("write "+knob, tryOpen(knob, unix.O_WRONLY), unix.EROFS)
	}
	return p
}

func isDirectoryAt(name string) bool {
	var st unix.Stat_t
	return unix.Stat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// mountShares proves that the writable parts of the host are the ones asked for, no more and no fewer.
func (w *world) mountShares() *probe {
	p := w.probe("mount.shares")
	private := []string{"/tmp", "/run", MarkerDir}
	var want, got []string
	for _, m := range placements(w.cfg) {
		switch {
		case m.Kind == Bind && !m.ReadOnly && !slices.Contains(w.facts.Absent, m.index):
			want = append(want, resolve(m.Dest))
		case m.Kind == Empty || m.Kind == Tmpfs || m.Kind == Kept:
			private = append(private, resolve(m.Dest))
		}
	}
	for _, v := range w.cfg.Views {
		private = append(private, resolve(v.Dest))
	}
	for _, row := range w.rows {
		own := slices.Contains(private, row.Point) || isBelow(row.Point, "/dev") || isBelow(row.Point, "/proc") || row.Point == "/var/run"
		top, _ := mountAt(w.rows, row.Point)
		if row.has("ro") || own || top.has("ro") || w.inShare(row.Point, want) {
			continue
		}
		got = append(got, row.Point)
	}
	for _, dest := range want {
		if row, ok := mountAt(w.rows, dest); ok && !row.has("ro") {
			got = append(got, dest)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	p.same("mountinfo, writable host directories", list(want), list(got))
	w.ownStreams(p)
	return p
}

// ownStreams proves that no standard stream is a file of the host: what is open can be opened again.
func (w *world) ownStreams(p *probe) {
	var pts unix.Stat_t
	p.check(unix.Stat("/dev/pts", &pts))
	for i, f := range w.streams {
		fd := int(f.Fd())
		var st unix.Stat_t
		p.check(unix.Fstat(fd, &st))
		link, err := os.Readlink(fdPath(fd))
		p.check(err)
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFCHR:
			got := link
			if isAnonymousPipe(fd) {
				got = "pipe"
			}
			p.same(streamNames[i], "pipe", got)
		case st.Dev == pts.Dev:
			p.same(streamNames[i], link+" of the jail", link+" of the jail")
		default:
			p.same(streamNames[i], link+" ro", link+" "+mountedAs(fd))
			p.refused("chmod "+streamNames[i], unix.Fchmod(fd, st.Mode&0o7777), unix.EROFS)
		}
	}
}

func mountedAs(fd int) string {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) == nil && st.Flags&unix.ST_RDONLY != 0 {
		return "ro"
	}
	return "rw"
}

func (w *world) inShare(point string, shares []string) bool {
	return slices.ContainsFunc(shares, func(s string) bool { return isBelow(point, s) })
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " ")
}
