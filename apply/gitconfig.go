package apply

import (
	"errors"
	"slices"
	"strings"
)

// configKey is one variable of a git configuration: section.key or section.subsection.key, section
// and key in lower case.
type configKey struct{ key, value string }

// text returns the value with its escapes undone.
func (k configKey) text() string {
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\t`, "\t", `\n`, "\n", `\b`, "\b").Replace(k.value)
}

// executing lists the variables by which a git configuration executes something, makes git read
// further configuration, sends it elsewhere, or lets it trust what it would not. A star stands for
// anything, none too. They are those of git-config(1) of git 2.51, git-lfs-config(5), git-svn(1),
// git-p4(1), git-annex(1).
var executing = []string{
	"alias.*", "annex.*", "browser.*", "bundle.*", "core.alternaterefscommand", "core.askpass", "core.attributesfile", "core.editor",
	"core.fsmonitor", "core.gitproxy", "core.hookspath", "core.pager", "core.sshcommand", "core.worktree", "credential.*",
	"diff.external", "diff.*.command", "diff.*.textconv", "difftool.*", "extensions.*", "fetch.bundleuri", "filter.*", "fsmonitor.*",
	"gc.recentobjectshook", "git-p4.*", "gitcvs.*", "gitflow.path.hooks", "gitweb.*", "gpg.*", "guitool.*", "help.browser",
	"help.htmlpath", "hook.*", "http.*", "imap.*", "include.*", "includeif.*", "init.templatedir", "instaweb.*",
	"interactive.difffilter", "lfs.*customtransfer.*", "lfs.extension.*", "lfs.*pushurl", "lfs.*standalonetransferagent",
	"lfs.*storage", "lfs.*url", "man.*", "merge.*.driver", "mergetool.*", "pager.*", "protocol.*", "receive.procreceiverefs",
	"remote.*.annex*", "remote.*.lfspushurl", "remote.*.lfsurl", "remote.*.mirror", "remote.*.promisor", "remote.*.proxy*",
	"remote.*.push", "remote.*.pushurl", "remote.*.receivepack", "remote.*.uploadpack", "remote.*.url", "remote.*.vcs", "sendemail.*",
	"sequence.editor", "ssh.variant", "submodule.*.update", "submodule.*.url", "svn-remote.*", "svn.*", "tar.*.command", "trace2.*",
	"trailer.*.cmd", "trailer.*.command", "transfer.bundleuri", "uploadpack.packobjectshook", "url.*", "web.browser",
}

// naming lists the variables that name a remote, or else are its URL.
var naming = []string{"branch.*.pushremote", "branch.*.remote", "remote.pushdefault"}

// executes reports whether k is one that executes. In the configuration of a fresh repository the
// URL of a remote redirects nothing; it may still execute, as "ext::sh -c …" does.
func (k configKey) executes(fresh bool) bool {
	switch {
	case fresh && matchKey("remote.*.url", k.key):
		return strings.Contains(k.value, "::") || strings.HasPrefix(k.value, "-")
	case matchAny(naming, k.key):
		return k.value != "." && strings.ContainsAny(k.value, ":/\\") || strings.HasPrefix(k.value, "-")
	}
	return matchAny(executing, k.key)
}

var errConfig = errors.New("not a git configuration")

// executingKeys returns the variables of text that execute something; fresh says that it is the
// configuration of a new repository.
func executingKeys(text []byte, fresh bool) ([]configKey, error) {
	all, err := parseConfig(text)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(k configKey) bool { return !k.executes(fresh) }), nil
}

func matchAny(patterns []string, key string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matchKey(p, key) })
}

// matchKey matches a variable with a pattern like those of executing.
func matchKey(pattern, key string) bool {
	before, after, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == key
	}
	rest, ok := strings.CutPrefix(key, before)
	for i := 0; ok && i <= len(rest); i++ {
		if matchKey(after, rest[i:]) {
			return true
		}
	}
	return false
}

// configParser reads a git configuration character by character, as git's config.c does: where
// comments, quotes and continued lines end must not be seen differently here.
type configParser struct {
	text    []byte
	section string
	out     []configKey
}

func parseConfig(text []byte) ([]configKey, error) {
	p := &configParser{text: []byte(strings.TrimPrefix(string(text), "\ufeff"))}
	for len(p.text) > 0 {
		if err := p.element(); err != nil {
			return nil, err
		}
	}
	return p.out, nil
}

// next returns the next character, '\n' for a DOS line end and behind the last one.
func (p *configParser) next() byte {
	if len(p.text) == 0 {
		return '\n'
	}
	if len(p.text) > 1 && p.text[0] == '\r' && p.text[1] == '\n' {
		p.text = p.text[1:]
	}
	c := p.text[0]
	p.text = p.text[1:]
	return c
}

func (p *configParser) element() error {
	c := p.next()
	switch {
	case c == '#' || c == ';':
		for c != '\n' {
			c = p.next()
		}
		return nil
	case isSpace(c):
		return nil
	case c == '[':
		return p.header()
	case !isAlpha(c):
		return errConfig
	}
	return p.variable(c)
}

// header reads [section], [section.subsection] or [section "subsection"].
func (p *configParser) header() error {
	p.section = ""
	for {
		c := p.next()
		switch {
		case c == ']':
			return nil
		case isSpace(c):
			return p.subsection(c)
		case !isKey(c) && c != '.':
			return errConfig
		}
		p.section += string(lower(c))
	}
}

func (p *configParser) subsection(c byte) error {
	for isSpace(c) {
		if c == '\n' {
			return errConfig
		}
		c = p.next()
	}
	if c != '"' {
		return errConfig
	}
	sub := []byte{'.'}
	for c = p.next(); c != '"'; c = p.next() {
		if c == '\\' {
			c = p.next()
		}
		if c == '\n' {
			return errConfig
		}
		sub = append(sub, c)
	}
	p.section += string(sub)
	if p.next() != ']' {
		return errConfig
	}
	return nil
}

func (p *configParser) variable(c byte) error {
	var name []byte
	for ; isKey(c); c = p.next() {
		name = append(name, lower(c))
	}
	for c == ' ' || c == '\t' {
		c = p.next()
	}
	k := configKey{key: p.section + "." + string(name)}
	if c != '\n' {
		if c != '=' {
			return errConfig
		}
		var err error
		if k.value, err = p.value(); err != nil {
			return err
		}
	}
	p.out = append(p.out, k)
	return nil
}

func (p *configParser) value() (string, error) {
	var v []byte
	quoted, comment := false, false
	for {
		c := p.next()
		switch {
		case c == '\n':
			if quoted {
				return "", errConfig
			}
			return strings.TrimSpace(string(v)), nil
		case comment:
		case !quoted && (c == ';' || c == '#'):
			comment = true
		case c == '"':
			quoted = !quoted
		case c == '\\':
			if c = p.next(); c == '\n' {
				continue
			}
			if !strings.ContainsRune(`tbn\"`, rune(c)) {
				return "", errConfig
			}
			v = append(v, '\\', c)
		default:
			v = append(v, c)
		}
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func isAlpha(c byte) bool { return 'a' <= lower(c) && lower(c) <= 'z' }

func isKey(c byte) bool { return isAlpha(c) || '0' <= c && c <= '9' || c == '-' }

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
