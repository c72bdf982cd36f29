package main

import (
	"flag"
	"os"
	"slices"
	"testing"
	"time"

	"stage/test/testenv"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		exit(role, play(role))
	}
	flag.Parse()
	os.Exit(m.Run())
}

// TestEveryWorkload runs every row once, on a small fixture; but build, which compiles half of Go's
// library into an empty cache.
func TestEveryWorkload(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE, testenv.Tool("git"), testenv.Tool("sqlite3"))
	c := &comparison{
		fix: fixture{testenv.User{}.TempDir(t), 50}, rounds: 1, targets: []string{native, viewLoop},
		loads: slices.DeleteFunc(loadNames(), func(l string) bool { return l == "build" }),
		took:  map[string]map[string][]time.Duration{}, cost: map[string]map[string]uint64{},
	}
	if err := c.fix.make(); err != nil {
		t.Fatal(err)
	}
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	for _, row := range c.rows {
		if len(c.took[row][native]) != 1 || len(c.took[row][viewLoop]) != 1 {
			t.Errorf("%s: got %v", row, c.took[row])
		}
	}
	if len(c.rows) < 28 {
		t.Errorf("got %d rows: %q", len(c.rows), c.rows)
	}
}
