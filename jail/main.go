package jail

import (
	"os"

	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // enters the container's namespaces before Go starts
	"golang.org/x/sys/unix"

	"stage/jail/enter"
)

// Main runs the part a re-executed process has in a jail, and then does not return. In an ordinary start it
// returns false. A program that uses this package calls it before anything else.
func Main() (handled bool) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "init" && os.Getenv("_LIBCONTAINER_INITPIPE") != "":
		libcontainer.Init()
	// Not os.Exit: there is nothing to flush, and in a program built with -race it would take a second.
	case enter.Current() == enter.Holder:
		unix.Exit(runHolder())
	case enter.Current() == enter.Shim:
		unix.Exit(runShim())
	}
	return false
}
