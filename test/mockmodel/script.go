package mockmodel

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Script is what the model does in one thread. Its JSON form is that of the files in scripts/.
type Script struct {
	About string `json:"about"`
	// Setup is files for the work folder of a test; the mock does not write them by itself.
	Setup map[string]string `json:"setup,omitempty"`
	// Vars names the variables that texts hold as {{name}}, with their defaults. One without a
	// default must be given in Config: a path outside of the test's own folders has no default.
	Vars  map[string]*string `json:"vars,omitempty"`
	Turns []Turn             `json:"turns"`
}

// Turn is one response of the model. What is set of Think, Say, Run, Patch and Final becomes output
// items of that response, in this order; the other fields say how it is delivered.
type Turn struct {
	Think string   `json:"think,omitempty"` // reasoning summary
	Say   string   `json:"say,omitempty"`   // message before the calls
	Run   []string `json:"run,omitempty"`   // shell commands, parallel calls when there are several
	Patch string   `json:"patch,omitempty"` // an "*** Begin Patch" envelope
	Final string   `json:"final,omitempty"` // last message: the client is done

	Label   string `json:"label,omitempty"`
	When    []Jump `json:"when,omitempty"`     // before the turn is played: play another instead
	Repeat  int    `json:"repeat,omitempty"`   // play it so many times in all; 0 is once
	YieldMS int    `json:"yield_ms,omitempty"` // how long the client waits for the commands
	DelayMS int    `json:"delay_ms,omitempty"` // how long the model thinks
	Usage   *Usage `json:"usage,omitempty"`

	HTTPStatus int      `json:"http_status,omitempty"` // answer with this error
	Fail       *Failure `json:"fail,omitempty"`        // end the stream with response.failed
	Drop       bool     `json:"drop,omitempty"`        // cut the stream before its end
	Hang       bool     `json:"hang,omitempty"`        // open the stream and stay silent
}

// Jump goes to another turn, depending on the newest tool output.
type Jump struct {
	Match string `json:"match"`         // regular expression
	Not   bool   `json:"not,omitempty"` // jump when it does not match
	Goto  string `json:"goto"`          // label
}

// Failure is the error of a response.failed event.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Usage is the token usage reported for a response.
type Usage struct {
	Input     int64 `json:"input"`
	Cached    int64 `json:"cached"`
	Output    int64 `json:"output"`
	Reasoning int64 `json:"reasoning"`
}

//go:embed scripts/*.json
var scriptFiles embed.FS

// Builtin returns the scripts of this package by name.
func Builtin() (map[string]Script, error) {
	files, err := scriptFiles.ReadDir("scripts")
	if err != nil {
		return nil, err
	}
	scripts := map[string]Script{}
	for _, f := range files {
		text, err := scriptFiles.ReadFile("scripts/" + f.Name())
		if err != nil {
			return nil, err
		}
		s, err := Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		scripts[strings.TrimSuffix(f.Name(), ".json")] = s
	}
	return scripts, nil
}

// Parse reads a script and refuses unknown fields, labels that are missing and variables that are
// not declared.
func Parse(text []byte) (Script, error) {
	var s Script
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return Script{}, err
	}
	return s, s.check()
}

func (s Script) check() error {
	if len(s.Turns) == 0 {
		return errors.New("no turns")
	}
	labels := map[string]bool{}
	for i, t := range s.Turns {
		if t.Label != "" && labels[t.Label] {
			return fmt.Errorf("turn %d: label %q is there twice", i, t.Label)
		}
		labels[t.Label] = true
	}
	for i, t := range s.Turns {
		if err := errors.Join(t.checkJumps(labels), s.checkVars(t)); err != nil {
			return fmt.Errorf("turn %d: %w", i, err)
		}
	}
	return nil
}

func (t Turn) checkJumps(labels map[string]bool) error {
	for _, j := range t.When {
		if _, err := regexp.Compile(j.Match); err != nil {
			return err
		}
		if j.Goto == "" || !labels[j.Goto] {
			return fmt.Errorf("no label %q", j.Goto)
		}
	}
	return nil
}

// WriteSetup writes the files of s.Setup below dir. Those that begin with "#!" are executable.
func (s Script) WriteSetup(dir string) error {
	for name, text := range s.Setup {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("set up %q: not a relative path", name)
		}
		mode := os.FileMode(0o644)
		if strings.HasPrefix(text, "#!") {
			mode = 0o755
		}
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			return err
		}
	}
	return nil
}
