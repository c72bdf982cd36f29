package policy

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func codexInput(t *testing.T, config string, argv ...string) CodexInput {
	t.Helper()
	p, ok := mustPresets(t).Named("codex")
	if !ok {
		t.Fatal("no preset codex")
	}
	return CodexInput{Config: []byte(config), Argv: append([]string{"codex", "exec"}, argv...), Preset: p, Proxy: "http://127.0.0.1:3128"}
}

func edit(t *testing.T, in CodexInput) (CodexOutput, map[string]any) {
	t.Helper()
	out, err := EditCodexConfig(in)
	if err != nil {
		t.Fatal(err)
	}
	m, err := decode("out", out.Config)
	if err != nil {
		t.Fatal(err)
	}
	return out, m
}

// get returns the value at a dotted key.
func get(m map[string]any, key string) any {
	names := strings.Split(key, ".")
	for _, n := range names[:len(names)-1] {
		m = table(m, n)
	}
	return m[names[len(names)-1]]
}

const userConfig = `model = "gpt-5.5"
model_provider = "mock"
sandbox_mode = "read-only"
"odd key" = 1979-05-27T07:32:00Z
notify = ["a", "b"]
[features]
plugins = true
mine = true
[shell_environment_policy]
inherit = "all"
exclude = ["X"]
[shell_environment_policy.set]
MINE = "1"
[model_providers.mock]
name = "mock"
base_url = "http://127.0.0.1:8123/v1"
wire_api = "responses"
env_key = "MOCK_KEY"
env_http_headers = { "X-B" = "HEADER_B", "X-A" = "HEADER_A" }
[mcp_servers.x]
command = "srv"
args = ["--a", "b c"]
env = { K = "v" }
[[skills.list]]
name = "s"
`

func TestCodexEditsKeepWhatTheUserSet(t *testing.T) {
	out, m := edit(t, codexInput(t, userConfig, "go"))
	for key, want := range map[string]any{
		"sandbox_mode": "danger-full-access", "approval_policy": "never", "features.plugins": false, "features.apps": false,
		"features.api_key_model_discovery": false, "features.unbounded_connection_retries": false, "analytics.enabled": false,
		"shell_environment_policy.inherit": "core", "shell_environment_policy.set.HTTPS_PROXY": "http://127.0.0.1:3128",
		"shell_environment_policy.set.MINE": "1", "features.mine": true, "model": "gpt-5.5", "mcp_servers.x.command": "srv",
	} {
		if got := get(m, key); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", key, got, want)
		}
	}
	before, _ := decode("in", []byte(userConfig))
	for _, key := range []string{"odd key", "notify", "model_providers", "mcp_servers", "skills"} {
		if !reflect.DeepEqual(m[key], before[key]) {
			t.Errorf("%s changed: %v", key, m[key])
		}
	}
	if !slices.Equal(out.Hosts, []string{"127.0.0.1:8123"}) || !slices.Equal(out.Env, []string{"MOCK_KEY", "HEADER_A", "HEADER_B"}) {
		t.Errorf("requests: got %v %v", out.Hosts, out.Env)
	}
	i := slices.IndexFunc(out.Applied, func(e AppliedEdit) bool { return e.Key == "sandbox_mode" })
	if i < 0 || out.Applied[i] != (AppliedEdit{"config.toml", "sandbox_mode", `"read-only"`, `"danger-full-access"`}) {
		t.Errorf("applied: got %+v", out.Applied)
	}
	if out.Profile != nil || out.Sandbox != "" {
		t.Errorf("got %q %q", out.Profile, out.Sandbox)
	}
}

func TestCodexWithoutConfigGetsAMinimalOne(t *testing.T) {
	in := codexInput(t, "", "go")
	in.Config, in.Proxy = nil, ""
	out, m := edit(t, in)
	if get(m, "sandbox_mode") != "danger-full-access" || get(m, "shell_environment_policy.set") != nil {
		t.Errorf("got %s", out.Config)
	}
	if !slices.Equal(out.Hosts, []string{"api.openai.com:443"}) || out.Env != nil {
		t.Errorf("got %v %v", out.Hosts, out.Env)
	}
}

func TestSandboxChoiceInArgvWins(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"-s", "workspace-write", "go"}, "workspace-write"},
		{[]string{"--sandbox", "read-only"}, "read-only"},
		{[]string{"--sandbox=read-only"}, "read-only"},
		{[]string{"-sread-only"}, "read-only"},
		{[]string{"-s=read-only"}, "read-only"},
		{[]string{"--dangerously-bypass-approvals-and-sandbox", "go"}, "danger-full-access"},
		{[]string{"--yolo"}, "danger-full-access"},
		{[]string{"--approve-for-me"}, "workspace-write"},
		{[]string{"-c", "sandbox_mode=read-only"}, "read-only"},
		{[]string{"-c", `sandbox_mode="read-only"`}, "read-only"},
		{[]string{"-csandbox_mode=read-only"}, "read-only"},
		{[]string{"--config=sandbox_mode=read-only"}, "read-only"},
		{[]string{"--", "--yolo"}, ""},
		{[]string{"-c", "model=x", "--json", "say -s read-only"}, ""},
		{[]string{"-s"}, ""},
	} {
		out, m := edit(t, codexInput(t, "sandbox_mode = \"keep\"\n", c.argv...))
		want := "danger-full-access"
		if c.want != "" {
			want = "keep"
		}
		if out.Sandbox != c.want || get(m, "sandbox_mode") != want || get(m, "features.plugins") != false {
			t.Errorf("%v: got %q and %v", c.argv, out.Sandbox, get(m, "sandbox_mode"))
		}
	}
	in := codexInput(t, "", "go")
	in.KeepSandbox = true
	if _, m := edit(t, in); get(m, "sandbox_mode") != nil || get(m, "approval_policy") != nil || get(m, "analytics.enabled") != false {
		t.Errorf("KeepSandbox: got %v", m)
	}
}

func TestCodexAPIHostFollowsTheConfigurationInForce(t *testing.T) {
	signedIn := `{"OPENAI_API_KEY":null,"tokens":{"id_token":"x"}}`
	for _, c := range []struct {
		name, config, auth string
		argv               []string
		hosts              string
	}{
		{"default", "", "", nil, "api.openai.com:443"},
		{"openai by name", `model_provider = "openai"`, "", nil, "api.openai.com:443"},
		{"API key in auth.json", "", `{"OPENAI_API_KEY":"k","tokens":null}`, nil, "api.openai.com:443"},
		{"signed in", "", signedIn, nil, "chatgpt.com:443 auth.openai.com:443"},
		{"signed in, other URL", `chatgpt_base_url = "https://chat.example/backend"`, signedIn, nil, "chatgpt.com:443 auth.openai.com:443 chat.example:443"},
		{"own provider while signed in", userConfig, signedIn, nil, "127.0.0.1:8123"},
		{"provider of argv", userConfig, "", []string{"-c", `model_provider="b"`, "-c", "model_providers.b.base_url=https://B.example:8443/x"}, "b.example:8443"},
		{"base URL of argv", userConfig, "", []string{"-c", `model_providers.mock.base_url="https://c.example"`}, "c.example:443"},
		{"built-in with another URL", "", "", []string{"-c", "openai_base_url=http://localhost:9/v1"}, "localhost:9"},
		{"not asked for after --", "", "", []string{"--", "-c", "openai_base_url=http://localhost:9/v1"}, "api.openai.com:443"},
		{"local models", "", "", []string{"--oss", "--local-provider", "ollama"}, "localhost:11434"},
		{"local models, either", "", "", []string{"--oss"}, "localhost:11434 localhost:1234"},
		{"built-in provider whose hosts only it knows", `model_provider = "bedrock"`, "", nil, ""},
		{"IPv6", `openai_base_url = "http://[::1]:8/v1"`, "", nil, "[::1]:8"},
		{"octal", `openai_base_url = "http://0177.1/v1"`, "", nil, "127.0.0.1:80"},
	} {
		in := codexInput(t, c.config, c.argv...)
		in.Auth = []byte(c.auth)
		out, err := EditCodexConfig(in)
		if err != nil || strings.Join(out.Hosts, " ") != c.hosts || out.Hosts == nil {
			t.Errorf("%s: got %v, %v; want %s", c.name, out.Hosts, err, c.hosts)
		}
	}
}

func TestCodexProfileIsEditedWhereItSpeaks(t *testing.T) {
	in := codexInput(t, userConfig, "-p", "work")
	in.Profile = []byte("sandbox_mode = \"read-only\"\nmodel_provider = \"other\"\n[model_providers.other]\nbase_url = \"https://other.example\"\n[analytics]\nx = 1\n")
	if got := CodexProfile(in.Argv); got != "work.config.toml" {
		t.Errorf("got %q", got)
	}
	out, _ := edit(t, in)
	m, err := decode("p", out.Profile)
	if err != nil {
		t.Fatal(err)
	}
	if get(m, "sandbox_mode") != "danger-full-access" || get(m, "approval_policy") != nil || get(m, "analytics.enabled") != nil || get(m, "features") != nil {
		t.Errorf("got %s", out.Profile)
	}
	if !slices.Equal(out.Hosts, []string{"other.example:443"}) {
		t.Errorf("got %v", out.Hosts)
	}
	for _, argv := range [][]string{{"codex"}, {"codex", "-p", "../x"}, {"codex", "--", "-p", "x"}, {"codex", "-p"}} {
		if got := CodexProfile(argv); got != "" {
			t.Errorf("%v: got %q", argv, got)
		}
	}
}

func TestStricterUserSettingStays(t *testing.T) {
	_, m := edit(t, codexInput(t, "[shell_environment_policy]\ninherit = \"none\"\n"))
	if get(m, "shell_environment_policy.inherit") != "none" {
		t.Errorf("got %v", get(m, "shell_environment_policy.inherit"))
	}
}

func TestCodexConfigThatCannotBeEditedIsRefused(t *testing.T) {
	for _, c := range []struct{ config, says string }{
		{"model = \n", "config.toml:1: not valid TOML"},
		{"a = 1\na = 2\n", "config.toml:2: not valid TOML"},
		{"features = 3\n", "features is not a table"},
		{"shell_environment_policy = {set = \"x\"}\n", "set is not a table"},
		{"model_provider = \"m\"\n[model_providers.m]\nbase_url = \"gopher://x\"\n", "base_url"},
		{"openai_base_url = \"https://a b/\"\n", "base_url"},
		{"openai_base_url = \"https://b\u00fccher.example/\"\n", "base_url"},
	} {
		_, err := EditCodexConfig(codexInput(t, c.config))
		if e := (*Error)(nil); !errors.As(err, &e) || !strings.Contains(err.Error(), c.says) || e.Next == "" {
			t.Errorf("%q: got %v, want %q", c.config, err, c.says)
		}
	}
	in := codexInput(t, "", "-p", "x")
	in.Profile = []byte("]")
	if _, err := EditCodexConfig(in); err == nil || !strings.HasPrefix(err.Error(), "x.config.toml:1") {
		t.Errorf("profile: got %v", err)
	}
}

// Whatever the configuration and flags, the edited copy is TOML, holds the edits, and keeps every
// other key of the user's.
func FuzzEditCodexConfig(f *testing.F) {
	f.Add([]byte(userConfig), "-c", "a.b=1")
	f.Add([]byte("a = [[1],[{x=1}]]\nb = 07:32:00\nc = inf\nd = {}\n\"\" = 1\n"), "-s", "read-only")
	f.Add([]byte("[[a]]\n[[a.b]]\nx = ''\n"), "--oss", "x=")
	presets, err := LoadPresets()
	if err != nil {
		f.Fatal(err)
	}
	preset, _ := presets.Named("codex")
	f.Fuzz(func(t *testing.T, config []byte, a, b string) {
		in := CodexInput{Config: config, Argv: []string{"codex", a, b}, Preset: preset, Proxy: "http://127.0.0.1:1"}
		out, err := EditCodexConfig(in)
		if e := (*Error)(nil); err != nil {
			if !errors.As(err, &e) {
				t.Fatalf("got %T %v", err, err)
			}
			return
		}
		before, err := decode("in", config)
		if err != nil {
			t.Fatal(err)
		}
		after, err := decode("out", out.Config)
		if err != nil {
			t.Fatalf("%v in\n%s", err, out.Config)
		}
		if out.Sandbox == "" && after["sandbox_mode"] != "danger-full-access" || get(after, "analytics.enabled") != false {
			t.Fatalf("edits are missing in\n%s", out.Config)
		}
		for key, v := range before {
			switch key {
			case "sandbox_mode", "approval_policy", "features", "analytics", "shell_environment_policy":
			default:
				if inline(after[key]) != inline(v) || !sameTOML(after[key], v) {
					t.Fatalf("%q changed from %v to %v", key, v, after[key])
				}
			}
		}
	})
}

// sameTOML compares by the text: NaN and times compare by it, too.
func sameTOML(a, b any) bool {
	x, err1 := encode("a", map[string]any{"v": a})
	y, err2 := encode("b", map[string]any{"v": b})
	return string(x) == string(y) && (err1 == nil) == (err2 == nil)
}
