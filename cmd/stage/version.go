package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"stage/bundle"
)

// version and commit are set by the linker; a build without them takes what the toolchain recorded.
var version, commit string

func (c *command) versionVerb() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := build()
			_, err := fmt.Fprintf(c.out.W, "stage %s (%s)\n", b.Version, b.Commit)
			return err
		},
	}
}

// build says which stage this is.
func build() bundle.Build {
	b := bundle.Build{Version: version, Commit: commit}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && b.Commit == "" {
			b.Commit = s.Value
		}
	}
	return b
}
