package render

import (
	"fmt"
)

// Hint writes the next useful command or fact: "stage: hint: …".
func Hint(s *Screen, text string) error {
	_, err := fmt.Fprintf(s.W, "stage: hint: %s\n", Printable(text))
	return err
}

// Problem writes an error of a verb: "stage: apply: …", then one indented line per detail.
func Problem(s *Screen, verb, text string, details ...string) error {
	if _, err := fmt.Fprintf(s.W, "stage: %s: %s\n", verb, Printable(text)); err != nil {
		return err
	}
	for _, d := range details {
		if _, err := fmt.Fprintf(s.W, "  %s\n", Printable(d)); err != nil {
			return err
		}
	}
	return nil
}
