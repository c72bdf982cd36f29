package tree

// Change is what a Job did to one path: Base is the workspace's state before the Job's first
// modification, New the state the Job leaves. What kind of change it is follows from the two.
type Change struct {
	Path Path
	Base Node
	New  Node

	// UnknownBase: the record of Base was lost (power failure); nothing may be applied here.
	UnknownBase bool
	// Subtree is set where Base is a directory the Job deleted or moved away as a whole. Whatever
	// below it in the workspace has a ctime later than SubtreeTime was changed by somebody else.
	Subtree     bool
	SubtreeTime Time
	// RenameFrom is where the content came from, by the Job's own rename; nil if it did not.
	RenameFrom *Path
	// Moved is set, with RenameFrom, where New is a lower directory that was renamed as a whole:
	// everything below RenameFrom in the workspace now shows below Path, except for what further
	// Changes below Path say.
	Moved bool
	// LinkGroup numbers the hard-link groups among the changes of one Job, from 1; 0 is none.
	LinkGroup int
	// TimesSet: the Job set the mtime explicitly, so that it is part of the change.
	TimesSet bool
}
