package policy

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"stage/fs/tree"
)

//go:embed executors.toml
var executorsText string

const executorsFile = "executors.toml"

// Generic is the name of the preset for commands that no other preset knows.
const Generic = "generic"

// Preset is what a known agent requests and needs.
type Preset struct {
	Name          string            `toml:"-"`
	Match         []string          `toml:"match"`           // base names of argv[0]
	Env           []string          `toml:"env"`             // names passed, with * and ?
	SetEnv        map[string]string `toml:"set_env"`         // variables set
	Hosts         []string          `toml:"hosts"`           // requested unless its configuration says otherwise
	HostsSignedIn []string          `toml:"hosts_signed_in"` // in their place when it has signed in instead of using a key
	HostEnv       []string          `toml:"host_env"`        // variables that hold its API's URL
	Reads         []string          `toml:"reads"`           // readable roots, optional; "~" is the home directory
	Pids          uint64            `toml:"pids"`
	Toolchains    []Toolchain       `toml:"toolchains"`
	Homes         []AgentHome       `toml:"home"`
}

// Toolchain is a root below the home directory that is readable when it is in use.
type Toolchain struct {
	Path string `toml:"path"` // "~/go"
	Env  string `toml:"env"`  // variable that moves it, "" for none
}

// AgentHome is a directory of the agent's that each Job has a private copy of, mounted at the
// original's place.
type AgentHome struct {
	Name      string            `toml:"name"`       // below jobs/<id>/home
	Env       string            `toml:"env"`        // variable that moves it, set to its place; "" for none
	Default   string            `toml:"default"`    // "~/.codex"
	Files     []string          `toml:"files"`      // copied in: globs of one level; directories with everything below
	Extra     map[string]string `toml:"extra"`      // files from elsewhere: "~/.claude.json" to a name in it
	Config    string            `toml:"config"`     // the file that gets the edits, "" for none
	WriteBack []string          `toml:"write_back"` // written back at seal when the host's are unchanged
	Edits     []ConfigEdit      `toml:"edits"`
}

// ConfigEdit sets one key of an agent's configuration.
type ConfigEdit struct {
	Key     string `toml:"key"`     // dotted
	Value   any    `toml:"value"`   // "{proxy}" is the proxy's URL
	Sandbox bool   `toml:"sandbox"` // left out where the agent's own sandbox is kept or chosen
	Proxy   bool   `toml:"proxy"`   // made only when there is a proxy
	Unless  []any  `toml:"unless"`  // values of the user's that stay
}

// Presets is the built-in table of presets and the executor base.
type Presets struct {
	Executor Layer
	byName   map[string]Preset
}

// LoadPresets reads the built-in table.
func LoadPresets() (Presets, error) { return loadPresets(executorsText) }

func loadPresets(text string) (Presets, error) {
	t, err := decodePresetFile(text)
	if err != nil {
		return Presets{}, err
	}
	p := parser{layer: Executor, file: executorsFile, lines: indexLines(text)}
	if err := p.version(map[string]any{"version": t.Version}); err != nil {
		return Presets{}, err
	}
	if t.Executor == nil {
		return Presets{}, p.source("").errorf("write [executor.file_reads]", "no executor table")
	}
	if err := p.sections("executor", t.Executor); err != nil {
		return Presets{}, err
	}
	byName, err := t.presets()
	if err != nil {
		return Presets{}, err
	}
	layer := Layer{Name: Executor, File: executorsFile, Digest: tree.DigestBytes([]byte(text)), Rules: p.rules}
	return Presets{layer, byName}, nil
}

// presetFile is the file of presets. Every run parses it, so it is parsed once.
type presetFile struct {
	Version  any               `toml:"version"`
	Preset   map[string]Preset `toml:"preset"`
	Executor map[string]any    `toml:"executor"`
}

func decodePresetFile(text string) (*presetFile, error) {
	var t presetFile
	meta, err := toml.Decode(text, &t)
	if err != nil {
		return nil, &Error{File: executorsFile, Line: 1, Msg: err.Error()}
	}
	for _, key := range meta.Undecoded() {
		if key[0] != "executor" && !slices.Contains(key, "value") && !slices.Contains(key, "unless") {
			return nil, &Error{executorsFile, indexLines(text).at(key.String()), fmt.Sprintf("unknown key %q", key), "correct it"}
		}
	}
	return &t, nil
}

// presets returns the presets with generic's added to each.
func (t *presetFile) presets() (map[string]Preset, error) {
	generic, ok := t.Preset[Generic]
	if !ok {
		return nil, &Error{File: executorsFile, Line: 1, Msg: "no preset generic"}
	}
	for name, p := range t.Preset {
		p.Name = name
		if name != Generic {
			p.extend(generic)
		}
		t.Preset[name] = p
	}
	return t.Preset, nil
}

func (p *Preset) extend(base Preset) {
	p.Env = slices.Concat(base.Env, p.Env)
	p.Reads = slices.Concat(base.Reads, p.Reads)
	p.Toolchains = slices.Concat(base.Toolchains, p.Toolchains)
	if p.Pids == 0 {
		p.Pids = base.Pids
	}
}

// Names returns the names of the presets, sorted.
func (p Presets) Names() []string { return slices.Sorted(maps.Keys(p.byName)) }

// Named returns the preset of that name.
func (p Presets) Named(name string) (Preset, bool) {
	preset, ok := p.byName[name]
	return preset, ok
}

// Choose returns the preset for a command: explicit if it is not "", else by the base name of argv0,
// whose resolved path must lie outside every directory that the job can write; else generic. hint
// says why a preset was not taken, "" if there is nothing to say.
func (p Presets) Choose(explicit, argv0, resolved string, writable []string) (preset Preset, hint string, err error) {
	if explicit != "" {
		preset, ok := p.byName[explicit]
		if !ok {
			return Preset{}, "", fromFlag("--executor").errorf("choose one of "+list(p.Names()), "no preset %q", explicit)
		}
		return preset, "", nil
	}
	for _, name := range p.Names() {
		preset := p.byName[name]
		if !slices.Contains(preset.Match, path.Base(argv0)) {
			continue
		}
		if i := slices.IndexFunc(writable, func(dir string) bool { return resolved == "" || within(path.Clean(resolved), dir) }); i >= 0 {
			return p.byName[Generic], fmt.Sprintf("%s looks like %s but lies in %s, which the job can write: preset %s not taken (--executor %s takes it)",
				argv0, name, writable[i], name, name), nil
		}
		return preset, "", nil
	}
	return p.byName[Generic], "", nil
}

// HostsFromEnv returns the API hosts that the preset's variables name, through lookup.
func (p Preset) HostsFromEnv(lookup func(name string) (string, bool)) ([]string, error) {
	var hosts []string
	for _, name := range p.HostEnv {
		text, ok := lookup(name)
		if !ok || text == "" {
			continue
		}
		h, err := hostOfURL(text)
		if err != nil {
			return nil, &Error{File: "$" + name, Msg: err.Error(), Next: "correct it, or unset it"}
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// hostOfURL returns host and port of an API's URL in canonical form.
func hostOfURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", errors.New("not a URL") // the text may hold a password
	}
	port, ok := map[string]string{"http": "80", "ws": "80", "https": "443", "wss": "443"}[strings.ToLower(u.Scheme)]
	if !ok {
		return "", fmt.Errorf("URL has scheme %q, not http or https", u.Scheme)
	}
	if u.Port() != "" {
		port = u.Port()
	}
	h, err := parseHost(u.Hostname())
	if err != nil {
		return "", err
	}
	text = h.String()
	if strings.Contains(text, ":") {
		text = "[" + text + "]"
	}
	r, err := parseHostRule(text+":"+port, nil)
	return r.String(), err
}
