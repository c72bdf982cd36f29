package render

import (
	"compress/zlib"
	"fmt"
	"io"
	"strings"

	"stage/fs/tree"
)

// gitBinary writes a git binary patch: the new content, then the old one so that the patch can be
// reversed, each as zlib data in base 85.
//
//	index <old>..<new>
//	GIT binary patch
//	literal <bytes>
//	<letter><base 85>     the letter is the number of bytes in the line: A..Z 1..26, a..z 27..52
//	…
//	<empty line>
func (d *differ) gitBinary(before, after side) error {
	a, err := before.streamID()
	if err != nil {
		return err
	}
	b, err := after.streamID()
	if err != nil {
		return err
	}
	d.line(plain, d.index(a, b, before, after))
	d.line(plain, "GIT binary patch")
	if err := d.literal(after); err != nil {
		return err
	}
	return d.literal(before)
}

func (d *differ) literal(s side) error {
	size := s.node.Size
	if s.node.Kind != tree.File {
		size = int64(len(s.node.Target))
	}
	d.line(plain, fmt.Sprintf("literal %d", size))
	b85 := &base85{p: d.printer}
	z := zlib.NewWriter(b85)
	if err := s.copyTo(z, size); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	b85.flush()
	d.line(plain, "")
	return nil
}

// copyTo writes exactly size bytes of content, or fails.
func (s side) copyTo(w io.Writer, size int64) error {
	if s.node.Kind != tree.File {
		_, err := io.WriteString(w, s.node.Target)
		return err
	}
	return s.stream(func(r io.Reader) error {
		n, err := io.Copy(w, r)
		if err == nil && n != size {
			err = errMoved
		}
		return err
	})
}

// base85 is a writer of git's base 85 lines.
type base85 struct {
	p   *printer
	buf [52]byte
	n   int
}

const alphabet85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

// Write encodes data; whole lines are written at once.
func (b *base85) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		n := copy(b.buf[b.n:], rest)
		b.n, rest = b.n+n, rest[n:]
		if b.n == len(b.buf) {
			b.flush()
		}
	}
	return len(data), nil
}

// flush writes the line begun, if any.
func (b *base85) flush() {
	if b.n == 0 {
		return
	}
	var l strings.Builder
	if b.n <= 26 {
		l.WriteByte('A' + byte(b.n) - 1)
	} else {
		l.WriteByte('a' + byte(b.n) - 27)
	}
	clear(b.buf[b.n:])
	for i := 0; i < b.n; i += 4 {
		v := uint32(b.buf[i])<<24 | uint32(b.buf[i+1])<<16 | uint32(b.buf[i+2])<<8 | uint32(b.buf[i+3])
		var five [5]byte
		for j := 4; j >= 0; j-- {
			five[j] = alphabet85[v%85]
			v /= 85
		}
		l.Write(five[:])
	}
	b.p.line(plain, l.String())
	b.n = 0
}
