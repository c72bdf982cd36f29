// Command stage runs a command inside Linux namespaces over a staged view of the workspace, shows
// the net changes it left, and applies or drops them.
package main

import (
	"context"
	"os"
	"runtime/debug"

	"stage/jail"
	"stage/jail/opener"
)

func main() {
	// The process and its parts in the jail are small and mostly start up: collecting garbage at
	// every 4 MiB would be a tenth of a short run.
	debug.SetGCPercent(400)
	opener.Main() // does not return in an opener's process
	if jail.Main() {
		return // this process was one of the jail's roles
	}
	os.Exit(execute(context.Background(), os.Args[1:], newStreams()))
}
