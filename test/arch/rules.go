// Package arch holds the rules that the packages of stage keep, and the test that checks them. To
// change a rule is a design decision: the commit that does says so.
package arch

// levels gives each package its level. Imports go from a higher level to a lower one.
var levels = map[string]int{
	"fs/tree": 0,

	"fs/hostfs": 1,
	"policy":    1,

	"journal":      2,
	"fs/judge":     2,
	"jail/enter":   2,
	"jail/seccomp": 2,
	"jail/netns":   2,

	"fs/overlay":    3,
	"bundle":        3,
	"jail":          3,
	"jail/mediator": 3,
	"jail/opener":   3,

	"fs/fusefs": 4,
	"fs/staged": 4,
	"apply":     4,

	"cmd/internal/store":   5,
	"cmd/internal/render":  5,
	"cmd/internal/gitview": 5,
	"cmd/internal/session": 5,

	"cmd/stage": 6,
}

// sideways are the imports within one level.
var sideways = map[[2]string]string{
	{"cmd/internal/session", "cmd/internal/store"}:   "a run is one Job on disk",
	{"cmd/internal/session", "cmd/internal/gitview"}: "a run's end counts changes as git would",
	{"cmd/internal/session", "cmd/internal/render"}:  "a run's end prints its three lines",
}

// strangers do not know each other, whatever their levels: what crosses between two of them is an
// interface of the one that uses it, wired in cmd/stage or session.
var strangers = []string{"bundle", "apply", "jail", "policy"}

// only says which packages, with their tests, may import something. "test" stands for everything
// below test/.
var only = map[string][]string{
	"C":                                     {"jail/enter", "jail/seccomp"},
	"github.com/opencontainers/runc":        {"jail"},
	"github.com/opencontainers/cgroups":     {"jail"},
	"github.com/sirupsen/logrus":            {"jail"},
	"github.com/seccomp/libseccomp-golang":  {"jail/seccomp"},
	"github.com/vishvananda/netlink":        {"jail", "jail/netns"},
	"github.com/hanwen/go-fuse":             {"fs/fusefs", "test"},
	"github.com/spf13/cobra":                {"cmd/stage"},
	"github.com/BurntSushi/toml":            {"policy"},
	"github.com/oklog/ulid":                 {"cmd/internal/store"},
	"github.com/rogpeppe/go-internal":       {"cmd/stage", "test"},
	"github.com/santhosh-tekuri/jsonschema": {"bundle", "cmd/internal/render", "test"},
	"log":                                   {"cmd/stage", "jail/mediator", "fs/fusefs"}, // the last two: to silence net/http and go-fuse
}

// forTests are packages that only tests import, besides those below test/.
var forTests = []string{"fs/staged/stagedtest"}

// pure packages make no system calls of their own.
var pure = []string{"fs/tree", "policy", "bundle", "apply"}

// systemCalls are the imports that a pure package is without.
var systemCalls = []string{"syscall", "golang.org/x/sys"}

// emptyNames say nothing about what a package is for.
var emptyNames = []string{"util", "utils", "common", "helper", "helpers", "misc", "types", "core", "manager", "base", "lib"}

// bannedCalls may appear nowhere, with what to write instead.
var bannedCalls = map[string]string{
	"os.Create":       "os.OpenFile with O_EXCL and a mode, or hostfs: os.Create follows links and truncates",
	"os.IsNotExist":   "errors.Is(err, fs.ErrNotExist): os.IsNotExist does not unwrap",
	"os.IsExist":      "errors.Is(err, fs.ErrExist)",
	"os.IsPermission": "errors.Is(err, fs.ErrPermission)",
	"ioutil.ReadAll":  "io.ReadAll",
}

// initFiles may hold a func init.
var initFiles = []string{"cmd/stage/init.go"}

// topLevel is what the repository's top holds, apart from what git ignores.
var topLevel = []string{
	".ci", ".git", ".gitignore", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "deps.go", "go.mod", "go.sum",
	"apply", "bundle", "cmd", "docs", "fs", "jail", "journal", "packaging", "policy", "test",
}

// longest is how many lines a function may have without a comment that says why it cannot be cut.
const longest = 80
