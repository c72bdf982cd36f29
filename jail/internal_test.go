package jail

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestParseMountRow(t *testing.T) {
	for _, c := range []struct {
		line string
		want mountRow
	}{
		{`27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard`, mountRow{"/", []string{"rw", "relatime"}, "ext4"}},
		{`28 27 0:25 / /a\040b\134c ro,nosuid shared:1 master:2 - tmpfs none ro`, mountRow{`/a b\c`, []string{"ro", "nosuid"}, "tmpfs"}},
		{"29 27 0:26 / /n\u00a0b rw - fuse.stage stage rw", mountRow{"/n\u00a0b", []string{"rw"}, "fuse.stage"}},
	} {
		got, err := parseMountRow(c.line)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v, want %+v", c.line, got, err, c.want)
		}
	}
	for _, line := range []string{"", "1 2 3", "27 1 254:0 / / rw ext4 /dev/vda rw"} {
		if row, err := parseMountRow(line); err == nil {
			t.Errorf("%q: got %+v, want an error", line, row)
		}
	}
}

func FuzzParseMountRow(f *testing.F) {
	f.Add(`27 1 254:0 / /a\040b rw,relatime shared:1 - ext4 /dev/vda rw`)
	f.Fuzz(func(t *testing.T, line string) {
		row, err := parseMountRow(line)
		if err == nil && (row.Type == "" && row.Point == "" && len(row.Options) == 0) {
			t.Errorf("%q: nothing and no error", line)
		}
	})
}

func TestConfigSurvivesTheWire(t *testing.T) {
	c := Config{
		Exe: "/x\xff", Mode: Root, UID: 1, GID: 2, Hostname: "h", AllowUserns: true, Cwd: "/c\xfe", TTY: true,
		Views:  []View{{"n", "/d\xff", "o"}},
		Mounts: []Mount{{"/s\xff", "/d", Bind, true, true, os.ModeSticky | 0o777, 7}},
		Net:    NetMediated, Listeners: []string{"127.0.0.1:1"}, Argv: []string{"\xff", ""}, Env: []string{"A=\xff"},
		Nofile: 3, NofileSet: true, WorkDir: "/w", Skip: "s",
	}
	data, err := json.Marshal(c.wire())
	if err != nil {
		t.Fatal(err)
	}
	var w wireConfig
	if err := json.Unmarshal(data, &w); err != nil {
		t.Fatal(err)
	}
	if got := w.config(); !reflect.DeepEqual(got, c) {
		t.Errorf("got %+v\nwant %+v", got, c)
	}
	if n := reflect.TypeFor[Config]().NumField() - 6; n != reflect.TypeFor[wireConfig]().NumField() {
		t.Errorf("the wire carries %d fields of %d", reflect.TypeFor[wireConfig]().NumField(), n)
	}
}

func TestPlacementsPutParentsFirstAndGivenOnesBeforeOwn(t *testing.T) {
	list := placements(Config{Mounts: []Mount{{Dest: "/a/b/c", Kind: Bind}, {Dest: "/tmp", Kind: Tmpfs, Size: 1}, {Dest: "/a", Kind: Bind}}})
	var got []string
	for _, p := range list {
		got = append(got, p.Dest)
	}
	if want := []string{"/tmp", "/a", "/run", "/a/b/c"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if list[0].Size != 1 {
		t.Error("the jail's own /tmp hides the one that was asked for")
	}
}

func TestLookCommandFollowsPath(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a/tool": 0o644, "b/tool": 0o755, "a/data": 0o644} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "a/folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=/nowhere:" + dir + "/a:" + dir + "/b"}
	for _, c := range []struct {
		name, file string
		code       int
	}{
		{"tool", dir + "/b/tool", 0}, // past the one that is not executable
		{"data", "", codeNotExecutable},
		{"folder", "", codeNotFound},
		{"nothing", "", codeNotFound},
		{"", "", codeNotFound},
		{"./x", "./x", 0},
	} {
		file, failure := lookCommand(c.name, env)
		code := 0
		if failure != nil {
			code = failure.Code
		}
		if file != c.file || code != c.code {
			t.Errorf("%q: got %q and %d, want %q and %d", c.name, file, code, c.file, c.code)
		}
	}
}
