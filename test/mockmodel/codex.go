package mockmodel

import "fmt"

// CodexConfig returns a config.toml for CODEX_HOME with which Codex asks script for its answers and
// contacts nothing else. It leaves Codex's sandbox as it is by default.
func (s *Server) CodexConfig(script string) string {
	return fmt.Sprintf(`# "gpt-5.5" makes Codex offer the tools exec_command and apply_patch.
model = "gpt-5.5"
model_provider = "mock"

[analytics]
enabled = false

[features]
plugins = false
unbounded_connection_retries = false

[model_providers.mock]
name = "mock"
base_url = %q
wire_api = "responses"
`, s.URL(script))
}
