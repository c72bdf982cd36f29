package apply

import (
	"context"
	"fmt"
	"slices"

	"stage/fs/hostfs"
	"stage/fs/judge"
	"stage/fs/tree"
)

// plan is what is to be done about the selected changes.
type plan struct {
	o     *Options
	all   []tree.Change
	court *judge.Judge
	found map[tree.Path]judge.Finding // of every selected change
	todo  []tree.Change               // clean ones, sorted by path
	index map[tree.Path]tree.Change   // of todo
	// Of merged files: their content, and what the Job itself has there.
	source Source // of o, without what is merged
	texts  *mergedSource
	staged map[tree.Path]*tree.Node
	moves  []tree.Change         // in todo
	group  map[int][]tree.Change // of todo, by link group

	steps [phases][]step
	dirs  map[tree.Path]*dir
	base  []published
	temps int
}

// The order of steps. What is made or changed below a directory that will be moved is made where
// the directory still is, so that moves come second; what holds things that are moved out is taken
// away third. Attributes are set last, at the paths of the result.
const (
	makeFirst = iota
	moveNext
	removeThen
	metaLast
	phases
)

func newPlan(o *Options, all []tree.Change) *plan {
	known := judge.Known{Left: o.Source.Left, Alike: o.Alike}
	if pre, ok := o.Source.(Preimages); ok {
		known.Preimage = pre.OpenPreimage
	}
	texts := &mergedSource{o.Source, map[tree.Path][]byte{}}
	return &plan{
		source: o.Source, texts: texts, staged: map[tree.Path]*tree.Node{},
		o: o, all: all, court: judge.New(o.Target, all, known), found: map[tree.Path]judge.Finding{},
		index: map[tree.Path]tree.Change{}, group: map[int][]tree.Change{}, dirs: map[tree.Path]*dir{},
	}
}

// judge compares every selected change with the target and keeps the clean ones. With KeepGoing
// conflicting ones are left out, what needs them, and what belongs to one git directory with them.
func (p *plan) judge(ctx context.Context, sel []bool, r *Result) error {
	bad := make([]bool, len(p.all))
	var conflicts []PathResult
	for i, c := range p.all {
		if !sel[i] {
			continue
		}
		pr, err := p.judgeOne(ctx, c)
		if err != nil {
			return fmt.Errorf("compare %q with the workspace: %w", c.Path, err)
		}
		if pr.Verdict == tree.Conflict && p.o.Merge != MergeNone {
			if pr, err = p.merge(ctx, i, pr); err != nil {
				return err
			}
		}
		r.Paths = append(r.Paths, pr)
		if pr.Verdict != tree.Clean && pr.Verdict != tree.Applied {
			bad[i] = true
			conflicts = append(conflicts, pr)
		}
	}
	if len(conflicts) > 0 && !p.o.KeepGoing {
		r.Outcome = Conflicts
		return &ConflictError{conflicts}
	}
	if len(conflicts) > 0 {
		p.leaveOut(bad, r)
	}
	for i, c := range p.all {
		if sel[i] && !bad[i] {
			p.take(c)
		}
	}
	if len(conflicts) > 0 && len(p.todo) == 0 {
		r.Outcome = Conflicts
		return &ConflictError{conflicts}
	}
	return nil
}

// leaveOut adds to bad the changes that cannot be applied without one of bad, and says so in r.
func (p *plan) leaveOut(bad []bool, r *Result) {
	g := newGraph(p.all, p.o.Source)
	g.addGit()
	cause := g.causes(bad, g.neededBy())
	for i := range r.Paths {
		pr := &r.Paths[i]
		j, out := cause[g.index[pr.Path]]
		if k := g.index[pr.Path]; out && !bad[k] {
			bad[k] = true
			pr.Verdict, pr.Why = tree.Conflict, "left out with "+quote(p.all[j].Path)
		}
	}
}

func (p *plan) judgeOne(ctx context.Context, c tree.Change) (PathResult, error) {
	f, err := p.court.Judge(ctx, c)
	if err == nil && f.Verdict == tree.Clean && c.LinkGroup != 0 {
		err = p.judgeAnchor(ctx, c, &f)
	}
	p.found[c.Path] = f
	return PathResult{Path: c.Path, Verdict: f.Verdict, Why: f.Why, Base: c.Base, Found: f.Found}, err
}

// judgeAnchor makes sure that the unchanged file c is to be linked to is still unchanged.
func (p *plan) judgeAnchor(ctx context.Context, c tree.Change, f *judge.Finding) error {
	a, ok := p.o.Source.LinkAnchor(c.LinkGroup)
	if !ok {
		return nil
	}
	at := a
	if m, ok := p.court.MovedAbove(a); ok {
		at = a.Rebase(m.Path, *m.RenameFrom)
	}
	n, err := nodeAt(p.o.Target, at)
	if err != nil {
		return err
	}
	want := tree.Change{Path: at, New: c.New}
	j := want.Judge(n)
	if j.NeedDigest {
		err = within(p.o.Target, at, func(d hostfs.Dir, name string) error {
			n.Digest, err = judge.Digest(ctx, d, name)
			return err
		})
		j = want.Judge(n)
	}
	if err == nil && j.Verdict != tree.Applied {
		f.Judgement = tree.Judgement{Verdict: tree.Conflict, Why: fmt.Sprintf("%q, which it is a hard link to, changed since", a)}
	}
	return err
}

// take sorts a change whose verdict is good into todo, or takes note that it is there already.
func (p *plan) take(c tree.Change) {
	f := p.found[c.Path]
	p.base = append(p.base, published{Path: c.Path, Node: c.New, Staged: p.staged[c.Path]})
	if f.Verdict == tree.Clean {
		p.todo = append(p.todo, c)
		p.index[c.Path] = c
		p.group[c.LinkGroup] = append(p.group[c.LinkGroup], c)
		if c.Moved {
			p.moves = append(p.moves, c)
		}
	}
}

// movedAbove returns the move in todo that path v of the result lies strictly below.
func (p *plan) movedAbove(v tree.Path) (tree.Change, bool) {
	m, ok := p.court.MovedAbove(v)
	if !ok {
		return m, false
	}
	m, ok = p.index[m.Path]
	return m, ok
}

// before returns where the target has now what the result has at v.
func (p *plan) before(v tree.Path) tree.Path {
	if m, ok := p.index[v]; ok && m.Moved {
		return *m.RenameFrom
	}
	if m, ok := p.movedAbove(v); ok {
		return v.Rebase(m.Path, *m.RenameFrom)
	}
	return v
}

// after returns where path q of the target is when all moves are done.
func (p *plan) after(q tree.Path) tree.Path {
	for _, c := range p.moves {
		if c.RenameFrom.Contains(q) {
			return q.Rebase(*c.RenameFrom, c.Path)
		}
	}
	return q
}

// batch returns the steps that make the target what todo says, and for link groups the file in the
// target that their members are to be linked to.
func (p *plan) batch() (*batch, map[int]tree.Path, error) {
	links := p.linkTargets()
	for _, list := range p.regions() {
		if err := p.addAll(list, links); err != nil {
			return nil, nil, err
		}
	}
	p.addDisplaced()
	b := &batch{Base: p.base}
	for _, q := range links {
		n, err := nodeAt(p.o.Target, q)
		if err != nil {
			return nil, nil, err
		}
		b.Linked = append(b.Linked, n)
	}
	for _, list := range p.steps {
		b.Steps = append(b.Steps, list...)
	}
	b.Dirs = p.sortedDirs(b.Steps)
	return b, links, nil
}

// addDisplaced notes in the new bases which directories are published where the Job moved them.
func (p *plan) addDisplaced() {
	for to, from := range p.o.Source.Displaced() {
		i := slices.IndexFunc(p.base, func(b published) bool { return b.Path == to })
		touched := slices.ContainsFunc(p.todo, func(c tree.Change) bool { return to.Contains(c.Path) || from.Contains(c.Path) })
		switch {
		case !touched:
		case i >= 0:
			p.base[i].From = &from
		default:
			p.base = append(p.base, published{Path: to, Node: tree.Node{Kind: tree.Dir}, From: &from})
		}
	}
}

// regions cuts todo into the changes below each directory that is moved, and the rest. Each part is
// sorted by path.
func (p *plan) regions() [][]tree.Change {
	var rest []tree.Change
	below := map[tree.Path][]tree.Change{}
	var order []tree.Path
	for _, c := range p.todo {
		m, ok := p.movedAbove(c.Path)
		if !ok {
			rest = append(rest, c)
			continue
		}
		if below[m.Path] == nil {
			order = append(order, m.Path)
		}
		below[m.Path] = append(below[m.Path], c)
	}
	regions := [][]tree.Change{rest}
	for _, m := range order {
		regions = append(regions, below[m])
	}
	return regions
}

// addAll turns changes into steps; a new directory is one with everything in it.
func (p *plan) addAll(list []tree.Change, links map[int]tree.Path) error {
	for i := 0; i < len(list); {
		c, end := list[i], i+1
		if c.New.Kind == tree.Dir && !c.Moved && p.found[c.Path].Found.Kind != tree.Dir {
			for end < len(list) && c.Path.Contains(list[end].Path) {
				end++
			}
		}
		if err := p.add(c, list[i+1:end], links); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// add turns one change into steps. below are the changes within a new directory.
func (p *plan) add(c tree.Change, below []tree.Change, links map[int]tree.Path) error {
	f := p.found[c.Path]
	switch {
	case c.New.Kind == tree.Absent:
		return p.addRemoval(c, f)
	case c.Moved:
		return p.addMove(c)
	case c.New.Kind == tree.Dir && f.Found.Kind == tree.Dir, p.inPlace(c, links):
		return p.addMeta(c, f.At, f.Found)
	}
	return p.addNew(c, f, below)
}

// inPlace reports whether only attributes of the node that is there are to change: those of an inode
// all of whose names are to have them. Another name may be outside, or about to be taken away.
func (p *plan) inPlace(c tree.Change, links map[int]tree.Path) bool {
	found := p.found[c.Path].Found
	if found.UID != c.New.UID && !mayChange(found) {
		return false
	}
	if c.LinkGroup == 0 {
		return found.Nlink == 1 && p.sameContent(c)
	}
	if _, ok := links[c.LinkGroup]; ok {
		return false
	}
	names := uint32(0)
	for _, o := range p.group[c.LinkGroup] {
		if n := p.found[o.Path].Found; n.Ino != found.Ino || n.Dev != found.Dev || !p.sameContent(o) {
			return false
		}
		names++
	}
	return names == found.Nlink
}

// sameContent reports whether the target is known to have the content of c already.
func (p *plan) sameContent(c tree.Change) bool {
	base, found := c.Base, p.found[c.Path].Found
	if base.Kind == tree.Absent { // below a moved directory
		base = found
	}
	return found.Kind == c.New.Kind && base.SameContent(c.New) == tree.Same
}

// linkTargets finds, for the link groups in todo, a file of the target that has the result already:
// an unchanged member, or one that somebody else made the same change to.
func (p *plan) linkTargets() map[int]tree.Path {
	links := map[int]tree.Path{}
	for _, c := range p.todo {
		if c.LinkGroup == 0 {
			continue
		}
		if a, ok := p.o.Source.LinkAnchor(c.LinkGroup); ok {
			links[c.LinkGroup] = p.before(a)
		}
	}
	for _, c := range p.all {
		if f, ok := p.found[c.Path]; ok && c.LinkGroup != 0 && f.Verdict == tree.Applied {
			if _, ok := links[c.LinkGroup]; !ok {
				links[c.LinkGroup] = f.At
			}
		}
	}
	return links
}

// temp gives the step its temporary name beside Path, which is in coordinates before the moves.
func (p *plan) temp(s *step) error {
	p.temps++
	t, err := s.Path.Parent().Child(fmt.Sprintf(".stage.%s.%d", p.o.Job, p.temps))
	s.Temp, s.Made, s.Rest = t, t, p.after(t)
	return err
}

func (p *plan) addRemoval(c tree.Change, f judge.Finding) error {
	if p.isOrigin(c.Path) || p.goesWithParent(c.Path) {
		return nil
	}
	found := known(f.Found, c.Base)
	s := step{Act: away, Path: c.Path, Known: c.Path, End: p.after(c.Path), Out: &found, Since: p.since(c)}
	if err := p.temp(&s); err != nil {
		return err
	}
	phase := removeThen
	if p.after(c.Path) != c.Path {
		phase = makeFirst
	}
	return p.append(phase, s)
}

// known returns found with the digest of base, if that is the same state: an undo makes it the base again.
func known(found, base tree.Node) tree.Node {
	if found.Digest == "" && found.Kind == tree.File && found.SameIdentity(base) {
		found.Digest = base.Digest
	}
	return found
}

// goesWithParent reports whether a directory above q is taken away whole with q in it.
func (p *plan) goesWithParent(q tree.Path) bool {
	for !q.IsRoot() {
		q = q.Parent()
		if p.isOrigin(q) {
			return false
		}
		if up, ok := p.index[q]; ok && up.Subtree {
			return true
		}
	}
	return false
}

// isOrigin reports whether path q of the target is what a move in todo takes.
func (p *plan) isOrigin(q tree.Path) bool {
	return slices.ContainsFunc(p.moves, func(c tree.Change) bool { return *c.RenameFrom == q })
}

// since returns the instant after which nothing below the directory that c takes away may have
// changed, 0 if it is no directory.
func (p *plan) since(c tree.Change) tree.Time {
	if c.Subtree {
		return c.SubtreeTime
	}
	if m, ok := p.movedAbove(c.Path); ok {
		return p.movedSince(*m.RenameFrom)
	}
	return 0
}

// movedSince returns that instant for the directory that is moved away from path from, 0 if no
// change says so.
func (p *plan) movedSince(from tree.Path) tree.Time {
	for q := from; ; q = q.Parent() {
		if up, ok := p.index[q]; ok && up.Subtree {
			return up.SubtreeTime
		}
		if q.IsRoot() {
			return 0
		}
	}
}

func (p *plan) addMove(c tree.Change) error {
	from := *c.RenameFrom
	src, err := nodeAt(p.o.Target, from)
	if err != nil {
		return err
	}
	s := step{Act: move, Path: c.Path, From: from, Known: from, End: c.Path, Out: &src, Since: p.movedSince(from)}
	if s.Since == 0 {
		return fmt.Errorf("moved directory %q: no change of %q, where it came from", c.Path, from)
	}
	if err := p.touch(from.Parent()); err != nil {
		return err
	}
	if err := p.append(moveNext, s); err != nil {
		return err
	}
	if src.SameMeta(c.New) && !c.TimesSet {
		return nil
	}
	return p.addMeta(c, from, src)
}

// addMeta changes the attributes of the node found at path at of the target. A directory's mode and
// mtime are left to the end.
func (p *plan) addMeta(c tree.Change, at tree.Path, found tree.Node) error {
	want := whileOpen(c.New)
	if want.Kind == tree.Dir {
		if err := p.touch(at); err != nil {
			return err
		}
		d := p.dirs[at]
		d.Mode = c.New.Mode
		if c.TimesSet {
			d.Mtime = c.New.Mtime
		}
	}
	s := step{Act: meta, Path: c.Path, From: at, Known: at, End: c.Path, Out: &found, New: &want}
	p.steps[metaLast] = append(p.steps[metaLast], s)
	return nil
}

func (p *plan) addNew(c tree.Change, f judge.Finding, below []tree.Change) error {
	if err := p.keepOpen(c, below); err != nil {
		return err
	}
	var members []tree.Change
	for _, m := range below {
		if !m.Moved {
			members = append(members, m)
			continue
		}
		if err := p.addMove(m); err != nil { // when the directory stands
			return err
		}
	}
	s := step{Act: place, Path: f.At, Known: f.At, End: c.Path, change: &c, members: members}
	phase := makeFirst
	if f.Found.Kind != tree.Absent {
		found := known(f.Found, c.Base)
		s.Act, s.Out, s.Since = swap, &found, p.since(c)
		if found.Kind == tree.Dir && p.after(f.At) == f.At {
			phase = removeThen
		}
	}
	if err := p.temp(&s); err != nil {
		return err
	}
	return p.append(phase, s)
}

// keepOpen has new directories that their owner may not look into closed last: until then the batch
// has to.
func (p *plan) keepOpen(c tree.Change, below []tree.Change) error {
	for _, m := range append([]tree.Change{c}, below...) {
		if m.New.Kind != tree.Dir || m.Moved || m.New.Mode&0o500 == 0o500 {
			continue
		}
		if err := p.touch(m.Path); err != nil {
			return err
		}
	}
	return nil
}

// append adds a step and takes note of the directories it changes.
func (p *plan) append(phase int, s step) error {
	p.steps[phase] = append(p.steps[phase], s)
	return p.touch(s.Path.Parent())
}

// touch takes note that the batch changes directory path, in coordinates before the moves.
func (p *plan) touch(path tree.Path) error {
	if p.dirs[path] != nil {
		return nil
	}
	n, err := nodeAt(p.o.Target, path)
	if err != nil {
		return err
	}
	d := &dir{Path: path, Rest: p.after(path), Old: n, Mode: n.Mode}
	p.dirs[path] = d
	if n.Kind != tree.Dir {
		c, ok := p.index[path]
		if !ok || c.New.Kind != tree.Dir {
			return fmt.Errorf("%q is no directory", path)
		}
		d.Mode, d.Mtime, d.Old = c.New.Mode, c.New.Mtime, tree.Node{}
		return nil
	}
	base, view, ok := p.o.Source.DirTimes(d.Rest)
	if ok && (n.Mtime == base || n.Mtime == view) {
		d.Mtime = view // nobody else changed it: it gets the time it had for the Job
	}
	return nil
}

// sortedDirs returns the directories of the batch, parents first, and finds those that go away.
func (p *plan) sortedDirs(steps []step) []dir {
	var out []dir
	for _, d := range p.dirs {
		d.Gone, d.Covered = goes(d.Path, steps), p.covered(d.Path)
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b dir) int { return a.Path.Compare(b.Path) })
	return out
}

// covered reports whether path q of the target is at or below a directory that todo takes away.
func (p *plan) covered(q tree.Path) bool {
	for {
		if c, ok := p.index[q]; ok && c.Subtree {
			return true
		}
		if q.IsRoot() {
			return false
		}
		q = q.Parent()
	}
}

// goes reports whether one of steps takes directory q away with something above it, and no move
// saved it before.
func goes(q tree.Path, steps []step) bool {
	var origin *tree.Path
	for i := range steps {
		if s := &steps[i]; s.Act == move && s.From.Contains(q) {
			origin = &s.From
		}
	}
	for i := range steps {
		s := &steps[i]
		if s.displaces() && s.Out.Kind == tree.Dir && s.Path.Contains(q) && (origin == nil || !s.Path.Contains(*origin)) {
			return true
		}
	}
	return false
}
