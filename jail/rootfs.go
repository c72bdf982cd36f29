package jail

import (
	"errors"
	"fmt"
	"os"
	"path"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// Names in the holder's private tmpfs over WorkDir. Nothing of it is on the host's disk or in its mount table.
const (
	rootName  = "root"  // the jail's root file system
	viewsName = "views" // one FUSE mount per View
	laterName = "later" // mounts below a View, which only the container can attach: the view must be served by then
	stateName = "state" // libcontainer's
	emptyName = "empty" // an empty directory
	maskName  = "mask"  // a directory of mode 000 …
	blankName = "blank" // … and a file
)

const (
	// MarkerDir exists only inside a jail; it is a read-only mount that the command can neither move nor change.
	MarkerDir = "/run/stage"
	shimPath  = MarkerDir + "/shim"
)

// rootfs builds the jail's root file system in the holder's mount namespace.
type rootfs struct {
	cfg    Config
	work   int  // the private tmpfs
	dir    tree // its rootName
	hollow int  // its emptyName
	rows   []mountRow
	facts  holderFacts
	later  []string // destinations of laterName/<index>
}

// placement is a Mount of the Config, or one of the jail's own with index -1.
type placement struct {
	Mount
	index int
}

// newWorkspace covers WorkDir with a private tmpfs and returns it.
func newWorkspace(dir string) (int, error) {
	target, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open work directory", Path: dir, Err: err}
	}
	mount, err := newFilesystem("tmpfs", attrPrivate, "source=stage", "mode=0700")
	if err != nil {
		unix.Close(target)
		return -1, err
	}
	if err := attach(mount, target); err != nil {
		return -1, fmt.Errorf("cover work directory %q: %w", dir, err)
	}
	work, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open work directory", Path: dir, Err: err}
	}
	for name, mode := range map[string]uint32{
		rootName: 0o755, viewsName: 0o700, laterName: 0o700, stateName: 0o700, emptyName: 0o755, maskName: 0,
	} {
		if err := unix.Mkdirat(work, name, mode); err != nil {
			return -1, &os.PathError{Op: "make directory", Path: name, Err: err}
		}
	}
	if err := unix.Mknodat(work, blankName, unix.S_IFREG, 0); err != nil {
		return -1, &os.PathError{Op: "make file", Path: blankName, Err: err}
	}
	return work, nil
}

// build mounts everything but /proc and, in an own network namespace, /sys: they need the container's namespaces.
func (r *rootfs) build() error {
	var err error
	if r.dir.root, err = unix.Openat(r.work, rootName, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open root file system: %w", err)
	}
	if r.hollow, err = unix.Openat(r.work, emptyName, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open empty layer: %w", err)
	}
	if r.rows, err = readMounts(); err != nil {
		return err
	}
	for _, step := range []func() error{r.kernelDirs, r.devices, r.mounts, r.varRun, r.views} {
		if err := step(); err != nil {
			return err
		}
	}
	return r.shim()
}

func (r *rootfs) kernelDirs() error {
	for _, name := range []string{"/proc", "/sys"} {
		fd, err := r.dir.mkdir(name, 0o755)
		if err != nil {
			return err
		}
		unix.Close(fd)
	}
	if r.ownNetwork() {
		return nil
	}
	// sysfs shows the network namespace of whoever mounts it; without an own one only a copy is allowed.
	return r.bindTree("/sys", "/sys", attrReadOnly|unix.MOUNT_ATTR_NOEXEC)
}

func (r *rootfs) ownNetwork() bool { return r.cfg.Net != NetHost && r.cfg.Skip != "net.netns" }

func (r *rootfs) bindTree(source, dest string, attr uint64) error {
	fd, err := unix.Open(source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: source, Err: err}
	}
	defer unix.Close(fd)
	mount, err := cloneTree(fd, true, attr)
	if err != nil {
		return fmt.Errorf("bind %q: %w", source, err)
	}
	return r.dir.place(mount, dest, 0o755)
}

// devices makes /dev with the nodes every program may count on, as binds of the host's: a user namespace can
// make none.
func (r *rootfs) devices() error {
	dev, err := newFilesystem("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "source=stage", "mode=0755", "size=64k")
	if err != nil {
		return err
	}
	if err := r.dir.place(dev, "/dev", 0o755); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := r.device("/dev/" + name); err != nil {
			return err
		}
	}
	pts, err := newFilesystem("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "source=stage", "newinstance", "ptmxmode=0666", "mode=0620")
	if err != nil {
		return err
	}
	if err := r.dir.place(pts, "/dev/pts", 0o755); err != nil {
		return err
	}
	shm, err := newFilesystem("tmpfs", attrPrivate|unix.MOUNT_ATTR_NOEXEC, "source=stage", "mode=1777")
	if err != nil {
		return err
	}
	return r.dir.place(shm, "/dev/shm", 0o1777)
}

func (r *rootfs) device(name string) error {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open device", Path: name, Err: err}
	}
	defer unix.Close(fd)
	attr := uint64(attrDevice)
	if r.cfg.Skip == "mount.readonly" {
		attr &^= unix.MOUNT_ATTR_RDONLY
	}
	mount, err := cloneTree(fd, false, attr)
	if err != nil {
		return fmt.Errorf("bind %q: %w", name, err)
	}
	return r.dir.placeFile(mount, name)
}

func (r *rootfs) mounts() error {
	for _, p := range placements(r.cfg) {
		err := r.mount(p)
		switch {
		case err == nil:
		case p.Optional && isAbsent(err):
			r.facts.Absent = append(r.facts.Absent, p.index)
		default:
			return err
		}
	}
	return nil
}

// isAbsent tells errors that say "nothing there, or not for you".
func isAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES)
}

// placements returns the mounts of the jail in the order in which they are made: parents first.
func placements(cfg Config) []placement {
	var list []placement
	given := make(map[string]bool)
	for i, m := range cfg.Mounts {
		list = append(list, placement{m, i})
		given[m.Dest] = true
	}
	for _, m := range ownMounts(cfg) {
		if !given[m.Dest] {
			list = append(list, placement{m, -1})
		}
	}
	sort.SliceStable(list, func(i, j int) bool { return depth(list[i].Dest) < depth(list[j].Dest) })
	return list
}

// ownMounts are the directories that are private unless the Config says otherwise.
func ownMounts(cfg Config) []Mount {
	own := []Mount{
		{Dest: "/tmp", Kind: Empty, Mode: os.ModeSticky | 0o777},
		{Dest: "/run", Kind: Empty, Mode: 0o755},
	}
	if dir := lookupEnv(cfg.Env, "XDG_RUNTIME_DIR"); path.IsAbs(dir) && path.Clean(dir) != "/" {
		own = append(own, Mount{Dest: path.Clean(dir), Kind: Empty, Mode: 0o700})
	}
	return own
}

func lookupEnv(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(env[i], name+"="); ok {
			return value
		}
	}
	return ""
}

func depth(p string) int { return strings.Count(strings.TrimSuffix(p, "/"), "/") }

func (r *rootfs) mount(p placement) error {
	switch p.Kind {
	case Bind, Kept:
		return r.bind(p)
	case Empty, Tmpfs:
		return r.empty(p)
	case Mask:
		return r.mask(p)
	default:
		return fmt.Errorf("mount at %q: unknown kind %d", p.Dest, p.Kind)
	}
}

func (r *rootfs) empty(p placement) error {
	if p.Dest == lookupEnv(r.cfg.Env, "HOME") && r.cfg.Skip == "mount.home" {
		return r.bindTree(p.Dest, p.Dest, attrPrivate)
	}
	mode := modeBits(p.Mode)
	options := []string{"source=stage", fmt.Sprintf("mode=%o", mode)}
	if p.Size > 0 {
		options = append(options, fmt.Sprintf("size=%d", p.Size))
	}
	mount, err := newFilesystem("tmpfs", attrPrivate, options...)
	if err != nil {
		return err
	}
	return r.put(mount, p.Dest, true, mode)
}

func modeBits(m os.FileMode) uint32 {
	if m == 0 {
		return 0o755
	}
	bits := uint32(m.Perm())
	if m&os.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

// mask covers what is there. What is not there needs no cover: its parent is private or read-only.
func (r *rootfs) mask(p placement) error {
	if r.cfg.Skip == "mask.secrets" {
		return nil
	}
	target, err := r.dir.open(p.Dest)
	if isAbsent(err) {
		r.facts.Absent = append(r.facts.Absent, p.index)
		return nil
	}
	if err != nil {
		return err
	}
	name := blankName
	if isDirectory(target) {
		name = maskName
	}
	cover, err := unix.Openat(r.work, name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(target)
		return fmt.Errorf("open mask: %w", err)
	}
	defer unix.Close(cover)
	mount, err := cloneTree(cover, false, attrReadOnly|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		unix.Close(target)
		return err
	}
	if err := attach(mount, target); err != nil {
		return fmt.Errorf("mask %q: %w", p.Dest, err)
	}
	return nil
}

func isDirectory(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

func (r *rootfs) bind(p placement) error {
	if p.Kind == Bind && !p.ReadOnly && r.cfg.Skip == "mount.shares" {
		return nil
	}
	if done, err := r.copyLink(p); done || err != nil {
		return err
	}
	source, err := unix.Open(p.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: p.Source, Err: err}
	}
	defer unix.Close(source)
	if p.ReadOnly && isDirectory(source) && r.cfg.Skip != "mount.readonly" && r.cfg.Skip != "net.unix" {
		return r.bindSealed(p, source)
	}
	attr := uint64(attrPrivate)
	if p.ReadOnly && r.cfg.Skip != "mount.readonly" {
		attr = attrReadOnly
	}
	mount, err := cloneTree(source, true, attr)
	if err != nil {
		return fmt.Errorf("bind %q: %w", p.Source, err)
	}
	return r.put(mount, p.Dest, isDirectory(source), 0o755)
}

// copyLink repeats the links of a merged /usr (/bin → usr/bin): their targets are mounted on their own.
func (r *rootfs) copyLink(p placement) (done bool, err error) {
	if p.Source != p.Dest || depth(p.Dest) != 1 {
		return false, nil
	}
	target, err := os.Readlink(p.Source)
	if err != nil {
		return false, nil // no link, or nothing there: the bind finds out
	}
	r.facts.Links = append(r.facts.Links, p.index)
	return true, r.dir.symlink(target, p.Dest)
}

// bindSealed shows a directory without its sockets, and the mounts below it likewise.
func (r *rootfs) bindSealed(p placement, source int) error {
	if err := r.seal(source, p.Dest); err != nil {
		return fmt.Errorf("bind %q: %w", p.Source, err)
	}
	real, err := os.Readlink(fdPath(source))
	if err != nil {
		return fmt.Errorf("resolve %q: %w", p.Source, err)
	}
	seen := make(map[string]bool)
	for _, row := range r.rows {
		rel, below := strings.CutPrefix(row.Point, strings.TrimSuffix(real, "/")+"/")
		if !below || seen[row.Point] || isBelow(row.Point, r.cfg.WorkDir) {
			continue
		}
		seen[row.Point] = true
		if err := r.sealBelow(row.Point, path.Join(p.Dest, rel)); err != nil {
			return err
		}
	}
	return nil
}

func (r *rootfs) sealBelow(source, dest string) error {
	fd, err := unix.Open(source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = r.seal(fd, dest)
	}
	if err != nil && !isAbsent(err) {
		return fmt.Errorf("bind %q: %w", source, err)
	}
	return nil
}

// seal mounts one directory or file read-only, without the mounts below it. Where the kernel makes no overlay of
// a file system (case folding, automounts, too deep a stack) it is a plain bind, and the report says so.
func (r *rootfs) seal(source int, dest string) error {
	directory := isDirectory(source)
	if directory {
		if mount, err := sealed(source, r.hollow); err == nil {
			return r.put(mount, dest, true, 0o755)
		}
		r.facts.Unsealed = append(r.facts.Unsealed, dest)
	}
	mount, err := cloneTree(source, false, attrReadOnly)
	if errors.Is(err, unix.EINVAL) {
		// A user namespace may not uncover what a mount below covers (has_locked_children,
		// fs/namespace.c): it takes the directory with its mounts or not at all.
		mount, err = cloneTree(source, true, attrReadOnly)
	}
	if err != nil {
		return err
	}
	return r.put(mount, dest, directory, 0o755)
}

// put attaches a mount at dest, or keeps it for the container when dest lies in a view that nobody serves yet.
func (r *rootfs) put(mount int, dest string, directory bool, mode uint32) error {
	if !belowView(r.cfg.Views, dest) {
		if directory {
			return r.dir.place(mount, dest, mode)
		}
		return r.dir.placeFile(mount, dest)
	}
	name := fmt.Sprintf("/%d", len(r.later))
	r.later = append(r.later, dest)
	waiting, err := unix.Openat(r.work, laterName, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(mount)
		return fmt.Errorf("open waiting mounts: %w", err)
	}
	defer unix.Close(waiting)
	if directory {
		return tree{waiting}.place(mount, name, mode)
	}
	return tree{waiting}.placeFile(mount, name)
}

func belowView(views []View, dest string) bool {
	for _, v := range views {
		if dest != v.Dest && isBelow(dest, v.Dest) {
			return true
		}
	}
	return false
}

// isBelow tells whether p is dir or lies in it. Both are clean.
func isBelow(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// varRun makes /var/run the private /run even where the host has a directory of its own there.
func (r *rootfs) varRun() error {
	run, err := r.dir.open("/run")
	if err != nil {
		return err
	}
	defer unix.Close(run)
	found, err := r.dir.open("/var/run")
	if errors.Is(err, unix.ENOENT) {
		err := r.dir.symlink("../run", "/var/run")
		if errors.Is(err, unix.EROFS) {
			return nil // a read-only /var without it stays without it
		}
		return err
	}
	if err != nil {
		return err
	}
	if sameFile(run, found) {
		unix.Close(found)
		return nil
	}
	mount, err := newFilesystem("tmpfs", attrPrivate, "source=stage", "mode=0755")
	if err != nil {
		unix.Close(found)
		return err
	}
	return attach(mount, found)
}

func sameFile(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// views puts the FUSE mounts at their places, outer ones first. Opening with O_PATH sends no request.
func (r *rootfs) views() error {
	if r.cfg.Skip == "fs.staged" {
		return nil
	}
	order := make([]int, len(r.cfg.Views))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool {
		return depth(r.cfg.Views[order[i]].Dest) < depth(r.cfg.Views[order[j]].Dest)
	})
	for _, i := range order {
		source, err := unix.Openat(r.work, viewPath(i), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open view %s: %w", r.cfg.Views[i].Name, err)
		}
		mount, err := cloneTree(source, false, attrPrivate)
		unix.Close(source)
		if err != nil {
			return fmt.Errorf("bind view %s: %w", r.cfg.Views[i].Name, err)
		}
		if err := r.put(mount, r.cfg.Views[i].Dest, true, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func viewPath(i int) string { return fmt.Sprintf("%s/%d", viewsName, i) }

// shim mounts this program as the jail's first process, in a read-only directory that is a mount point: the
// command can neither write to it nor rename it away.
func (r *rootfs) shim() error {
	source, err := openSelf()
	if err != nil {
		return err
	}
	defer unix.Close(source)
	program, err := cloneTree(source, false, attrReadOnly)
	if err != nil {
		return fmt.Errorf("bind this program: %w", err)
	}
	dir, err := newFilesystem("tmpfs", attrPrivate, "source=stage", "mode=0555", "size=4k")
	if err != nil {
		unix.Close(program)
		return err
	}
	if err := r.dir.place(dir, MarkerDir, 0o755); err != nil {
		unix.Close(program)
		return err
	}
	if err := r.dir.placeFile(program, shimPath); err != nil {
		return err
	}
	return r.readOnly(MarkerDir)
}

func (r *rootfs) readOnly(name string) error {
	fd, err := r.dir.open(name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make %q read-only: %w", name, err)
	}
	return nil
}

// openSelf opens the program by its path, as only that belongs to a mount of this namespace, and makes sure that
// it is the one that runs.
func openSelf() (int, error) {
	const self = "/proc/self/exe"
	name, err := os.Readlink(self)
	if err != nil {
		return -1, fmt.Errorf("find this program: %w", err)
	}
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open program", Path: name, Err: err}
	}
	running, err := unix.Open(self, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "open program", Path: self, Err: err}
	}
	defer unix.Close(running)
	if !sameFile(fd, running) {
		unix.Close(fd)
		return -1, fmt.Errorf("open program %q: it was replaced since this process started", name)
	}
	return fd, nil
}
