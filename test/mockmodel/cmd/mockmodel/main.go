// Command mockmodel serves the scripts of package mockmodel on loopback until it is interrupted.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"stage/test/mockmodel"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mockmodel:", err)
		os.Exit(1)
	}
}

// vars collects -var NAME=VALUE flags.
type vars map[string]string

func (v vars) String() string { return fmt.Sprint(map[string]string(v)) }

func (v vars) Set(s string) error {
	name, value, ok := strings.Cut(s, "=")
	if !ok {
		return fmt.Errorf("want NAME=VALUE, got %q", s)
	}
	v[name] = value
	return nil
}

func run(args []string, stdout io.Writer) error {
	c := mockmodel.Config{Vars: map[string]string{}, Scripts: map[string]mockmodel.Script{}}
	f := flag.NewFlagSet("mockmodel", flag.ContinueOnError)
	f.StringVar(&c.Listen, "listen", "", "loopback address to listen on; a free port when empty")
	f.Var(vars(c.Vars), "var", "value of a script variable, NAME=VALUE; may be repeated")
	home := f.String("codex-home", "", "write config.toml for -script into this folder, once the server listens")
	script := f.String("script", "edit", "script that -codex-home and -setup are for: a built-in name or a .json file")
	setup := f.String("setup", "", "write the script's files into this folder")
	record := f.String("record", "", "append each request to this file, as a line of JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	name, sc, err := load(*script)
	if err != nil {
		return err
	}
	c.Scripts[name] = sc
	if *setup != "" {
		if err := sc.WriteSetup(*setup); err != nil {
			return err
		}
	}
	if *record != "" {
		out, err := os.OpenFile(*record, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer out.Close()
		c.Record = out
	}
	return serve(c, name, *home, stdout)
}

func load(script string) (string, mockmodel.Script, error) {
	name, isFile := strings.CutSuffix(filepath.Base(script), ".json")
	if isFile {
		text, err := os.ReadFile(script)
		if err != nil {
			return "", mockmodel.Script{}, err
		}
		s, err := mockmodel.Parse(text)
		return name, s, err
	}
	builtin, err := mockmodel.Builtin()
	if err != nil {
		return "", mockmodel.Script{}, err
	}
	s, ok := builtin[script]
	if !ok {
		return "", s, fmt.Errorf("no built-in script %q", script)
	}
	return script, s, nil
}

func serve(c mockmodel.Config, script, home string, stdout io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := mockmodel.New(c)
	if err != nil {
		return err
	}
	if home != "" {
		if err := writeConfig(home, s.CodexConfig(script)); err != nil {
			return err
		}
	}
	fmt.Fprintln(stdout, s.URL(script))
	return s.Wait(ctx)
}

// writeConfig makes config.toml appear complete: scripts wait for the file.
func writeConfig(home, text string) error {
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	tmp := filepath.Join(home, ".config.toml.new")
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(home, "config.toml"))
}
