package apply

import (
	"slices"
	"strings"

	"stage/fs/tree"
)

// nameRule gives a class to files by name. A pattern with a slash is the end of a path, one that
// ends in a slash a directory anywhere above; a star at an end stands for the rest of the name.
type nameRule struct {
	class    Class
	patterns []string
	why      string
}

// nameRules is what tools execute, obey or keep secret, by the names they look for.
//
//	git-hook        gates  hook folders in the tree, configurations of hook managers
//	git-config      gates  .gitmodules .gitconfig .lfsconfig; see also class_git.go
//	git-attributes  gates  .gitattributes
//	envrc           gates  what a shell, version manager, debugger or REPL runs by being started there
//	editor-task     gates  what an editor runs or obeys by opening the folder
//	agent-config    gates  what instructs an agent, or adds servers, hooks and permissions to it
//	ci              flags  what runs elsewhere, after a push
//	script          flags  what runs when somebody builds, tests or installs
//	secret          flags  names that secrets have
//
// What is read without anybody asking for it gates; what somebody has to start is flagged.
var nameRules = []nameRule{
	{GitAttributes, []string{".gitattributes"}, "selects filters, diff and merge drivers"},
	{GitConfig, []string{".gitmodules", ".gitconfig", ".lfsconfig"}, "configures git"},
	{GitHook, []string{
		".husky/", ".huskyrc*", ".githooks/", ".git-hooks/", ".pre-commit-config.yaml", ".pre-commit-config.yml", "prek.toml",
		"lefthook.*", ".lefthook.*", "lefthook-local.*", ".lefthook-local.*", ".lefthook/", ".lefthook-local/", ".overcommit.yml",
		"simple-git-hooks.*", ".simple-git-hooks.*", ".lintstagedrc*", "lint-staged.config.*", "captainhook.json",
	}, "is run by git hooks"},
	{Envrc, []string{
		".envrc", ".direnvrc", ".autoenv*", ".mise.*", "mise.*", ".mise/", ".config/mise.*", ".config/mise/", "mise/config.toml", ".rtx.toml",
		".tool-versions", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin",
	}, "is run when a shell enters the directory or starts"},
	{Envrc, []string{
		".gdbinit", ".lldbinit", ".pdbrc", ".pdbrc.py", ".irbrc", ".pryrc", ".Rprofile", ".ghci", ".ocamlinit", ".radare2rc",
	}, "is run when a debugger or interpreter starts in the directory"},
	{EditorTask, []string{
		".vscode/", ".devcontainer/", ".devcontainer*", ".idea/", ".run/", "*.code-workspace", ".vs/", ".settings/", ".project",
		".vimrc", "_vimrc", ".lvimrc", ".nvimrc", ".exrc", "_exrc", ".nvim.lua", ".nvim/", ".vimspector.json", ".dir-locals.el",
		".dir-locals-2.el", ".zed/", ".fleet/", ".helix/", "*.sublime-project", ".theia/", ".nova/",
	}, "is run or obeyed by an editor that opens the directory"},
	{AgentConfig, []string{
		"AGENTS.md", "AGENTS.override.md", "AGENT.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md", "QWEN.md", "CRUSH.md", "WARP.md",
		".cursorrules", ".windsurf*", ".clinerules*", ".roorules*", ".roomodes", ".goosehints", ".augment-guidelines", ".rules", ".aider*",
		".mcp.json", ".vscode/mcp.json", "opencode.json", "opencode.jsonc", "crush.json", ".crush.json", ".continuerc.json",
		".codex/", ".claude/", ".gemini/", ".cursor/", ".opencode/", ".agents/", ".windsurf/", ".kiro/", ".roo/", ".continue/", ".clinerules/",
		".amazonq/", ".junie/", ".trae/", ".augment/", ".goose/", ".qwen/", ".crush/", ".factory/", ".kilocode/", ".openhands/", ".serena/",
		".github/copilot-instructions.md", ".github/instructions/", ".github/prompts/", ".github/chatmodes/", ".github/agents/",
		".github/hooks/", ".copilot/", ".stage/",
	}, "instructs or configures an agent"},
	{CI, []string{
		".github/workflows/", ".github/actions/", ".gitlab-ci.yml", ".circleci/", "Jenkinsfile", "azure-pipelines.yml",
		".travis.yml", ".drone.yml", ".buildkite/", ".woodpecker/", "bitbucket-pipelines.yml", ".ci/", "appveyor.yml",
	}, "is run by continuous integration"},
	{Script, []string{
		"Makefile", "makefile", "GNUmakefile", "justfile", "Justfile", "Taskfile.yml", "package.json", "setup.py", "conftest.py",
		"build.rs", "CMakeLists.txt", "Rakefile", "Dockerfile", "noxfile.py", "tox.ini", ".npmrc", ".yarnrc", ".yarnrc.yml", ".yarn/plugins/",
		".yarn/releases/", ".pnpmfile.cjs", ".pnpmfile.mjs", ".cargo/config", ".cargo/config.toml", "bunfig.toml", "shell.nix", "flake.nix",
		"sitecustomize.py", "usercustomize.py",
	}, "holds commands that builds and tests run"},
	{Secret, []string{
		".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519",
		".netrc", ".pgpass", ".npmrc", ".pypirc", "credentials", "credentials.json", ".git-credentials", ".htpasswd", ".aws/", ".ssh/", ".gnupg/",
		"auth.json", "service-account.json", "*.kdbx",
	}, "has a name that secrets have"},
}

// match reports whether the rule is about p.
func (r nameRule) match(p tree.Path) bool {
	return slices.ContainsFunc(r.patterns, func(pattern string) bool { return matchName(pattern, p) })
}

// leadsTo reports whether the rule may be about what is below p.
func (r nameRule) leadsTo(p tree.Path) bool {
	full := "/" + p.String()
	return slices.ContainsFunc(r.patterns, func(pattern string) bool {
		for i, c := range pattern {
			if c == '/' && strings.HasSuffix(full, "/"+pattern[:i]) {
				return true
			}
		}
		return false
	})
}

// fixed returns the names without stars that the rule looks for, and those that lead to them.
func (r nameRule) fixed() []string {
	var out []string
	for _, pattern := range r.patterns {
		for i, c := range pattern {
			if c == '/' {
				out = append(out, pattern[:i])
			}
		}
		if !strings.ContainsRune(pattern, '*') && !strings.HasSuffix(pattern, "/") {
			out = append(out, pattern)
		}
	}
	return out
}

func matchName(pattern string, p tree.Path) bool {
	full := "/" + p.String()
	if dir, ok := strings.CutSuffix(pattern, "/"); ok {
		return strings.Contains(full, "/"+dir+"/")
	}
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		i := strings.LastIndexByte(prefix, '/') + 1
		return strings.HasPrefix(p.Base(), prefix[i:]) && strings.HasSuffix("/"+p.Parent().String()+"/", "/"+prefix[:i])
	}
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(p.Base(), suffix)
	}
	return strings.HasSuffix(full, "/"+pattern)
}
