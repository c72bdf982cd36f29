package render

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// risky reports whether r must not reach a terminal: control characters (C0 and C1 and DEL),
// characters that reorder or hide text, line and paragraph separators, and private tags.
func risky(r rune) bool {
	switch {
	case r < 0x20 || r >= 0x7f && r <= 0x9f:
		return true
	case r == 0x00ad || r == 0x061c || r == 0x180e || r == 0xfeff: // soft hyphen, ALM, MVS, BOM
		return true
	case r >= 0x200b && r <= 0x200f: // zero width, LRM, RLM
		return true
	case r >= 0x2028 && r <= 0x202e: // separators, embeddings and overrides
		return true
	case r >= 0x2060 && r <= 0x206f: // word joiner, isolates, deprecated format characters
		return true
	case r >= 0xfff9 && r <= 0xfffb: // interlinear annotation
		return true
	case r >= 0xe0000 && r <= 0xe007f: // tags
		return true
	}
	return false
}

// QuoteName returns the path as git prints it with core.quotePath: as it is when it is plain
// ASCII, else in double quotes with C escapes and octal bytes. The result is safe on a terminal.
func QuoteName(name string) string {
	plain := strings.IndexFunc(name, func(r rune) bool { return r < 0x20 || r >= 0x7f || r == '"' || r == '\\' }) < 0
	if plain {
		return name
	}
	return quote(name)
}

// escapes are the C escapes that git's quote_c_style uses.
var escapes = [256]string{'\a': `\a`, '\b': `\b`, '\t': `\t`, '\n': `\n`, '\v': `\v`, '\f': `\f`, '\r': `\r`, '"': `\"`, '\\': `\\`}

func quote(name string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case escapes[c] != "":
			b.WriteString(escapes[c])
		case c < 0x20 || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Printable returns text with everything that must not reach a terminal made visible: ^X for C0
// and DEL, <U+202E> for other risky characters, <FF> for bytes that are not UTF-8. Tabs are kept;
// newlines are not, so that the result is one line.
func Printable(text string) string {
	if isPrintable(text) {
		return text
	}
	return string(appendPrintable(nil, text))
}

func isPrintable(text string) bool {
	for i, r := range text {
		if r == '\t' {
			continue
		}
		if risky(r) || r == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd") {
			return false
		}
	}
	return true
}

func appendPrintable(out []byte, text string) []byte {
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, "<%02X>", text[0])
		case r == '\t' || !risky(r):
			out = append(out, text[:n]...)
		case r < 0x20 || r == 0x7f:
			out = append(out, '^', byte(r)^0x40)
		default:
			out = fmt.Appendf(out, "<U+%04X>", r)
		}
		text = text[n:]
	}
	return out
}
