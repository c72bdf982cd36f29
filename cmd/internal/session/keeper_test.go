package session

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"stage/fs/overlay"
	"stage/fs/tree"
)

// TestKeeperTellsWhatItWasTold: an event of the overlay reaches the bundle, and a flood is bounded.
func TestKeeperTellsWhatItWasTold(t *testing.T) {
	k := startKeeper()
	for range maxTold + 5 {
		k.event(overlay.Event{Kind: overlay.EventMoving, Path: tree.MustParsePath("a\nb"), Err: errors.New("kept changing")})
	}
	k.stop()
	got := k.told()
	if len(got) != maxTold+1 || !strings.Contains(got[0], `"a\nb": kept changing`) || !strings.HasPrefix(got[maxTold], "5 ") {
		t.Errorf("%d lines: %q", len(got), got)
	}
	if slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "\n") }) {
		t.Errorf("a name's newline is raw in %q", got)
	}
}
