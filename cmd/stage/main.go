// Command stage runs a command inside Linux namespaces over a staged view of the workspace, shows
// the net changes it left, and applies or drops them.
package main

import (
	"context"
	"os"

	"stage/jail"
)

func main() {
	if jail.Main() {
		return // this process was one of the jail's roles
	}
	os.Exit(execute(context.Background(), os.Args[1:], newStreams()))
}
