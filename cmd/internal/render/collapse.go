package render

import (
	"slices"

	"stage/bundle"
	"stage/fs/tree"
)

// buildDirs are directories that tools fill: their content is volume, not review.
var buildDirs = []string{
	"node_modules", "bower_components", "target", "dist", "build", "__pycache__", ".venv", "venv", ".tox",
	".pytest_cache", ".mypy_cache", ".ruff_cache", ".gradle", ".next", ".nuxt", ".turbo", ".parcel-cache", "coverage",
}

// lockFiles are files in which package managers write down what they chose.
var lockFiles = []string{
	"package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock", "bun.lockb", "deno.lock",
	"Cargo.lock", "go.sum", "poetry.lock", "Pipfile.lock", "pdm.lock", "uv.lock", "Gemfile.lock", "composer.lock",
	"mix.lock", "pubspec.lock", "Podfile.lock", "packages.lock.json", "gradle.lockfile", "flake.lock",
}

// volume names the line under which the list counts a path that nobody reads one by one.
type volume struct {
	dir  tree.Path // the outermost such directory; the root for lock files
	lock bool
}

func (v volume) String() string {
	if v.lock {
		return "lock files"
	}
	return QuoteName(v.dir.String() + "/")
}

// collapse tells whether the list counts p under another line, and under which. A file that git
// tracks is somebody's work, wherever it stands.
func collapse(p tree.Path, tracked func(tree.Path) bool) (volume, bool) {
	if inGit(p) {
		dir, _ := tree.Path{}.Child(".git") // a constant that is one name
		return volume{dir: dir}, true
	}
	if slices.Contains(lockFiles, p.Base()) {
		return volume{lock: true}, true
	}
	if tracked != nil && tracked(p) {
		return volume{}, false
	}
	var dir tree.Path
	for _, name := range p.Names() {
		if slices.Contains(buildDirs, name) {
			return volume{dir: child(dir, name)}, true
		}
		dir = child(dir, name)
	}
	return volume{}, false
}

// child is Path.Child for a name that comes from a Path and is therefore good.
func child(p tree.Path, name string) tree.Path {
	c, err := p.Child(name)
	if err != nil {
		panic(err)
	}
	return c
}

// group is what one collapsed line stands for.
type group struct {
	volume volume
	counts Counts
	bytes  int64
	flags  map[bundle.Class]int
	items  []item
}

// collapsed splits items into those with lines of their own and those counted in groups. What a
// person must see keeps its line: changes that gate apply, and those that cannot be applied.
func (r *Review) collapsed(items []item) (own []item, groups []*group) {
	byVolume := map[volume]*group{}
	for _, it := range items {
		v, ok := collapse(it.path, r.Tracked)
		if !ok || mustShow(it.entry) || inGit(it.path) && r.RawGit {
			own = append(own, it)
			continue
		}
		g := byVolume[v]
		if g == nil {
			g = &group{volume: v, flags: map[bundle.Class]int{}}
			byVolume[v] = g
			groups = append(groups, g)
		}
		g.add(it)
	}
	for i, g := range groups {
		if len(g.items) == 1 && !inGit(g.volume.dir) {
			own = append(own, g.items[0]) // its own line is no longer than a collapsed one
			groups[i] = nil
		}
	}
	groups = slices.DeleteFunc(groups, func(g *group) bool { return g == nil })
	slices.SortStableFunc(own, func(a, b item) int { return a.path.Compare(b.path) })
	return own, groups
}

func (g *group) add(it item) {
	g.items = append(g.items, it)
	g.counts.add(&it)
	g.bytes += growth(&it)
	if it.entry != nil {
		for _, f := range it.entry.Flags {
			g.flags[f.Class]++
		}
	}
}

// mustShow reports whether e keeps a line of its own whatever it is part of.
func mustShow(e *Entry) bool {
	if e == nil {
		return false
	}
	if e.Verdict == bundle.VerdictConflict || e.Verdict == bundle.VerdictUnknownBase {
		return true
	}
	return slices.ContainsFunc(e.Flags, func(f bundle.Flag) bool { return f.Class.Gated() })
}
