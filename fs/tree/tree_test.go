package tree

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestParsePathRefusesWhatIsNotAPlainRelativePath(t *testing.T) {
	for _, s := range []string{"/", "/a", "a/", "a//b", "..", "a/..", "../a", "a/./b", "./a", "a\x00b", "a/../../b"} {
		if p, err := ParsePath(s); !errors.Is(err, ErrPath) {
			t.Errorf("%q: got %q, %v, want ErrPath", s, p, err)
		}
	}
}

func TestParsePathTakesEveryLegalName(t *testing.T) {
	for _, s := range []string{"a", "a/b", "...", ".a", "a b", "\n", "\xff\xfe", "-", "a\\b", "ä/ö", strings.Repeat("n", NameMax)} {
		p, err := ParsePath(s)
		if err != nil || p.String() != s {
			t.Errorf("%q: got %q, %v", s, p, err)
		}
	}
	for _, s := range []string{"", "."} {
		if p, err := ParsePath(s); err != nil || !p.IsRoot() || p.String() != "." {
			t.Errorf("%q: got %q, %v, want the root", s, p, err)
		}
	}
}

func TestChildTakesOneName(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "a\x00"} {
		if p, err := MustParsePath("d").Child(name); !errors.Is(err, ErrPath) {
			t.Errorf("%q: got %q, %v, want ErrPath", name, p, err)
		}
	}
}

func TestPathParts(t *testing.T) {
	for _, c := range []struct {
		path, base, parent string
		names              int
	}{{".", "", ".", 0}, {"a", "a", ".", 1}, {"a/b", "b", "a", 2}, {"a/b/c", "c", "a/b", 3}} {
		p := MustParsePath(c.path)
		if p.Base() != c.base || p.Parent().String() != c.parent || len(p.Names()) != c.names {
			t.Errorf("%s: got base %q, parent %q, names %q", c.path, p.Base(), p.Parent(), p.Names())
		}
		if p.IsRoot() {
			continue
		}
		if back, err := p.Parent().Child(p.Base()); err != nil || back != p {
			t.Errorf("%s: parent and base give %q, %v", c.path, back, err)
		}
	}
}

func TestContainsGoesByWholeNames(t *testing.T) {
	for _, c := range []struct {
		p, q string
		want bool
	}{{".", ".", true}, {".", "a", true}, {"a", "a", true}, {"a", "a/b", true}, {"a", "ab", false}, {"a/b", "a", false}, {"a", ".", false}, {"a", "b/a", false}} {
		if got := MustParsePath(c.p).Contains(MustParsePath(c.q)); got != c.want {
			t.Errorf("%q contains %q: got %v", c.p, c.q, got)
		}
	}
}

func TestRebaseChangesThePrefix(t *testing.T) {
	for _, c := range []struct{ p, from, to, want string }{
		{"a/b/c", "a/b", "x", "x/c"}, {"a/b", "a/b", "x/y", "x/y"}, {"a/b", ".", "x", "x/a/b"}, {"a/b", "a", ".", "b"},
		{"a", "a", ".", "."}, {".", ".", "x", "x"}, {".", ".", ".", "."},
	} {
		if got := MustParsePath(c.p).Rebase(MustParsePath(c.from), MustParsePath(c.to)); got.String() != c.want {
			t.Errorf("%q from %q to %q: got %q, want %q", c.p, c.from, c.to, got, c.want)
		}
	}
}

func TestRebaseOfAnotherTreePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	MustParsePath("ab").Rebase(MustParsePath("a"), MustParsePath("x"))
}

func TestCompareKeepsDirectoriesTogether(t *testing.T) {
	want := []string{".", "a", "a/b", "a/b/c", "a/c", "a!", "a.b", "ab", "b"}
	var paths []Path
	for _, s := range want {
		paths = append([]Path{MustParsePath(s)}, paths...)
	}
	slices.SortFunc(paths, Path.Compare)
	for i, p := range paths {
		if p.String() != want[i] {
			t.Fatalf("got %q, want %q", paths, want)
		}
	}
}

func TestPathJSONIsOneToOne(t *testing.T) {
	for s, want := range map[string]string{
		"a/b":    `{"path":"a/b"}`,
		".":      `{"path":"."}`,
		"a\xffb": `{"path_b64":"Yf9i"}`,
		"<\n&":   `{"path":"\u003c\n\u0026"}`,
	} {
		p := MustParsePath(s)
		got, err := json.Marshal(p)
		if err != nil || string(got) != want {
			t.Errorf("%q: got %s, %v, want %s", s, got, err, want)
		}
		var back Path
		if err := json.Unmarshal(got, &back); err != nil || back != p {
			t.Errorf("%q: read back %q, %v", s, back, err)
		}
	}
}

func TestPathJSONRefusesOtherForms(t *testing.T) {
	for _, s := range []string{
		`{}`, `"a"`, `{"path":"a","path_b64":"Yf9i"}`, `{"path":""}`, `{"path":"../a"}`, `{"path":"/a"}`, `{"path":"a","x":1}`,
		`{"path_b64":"YQ=="}`, `{"path_b64":"?"}`, `{"path_b64":"/y8v/w=="}`, `{"path":null}`, `{"path":1}`, `[]`,
	} {
		var p Path
		if err := json.Unmarshal([]byte(s), &p); err == nil {
			t.Errorf("%s: got %q, want an error", s, p)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"", "a/b", "../x", "a//b", "\xff", "a\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePath(s)
		if err != nil {
			return
		}
		if p.String() != s && !(s == "" && p.IsRoot()) {
			t.Errorf("%q became %q", s, p)
		}
		root := Path{}
		for _, name := range p.Names() {
			if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
				t.Errorf("%q has name %q", s, name)
			}
			if root, err = root.Child(name); err != nil {
				t.Fatal(err)
			}
		}
		if root != p {
			t.Errorf("%q: names give %q", s, root)
		}
		checkRoundTrip(t, p)
	})
}

// checkRoundTrip fails when v does not survive JSON.
func checkRoundTrip[T comparable](t *testing.T, v T) {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var back T
	if err := json.Unmarshal(text, &back); err != nil || back != v {
		t.Errorf("%v: as %s became %v, %v", v, text, back, err)
	}
}

func FuzzPathJSON(f *testing.F) {
	f.Add([]byte(`{"path":"a/b"}`))
	f.Add([]byte(`{"path_b64":"Yf9i"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var p Path
		if json.Unmarshal(text, &p) == nil {
			checkRoundTrip(t, p)
		}
	})
}

func FuzzNodeJSON(f *testing.F) {
	f.Add([]byte(`{"kind":"absent"}`))
	f.Add([]byte(`{"kind":"symlink","mode":"0777","target_b64":"/w==","xattrs":{"user.a":"AA==","b64:/w==":""},"digest":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var n Node
		if json.Unmarshal(text, &n) != nil {
			return
		}
		out, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		var back Node
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		again, err := json.Marshal(back)
		if err != nil || string(again) != string(out) {
			t.Errorf("%s became %s, %v", out, again, err)
		}
	})
}

func TestNodeSurvivesJSON(t *testing.T) {
	d := DigestBytes([]byte("x"))
	for _, n := range []Node{
		{},
		{Kind: File, Mode: 0o4755, UID: math.MaxUint32, GID: 1, Size: math.MaxInt64, Mtime: -1, Ctime: math.MaxInt64, Dev: math.MaxUint64, Ino: math.MaxUint64, Nlink: 2, Digest: d},
		{Kind: Symlink, Target: "\xff/../x"},
		{Kind: Block, Rdev: 259},
		{Kind: File, Xattrs: Xattrs{"user.a": {0}, "user.\xff": []byte("v"), "user.empty": {}}},
	} {
		text, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		var back Node
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if !back.SameIdentity(n) || !back.SameMeta(n) || back.SameContent(n) == Different || back.Nlink != n.Nlink || back.Digest != n.Digest || back.Rdev != n.Rdev {
			t.Errorf("%+v became %+v", n, back)
		}
	}
}

func TestNodeJSONWritesNulls(t *testing.T) {
	got, err := json.Marshal(Node{Kind: File, Mode: 0o644})
	want := `{"kind":"file","mode":"0644","uid":0,"gid":0,"size":0,"mtime":"1970-01-01T00:00:00.000000000Z","ctime":"1970-01-01T00:00:00.000000000Z",` +
		`"dev":0,"ino":0,"nlink":0,"rdev":0,"xattrs":null,"digest":null,"target_b64":null}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	got, err = json.Marshal(Node{Size: 9})
	if err != nil || string(got) != `{"kind":"absent"}` {
		t.Errorf("absent: got %s, %v", got, err)
	}
}

func TestNodeJSONRefusesOtherForms(t *testing.T) {
	for _, s := range []string{
		`{}`, `{"kind":"door"}`, `{"kind":"file","mode":"0888"}`, `{"kind":"file","mode":"17777"}`, `{"kind":"file","mode":420}`,
		`{"kind":"file","colour":"red"}`, `{"kind":"file","digest":"sha256:00"}`, `{"kind":"file","size":"1"}`,
		`{"kind":"file","digest":"sha256:` + strings.Repeat("A", 64) + `"}`, `{"kind":"file","digest":"md5:` + strings.Repeat("a", 64) + `"}`,
		`{"kind":"file","mtime":"2300-01-01T00:00:00Z"}`, `{"kind":"file","mtime":"yesterday"}`, `{"kind":"file","xattrs":{"user.a":"?"}}`,
		`{"kind":"file","xattrs":{"b64:?":""}}`, `{"kind":"file","size":1.5}`, `{"kind":"file","uid":-1}`,
	} {
		var n Node
		if err := json.Unmarshal([]byte(s), &n); err == nil {
			t.Errorf("%s: got %+v, want an error", s, n)
		}
	}
}

func TestTimeJSON(t *testing.T) {
	for want, at := range map[string]Time{
		`"1970-01-01T00:00:00.000000000Z"`: 0,
		`"1969-12-31T23:59:59.999999999Z"`: -1,
		`"2026-11-30T18:00:00.000000001Z"`: Time(time.Date(2026, 11, 30, 18, 0, 0, 1, time.UTC).UnixNano()),
	} {
		if got, err := json.Marshal(at); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
		checkRoundTrip(t, at)
	}
	checkRoundTrip(t, Time(math.MaxInt64))
	checkRoundTrip(t, Time(math.MinInt64))
}

func TestUnknownKindsSayTheirNumber(t *testing.T) {
	if got := Kind(42).String(); got != "kind42" {
		t.Errorf("got %q", got)
	}
}

func TestXattrsDigestDependsOnContentAlone(t *testing.T) {
	a := Xattrs{"user.a": []byte("1"), "user.b": []byte("2")}
	if got := (Xattrs{"user.b": []byte("2"), "user.a": []byte("1")}).Digest(); got != a.Digest() {
		t.Errorf("order changes the digest")
	}
	for _, other := range []Xattrs{
		{"user.a": []byte("1")}, {"user.a": []byte("2"), "user.b": []byte("1")}, {"user.a": []byte("12"), "user.b": nil}, {"user.a1": nil, "user.b": []byte("2")},
	} {
		if other.Digest() == a.Digest() || other.Equal(a) {
			t.Errorf("%q and %q look alike", other, a)
		}
	}
	if (Xattrs{}).Digest() != "" || !(Xattrs{}).Equal(nil) {
		t.Error("empty and nil differ")
	}
}

func TestSameIdentityNeedsEveryField(t *testing.T) {
	n := Node{Kind: File, Dev: 1, Ino: 2, Size: 3, Mtime: 4, Ctime: 5}
	for _, change := range []func(*Node){
		func(n *Node) { n.Kind = Dir }, func(n *Node) { n.Dev++ }, func(n *Node) { n.Ino++ }, func(n *Node) { n.Size++ },
		func(n *Node) { n.Mtime++ }, func(n *Node) { n.Ctime++ },
	} {
		o := n
		change(&o)
		if n.SameIdentity(o) {
			t.Errorf("%+v and %+v look the same", n, o)
		}
	}
	if !n.SameIdentity(n) {
		t.Error("a node differs from itself")
	}
}

func TestSameMeta(t *testing.T) {
	n := Node{Kind: File, Mode: 0o644, UID: 1, GID: 2, Mtime: 3}
	for _, change := range []func(*Node){
		func(n *Node) { n.Kind = Dir }, func(n *Node) { n.Mode = 0o600 }, func(n *Node) { n.UID++ }, func(n *Node) { n.GID++ },
		func(n *Node) { n.Xattrs = Xattrs{"user.a": nil} },
	} {
		o := n
		change(&o)
		if n.SameMeta(o) {
			t.Errorf("%+v and %+v look the same", n, o)
		}
	}
	o := n
	o.Mtime, o.Ino, o.Xattrs = 9, 9, Xattrs{}
	if !n.SameMeta(o) {
		t.Error("times or inode count")
	}
	if !(Node{Kind: Symlink, Mode: 0o777}).SameMeta(Node{Kind: Symlink, Mode: 0o755}) {
		t.Error("a link's mode counts")
	}
}

func TestSameContent(t *testing.T) {
	d, e := DigestBytes([]byte("d")), DigestBytes([]byte("e"))
	for _, c := range []struct {
		a, b Node
		want Equality
	}{
		{Node{}, Node{}, Same},
		{Node{}, Node{Kind: File}, Different},
		{Node{Kind: File, Size: 1, Digest: d}, Node{Kind: File, Size: 1, Digest: d}, Same},
		{Node{Kind: File, Size: 1, Digest: d}, Node{Kind: File, Size: 1, Digest: e}, Different},
		{Node{Kind: File, Size: 1, Digest: d}, Node{Kind: File, Size: 1}, Unknown},
		{Node{Kind: File, Size: 1}, Node{Kind: File, Size: 1}, Unknown},
		{Node{Kind: File, Size: 1}, Node{Kind: File, Size: 2}, Different},
		{Node{Kind: Symlink, Target: "a"}, Node{Kind: Symlink, Target: "a"}, Same},
		{Node{Kind: Symlink, Target: "a"}, Node{Kind: Symlink, Target: "b"}, Different},
		{Node{Kind: Char, Rdev: 1}, Node{Kind: Char, Rdev: 2}, Different},
		{Node{Kind: Dir, Ino: 1}, Node{Kind: Dir, Ino: 2}, Same},
		{Node{Kind: FIFO}, Node{Kind: FIFO}, Same},
		{Node{Kind: 99}, Node{Kind: 99}, Unknown},
	} {
		if got := c.a.SameContent(c.b); got != c.want {
			t.Errorf("%+v and %+v: got %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

// TestFastJSON compares what is written by hand with what encoding/json writes.
func TestFastJSON(t *testing.T) {
	for _, n := range []Node{
		{Kind: File, Mode: 0o7, UID: 1, GID: 1 << 31, Size: 1 << 40, Mtime: -1, Ctime: 1796074113005124990, Dev: 3, Ino: 1 << 63, Nlink: 2, Digest: DigestBytes(nil)},
		{Kind: Dir, Mode: 0o7755, Mtime: 1, Ctime: 0},
		{Kind: Char, Mode: 0o600, Rdev: 259},
	} {
		got, err := n.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(wireNode{&n.Kind, n.Mode, n.UID, n.GID, n.Size, n.Mtime, n.Ctime, n.Dev, n.Ino, n.Nlink, n.Rdev, n.Xattrs, n.Digest, nil})
		if err != nil || string(got) != string(want) {
			t.Errorf("got  %s\nwant %s (%v)", got, want, err)
		}
	}
	for c := range 256 {
		s := "a/" + string([]byte{byte(c)}) + "b"
		p, err := ParsePath(s)
		if err != nil || !utf8.ValidString(s) {
			continue
		}
		got, err := p.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		s = p.String()
		want, err := json.Marshal(pathJSON{Path: &s})
		if err != nil || string(got) != string(want) {
			t.Errorf("got %s, want %s (%v)", got, want, err)
		}
	}
}
