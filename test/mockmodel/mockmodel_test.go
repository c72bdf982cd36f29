package mockmodel

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
)

// ask sends one request as thread, with the tool outputs of its history, and returns the stream.
func ask(t *testing.T, s *Server, script, thread string, outputs ...string) (int, string) {
	t.Helper()
	in := map[string]any{"model": "m", "stream": true, "tools": []tool{{"function", "exec_command"}, {"custom", "apply_patch"}}}
	input := []any{map[string]any{"type": "message", "role": "user", "content": []any{map[string]any{"type": "input_text", "text": "go"}}}}
	for _, out := range outputs {
		input = append(input, map[string]any{"type": "function_call_output", "output": out})
	}
	in["input"] = input
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL(script)+"/responses", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Thread-Id", thread)
	req.Header.Set("Authorization", "Bearer secret")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil && err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// wantSaid fails unless the newest answer to script holds text.
func wantSaid(t *testing.T, answer, text string) {
	t.Helper()
	if !strings.Contains(answer, text) {
		t.Errorf("got %s\nwant it to hold %q", answer, text)
	}
}

func script(turns ...Turn) Config { return Config{Scripts: map[string]Script{"s": {Turns: turns}}} }

func TestTurnsArePlayedInOrderForEachThread(t *testing.T) {
	s := Start(t, script(Turn{Say: "first"}, Turn{Say: "twice", Repeat: 2}, Turn{Final: "last"}))
	for _, want := range []string{"first", "twice", "twice", "last", "the script is over", "the script is over"} {
		for _, thread := range []string{"a", "b"} {
			status, got := ask(t, s, "s", thread)
			if status != http.StatusOK {
				t.Fatalf("status %d: %s", status, got)
			}
			wantSaid(t, got, want)
			wantSaid(t, got, "event: response.completed")
		}
	}
}

func TestThreadsRunAtTheSameTime(t *testing.T) {
	s := Start(t, script(Turn{Say: "one"}, Turn{Say: "two"}, Turn{Final: "three"}))
	var wg sync.WaitGroup
	for _, thread := range strings.Split("abcdefgh", "") {
		wg.Go(func() {
			for _, want := range []string{"one", "two", "three"} {
				_, got := ask(t, s, "s", thread)
				wantSaid(t, got, want)
			}
		})
	}
	wg.Wait()
	if got := len(s.Requests()); got != 24 {
		t.Errorf("%d requests recorded, want 24", got)
	}
}

func TestJumpsFollowTheNewestOutput(t *testing.T) {
	turns := []Turn{
		{Run: []string{"check"}},
		{When: []Jump{{Match: "PASS", Goto: "done"}}, Say: "again"},
		{When: []Jump{{Match: "PASS", Not: true, Goto: "failed"}}, Label: "done", Final: "passes"},
		{Label: "failed", Final: "fails: {{last_output}}"},
	}
	s := Start(t, script(turns...))
	ask(t, s, "s", "pass")
	_, got := ask(t, s, "s", "pass", "FAIL", "PASS")
	wantSaid(t, got, "passes")
	ask(t, s, "s", "fail")
	ask(t, s, "s", "fail", "FAIL")
	_, got = ask(t, s, "s", "fail", "FAIL", "no luck")
	wantSaid(t, got, "fails: no luck")
}

func TestVariablesAreReplacedAndRequired(t *testing.T) {
	def := "default"
	c := Config{
		Scripts: map[string]Script{"s": {
			Vars:  map[string]*string{"given": nil, "missing": nil, "has": &def, "both": &def},
			Turns: []Turn{{Run: []string{"{{given}} {{has}} {{both}}"}}, {Run: []string{"{{missing}}"}}},
		}},
		Vars: map[string]string{"given": "VALUE {{has}}", "both": "set"},
	}
	s := Start(t, c)
	_, got := ask(t, s, "s", "a")
	wantSaid(t, got, "VALUE {{has}} default set") // replaced once
	for range 2 {
		status, got := ask(t, s, "s", "a")
		if status != http.StatusBadRequest {
			t.Errorf("status %d, want a refusal", status)
		}
		wantSaid(t, got, "variable \\\"missing\\\" has no value")
	}
}

func TestBuiltinScriptsNameNothingOutside(t *testing.T) {
	scripts, err := Builtin()
	if err != nil {
		t.Fatal(err)
	}
	if len(scripts) < 10 {
		t.Errorf("%d scripts", len(scripts))
	}
	for name, s := range scripts {
		if s.About == "" {
			t.Errorf("%s says nothing about itself", name)
		}
		for _, turn := range s.Turns {
			for _, text := range turn.texts() {
				for _, outside := range []string{"> /etc", "> /tmp", "id_rsa", "docker.sock", "example.", "192.0.2."} {
					if strings.Contains(*text, outside) {
						t.Errorf("%s: %q names %q", name, *text, outside)
					}
				}
			}
		}
	}
}

func TestParseRefusesMistakes(t *testing.T) {
	for name, text := range map[string]string{
		"unknown field":     `{"turns":[{"rum":["x"]}]}`,
		"no turns":          `{"turns":[]}`,
		"label twice":       `{"turns":[{"label":"a"},{"label":"a"}]}`,
		"missing label":     `{"turns":[{"when":[{"match":"x","goto":"nowhere"}]}]}`,
		"bad expression":    `{"turns":[{"label":"a","when":[{"match":"(","goto":"a"}]}]}`,
		"unknown variable":  `{"turns":[{"final":"{{who}}"}]}`,
		"not JSON":          `turns`,
		"command as string": `{"turns":[{"run":"x"}]}`,
	} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"turns":[{"run":["x"],"when":[{"match":"a","goto":"l"}]},{"label":"l","final":"{{last_output}}"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		for i := range s.Turns {
			at := s.jump(i, "a")
			if at < 0 || at >= len(s.Turns) {
				t.Fatalf("turn %d leads to %d", i, at)
			}
			if _, err := s.expand(s.Turns[at], nil, "out"); err == nil {
				items(s.Turns[at], nil)
			}
		}
	})
}

func TestPatchGoesThroughTheShellWithoutATool(t *testing.T) {
	call := patchCall("*** Begin Patch\n*** End Patch\n", []string{"exec_command"})
	if call["name"] != "exec_command" || !strings.Contains(call["arguments"].(string), "apply_patch \\u003c\\u003c'MOCK_PATCH'") {
		t.Errorf("got %v", call)
	}
}

func TestFailuresAreDelivered(t *testing.T) {
	s := Start(t, script(Turn{HTTPStatus: 503}, Turn{Fail: &Failure{"code_x", "m"}}, Turn{Say: "half", Drop: true}, Turn{Final: "end"}))
	if status, _ := ask(t, s, "s", "a"); status != 503 {
		t.Errorf("status %d, want 503", status)
	}
	_, got := ask(t, s, "s", "a")
	wantSaid(t, got, "response.failed")
	wantSaid(t, got, "code_x")
	_, got = ask(t, s, "s", "a")
	wantSaid(t, got, "half")
	if strings.Contains(got, "response.completed") {
		t.Error("the cut stream has an end")
	}
	_, got = ask(t, s, "s", "a")
	wantSaid(t, got, "end")
}

func TestCloseEndsAHangingStream(t *testing.T) {
	s, err := New(script(Turn{Hang: true}))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(s.URL("s")+"/responses", "application/json", strings.NewReader(`{"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the stream ended as if it were complete")
	}
}

func TestRequestsAreRecordedWithoutCredentials(t *testing.T) {
	var record bytes.Buffer
	c := script(Turn{Final: "x"})
	c.Record = &record
	s := Start(t, c)
	ask(t, s, "s", "a", "out 1", "out 2")
	r := s.Requests()[0]
	if r.Script != "s" || r.Thread != "a" || r.Prompt != "go" || len(r.Outputs) != 2 || len(r.Tools) != 2 {
		t.Errorf("got %+v", r)
	}
	if got := s.Outputs("s"); len(got) != 2 || got[1] != "out 2" {
		t.Errorf("got outputs %q", got)
	}
	if strings.Contains(record.String(), "secret") || !strings.Contains(record.String(), `"redacted"`) {
		t.Errorf("recorded %s", record.String())
	}
	if got := s.Outputs("never"); got != nil {
		t.Errorf("got outputs %q of a script nobody played", got)
	}
}

func TestOtherRequestsAreRefusedAndRecorded(t *testing.T) {
	s := Start(t, Config{})
	for _, path := range []string{"/", "/v1/responses", "/s/edit/v1/models", "/s/none/v1/responses"} {
		resp, err := http.Post("http://"+s.Addr()+path, "application/json", strings.NewReader(`{"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode < 400 {
			t.Errorf("%s: status %d", path, resp.StatusCode)
		}
	}
	if got := len(s.Requests()); got != 4 {
		t.Errorf("%d requests recorded, want 4", got)
	}
}

func TestListenTakesLoopbackAlone(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "localhost:0", "127.0.0.1"} {
		if s, err := New(Config{Listen: addr}); err == nil {
			t.Errorf("listens on %s", s.Addr())
			s.Close()
		}
	}
}

func TestSetupStaysInItsFolder(t *testing.T) {
	dir := t.TempDir()
	s := Script{Setup: map[string]string{"a/run.sh": "#!/bin/sh\n", "f": "text"}}
	if err := s.WriteSetup(dir); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir + "/a/run.sh"); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("got %v, %v", st, err)
	}
	for _, name := range []string{"../x", "/etc/x", "a/../../x"} {
		if err := (Script{Setup: map[string]string{name: ""}}).WriteSetup(dir); err == nil {
			t.Errorf("%s was written", name)
		}
	}
}
