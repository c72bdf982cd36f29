package overlay

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// prefixRules gives a verdict to a path and all below it.
type prefixRules map[string]Verdict

func (r prefixRules) Verdict(p tree.Path, _ bool) Verdict {
	var v Verdict
	for prefix, bits := range r {
		if p.String() == prefix || strings.HasPrefix(p.String(), prefix+"/") {
			v |= bits
		}
	}
	return v
}

func TestRules(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("hidden/x", "1")
		j.put("secret/key", "2")
		j.put("fixed/f", "3")
		j.put("tool", "4")
		j.put("plain", "5")
		j.rules = prefixRules{"hidden": Hide, "secret": DenyRead, "fixed": DenyWrite, "tool": DenyExec}
		j.open()
		j.wantAbsent("hidden")
		j.wantLs(".", "fixed", "plain", "secret", "tool")
		var e Entry
		var a Attr
		for name, c := range map[string]struct {
			err  error
			want unix.Errno
		}{
			"create hidden":     {j.fs.Mkdir(Caller{}, RootID, "hidden", 0o755, &e), unix.EACCES},
			"create in fixed":   {j.fs.Create(Caller{}, j.mustID("fixed"), "new", 0, 0o644, &e), unix.EROFS},
			"unlink in fixed":   {j.fs.Unlink(j.mustID("fixed"), "f"), unix.EROFS},
			"rename out":        {j.rename("fixed/f", "g", 0), unix.EROFS},
			"rename in":         {j.rename("plain", "fixed/plain", 0), unix.EROFS},
			"rename fixed":      {j.rename("fixed", "loose", 0), unix.EROFS},
			"rename secret key": {j.rename("secret/key", "key", 0), unix.EPERM},
			"link secret key":   {j.fs.Link(j.mustID("secret/key"), RootID, "key", &e), unix.EPERM},
			"chmod secret":      {j.fs.Setattr(j.mustID("secret/key"), &SetAttr{Set: SetMode, Mode: 0o777}, &a), unix.EPERM},
			"chmod fixed":       {j.fs.Setattr(j.mustID("fixed/f"), &SetAttr{Set: SetMode, Mode: 0o777}, &a), unix.EROFS},
			"truncate fixed":    {j.fs.Setattr(j.mustID("fixed/f"), &SetAttr{Set: SetSize}, &a), unix.EROFS},
		} {
			if c.err != c.want {
				t.Errorf("%s: got %v, want %v", name, c.err, c.want)
			}
		}
		for path, forbidden := range map[string]uint32{"secret/key": 0o555, "secret": 0o555, "fixed/f": 0o222, "tool": 0o111} {
			if mode := j.stat(path).Mode; mode&forbidden != 0 {
				t.Errorf("%s shows mode %o", path, mode)
			}
		}
		if s := j.fs.Stats(); s.DeniedLookups == 0 || s.Denied == 0 {
			t.Errorf("stats: got %+v", s)
		}
	})
}

func TestRulesHoldBehindAMovedParent(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/secret/key", "2")
		j.put("d/hidden", "1")
		j.rules = prefixRules{"d/secret": DenyRead, "d/hidden": Hide}
		j.open()
		j.must(j.rename("d", "e", 0))
		j.wantAbsent("e/hidden")
		if mode := j.stat("e/secret/key").Mode; mode&0o555 != 0 {
			t.Errorf("e/secret/key shows mode %o", mode)
		}
		if err := j.rename("e/secret/key", "key", 0); err != unix.EPERM {
			t.Errorf("rename: got %v, want EPERM", err)
		}
	})
}
