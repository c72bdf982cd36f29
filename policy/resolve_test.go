package policy

import (
	"strings"
	"testing"
)

// TestRulesHoldForWhatTheirPathsLeadTo: a rule about a path through a link covers the link's target.
func TestRulesHoldForWhatTheirPathsLeadTo(t *testing.T) {
	resolve := func(p string) string {
		for link, to := range map[string]string{"/w/alias": "/w/sub", "/h/.ssh": "/h/dot[files]/ssh"} {
			if p == link || strings.HasPrefix(p, link+"/") {
				return to + strings.TrimPrefix(p, link)
			}
		}
		return p
	}
	req := Request{Workspace: "/w", Home: "/h", Resolve: resolve, Rules: []Rule{
		{FileReads, Hide, "path", "~/.ssh", fromFlag("--hide")},
		{FileReads, Hide, "path", "alias/*.key", fromFlag("--hide")},
		{FileReads, Deny, "read", "alias/r", fromFlag("--deny-read")},
		{FileWrites, Deny, "write", "alias/**", fromFlag("--deny-write")},
		{FileWrites, Allow, "stage", "/w", fromFlag("--workspace")},
	}}
	p, err := Narrow(req)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]Verdict{
		"/h/.ssh/id": VerdictHide, "/h/dot[files]/ssh/id": VerdictHide, "/h/dotf/ssh/id": 0,
		"/w/sub/a.key": VerdictHide | VerdictDenyWrite, "/w/alias/a.key": VerdictHide | VerdictDenyWrite,
		"/w/sub/r": VerdictDenyRead | VerdictDenyWrite, "/w/sub/other": VerdictDenyWrite, "/w/other": 0,
	} {
		if got, _ := p.PathVerdict(path, false); got&want != want || want == 0 && got != 0 {
			t.Errorf("%s: verdict %b, want %b", path, got, want)
		}
	}
}
