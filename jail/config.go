package jail

import (
	"os"
)

// Mode says with whose rights the jail is built.
type Mode uint8

const (
	// Rootless builds the jail inside a user namespace that maps the caller alone.
	Rootless Mode = iota
	// Root builds the jail as uid 0 without a user namespace; the command keeps uid 0 and no capability.
	Root
)

// Network says what of the network the command sees.
type Network uint8

const (
	// NetNone is an own network namespace with nothing but loopback.
	NetNone Network = iota
	// NetMediated is NetNone with listeners that the supervisor serves.
	NetMediated
	// NetHost is the caller's own network namespace.
	NetHost
)

// Kind says what a Mount puts at its place.
type Kind uint8

const (
	// Mask hides what is there: an empty directory or file of mode 000.
	Mask Kind = iota
	// Bind shows Source of the host.
	Bind
	// Empty is a private, writable, empty directory.
	Empty
	// Tmpfs is Empty with a size limit.
	Tmpfs
	// Kept is a private, writable directory that outlives the jail: Source on the host, which holds
	// nothing of the caller's.
	Kept
)

// Mount is one entry of the command's root file system.
type Mount struct {
	Source   string // Bind, Kept: absolute path on the host
	Dest     string // absolute path in the jail
	Kind     Kind
	ReadOnly bool
	Optional bool        // leave out, without an error, what does not exist
	Mode     os.FileMode // Empty, Tmpfs: permissions, 0 means 0755
	Size     uint64      // Tmpfs: bytes, 0 means the kernel's default
}

// View is a FUSE mount. The caller serves its device before Start.
type View struct {
	Name    string
	Dest    string // absolute path in the jail
	Options string // for mount(2), without "fd="
}

// Config is all a jail needs. The zero value gives a command that sees nothing and has no network.
type Config struct {
	Exe      string // this program, normally /proc/self/exe
	Mode     Mode
	UID, GID uint32 // the caller's real ids, which the command keeps
	Hostname string

	Views  []View
	Mounts []Mount // applied by depth of Dest; Views come after them

	Net       Network
	Listeners []string // NetMediated: "127.0.0.1:3128", opened inside and handed out

	AllowUserns bool

	Argv, Env []string
	Cwd       string
	// nil means /dev/null. The command is never given a file of the host: what is not an anonymous pipe, a terminal
	// or /dev/null reaches it through a pipe, so it cannot seek there. Of an input file the caller's position is
	// afterwards behind what was read from that pipe. Directories, block devices and listening sockets are refused.
	Stdin, Stdout, Stderr *os.File
	TTY                   bool // give the command a pty of its own and copy to and from Stdin and Stdout

	Nofile    uint64
	NofileSet bool // set RLIMIT_NOFILE to Nofile; otherwise the caller's limit stays

	WorkDir string // empty directory of the Job; a mount point of the holder's, never written on the host

	// Holder is one that was launched before; nil: Prepare launches one.
	Holder *Launched `json:"-"`

	// Stuck is asked once in a while, by one goroutine, for how many times in a row a request to a view was found
	// without progress. It must not wait for anything. nil: never.
	Stuck func() int `json:"-"`

	// OnStep is told the steps of starting and ending, from several goroutines; nil: nobody asks.
	OnStep func(Step) `json:"-"`

	Skip string // test fault point: the control whose installation is left out
}
