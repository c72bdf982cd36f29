package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"l", "u", "w", "m", "a,b", "c:d"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("l", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	plain := options{source: "X", mnt: at("m"), lower: at("l"), upper: at("u"), work: at("w")}
	with := func(change func(*options)) options {
		o := plain
		change(&o)
		return o
	}
	cases := []struct {
		name, args string
		want       options
		err        string
	}{
		{name: "as mount(8) calls it", args: "X m -o rw,lowerdir=l,upperdir=u,workdir=w -t fuse.stagefs", want: plain},
		{name: "as a shell user calls it", args: "X -olowerdir=l -oupperdir=u,workdir=w m", want: plain},
		{name: "links are resolved", args: "X m -o lowerdir=link,upperdir=u,workdir=w", want: plain},
		{name: "the last holds", args: "X m -o lowerdir=u,nosuid,suid,nodev,lowerdir=l,upperdir=u,workdir=w", want: with(func(o *options) { o.flags = unix.MS_NODEV })},
		{name: "read-only", args: "X m -o ro,noexec,defaults,lowerdir=l,upperdir=u,workdir=w", want: with(func(o *options) { o.flags = unix.MS_RDONLY | unix.MS_NOEXEC })},
		{name: "fixed directories", args: "X m -o redirect_dir=off,lowerdir=l,upperdir=u,workdir=w", want: with(func(o *options) { o.fixed = true })},
		{name: "separators in names", args: `X m -o lowerdir=a\,b,upperdir=c\:d,workdir=w`, want: with(func(o *options) { o.lower, o.upper = at("a,b"), at("c:d") })},
		{name: "several layers", args: "X m -o lowerdir=l:u,upperdir=u,workdir=w", err: "2 layers"},
		{name: "no workdir", args: "X m -o lowerdir=l,upperdir=u", err: "no workdir"},
		{name: "missing directory", args: "X m -o lowerdir=gone,upperdir=u,workdir=w", err: "lowerdir: "},
		{name: "unknown option", args: "X m -o lowerdir=l,upperdir=u,workdir=w,index=on", err: `"index=on"`},
		{name: "unknown flag", args: "X m -v", err: "-v"},
		{name: "option without value", args: "X m -o", err: "-o without"},
		{name: "no mount point", args: "X -o lowerdir=l,upperdir=u,workdir=w", err: "usage"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := parse(strings.Fields(c.args))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got error %v, want one that says %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if *got != c.want {
				t.Errorf("got %+v, want %+v", *got, c.want)
			}
		})
	}
}
