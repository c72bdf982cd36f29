package session

import (
	"os"

	"stage/fs/overlay"
	"stage/fs/tree"
	"stage/policy"
)

// pathRules lets the overlay ask the policy.
type pathRules struct{ rules *policy.PathRules }

var verdictBits = []struct {
	from policy.Verdict
	to   overlay.Verdict
}{
	{policy.VerdictHide, overlay.Hide},
	{policy.VerdictDenyRead, overlay.DenyRead},
	{policy.VerdictDenyWrite, overlay.DenyWrite},
	{policy.VerdictDenyExec, overlay.DenyExec},
}

// Verdict is the policy's verdict in the overlay's words.
func (r pathRules) Verdict(p tree.Path, dir bool) overlay.Verdict {
	var v overlay.Verdict
	says := r.rules.Verdict(p, dir)
	for _, b := range verdictBits {
		if says&b.from != 0 {
			v |= b.to
		}
	}
	return v
}

// callerIDs are the real ids of this process, for which the overlay serves.
func callerIDs() overlay.IDs {
	ids := overlay.IDs{Rootless: os.Getuid() != 0, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	groups, err := os.Getgroups()
	if err != nil {
		return ids // without supplementary groups fewer files are writable, never more
	}
	for _, g := range groups {
		ids.Groups = append(ids.Groups, uint32(g))
	}
	return ids
}
