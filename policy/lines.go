package policy

import (
	"strconv"
	"strings"
)

// lineIndex gives the line of every key and array element of a TOML document, by paths such as
// "network.allow[1].host" and "file_reads.hide[2]". The TOML library keeps positions of keys only,
// and one for all tables of an array.
type lineIndex map[string]int

// at returns the line of path, or of the nearest thing around it that has one.
func (l lineIndex) at(path string) int {
	for path != "" {
		if n := l[path]; n > 0 {
			return n
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 1
}

// indexLines indexes text. text must be valid TOML: what is not is not diagnosed here.
func indexLines(text string) lineIndex {
	s := lineScanner{text: text, line: 1, index: lineIndex{}, tables: map[string]int{}}
	prefix := ""
	for s.skipBlank(); s.pos < len(s.text); s.skipBlank() {
		if s.text[s.pos] == '[' {
			prefix = s.header()
			continue
		}
		s.assignment(prefix)
	}
	return s.index
}

type lineScanner struct {
	text   string
	pos    int
	line   int
	index  lineIndex
	tables map[string]int // elements seen of each array of tables
}

func (s *lineScanner) peek(prefix string) bool { return strings.HasPrefix(s.text[s.pos:], prefix) }

// advance moves n bytes on and counts the lines.
func (s *lineScanner) advance(n int) {
	n = min(n, len(s.text)-s.pos)
	s.line += strings.Count(s.text[s.pos:s.pos+n], "\n")
	s.pos += n
}

// skipBlank skips space, line ends and comments.
func (s *lineScanner) skipBlank() {
	for s.pos < len(s.text) {
		switch s.text[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.advance(1)
		case '#':
			s.skipTo("\n")
		default:
			return
		}
	}
}

// skipTo moves to the next byte of set, or to the end.
func (s *lineScanner) skipTo(set string) {
	n := strings.IndexAny(s.text[s.pos:], set)
	if n < 0 {
		n = len(s.text) - s.pos
	}
	s.advance(n)
}

// header reads [table] or [[array.of.tables]] and returns its path.
func (s *lineScanner) header() string {
	line, array := s.line, s.peek("[[")
	for s.pos < len(s.text) && s.text[s.pos] == '[' {
		s.advance(1)
	}
	path := ""
	names := s.key("]")
	for i, name := range names {
		path = join(path, name)
		if n := s.tables[path]; n > 0 && (i < len(names)-1 || !array) {
			path += element(n - 1)
		}
	}
	if array {
		s.tables[path]++
		path += element(s.tables[path] - 1)
	}
	for s.pos < len(s.text) && s.text[s.pos] == ']' {
		s.advance(1)
	}
	s.index[path] = line
	return path
}

// assignment reads key = value below prefix.
func (s *lineScanner) assignment(prefix string) {
	line, path := s.line, prefix
	for _, name := range s.key("=") {
		path = join(path, name)
		s.index[path] = line
	}
	s.advance(1) // the equals sign
	s.skipBlank()
	s.value(path)
}

// key reads a dotted key up to a byte of end, which stays.
func (s *lineScanner) key(end string) []string {
	var names []string
	for s.skipBlank(); s.pos < len(s.text) && !strings.ContainsRune(end, rune(s.text[s.pos])); s.skipBlank() {
		start := s.pos
		switch s.text[s.pos] {
		case '.':
			s.advance(1)
			continue
		case '"', '\'':
			s.quoted()
		default:
			s.skipTo(end + ". \t\r\n")
		}
		names = append(names, unquote(s.text[start:s.pos]))
	}
	return names
}

// value reads one value and indexes what it holds.
func (s *lineScanner) value(path string) {
	if s.pos >= len(s.text) {
		return
	}
	s.index[path] = s.line
	switch s.text[s.pos] {
	case '"', '\'':
		s.quoted()
	case '[':
		s.list(']', func(i int) { s.value(path + element(i)) })
	case '{':
		s.list('}', func(int) { s.assignment(path) })
	default:
		s.skipTo(",]}#\n")
	}
}

// list reads a bracketed list whose elements item reads.
func (s *lineScanner) list(end byte, item func(i int)) {
	s.advance(1)
	for i := 0; ; {
		s.skipBlank()
		if s.pos >= len(s.text) {
			return
		}
		switch s.text[s.pos] {
		case end:
			s.advance(1)
			return
		case ',':
			s.advance(1)
		default:
			start := s.pos
			item(i)
			i++
			if s.pos == start { // not TOML; end all the same
				s.advance(1)
			}
		}
	}
}

// quoted skips a string of any of TOML's four kinds.
func (s *lineScanner) quoted() {
	quote := s.text[s.pos : s.pos+1]
	if s.peek(strings.Repeat(quote, 3)) {
		quote = strings.Repeat(quote, 3)
	}
	s.advance(len(quote))
	for s.pos < len(s.text) && !s.peek(quote) {
		if quote[0] == '"' && s.text[s.pos] == '\\' {
			s.advance(1)
		}
		s.advance(1)
	}
	s.advance(len(quote))
	for len(quote) == 3 && s.pos < len(s.text) && s.text[s.pos] == quote[0] {
		s.advance(1) // up to two quotes may stand before the closing three
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func element(i int) string { return "[" + strconv.Itoa(i) + "]" }

// unquote returns the name a key is written as.
func unquote(key string) string {
	switch {
	case strings.HasPrefix(key, "'"):
		return strings.Trim(key, "'")
	case strings.HasPrefix(key, `"`):
		if s, err := strconv.Unquote(key); err == nil {
			return s
		}
	}
	return key
}
