package apply

import (
	"stage/fs/tree"
)

// act is one way to change the target by one system call, or, for meta, by a few that can be
// repeated.
type act string

const (
	place act = "place" // temp → path, where nothing is
	swap  act = "swap"  // temp ↔ path
	away  act = "away"  // path → temp
	move  act = "move"  // from → path, where nothing is
	meta  act = "meta"  // owner, mode, attributes and mtime of path
)

// step is one act on the target. A directory moved as a whole has two paths in the course of a
// batch, so a temporary file has up to three: where it is made, where it is at the step, where it
// is when all steps are done.
type step struct {
	Act  act
	Path tree.Path
	From tree.Path // of a move; of a meta step Path before all steps

	Temp  tree.Path
	Made  tree.Path
	Rest  tree.Path
	Fetch int // displaced/<n> that is put at Made, 0 for none

	In  *tree.Node // what the step brings: the node at Made
	Out *tree.Node // what must come out: the node at Path, or at From of a move
	// Since is the instant after which nothing below directory Out may have changed; 0: not known.
	Since tree.Time
	// New is what a meta step makes of Out.
	New *tree.Node

	Known tree.Path // where Out is before all steps
	End   tree.Path // where Path is when all steps are done

	change  *tree.Change  // what is written to Made, unless it is fetched
	members []tree.Change // and below it, sorted
}

// hasTemp reports whether the step uses a temporary name.
func (s *step) hasTemp() bool { return s.Act == place || s.Act == swap || s.Act == away }

// fills reports whether the step needs a node at Made before it can be done.
func (s *step) fills() bool { return s.Act == place || s.Act == swap }

// displaces reports whether the step leaves a node at Rest when all is done.
func (s *step) displaces() bool { return s.Act == swap || s.Act == away }

// dir is a directory of the target in which a batch makes, moves or removes names.
type dir struct {
	Path tree.Path // before the steps
	Rest tree.Path // when all steps are done
	Gone bool      // it is among what the steps take away
	// Covered: it lies in a directory that goes as a whole, and was found as the base has it.
	Covered bool
	Old     tree.Node
	// Mode and Mtime are what it ends with; an Mtime of 0 is left to the file system.
	Mode  tree.Mode
	Mtime tree.Time
}

// batch is all that one apply or undo is going to do.
type batch struct {
	Undo  bool     `json:"undo"`
	Steps stepList `json:"steps"` // in the order they are done
	Dirs  dirList  `json:"dirs"`  // parents before children
	// Linked are files of the target that get further names: that changes their ctime.
	Linked []tree.Node `json:"linked,omitempty"`
	// Base is the state of every path of the batch once it is done, as far as it is known before:
	// the new base of these paths.
	Base states `json:"base"`
}

// published is the state a batch left a path in.
type published struct {
	Path tree.Path
	Node tree.Node
	// From is where the workspace had what the directory Path holds: where the Job moved it from,
	// or Path itself where an undo put it back.
	From *tree.Path
	// Staged is what the Job has at Path where Node is that merged with what somebody else did.
	Staged *tree.Node
	// Forget: an undo put back what was merged, which never was a base: the recorded one holds again.
	Forget bool
}

// sameInode reports whether a and b, looked at before and after a rename, are one inode whose
// content and attributes nobody changed in between. A rename changes the ctime, so that is left out;
// device numbers can change with a reboot.
func sameInode(a, b tree.Node) bool {
	if a.Kind != b.Kind || a.Ino != b.Ino || a.Kind == tree.Absent {
		return false
	}
	return a.Kind == tree.Dir || a.Size == b.Size && a.Mtime == b.Mtime
}

// unchanged is sameInode with the attributes.
func unchanged(a, b tree.Node) bool { return sameInode(a, b) && a.SameMeta(b) }
