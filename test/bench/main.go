// Command bench measures what a Job pays.
//
//	bench start   `stage run -- true` from start to exit, beside bwrap and no sandbox at all
//	bench fs      work on files: in a directory, in the view, on kernel overlayfs and fuse-overlayfs
//
// All measured ones take turns, so that they see the same machine: figures are ratios to the native
// directory of the same round. The file systems are mounted in name spaces of their own, and the
// process that serves the view touches nothing of it:
//
//	bench ──► serve: overlay and FUSE server (the view only)
//	            └─► mount: own mount namespace (and user namespace), mounts DIR/mnt
//	                  └─► work: without capabilities, does the work in DIR/mnt and times it
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	if role := os.Getenv(roleEnv); role != "" {
		exit(role, play(role))
	}
	if len(os.Args) < 2 {
		usage()
	}
	switch os.Args[1] {
	case "start":
		exit("bench", start(os.Args[2:]))
	case "fs":
		exit("bench", files(os.Args[2:]))
	default:
		usage()
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: bench start|fs [flags]; -h tells them")
	os.Exit(2)
}

func exit(who string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", who, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func start(args []string) error {
	f := flag.NewFlagSet("start", flag.ExitOnError)
	stage := f.String("stage", "bin/stage", "the stage binary")
	rounds := f.Int("n", 50, "rounds")
	uid := f.Int("uid", 65533, "uid of the ordinary user that root measures as well")
	if err := f.Parse(args); err != nil {
		return err
	}
	return startUp(*stage, *rounds, *uid, os.Stdout)
}
