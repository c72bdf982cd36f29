package apply

import (
	"strings"

	"stage/fs/tree"
)

// nameRule gives a class to files by name. A pattern with a slash is the end of a path, one that
// ends in a slash a directory anywhere above, and one that ends in a star a prefix of the name.
type nameRule struct {
	class    Class
	patterns []string
	why      string
}

// nameRules is what tools execute, obey or keep secret, by the names they look for.
var nameRules = []nameRule{
	{GitAttributes, []string{".gitattributes"}, "selects filters, diff and merge drivers"},
	{GitConfig, []string{".gitmodules", ".gitconfig"}, "configures git"},
	{GitHook, []string{".husky/", ".githooks/", ".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml"}, "is run by git hooks"},
	{Envrc, []string{".envrc", ".direnvrc", ".mise.toml", "mise.toml", ".mise/", ".autoenv"}, "is run when a shell enters the directory"},
	{EditorTask, []string{
		".vscode/tasks.json", ".vscode/settings.json", ".vscode/launch.json", ".vscode/extensions.json",
		".devcontainer/", ".devcontainer.json", ".idea/", "*.code-workspace", ".vimrc", ".nvimrc", ".exrc", ".nvim.lua",
		".dir-locals.el", ".zed/", ".fleet/", ".sublime-project",
	}, "is run or obeyed by an editor that opens the directory"},
	{AgentConfig, []string{
		"AGENTS.md", "AGENTS.override.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md", ".cursorrules", ".windsurfrules", ".clinerules",
		".codex/", ".claude/", ".gemini/", ".cursor/", ".opencode/", ".agents/", ".aider*", ".mcp.json", "opencode.json",
		"opencode.jsonc", ".github/copilot-instructions.md", ".stage/",
	}, "instructs or configures an agent"},
	{CI, []string{
		".github/workflows/", ".github/actions/", ".gitlab-ci.yml", ".circleci/", "Jenkinsfile", "azure-pipelines.yml",
		".travis.yml", ".drone.yml", ".buildkite/", ".woodpecker/", "bitbucket-pipelines.yml", ".ci/", "appveyor.yml",
	}, "is run by continuous integration"},
	{Script, []string{
		"Makefile", "makefile", "GNUmakefile", "justfile", "Justfile", "Taskfile.yml", "package.json", "setup.py", "conftest.py",
		"build.rs", "CMakeLists.txt", "Rakefile", "Dockerfile", "noxfile.py", "tox.ini", ".npmrc", ".yarnrc.yml",
	}, "holds commands that builds and tests run"},
	{Secret, []string{
		".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519",
		".netrc", ".pgpass", ".npmrc", ".pypirc", "credentials", "credentials.json", ".git-credentials", ".htpasswd", ".aws/", ".ssh/", ".gnupg/",
		"auth.json", "service-account.json", "*.kdbx",
	}, "has a name that secrets have"},
}

// match reports whether the rule is about p, and why.
func (r nameRule) match(p tree.Path) (why string, ok bool) {
	for _, pattern := range r.patterns {
		if matchName(pattern, p) {
			return quote(p) + " " + r.why, true
		}
	}
	return "", false
}

func matchName(pattern string, p tree.Path) bool {
	full := "/" + p.String()
	if dir, ok := strings.CutSuffix(pattern, "/"); ok {
		return strings.Contains(full, "/"+dir+"/")
	}
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(p.Base(), prefix)
	}
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(p.Base(), suffix)
	}
	return strings.HasSuffix(full, "/"+pattern)
}
