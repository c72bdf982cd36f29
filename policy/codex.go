package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// CodexInput is what EditCodexConfig works on.
type CodexInput struct {
	Config  []byte // config.toml, nil when there is none
	Profile []byte // the file that CodexProfile names, nil when there is none
	Auth    []byte // auth.json, nil when there is none
	Argv    []string
	Preset  Preset
	Proxy   string // "http://127.0.0.1:3128", "" when there is no proxy
	// KeepSandbox leaves the agent's own sandbox as it is.
	KeepSandbox bool
}

// AppliedEdit is an edit as it was made.
type AppliedEdit struct {
	File     string // "config.toml", or the profile's
	Key      string
	Old, New string // TOML; Old is "" when the key was not there
}

// CodexOutput is an edited configuration and what it asks for.
type CodexOutput struct {
	Config, Profile []byte // Profile is nil when there was none
	Applied         []AppliedEdit
	Hosts           []string // API hosts with ports
	Env             []string // environment variables it takes credentials from
	Sandbox         string   // the sandbox that argv chooses, "" for none
}

// CodexProfile returns the file below CODEX_HOME that argv layers over config.toml, "" for none.
func CodexProfile(argv []string) string {
	name := readCodexArgs(argv).profile
	if name == "" || strings.ContainsAny(name, "/\x00") {
		return ""
	}
	return name + ".config.toml"
}

// EditCodexConfig makes the private copy of Codex's configuration: the user's settings with the
// preset's edits, so that stage is the only sandbox and Codex contacts nothing but its API.
// A sandbox chosen in argv stays the user's.
func EditCodexConfig(in CodexInput) (CodexOutput, error) {
	args := readCodexArgs(in.Argv)
	out := CodexOutput{Sandbox: args.sandbox}
	config, err := decode("config.toml", in.Config)
	if err != nil {
		return CodexOutput{}, err
	}
	profileFile := CodexProfile(in.Argv)
	profile, err := decode(profileFile, in.Profile)
	if err != nil {
		return CodexOutput{}, err
	}
	for _, e := range codexEdits(in, args) {
		if err := out.apply("config.toml", config, e, true); err != nil {
			return CodexOutput{}, err
		}
		if err := out.apply(profileFile, profile, e, false); err != nil {
			return CodexOutput{}, err
		}
	}
	if out.Config, err = encode("config.toml", config); err != nil {
		return CodexOutput{}, err
	}
	if in.Profile != nil {
		if out.Profile, err = encode(profileFile, profile); err != nil {
			return CodexOutput{}, err
		}
	}
	err = out.requests(in, args, overlay(overlay(config, profile), args.config))
	return out, err
}

// encode writes a configuration and makes sure that it says what it is meant to.
func encode(name string, m map[string]any) ([]byte, error) {
	var buf bytes.Buffer
	enc := toml.NewEncoder(&buf)
	enc.Indent = ""
	if err := enc.Encode(m); err != nil {
		return nil, &Error{name, 1, "cannot be copied: " + err.Error(), "simplify it, or set CODEX_HOME to another directory"}
	}
	if _, err := decode(name, buf.Bytes()); err != nil {
		return nil, &Error{name, 1, "does not survive copying: " + err.Error(), "simplify it, or set CODEX_HOME to another directory"}
	}
	return buf.Bytes(), nil
}

// codexEdits returns the edits that this run makes.
func codexEdits(in CodexInput, args codexArgs) []ConfigEdit {
	var out []ConfigEdit
	for _, h := range in.Preset.Homes {
		for _, e := range h.Edits {
			if e.Sandbox && (in.KeepSandbox || args.sandbox != "") || e.Proxy && in.Proxy == "" {
				continue
			}
			if s, ok := e.Value.(string); ok {
				e.Value = strings.ReplaceAll(s, "{proxy}", in.Proxy)
			}
			out = append(out, e)
		}
	}
	return out
}

// apply makes one edit. Where create is false it is made only if the key is there.
func (o *CodexOutput) apply(file string, m map[string]any, e ConfigEdit, create bool) error {
	names := strings.Split(e.Key, ".")
	for _, name := range names[:len(names)-1] {
		next, ok := m[name].(map[string]any)
		if !ok {
			if _, other := m[name]; other {
				return &Error{file, 1, fmt.Sprintf("%s is not a table, and %s must be set", name, e.Key), "correct it"}
			}
			if !create {
				return nil
			}
			next = map[string]any{}
			m[name] = next
		}
		m = next
	}
	last := names[len(names)-1]
	old, had := m[last]
	if !had && !create || slices.ContainsFunc(e.Unless, func(v any) bool { return reflect.DeepEqual(v, old) }) {
		return nil
	}
	m[last] = e.Value
	edit := AppliedEdit{File: file, Key: e.Key, New: inline(e.Value)}
	if had {
		edit.Old = inline(old)
	}
	o.Applied = append(o.Applied, edit)
	return nil
}

// inline returns a value as TOML on one line, or as a description where TOML has none.
func inline(v any) string {
	text, err := toml.Marshal(map[string]any{"v": v})
	if s, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "v = "); ok && err == nil && !strings.Contains(s, "\n") {
		return s
	}
	return fmt.Sprintf("%T", v)
}

// overlay returns m with o's keys put over it, table by table.
func overlay(m, o map[string]any) map[string]any {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]any{}
	}
	for key, v := range o {
		below, isTable := v.(map[string]any)
		under, wasTable := out[key].(map[string]any)
		if isTable && wasTable {
			v = overlay(under, below)
		}
		out[key] = v
	}
	return out
}

// requests fills in the hosts and variables that the configuration in force needs.
func (o *CodexOutput) requests(in CodexInput, args codexArgs, config map[string]any) error {
	id := text(config, "model_provider")
	if args.oss {
		id = args.ossProvider
	}
	provider, custom := table(table(config, "model_providers"), id), id != "" && id != "openai"
	base := text(provider, "base_url")
	switch {
	case custom && base != "":
	case id == "ollama" || id == "lmstudio" || args.oss:
		o.Hosts = ossHosts(id)
		return nil
	case custom: // it knows its hosts by itself, and we do not: the user names them
		o.Hosts = []string{}
		return nil
	case text(config, "openai_base_url") != "":
		base = text(config, "openai_base_url")
	case signedIn(in.Auth):
		o.Hosts = in.Preset.HostsSignedIn
		return o.addHost(text(config, "chatgpt_base_url"))
	default:
		o.Hosts = in.Preset.Hosts
	}
	o.Env = providerEnv(provider)
	return o.addHost(base)
}

func (o *CodexOutput) addHost(base string) error {
	if base == "" {
		return nil
	}
	h, err := hostOfURL(base)
	if err != nil {
		return &Error{"config.toml", 1, "base_url of the model provider: " + err.Error(), "correct it"}
	}
	if !slices.Contains(o.Hosts, h) {
		o.Hosts = append(slices.Clone(o.Hosts), h)
	}
	return nil
}

// ossHosts returns where the local model servers listen.
func ossHosts(provider string) []string {
	switch provider {
	case "ollama":
		return []string{"localhost:11434"}
	case "lmstudio":
		return []string{"localhost:1234"}
	default:
		return []string{"localhost:11434", "localhost:1234"}
	}
}

// providerEnv returns the variables a provider takes credentials from.
func providerEnv(provider map[string]any) []string {
	var env []string
	if key := text(provider, "env_key"); key != "" {
		env = append(env, key)
	}
	headers := table(provider, "env_http_headers")
	for _, h := range slices.Sorted(maps.Keys(headers)) {
		if name := text(headers, h); name != "" {
			env = append(env, name)
		}
	}
	return env
}

// signedIn reports whether auth.json holds the tokens of a sign-in and no API key.
func signedIn(auth []byte) bool {
	var a struct {
		Key    *string         `json:"OPENAI_API_KEY"`
		Tokens json.RawMessage `json:"tokens"`
	}
	if json.Unmarshal(auth, &a) != nil {
		return false
	}
	return (a.Key == nil || *a.Key == "") && len(a.Tokens) > 0 && string(a.Tokens) != "null"
}

func text(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}

func table(m map[string]any, key string) map[string]any {
	t, _ := m[key].(map[string]any)
	return t
}

// codexArgs is what of Codex's command line bears on its configuration.
type codexArgs struct {
	sandbox     string
	profile     string
	oss         bool
	ossProvider string
	config      map[string]any // -c key=value, put together
}

// readCodexArgs reads flags up to "--". Codex takes no value that begins with a dash, so a flag is
// a flag wherever it stands.
func readCodexArgs(argv []string) codexArgs {
	a := codexArgs{config: map[string]any{}}
	for i := 1; i < len(argv) && argv[i] != "--"; i++ {
		next := ""
		if i+1 < len(argv) {
			next = argv[i+1]
		}
		a.flag(argv[i], next)
	}
	if mode := text(a.config, "sandbox_mode"); a.sandbox == "" {
		a.sandbox = mode
	}
	return a
}

func (a *codexArgs) flag(arg, next string) {
	name, value, joined := strings.Cut(arg, "=")
	if !strings.HasPrefix(arg, "--") && len(arg) > 2 {
		name, value, joined = arg[:2], strings.TrimPrefix(arg[2:], "="), true // -sread-only
	}
	if !joined {
		value = next
	}
	switch name {
	case "-s", "--sandbox":
		a.sandbox = value
	case "--dangerously-bypass-approvals-and-sandbox", "--yolo":
		a.sandbox = "danger-full-access"
	case "--approve-for-me":
		a.sandbox = "workspace-write"
	case "-p", "--profile":
		a.profile = value
	case "--oss":
		a.oss = true
	case "--local-provider":
		a.ossProvider = value
	case "-c", "--config":
		a.override(value)
	}
}

// override puts one key=value over the configuration: a TOML value, else the text itself.
func (a *codexArgs) override(s string) {
	key, value, ok := strings.Cut(s, "=")
	if !ok {
		return
	}
	var v any = strings.TrimSpace(value)
	var doc map[string]any
	if toml.Unmarshal([]byte("v = "+value), &doc) == nil && len(doc) == 1 {
		v = doc["v"]
	}
	names := strings.Split(strings.TrimSpace(key), ".")
	for _, name := range slices.Backward(names) {
		v = map[string]any{name: v}
	}
	a.config = overlay(a.config, v.(map[string]any))
}
