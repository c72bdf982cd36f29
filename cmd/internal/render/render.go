// Package render writes what stage has to say: the review of a Job's changes, its status, the
// tables of the other verbs, as text for people or JSON for scripts.
//
// Names and contents come from the Job and are hostile. Text output quotes names as git does
// (core.quotePath), and on a terminal shows control bytes of contents in caret or hex notation, so
// that no escape sequence and no bidirectional override reaches it. Data formats (Patch, -z, JSON)
// are byte-exact when written to a file or pipe; on a terminal they pass the same filter, so what
// is shown there is for reading and no longer applies as a patch.
package render

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Screen is where output goes and what may be sent there. The zero value of its flags suits a file.
type Screen struct {
	W      io.Writer
	TTY    bool // control characters are made visible
	Colour bool // ANSI colours are wanted
}

// NewScreen returns the Screen of f: a terminal gets colours unless noColour (NO_COLOR is set and
// not empty, or TERM is dumb).
func NewScreen(f *os.File, noColour bool) *Screen {
	tty := term.IsTerminal(int(f.Fd()))
	return &Screen{W: f, TTY: tty, Colour: tty && !noColour}
}
