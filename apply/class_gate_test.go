package apply_test

import (
	"fmt"
	"slices"
	"testing"

	"stage/apply"
	"stage/fs/staged/stagedtest"
	"stage/fs/tree"
)

// repository makes what git takes for a repository, in directory d.
func repository(x stagedtest.Tree, d, config string) {
	mkdirs(x, d+"/objects/x")
	x.Mkdir(d + "/refs")
	x.Mkdir(d + "/hooks")
	x.Write(d+"/HEAD", "ref: refs/heads/main\n")
	x.Write(d+"/config", config)
}

// gateCase is a workspace, what a Job does there, and a path that must be flagged with a class;
// none: not be flagged.
type gateCase struct {
	name string
	work func(x stagedtest.Tree)
	job  func(x stagedtest.Tree)
	path string
	want apply.Class
}

func (c gateCase) run(t *testing.T) {
	w := newWorldWith(t, func(x stagedtest.Tree) {
		if c.work != nil {
			c.work(x)
		}
	})
	c.job(w.job)
	w.job.Seal()
	got := classes(t, w, c.path, 0)
	if c.want == "" && len(got) > 0 || c.want != "" && !slices.Contains(got, c.want) {
		t.Errorf("%q is flagged with %v, want %q", c.path, got, c.want)
	}
}

// TestLinksToGatedPlaces: what a link at a gated place leads to lies at that place.
func TestLinksToGatedPlaces(t *testing.T) {
	git := func(x stagedtest.Tree) { repository(x, ".git", "") }
	link := func(target, at, file string) func(x stagedtest.Tree) {
		return func(x stagedtest.Tree) {
			if at != ".git/hooks" {
				mkdirs(x, at)
			} else {
				x.Remove(".git/hooks")
			}
			x.Symlink(target, at)
			if file != "" {
				x.Write(file, "x")
			}
		}
	}
	base := func(target, at string) func(x stagedtest.Tree) {
		return func(x stagedtest.Tree) { x.Symlink(target, at) }
	}
	write := func(p string) func(x stagedtest.Tree) { return func(x stagedtest.Tree) { x.Write(p, "x") } }
	for _, c := range []gateCase{
		{"hooks, the link", git, link("../d", ".git/hooks", ""), ".git/hooks", apply.GitHook},
		{"hooks, the target", git, link("../d", ".git/hooks", "d/e/pre-commit"), "d/e/pre-commit", apply.GitHook},
		{"hooks, beside the target", git, link("../d", ".git/hooks", "a/pre-commit"), "a/pre-commit", ""},
		{"absolute", git, link("/home/x/ws/d", ".git/hooks", "d/pre-commit"), "d/pre-commit", apply.GitHook},
		{"out and in again", git, link("../../ws/d", ".git/hooks", "d/pre-commit"), "d/pre-commit", apply.GitHook},
		{"through a second link", git, func(x stagedtest.Tree) {
			x.Symlink("d", "two")
			link("../two", ".git/hooks", "d/pre-commit")(x)
		}, "d/pre-commit", apply.GitHook},
		{"git directory", nil, link("d", ".git", ""), ".git", apply.GitConfig},
		{"in a git directory", git, link("../d", ".git/modules", ""), ".git/modules", apply.GitConfig},
		{"info", git, link("../d", ".git/info", "d/attributes"), "d/attributes", apply.GitAttributes},
		{"git configuration", git, func(x stagedtest.Tree) {
			x.Remove(".git/config")
			x.Symlink("../d/c", ".git/config")
			x.Write("d/c", "[core]\n\tfsmonitor = x\n")
		}, "d/c", apply.GitConfig},
		{"editor", nil, link("d", ".vscode", "d/tasks.json"), "d/tasks.json", apply.EditorTask},
		{"editor, the link", nil, link("d", ".vscode", ""), ".vscode", apply.EditorTask},
		{"agent, the link", nil, link("d", ".claude", ""), ".claude", apply.AgentConfig},
		{"husky, nested", nil, link("../d", "a/.husky", "d/x"), "d/x", apply.GitHook},
		{"devcontainer", nil, link("d", ".devcontainer", "d/devcontainer.json"), "d/devcontainer.json", apply.EditorTask},
		{"part of a pattern", nil, link("d", ".github", "d/copilot-instructions.md"), "d/copilot-instructions.md", apply.AgentConfig},
		{"below a gated place", nil, func(x stagedtest.Tree) {
			x.Mkdir(".husky")
			x.Symlink("../d", ".husky/_")
			x.Write("d/x", "x")
		}, "d/x", apply.GitHook},
		{"link of a link's target", nil, func(x stagedtest.Tree) {
			x.Symlink("a", ".husky")
			x.Symlink("../d", "a/_")
			x.Write("d/x", "x")
		}, "d/x", apply.GitHook},
		{"file", nil, func(x stagedtest.Tree) { x.Symlink("d/f", ".envrc"); x.Write("d/f", "x") }, "d/f", apply.Envrc},
		{"brought by a move", func(x stagedtest.Tree) { x.Mkdir("m"); x.Symlink("../d", "m/hooks") }, func(x stagedtest.Tree) {
			x.Rename("m", ".git")
			x.Write("d/x", "x")
		}, "d/x", apply.GitHook},
		{"directory moved there", git, func(x stagedtest.Tree) { x.Remove(".git/hooks"); x.Rename("d", ".git/hooks") }, ".git/hooks/f", apply.GitHook},
		{"directory moved to a new place", nil, func(x stagedtest.Tree) { x.Rename("d", ".husky") }, ".husky", apply.GitHook},
		{"hard link", git, func(x stagedtest.Tree) { x.Link("f", ".git/hooks/x") }, ".git/hooks/x", apply.GitHook},
		{"in the workspace before", base("d", ".husky"), write("d/x"), "d/x", apply.GitHook},
		{"hooks in the workspace before", func(x stagedtest.Tree) {
			git(x)
			x.Remove(".git/hooks")
			x.Symlink("../d", ".git/hooks")
		}, write("d/x"), "d/x", apply.GitHook},
		{"ordinary link", nil, link("d", "n", "d/x"), "d/x", ""},
		{"ordinary link itself", nil, link("d", "n", ""), "n", ""},
	} {
		t.Run(c.name, c.run)
	}
}

// TestGitDirectories: what git takes for a repository is one, whatever its name.
func TestGitDirectories(t *testing.T) {
	const evil = "[core]\n\tfsmonitor = x\n"
	bare := func(x stagedtest.Tree) { repository(x, "docs", "") }
	for _, c := range []gateCase{
		{"config of a bare repository", bare, func(x stagedtest.Tree) { x.Write("docs/config", evil) }, "docs/config", apply.GitConfig},
		{"hook of a bare repository", bare, func(x stagedtest.Tree) { x.Write("docs/hooks/update", "x") }, "docs/hooks/update", apply.GitHook},
		{"hook beside a HEAD of its own", bare, func(x stagedtest.Tree) {
			x.Write("docs/hooks/HEAD", "ref: refs/heads/x\n")
			x.Write("docs/hooks/update", "x")
		}, "docs/hooks/update", apply.GitHook},
		{"link in a bare repository", bare, func(x stagedtest.Tree) {
			x.Remove("docs/hooks")
			x.Symlink("../d", "docs/hooks")
			x.Write("d/update", "x")
		}, "d/update", apply.GitHook},
		{"moved and changed", bare, func(x stagedtest.Tree) {
			x.Rename("docs", "m")
			x.Write("m/config", evil)
		}, "m/config", apply.GitConfig},
		{"no repository", func(x stagedtest.Tree) { bare(x); x.Remove("docs/HEAD") }, func(x stagedtest.Tree) { x.Write("docs/config", evil) }, "docs/config", ""},
		{"completed by its HEAD", func(x stagedtest.Tree) { repository(x, "docs", evil); x.Remove("docs/HEAD") }, func(x stagedtest.Tree) {
			x.Write("docs/HEAD", "ref: refs/heads/main\n")
		}, "docs/HEAD", apply.GitConfig},
		{"completed by its refs", func(x stagedtest.Tree) { repository(x, "docs", ""); x.Remove("docs/refs") }, func(x stagedtest.Tree) {
			x.Mkdir("docs/refs")
		}, "docs/refs", apply.GitHook},
		{"commondir", func(x stagedtest.Tree) { x.Mkdir("w"); x.Write("w/HEAD", "x"); x.Write("w/commondir", "x") }, func(x stagedtest.Tree) {
			x.Write("w/config.worktree", evil)
		}, "w/config.worktree", apply.GitConfig},
		{"named by a git file", func(x stagedtest.Tree) { x.Mkdir("s"); x.Write("s/.git", "gitdir: ../d\n") }, func(x stagedtest.Tree) {
			mkdirs(x, "d/hooks/x")
			x.Write("d/hooks/x", "x")
			x.Write("s/n", "x")
		}, "d/hooks/x", apply.GitHook},
		{"git file in a repository", bare, func(x stagedtest.Tree) { x.Write("docs/.git", "gitdir: x\n") }, "docs/.git", apply.GitConfig},
		{"legacy remote", func(x stagedtest.Tree) { repository(x, ".git", "") }, func(x stagedtest.Tree) {
			x.Mkdir(".git/remotes")
			x.Write(".git/remotes/origin", "URL: x\n")
		}, ".git/remotes/origin", apply.GitConfig},
		{"FIFO in a git directory", func(x stagedtest.Tree) { repository(x, ".git", "") }, func(x stagedtest.Tree) { x.Mkfifo(".git/index") }, ".git/index", apply.GitConfig},
		{"FIFO at a name that is read", nil, func(x stagedtest.Tree) { x.Mkfifo(".envrc") }, ".envrc", apply.Envrc},
		{"FIFO elsewhere", nil, func(x stagedtest.Tree) { x.Mkfifo("n") }, "n", ""},
		{"ordinary commit", func(x stagedtest.Tree) { repository(x, ".git", "") }, func(x stagedtest.Tree) { x.Write(".git/refs/main", "0\n") }, ".git/refs/main", ""},
		{"clone", nil, func(x stagedtest.Tree) {
			mkdirs(x, "c/.git/x")
			x.Write("c/.git/config", "[remote \"origin\"]\n\turl = https://example.org/x\n\tfetch = y\n[branch \"main\"]\n\tremote = origin\n")
		}, "c/.git/config", ""},
		{"clone that executes", nil, func(x stagedtest.Tree) {
			mkdirs(x, "c/.git/x")
			x.Write("c/.git/config", "[remote \"origin\"]\n\turl = ext::sh -c x\n")
		}, "c/.git/config", apply.GitConfig},
	} {
		t.Run(c.name, c.run)
	}
}

// TestConfiguredFiles: what the configuration in the workspace names is hooks, configuration,
// attributes, or run.
func TestConfiguredFiles(t *testing.T) {
	for _, c := range []struct {
		name, config, path string
		want               apply.Class
	}{
		{"hooks", "[core]\n\thooksPath = d\n", "d/x", apply.GitHook},
		{"hooks, upper case and quotes", "[CORE]\n\tHooksPath = \"./d\"\n", "d/x", apply.GitHook},
		{"hooks by absolute path", "[core]\n\thooksPath = /home/u/ws/d\n", "d/x", apply.GitHook},
		{"other folder", "[core]\n\thooksPath = dd\n", "d/x", ""},
		{"include", "[include]\n\tpath = ../d/x\n", "d/x", apply.GitConfig},
		{"attributes", "[core]\n\tattributesFile = d/x\n", "d/x", apply.GitAttributes},
		{"command", "[filter \"x\"]\n\tclean = sh ./d/x --y\n", "d/x", apply.GitConfig},
		{"alias", "[alias]\n\tx = \"!d/x\"\n", "d/x", apply.GitConfig},
	} {
		t.Run(c.name, gateCase{
			work: func(x stagedtest.Tree) { repository(x, ".git", c.config) },
			job:  func(x stagedtest.Tree) { x.Write("d/x", "[core]\n\tpager = x\n") },
			path: c.path, want: c.want,
		}.run)
	}
	t.Run("repository below", gateCase{
		work: func(x stagedtest.Tree) {
			repository(x, "s/.git", "[core]\n\thooksPath = h\n")
			x.Mkdir("s/h")
		},
		job:  func(x stagedtest.Tree) { x.Write("s/h/x", "x") },
		path: "s/h/x", want: apply.GitHook,
	}.run)
}

// TestNamesThatGate: each is a file that some tool runs or obeys.
func TestNamesThatGate(t *testing.T) {
	for class, names := range map[apply.Class][]string{
		apply.Envrc: {
			".mise.local.toml", "mise.local.toml", "mise.dev.toml", ".tool-versions", ".config/mise/config.toml", ".bashrc", ".gdbinit", ".lldbinit", ".pdbrc",
		},
		apply.EditorTask:  {".vscode/mcp.json", ".lvimrc", ".exrc", ".nvimrc", ".nvim.lua", ".vimrc", ".idea/runConfigurations/x.xml", ".run/x.run.xml", "x.sublime-project", ".helix/config.toml", ".vscode/c_cpp_properties.json"},
		apply.AgentConfig: {".vscode/mcp.json", ".cursor/mcp.json", ".windsurfrules", ".windsurf/rules/x.md", ".kiro/steering/x.md", ".roo/rules/x.md", ".roomodes", ".continue/config.yaml", ".clinerules", ".clinerules/x.md", ".mcp.json", "CLAUDE.md", "s/AGENTS.md"},
		apply.GitConfig:   {".lfsconfig", ".gitmodules", "s/.gitmodules"},
		apply.GitHook:     {".lefthook.yaml", ".lintstagedrc.json", ".git-hooks/x"},
		apply.Script:      {".cargo/config", ".cargo/config.toml", ".pnpmfile.cjs", ".yarnrc", ".yarnrc.yml", ".npmrc"},
	} {
		for _, n := range names {
			t.Run(n, gateCase{job: func(x stagedtest.Tree) { mkdirs(x, n); x.Write(n, "x") }, path: n, want: class}.run)
		}
	}
}

// TestKeysThatExecuteOrRedirect: each is gated where a configuration had it not.
func TestKeysThatExecuteOrRedirect(t *testing.T) {
	for _, text := range []string{
		"[remote \"o\"]\nurl = x", "[remote \"o\"]\npushurl = x", "[remote \"o\"]\nvcs = x", "[remote \"o\"]\npromisor = x", "[http]\nsslVerify = false",
		"[http \"https://x\"]\nsslVerify = false", "[http]\nproxy = x", "[http]\ncurloptResolve = x", "[imap]\ntunnel = x", "[lfs \"customtransfer.x\"]\npath = x",
		"[lfs]\nstandalonetransferagent = x", "[lfs]\nurl = x", "[sendemail]\nsendmailCmd = x", "[sendemail \"x\"]\ntoCmd = x", "[protocol \"ext\"]\nallow = always",
		"[protocol]\nallow = always", "[submodule \"x\"]\nupdate = !x", "[submodule \"x\"]\nurl = x", "[difftool \"x\"]\ncmd = x", "[mergetool \"x\"]\ncmd = x",
		"[init]\ntemplateDir = x", "[core]\nattributesFile = x", "[core]\nworktree = x", "[extensions]\nworktreeConfig = true", "[gc]\nrecentObjectsHook = x",
		"[branch \"m\"]\nremote = ext::x", "[branch \"m\"]\npushRemote = https://x", "[remote]\npushDefault = /x", "[svn]\nauthorsProg = x", "[gpg \"ssh\"]\nallowedSignersFile = x",
		"[fetch]\nbundleURI = x", "[credential]\nusername = x", "[fsmonitor]\nsocketDir = x", "[remote \"o\"]\nannex-ssh-options = x", "[pager]\nlog = x",
	} {
		t.Run(text, gateCase{
			work: func(x stagedtest.Tree) { repository(x, ".git", "") },
			job:  func(x stagedtest.Tree) { x.Write(".git/config", text+"\n") },
			path: ".git/config", want: apply.GitConfig,
		}.run)
	}
	for _, text := range []string{"[user]\nname = x", "[branch \"m\"]\nremote = o\nmerge = refs/heads/m", "[core]\nbare = false", "[remote \"o\"]\nfetch = x", "[pull]\nrebase = true"} {
		t.Run(text, gateCase{
			work: func(x stagedtest.Tree) { repository(x, ".git", "") },
			job:  func(x stagedtest.Tree) { x.Write(".git/config", text+"\n") },
			path: ".git/config",
		}.run)
	}
}

// counted counts the look-ups in the workspace.
type counted struct {
	apply.Contents
	stats int
}

func (c *counted) StatBase(p tree.Path) (tree.Node, error) {
	c.stats++
	return c.Contents.StatBase(p)
}

// TestClassifyCostFollowsDirectories: files beside each other cost no further look at the workspace,
// and what else is in it costs nothing.
func TestClassifyCostFollowsDirectories(t *testing.T) {
	stats := func(files, beside int) int {
		w := newWorldWith(t, func(x stagedtest.Tree) {
			x.Mkdir("n")
			for i := range beside {
				x.Symlink("n", fmt.Sprintf("n%d", i))
			}
		})
		for i := range files {
			w.job.Write(fmt.Sprintf("n/%d", i), "x")
		}
		w.job.Seal()
		r := w.job.Reader(nil)
		all, err := r.Changes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := &counted{Contents: r}
		if _, err := apply.Classify(t.Context(), all, c, 0); err != nil {
			t.Fatal(err)
		}
		return c.stats
	}
	one := stats(1, 0)
	if many := stats(40, 40); many != one {
		t.Errorf("40 files cost %d look-ups, one %d", many, one)
	}
	if one > 400 {
		t.Errorf("one file costs %d look-ups", one)
	}
}
