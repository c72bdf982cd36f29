package policy

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"stage/fs/tree"
)

// MaxFile is the largest policy file, in bytes.
const MaxFile = 1 << 20

// Layer is one policy file, parsed: what one party is willing to permit.
type Layer struct {
	Name   LayerName
	File   string
	Digest tree.Digest
	Rules  []Rule // in the order of the file
}

// FileFacts is what lstat says about a policy file.
type FileFacts struct {
	Name      string
	Regular   bool // false for links, directories, devices …
	Size      int64
	UID       uint32
	Mode      uint32 // permission bits
	CallerUID uint32
}

// CheckFile refuses a policy file that is not a plain file of the caller's own.
func CheckFile(f FileFacts) error {
	refuse := func(next, format string, args ...any) error {
		return &Error{File: f.Name, Msg: fmt.Sprintf(format, args...), Next: next}
	}
	switch {
	case !f.Regular:
		return refuse("put the policy itself there, not a link to it", "not a regular file")
	case f.Size > MaxFile:
		return refuse("make it smaller", "%d bytes are more than a policy may have (%d)", f.Size, MaxFile)
	case f.UID != f.CallerUID:
		return refuse("chown it", "owned by uid %d, not by uid %d who runs stage", f.UID, f.CallerUID)
	case f.Mode&0o022 != 0:
		return refuse("chmod go-w it", "mode %04o lets others write it", f.Mode)
	}
	return nil
}

// ParseFile parses a policy file of the given layer. name is the file's name in messages.
// Every error is an *Error with file and line.
func ParseFile(layer LayerName, name string, text []byte) (Layer, error) {
	if len(text) > MaxFile {
		return Layer{}, &Error{name, 1, fmt.Sprintf("more than %d bytes", MaxFile), "make it smaller"}
	}
	root, err := decode(name, text)
	if err != nil {
		return Layer{}, err
	}
	p := parser{layer: layer, file: name, lines: indexLines(string(text))}
	if err := p.version(root); err != nil {
		return Layer{}, err
	}
	delete(root, "version")
	if err := p.sections("", root); err != nil {
		return Layer{}, err
	}
	return Layer{Name: layer, File: name, Digest: tree.DigestBytes(text), Rules: p.rules}, nil
}

// decode reads TOML; its errors carry the file and line.
func decode(name string, text []byte) (map[string]any, error) {
	root := map[string]any{}
	err := toml.Unmarshal(text, &root)
	if err == nil {
		return root, nil
	}
	line := 1
	if perr := (toml.ParseError{}); errors.As(err, &perr) {
		line, err = perr.Position.Line, errors.New(perr.Message)
	}
	last := bytes.Count(text, []byte("\n")) + 1
	return nil, &Error{name, min(max(line, 1), last), "not valid TOML: " + err.Error(), "correct it"}
}

// parser turns a decoded policy into rules.
type parser struct {
	layer LayerName
	file  string
	lines lineIndex
	rules []Rule
}

func (p *parser) source(at string) Source { return Source{p.layer, p.file, p.lines.at(at)} }

func (p *parser) add(d Dimension, v Verb, object, value, at string) {
	p.rules = append(p.rules, Rule{d, v, object, value, p.source(at)})
}

func (p *parser) version(root map[string]any) error {
	v, ok := root["version"]
	switch {
	case !ok:
		return p.source("").errorf(`begin the file with "version = 1"`, "no version")
	case v != int64(1):
		return p.source("version").errorf("use a newer stage, or version = 1", "unknown version %v", v)
	}
	return nil
}

// reader reads the value v of one key; at is its path in the line index.
type reader func(p *parser, d Dimension, at string, v any) error

// keys returns the keys of a dimension's table.
func keys(d Dimension) map[string]reader {
	switch d {
	case FileReads:
		return map[string]reader{"allow": roots("read"), "deny": globs(Deny, "read"), "hide": globs(Hide, "path")}
	case FileWrites:
		return map[string]reader{"deny": globs(Deny, "write"), "stage": roots("stage"), "share": roots("share"),
			"scratch": roots("scratch"), "disk": limit("disk")}
	case Network:
		return map[string]reader{"mode": limit("mode"), "allow": hosts(Allow, []uint16{443}), "deny": hosts(Deny, nil)}
	case Subprocesses:
		return map[string]reader{"deny_exec": globs(Deny, "exec"), "userns": limit("userns"), "pids": limit("pids")}
	case Credentials:
		return map[string]reader{"env": names(Allow), "deny_env": names(Deny)}
	case Resources:
		return map[string]reader{"memory": limit("memory"), "cpu": limit("cpu"), "timeout": limit("timeout"),
			"nofile": limit("nofile"), "max_output": limit("max_output")}
	default:
		return nil
	}
}

// sections reads the tables of a policy. prefix is the path they stand at.
func (p *parser) sections(prefix string, root map[string]any) error {
	for _, section := range slices.Sorted(maps.Keys(root)) {
		at, d := join(prefix, section), Dimension(section)
		table, ok := root[section].(map[string]any)
		if !slices.Contains(Dimensions(), d) {
			return p.source(at).errorf("the tables are "+list(Dimensions()), "unknown key %q", at)
		}
		if !ok {
			return p.source(at).errorf("write ["+section+"]", "%s is not a table", at)
		}
		if err := p.section(d, at, table); err != nil {
			return err
		}
	}
	slices.SortStableFunc(p.rules, func(a, b Rule) int { return a.Source.compare(b.Source) })
	return nil
}

func (p *parser) section(d Dimension, at string, table map[string]any) error {
	known := keys(d)
	for _, key := range slices.Sorted(maps.Keys(table)) {
		read, ok := known[key]
		if !ok {
			return p.source(at+"."+key).errorf("its keys are "+list(slices.Sorted(maps.Keys(known))), "unknown key %q in [%s]", key, d)
		}
		if err := read(p, d, at+"."+key, table[key]); err != nil {
			return err
		}
	}
	return nil
}

func list[T ~string](words []T) string {
	var s []string
	for _, w := range words {
		s = append(s, string(w))
	}
	return strings.Join(s, ", ")
}

// texts calls f for each element of a list of strings.
func (p *parser) texts(at string, v any, f func(at, s string) error) error {
	elements, ok := v.([]any)
	if !ok {
		return p.source(at).errorf(`write a list: ["…"]`, "%s is not a list of strings", at)
	}
	for i, e := range elements {
		s, ok := e.(string)
		at := at + element(i)
		if !ok {
			return p.source(at).errorf("put it in quotes", "%s is not a string", at)
		}
		if err := f(at, s); err != nil {
			return err
		}
	}
	return nil
}

// allowList reads an allow list; an empty one is an opinion, too.
func (p *parser) allowList(d Dimension, object, at string, v any, check func(string) error) error {
	if e, ok := v.([]any); ok && len(e) == 0 {
		p.add(d, Allow, object, "", at)
	}
	return p.texts(at, v, func(at, s string) error {
		if err := check(s); err != nil {
			return p.source(at).errorf("use a directory, or DIR/**", "%v", err)
		}
		p.add(d, Allow, object, s, at)
		return nil
	})
}

func roots(object string) reader {
	return func(p *parser, d Dimension, at string, v any) error { return p.allowList(d, object, at, v, checkRoot) }
}

func globs(verb Verb, object string) reader {
	return func(p *parser, d Dimension, at string, v any) error {
		return p.texts(at, v, func(at, s string) error {
			if err := checkGlob(s); err != nil {
				return p.source(at).errorf("patterns are those of doublestar, from the workspace, / or ~", "%v", err)
			}
			p.add(d, verb, object, s, at)
			return nil
		})
	}
}

func names(verb Verb) reader {
	return func(p *parser, d Dimension, at string, v any) error {
		if e, ok := v.([]any); ok && len(e) == 0 && verb == Allow {
			p.add(d, Allow, "env", "", at)
		}
		return p.texts(at, v, func(at, s string) error {
			if err := checkEnvName(s); err != nil {
				return p.source(at).errorf("name a variable; * and ? are wildcards", "%v", err)
			}
			p.add(d, verb, "env", s, at)
			return nil
		})
	}
}

func limit(object string) reader {
	return func(p *parser, d Dimension, at string, v any) error {
		text, err := scalar(v)
		if err == nil {
			text, err = canonicalLimit(object, text)
		}
		if err != nil {
			return p.source(at).errorf("see docs/policy.md", "%s: %v", at, err)
		}
		p.add(d, Limit, object, text, at)
		return nil
	}
}

// scalar returns a TOML scalar as text.
func scalar(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), nil
	case bool:
		return strconv.FormatBool(v), nil
	default:
		return "", errors.New("neither a string, a number nor a boolean")
	}
}

// hosts reads a list of tables with host and ports; def are the ports of one that names none.
func hosts(verb Verb, def []uint16) reader {
	return func(p *parser, d Dimension, at string, v any) error {
		tables, err := p.tables(at, v)
		if err != nil {
			return err
		}
		if len(tables) == 0 && verb == Allow {
			p.add(d, Allow, "host", "", at)
		}
		for i, t := range tables {
			at := at + element(i)
			r, err := p.hostTable(at, t, def)
			if err != nil {
				return err
			}
			p.add(d, verb, "host", r.String(), at)
		}
		return nil
	}
}

func (p *parser) tables(at string, v any) ([]map[string]any, error) {
	switch v := v.(type) {
	case []map[string]any:
		return v, nil
	case []any:
		var tables []map[string]any
		for i, e := range v {
			t, ok := e.(map[string]any)
			if !ok {
				return nil, p.source(at+element(i)).errorf(`write {host = "…", ports = [443]}`, "%s is not a table", at+element(i))
			}
			tables = append(tables, t)
		}
		return tables, nil
	default:
		return nil, p.source(at).errorf("write [["+at+"]]", "%s is not a list of tables", at)
	}
}

func (p *parser) hostTable(at string, t map[string]any, def []uint16) (HostRule, error) {
	for _, key := range slices.Sorted(maps.Keys(t)) {
		if key != "host" && key != "ports" {
			return HostRule{}, p.source(at+"."+key).errorf("its keys are host, ports", "unknown key %q in [[network]] rule", key)
		}
	}
	text, ok := t["host"].(string)
	if !ok {
		return HostRule{}, p.source(at).errorf(`write host = "example.org"`, "%s has no host", at)
	}
	ports, err := p.ports(at+".ports", t["ports"], def)
	if err != nil {
		return HostRule{}, err
	}
	pattern, extra, err := splitHostPorts(text, []uint16{})
	if err == nil && (extra == nil || len(extra) > 0) {
		err = fmt.Errorf("host %q holds a port", text)
	}
	if err != nil {
		return HostRule{}, p.source(at+".host").errorf("write ports = [443]", "%v", err)
	}
	r, err := parseHostRule(pattern, ports)
	if err != nil {
		return HostRule{}, p.source(at+".host").errorf("use a name, *.name, an address or a range", "%v", err)
	}
	return r, nil
}

func (p *parser) ports(at string, v any, def []uint16) ([]uint16, error) {
	if v == nil {
		return def, nil
	}
	elements, ok := v.([]any)
	if !ok || len(elements) == 0 {
		return nil, p.source(at).errorf("write ports = [443], or leave it out", "%s is not a list of ports", at)
	}
	var ports []uint16
	for i, e := range elements {
		n, ok := e.(int64)
		if !ok || n < 1 || n > 65535 {
			return nil, p.source(at+element(i)).errorf("ports are 1 to 65535", "%v is not a port", e)
		}
		ports = append(ports, uint16(n))
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}
