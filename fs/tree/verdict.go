package tree

import "strings"

// Verdict says what it would mean to apply a change to what the workspace has now.
type Verdict string

// The verdicts. The empty Verdict is none of them.
const (
	Clean       Verdict = "clean"        // the workspace has the base: the change can be applied
	Applied     Verdict = "applied"      // the workspace has the new state already
	Conflict    Verdict = "conflict"     // the workspace has something else
	UnknownBase Verdict = "unknown_base" // the record of the base was lost: nothing can be told
)

// Judgement is a Verdict with its reason.
type Judgement struct {
	Verdict Verdict
	Why     string
	// NeedDigest: found is a file whose content decides and whose Digest was empty. The verdict
	// is the one that holds if the content is neither the base's nor the new one.
	NeedDigest bool
}

// Judge compares found, what the workspace has at c.Path now, with c. For a Subtree it looks at the
// directory itself; what lies below is the caller's to walk. For Moved it is about c.Path alone.
func (c Change) Judge(found Node) Judgement {
	switch {
	case c.UnknownBase:
		return Judgement{Verdict: UnknownBase, Why: "the record of the state before the change was lost"}
	case c.isBase(found):
		return Judgement{Verdict: Clean}
	case c.isNew(found) == Same:
		return Judgement{Verdict: Applied, Why: "already there"}
	case c.isLikeBase(found) == Same:
		return Judgement{Verdict: Clean}
	}
	need := c.isNew(found) == Unknown && found.Digest == "" || c.isLikeBase(found) == Unknown && found.Digest == "" && c.Base.Digest != ""
	return Judgement{Verdict: Conflict, Why: c.difference(found), NeedDigest: need}
}

// isBase reports whether found is the base without a look at content.
func (c Change) isBase(found Node) bool {
	switch {
	case found.Kind != c.Base.Kind:
		return false
	case found.Kind == Absent:
		return true
	case c.Subtree:
		return found.Dev == c.Base.Dev && found.Ino == c.Base.Ino && (found.Ctime <= c.SubtreeTime || found.Ctime == c.Base.Ctime || c.onlyRenamed(found))
	case c.SubtreeTime != 0:
		return found.SameIdentity(c.Base) && found.Ctime <= c.SubtreeTime
	case found.Kind == Dir:
		return found.SameMeta(c.Base) && c.isNew(found) != Same
	}
	return found.SameIdentity(c.Base)
}

// onlyRenamed reports whether found, a directory, was not changed but at most renamed since: an
// entry that comes or goes would show in its mtime, an attribute in itself, while a rename away and
// back, as by an apply that is taken back, leaves a newer ctime alone.
func (c Change) onlyRenamed(found Node) bool {
	return found.Mtime == c.Base.Mtime && found.SameMeta(c.Base)
}

// isLikeBase reports whether found, though another inode or touched since, holds what the base held.
func (c Change) isLikeBase(found Node) Equality {
	if c.Subtree || c.SubtreeTime != 0 || !found.SameMeta(c.Base) {
		return Different
	}
	return found.SameContent(c.Base)
}

// isNew reports whether found is what the change would make.
func (c Change) isNew(found Node) Equality {
	switch {
	case c.Moved && found.Kind != Absent, !found.SameMeta(c.New), c.TimesSet && found.Mtime != c.New.Mtime:
		return Different
	}
	return found.SameContent(c.New)
}

// difference tells in words why found is not the base.
func (c Change) difference(found Node) string {
	switch {
	case c.Base.Kind == Absent:
		return "created in the workspace since"
	case found.Kind == Absent:
		return "deleted in the workspace since"
	case found.Kind != c.Base.Kind:
		return "is a " + found.Kind.String() + " in the workspace now, was a " + c.Base.Kind.String()
	case c.Subtree && found.Ctime > c.SubtreeTime && found.Ino == c.Base.Ino:
		return "directory changed in the workspace since"
	case found.SameContent(c.Base) == Different:
		return "content changed in the workspace since"
	case !found.SameMeta(c.Base):
		return "mode, owner or attributes changed in the workspace since"
	case c.Base.Kind == File && c.Base.Digest == "":
		return "changed in the workspace since, and the content before is not known"
	}
	return "changed in the workspace since"
}

// ModuleXattrs are the attributes the kernel's security modules give a file by themselves, and
// those of other overlays. They are no part of what a Job did.
var moduleXattrs = []string{"security.selinux", "security.ima", "security.evm", "security.apparmor", "security.SMACK64"}

// Own returns x without what nobody set: labels of security modules and trusted attributes.
func (x Xattrs) Own() Xattrs {
	var own Xattrs
	for name, v := range x {
		if !ownXattr(name) {
			continue
		}
		if own == nil {
			own = Xattrs{}
		}
		own[name] = v
	}
	return own
}

func ownXattr(name string) bool {
	if strings.HasPrefix(name, "trusted.") || strings.HasPrefix(name, "user.stage.") {
		return false
	}
	for _, m := range moduleXattrs {
		if name == m {
			return false
		}
	}
	return true
}
