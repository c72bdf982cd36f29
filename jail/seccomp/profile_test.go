package seccomp

import "testing"

func TestEveryRuleHasAReasonAndAnError(t *testing.T) {
	for _, r := range Profile(false) {
		if r.Reason == "" || r.Errno == 0 || len(r.Calls) == 0 {
			t.Errorf("incomplete rule %+v", r)
		}
	}
}

func TestAllowingUserNamespacesOnlyRemovesRules(t *testing.T) {
	strict, loose := Profile(false), Profile(true)
	if len(loose) >= len(strict) {
		t.Fatalf("got %d rules with user namespaces allowed, want fewer than %d", len(loose), len(strict))
	}
	for _, r := range loose {
		if r.Userns {
			t.Errorf("rule for %v stays although user namespaces are allowed", r.Calls)
		}
	}
}

func TestDigestFollowsTheProgram(t *testing.T) {
	strict, err := Digest(Profile(false))
	if err != nil {
		t.Fatal(err)
	}
	again, err := Digest(Profile(false))
	if err != nil {
		t.Fatal(err)
	}
	loose, err := Digest(Profile(true))
	if err != nil {
		t.Fatal(err)
	}
	if strict != again {
		t.Errorf("two digests of one profile: %s and %s", strict, again)
	}
	if strict == loose {
		t.Error("two profiles have one digest")
	}
}
