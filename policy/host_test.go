package policy

import (
	"strings"
	"testing"
)

func TestParseHostHasOneSpelling(t *testing.T) {
	for in, want := range map[string]string{
		"API.Example.ORG":       "api.example.org",
		"api.example.org.":      "api.example.org",
		"XN--bcher-KVA.example": "xn--bcher-kva.example",
		"a_b-.example":          "a_b-.example",
		"localhost":             "localhost",
		"127.0.0.1":             "127.0.0.1",
		"127.1":                 "127.0.0.1",
		"2130706433":            "127.0.0.1",
		"0x7f000001":            "127.0.0.1",
		"0X7F.1":                "127.0.0.1",
		"0177.0.0.01":           "127.0.0.1",
		"127.0.0.1.":            "127.0.0.1",
		"010.0.0.1":             "8.0.0.1",
		"1.2.3":                 "1.2.0.3",
		"::1":                   "::1",
		"[::1]":                 "::1",
		"0:0::0001":             "::1",
		"::ffff:127.0.0.1":      "127.0.0.1",
		"[::FFFF:7f00:1]":       "127.0.0.1",
		"fe80::A":               "fe80::a",
		"1.2.3.example":         "1.2.3.example",
		"0xg.example":           "0xg.example",
	} {
		h, err := parseHost(in)
		if err != nil || h.String() != want {
			t.Errorf("%q: got %q, %v; want %q", in, h, err, want)
		}
	}
}

func TestParseHostRefuses(t *testing.T) {
	for _, in := range []string{
		"", ".", "..", "a..b", ".a", "a b", "a\x00b", "user@host", "a/b", `a\b`, "a?b", "a#b", "a%41", "fe80::1%eth0", "bücher.example", "１２７.0.0.1",
		"[::1", "::1]", "[a]", "[127.0.0.1]", "1.2.3.4.5", "256.1.1.1", "1.2.3.256", "4294967296", "0x100000000", "0x1ffffffff", "08.1", "1..2", "a.0x", "a.1", "1:2", ":80", "*.a",
		strings.Repeat("a", 64) + ".b", strings.Repeat("a.", 127) + "ab", "host:80", "\"a\"", "a,b",
	} {
		if h, err := parseHost(in); err == nil {
			t.Errorf("%q: taken as %q", in, h)
		}
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"a.example", "0x7f.1", "[::ffff:1.2.3.4]", "010.1", "a@b", "xn--a.", "1.2.3.4.", "::", "a:1", "*.a:1,2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := parseHostRule(s, []uint16{443}); err == nil {
			if again, err := parseHostRule(r.String(), nil); err != nil || again.String() != r.String() {
				t.Fatalf("rule %q is %q is %q, %v", s, r, again, err)
			}
		}
		h, err := parseHost(s)
		if err != nil {
			return
		}
		if (h.name == "") != h.addr.IsValid() {
			t.Fatalf("%q is both or neither: %+v", s, h)
		}
		if h.addr.Is4In6() || h.addr.Zone() != "" {
			t.Fatalf("%q: address %v has two spellings", s, h.addr)
		}
		again, err := parseHost(h.String())
		if err != nil || again != h {
			t.Fatalf("%q is %q is %q, %v", s, h, again, err)
		}
		if strings.ContainsAny(h.name, "@/\\ \x00:*ABC") {
			t.Fatalf("%q: name %q", s, h.name)
		}
	})
}

func TestHostRules(t *testing.T) {
	for _, c := range []struct {
		rule  string
		yes   string
		no    string
		print string
	}{
		{"example.org", "example.org EXAMPLE.org.", "a.example.org example.org.evil", "example.org:443"},
		{"*.Example.org:80,443,80", "a.example.org a.b.example.org", "example.org xexample.org", "*.example.org:80,443"},
		{"10.1.2.3:*", "10.1.2.3 0xa010203 ::ffff:10.1.2.3", "10.1.2.4 example.org", "10.1.2.3:*"},
		{"10.1.0.0/16", "10.1.2.3", "10.2.0.1", "10.1.0.0/16:443"},
		{"[2001:db8::]:5432", "2001:db8::", "2001:db8::1", "[2001:db8::]:5432"},
		{"2001:db8::1", "2001:db8::1", "::1", "[2001:db8::1]:443"},
		{"[2001:db8::/32]:1", "2001:db8::9", "2001:db9::", "[2001:db8::/32]:1"},
		{"2001:db8::/32", "2001:db8::9", "1.2.3.4", "[2001:db8::/32]:443"},
	} {
		r, err := parseHostRule(c.rule, []uint16{443})
		if err != nil || r.String() != c.print {
			t.Errorf("%s: got %s, %v; want %s", c.rule, r, err, c.print)
		}
		for _, s := range strings.Fields(c.yes) {
			if h, err := parseHost(s); err != nil || !r.matches(h) {
				t.Errorf("%s does not match %s (%v)", c.rule, s, err)
			}
		}
		for _, s := range strings.Fields(c.no) {
			if h, err := parseHost(s); err == nil && r.matches(h) {
				t.Errorf("%s matches %s", c.rule, s)
			}
		}
	}
	for _, s := range []string{"", ":1", "*", "*.", "*.1.2.3.4", "a:0", "a:65536", "a:", "a:1,", "a.*", "*a.b", "10.0.0.0/33", "::ffff:1.2.3.4/120", "a/8"} {
		if r, err := parseHostRule(s, nil); err == nil {
			t.Errorf("%q: taken as %s", s, r)
		}
	}
}

// plan narrows a request for hosts by the policy text.
func hostPlan(t *testing.T, policy string, allow ...string) Plan {
	t.Helper()
	req, err := NewRequest("/w", "/h", Flags{AllowHost: allow}, Preset{}, Agent{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := ParseFile(User, "user.toml", []byte("version = 1\n"+policy))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Narrow(req, l)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A name opens no special address, whatever it resolves to; a rule that names the address does.
func TestDecideAddr(t *testing.T) {
	p := hostPlan(t, "[[network.deny]]\nhost='203.0.113.0/24'\n", "api.example.org", "*.corp.example", "10.1.0.0/16", "127.0.0.1:5432", "localhost:8080", "0.0.0.0/0:443", "api.example.org:5432")
	for _, c := range []struct {
		host, addr string
		port       uint16
		want       bool
	}{
		{"api.example.org", "93.184.216.34", 443, true},
		{"api.example.org", "2606:2800::1", 443, true},
		{"api.example.org", "93.184.216.34", 80, false}, // port was not asked for
		{"other.example.org", "93.184.216.34", 443, false},
		{"api.example.org", "203.0.113.9", 443, false}, // denied range
		{"api.example.org", "127.0.0.1", 443, false},
		{"api.example.org", "127.0.0.1", 5432, true}, // named itself
		{"api.example.org", "::ffff:127.0.0.1", 443, false},
		{"api.example.org", "169.254.169.254", 443, false},
		{"api.example.org", "192.168.1.1", 443, false},
		{"api.example.org", "100.64.0.1", 443, false},
		{"api.example.org", "0.0.0.0", 443, false},
		{"api.example.org", "::1", 443, false},
		{"api.example.org", "fd00:ec2::254", 443, false},
		{"api.example.org", "fe80::1%eth0", 443, false},
		{"api.example.org", "64:ff9b::7f00:1", 443, false},   // NAT64 of 127.0.0.1
		{"api.example.org", "64:ff9b::5db8:d822", 443, true}, // NAT64 of a public address
		{"api.example.org", "2002:7f00:1::", 443, false},     // 6to4
		{"api.example.org", "10.1.2.3", 443, true},           // in a range that names it
		{"api.example.org", "10.2.2.3", 443, false},
		{"git.corp.example", "10.1.9.9", 443, true},
		{"localhost", "127.0.0.1", 8080, true},
		{"localhost", "::1", 8080, true},
		{"localhost", "10.9.9.9", 8080, false},
		{"10.1.2.3", "10.1.2.3", 443, true},
		{"127.0.0.1", "127.0.0.1", 5432, true},
		{"8.8.8.8", "8.8.8.8", 443, true},
		{"192.168.1.1", "192.168.1.1", 443, false}, // 0.0.0.0/0 does not name it
		{"api.example.org", "nonsense", 443, false},
	} {
		if got, rule := p.Hosts().DecideAddr(c.host, c.addr, c.port); got != c.want {
			t.Errorf("%s at %s port %d: got %v (%s)", c.host, c.addr, c.port, got, rule)
		}
	}
}

func TestDecisionNamesItsRule(t *testing.T) {
	p := hostPlan(t, "[[network.allow]]\nhost='*.example.org'\n[[network.deny]]\nhost='evil.example.org'\n", "a.example.org", "evil.example.org", "other.net")
	for _, c := range []struct {
		host string
		want bool
		rule string
	}{
		{"a.example.org", true, "allow a.example.org:443 (--allow-host)"},
		{"evil.example.org", false, "deny evil.example.org:* (user.toml:4)"},
		{"other.net", false, "host is not in the allow list (user.toml:2)"},
		{"b.example.org", false, "not requested"},
	} {
		if got, rule := p.Hosts().Decide(c.host, 443); got != c.want || rule != c.rule {
			t.Errorf("%s: got %v %q, want %q", c.host, got, rule, c.rule)
		}
	}
	var refused []string
	for _, r := range p.Refused {
		refused = append(refused, r.Want.Value+" by "+r.By.Source.String())
	}
	if got, want := strings.Join(refused, ", "), "evil.example.org:443 by user.toml:4, other.net:443 by user.toml:2"; got != want {
		t.Errorf("refused: got %s, want %s", got, want)
	}
	if len(p.Net.Allow) != 1 || p.Net.Allow[0].Host != "a.example.org" {
		t.Errorf("allow: got %v", p.Net.Allow)
	}
}

func TestLoopbackServices(t *testing.T) {
	p := hostPlan(t, "[[network.deny]]\nhost='127.0.0.2'\n", "127.0.0.1:5432", "[::1]:6379", "localhost:11434", "127.0.0.2:80", "0x7f.1:5432", "127.0.0.0/8:9")
	var got []string
	for _, s := range p.Net.Loopback {
		got = append(got, s.Listen+"="+s.Dial)
	}
	if g, w := strings.Join(got, " "), "127.0.0.1:5432=127.0.0.1:5432 [::1]:6379=[::1]:6379 127.0.0.1:11434=localhost:11434"; g != w {
		t.Errorf("got %s, want %s", g, w)
	}
}
