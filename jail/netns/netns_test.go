package netns

import (
	"slices"
	"testing"
)

func TestReadKnowsLoopback(t *testing.T) {
	s, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(s.Links, "lo up") && !slices.Contains(s.Links, "lo down") {
		t.Errorf("no loopback in %v", s.Links)
	}
	id, err := Inode()
	if err != nil || id != s.Inode || id == 0 {
		t.Errorf("got inode %d and %d, %v", s.Inode, id, err)
	}
}
