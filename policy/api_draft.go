package policy

import (
	"errors"
	"time"

	"stage/fs/tree"
)

var errDraft = errors.New("not built yet")

// Layer is one policy file, parsed: what one party is willing to permit.
type Layer struct {
	Name   LayerName
	File   string
	Digest tree.Digest
	Rules  []Rule
}

// ParseFile parses a policy file of the given layer. name is the file's name in messages.
// Every error is an *Error with file and line.
func ParseFile(layer LayerName, name string, text []byte) (Layer, error) { return Layer{}, errDraft }

// FileFacts is what stat says about a policy file, looked at without following a link.
type FileFacts struct {
	Name      string
	Regular   bool // false for links, directories, devices …
	Size      int64
	UID       uint32
	Mode      uint32 // permission bits
	CallerUID uint32
}

// CheckFile refuses a policy file that is not a plain file of the caller's own.
func CheckFile(f FileFacts) error { return errDraft }

// Flags are the command line's permissions as the user wrote them; the zero value asks for nothing.
// Paths are absolute: the caller resolves them and refuses those that do not exist.
type Flags struct {
	Read, Hide, DenyRead                 []string
	ReadHost                             bool
	StageRoot, Share, Scratch            []string
	DenyWrite                            []string
	Disk                                 string
	Net                                  string // "" when not given
	AllowHost, DenyHost                  []string
	Allow                                []string // "userns"
	DenyExec                             []string
	Pids                                 uint64   // 0 when not given
	Env                                  []string // NAME or NAME=V
	Memory, CPU, Timeout, Nofile, Output string
	AllowDegraded                        []string
	Strict                               bool
}

// Agent is what the caller found out about the agent on this machine, beyond its preset's data.
type Agent struct {
	Hosts []string // from its configuration, with ports
	Env   []string // names its configuration refers to
	Reads []string // toolchain roots and the like, absolute
}

// Request is what a run asks for: flags and preset together.
type Request struct {
	Workspace, Home string
	Rules           []Rule
	SetEnv          map[string]string
	AllowDegraded   []string
	Strict          bool
}

// NewRequest unites flags, preset and what the caller found out about the agent.
// workspace and home are absolute and free of links.
func NewRequest(workspace, home string, f Flags, p Preset, a Agent) (Request, error) {
	return Request{}, errDraft
}

// Narrow takes the request through the layers and returns what is left of it.
func Narrow(req Request, layers ...Layer) (Plan, error) { return Plan{}, errDraft }

// Max is a limit: Set is false where nobody limits.
type Max[T uint64 | float64 | time.Duration] struct {
	Set  bool
	Max  T
	Rule Rule
}

// PathRule is a directory or file, absolute, with everything below it.
type PathRule struct {
	Path     string
	Optional bool // a missing path is no error: it comes from a preset
	Rule     Rule
}

// GlobRule is a pattern over absolute paths; it covers what it matches and everything below that.
type GlobRule struct {
	Pattern string // absolute, doublestar
	Literal string // the one path the pattern means, "" when it has wildcards
	DirOnly bool
	Rule    Rule
}

// NetMode is how much network a run has.
type NetMode string

// The modes, from less to more.
const (
	NetNone  NetMode = "none"
	NetAllow NetMode = "allow"
	NetHost  NetMode = "host"
)

// HostRule is a host pattern with its ports.
type HostRule struct {
	Host  string   // canonical: name, "*.suffix", address or CIDR
	Ports []uint16 // empty: every port
	Rule  Rule
}

// Service is a named loopback service of the host: Listen inside the job's network namespace, Dial
// on the host.
type Service struct {
	Listen, Dial string
	Rule         Rule
}

// Net is the network part of a Plan.
type Net struct {
	Mode     NetMode
	Rule     Rule       // what set Mode
	Allow    []HostRule // requested, as far as some layer does not exclude it as a whole
	Deny     []HostRule
	Loopback []Service
}

// Refusal is something requested that a layer took away as a whole.
type Refusal struct {
	Want, By Rule
}

// Plan is what is left of a request after every layer: what a run may do. The zero Plan permits nothing.
type Plan struct {
	Workspace, Home string

	ReadHost  bool       // Reads holds "/"
	Reads     []PathRule // readable outside the roots below
	Hide      []GlobRule
	DenyRead  []GlobRule
	DenyWrite []GlobRule
	DenyExec  []GlobRule

	StageRoots []PathRule // the workspace first, when it may be staged
	Shares     []PathRule
	Scratch    []PathRule

	Net Net

	SetEnv map[string]string // NAME=V of the request that every layer permits
	Userns bool

	Disk, Memory, Nofile, Pids, MaxOutput Max[uint64]
	CPU                                   Max[float64]
	Timeout                               Max[time.Duration]

	Refused       []Refusal
	AllowDegraded []string
	Strict        bool
}

// Verdict is what path rules say about a path; the zero Verdict is no restriction.
type Verdict uint8

// The bits of a Verdict.
const (
	VerdictHide Verdict = 1 << iota
	VerdictDenyRead
	VerdictDenyWrite
	VerdictDenyExec
)

// PathVerdict says what the rules make of an absolute, resolved path, and the first rule that does.
func (p *Plan) PathVerdict(path string, isDir bool) (Verdict, Rule) { return VerdictHide, Rule{} }

// PathRules are the hide and deny rules that can match at or below one directory.
type PathRules struct{}

// RulesBelow returns the rules that can match at or below root, nil when there are none.
func (p *Plan) RulesBelow(root string) *PathRules { return nil }

// Verdict says what the rules make of the path below their root.
func (r *PathRules) Verdict(path tree.Path, isDir bool) Verdict { return VerdictHide }

// Env says whether an environment variable of the caller is passed, and the rule that decides.
func (p *Plan) Env(name string) (bool, Rule) { return false, Rule{} }

// Hosts returns the plan's decisions on hosts, as the mediator asks for them.
func (p *Plan) Hosts() *Hosts { return &Hosts{} }

// Hosts decides on network targets. It is safe for concurrent use.
type Hosts struct{}

// Canonical returns the one spelling of a host name or address, or an error for what is neither.
func (h *Hosts) Canonical(host string) (string, error) { return "", errDraft }

// Decide says whether host may be contacted at port, with the rule that decides.
func (h *Hosts) Decide(host string, port uint16) (allowed bool, rule string) { return false, "" }

// DecideAddr says whether addr, which host resolved to, may be contacted on its behalf.
func (h *Hosts) DecideAddr(host, addr string, port uint16) (allowed bool, rule string) {
	return false, ""
}

// ControlNeed is a control that the plan needs.
type ControlNeed struct {
	ID              string
	Required        bool   // without it the run must not start
	DegradedAllowed bool   // … unless the user said --allow-degraded
	Requested       string // the rule that asks for it, in words; "" for those of every run
	Mechanism       string // how it is meant to be enforced
}

// Controls returns the controls the plan needs, with the ids of the evidence records.
func (p *Plan) Controls() map[Dimension][]ControlNeed { return nil }

// Rules returns the plan's rules by dimension.
func (p *Plan) Rules() map[Dimension][]Rule { return nil }

// Preset is what a known agent requests and needs.
type Preset struct {
	Name  string
	Match []string // base names of argv[0]
	Env   []string // names passed, with * and ?
	Hosts []string // requested when its configuration does not say otherwise
	Reads []string // readable roots, "~" is the home directory

	Toolchains []Toolchain
	Agent      *AgentHome // nil: no private home
}

// Toolchain is a root below the home directory that is readable when it is in use.
type Toolchain struct {
	Path string // "~/go"
	Env  string // variable that moves it, "" for none
}

// AgentHome describes the agent's private home directory.
type AgentHome struct {
	Name      string   // below jobs/<id>/home
	Env       string   // variable that moves it
	Default   string   // "~/.codex"
	Files     []string // what is copied in: globs relative to it; directories with everything below
	Config    string   // the file that gets the edits, "" for none
	WriteBack []string // files written back at seal when the host's are unchanged
	Edits     []ConfigEdit
}

// ConfigEdit sets one key of an agent's configuration.
type ConfigEdit struct {
	Key     string // dotted
	Value   any    // string, bool, int64 or table; "{proxy}" in a string is the proxy's URL
	Sandbox bool   // left out where the agent's own sandbox is kept or chosen in argv
	Unless  []any  // values of the user's that stay
}

// Presets is the embedded table of presets and the executor base.
type Presets struct {
	Executor Layer
}

// LoadPresets reads the embedded table.
func LoadPresets() (Presets, error) { return Presets{}, errDraft }

// Named returns the preset of that name.
func (p Presets) Named(name string) (Preset, bool) { return Preset{}, false }

// Choose returns the preset for a command: explicit if it is not "", else by the base name of argv0,
// whose resolved path must lie outside every root the job can write, else generic. hint says why a
// preset was not taken.
func (p Presets) Choose(explicit, argv0, resolved string, writable []string) (preset Preset, hint string, err error) {
	return Preset{}, "", errDraft
}

// CodexInput is what EditCodexConfig works on.
type CodexInput struct {
	Config      []byte // config.toml, nil when there is none
	Profile     []byte // the file of CodexProfile, nil when there is none
	Argv        []string
	Edits       []ConfigEdit
	Proxy       string // "http://127.0.0.1:3128", "" when there is no proxy
	KeepSandbox bool
}

// AppliedEdit is an edit as it was made.
type AppliedEdit struct {
	File, Key string
	Old, New  string // TOML; Old is "" when the key was not there
}

// CodexOutput is an edited configuration and what it asks for.
type CodexOutput struct {
	Config, Profile []byte // Profile is nil when there was none
	Applied         []AppliedEdit
	Hosts           []string // API hosts with ports
	Env             []string // environment variables it takes credentials from
	Sandbox         string   // the sandbox argv chooses, "" for none
}

// CodexProfile returns the file below CODEX_HOME that argv layers over config.toml, "" for none.
func CodexProfile(argv []string) string { return "" }

// EditCodexConfig makes the private copy of Codex's configuration.
func EditCodexConfig(in CodexInput) (CodexOutput, error) { return CodexOutput{}, errDraft }
