package mockmodel

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

// responsesRequest is the part of a Responses API request that matters here.
type responsesRequest struct {
	Model  string      `json:"model"`
	Stream bool        `json:"stream"`
	Tools  []tool      `json:"tools"`
	Input  []inputItem `json:"input"`
}

type tool struct {
	Type string `json:"type"` // function, custom (freeform input), …
	Name string `json:"name"`
}

// inputItem is one item of the history: a message, a call, or the output of one.
type inputItem struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
	Output  json.RawMessage `json:"output"`
}

// read fills r with what the request says.
func (in *responsesRequest) read(r *Request) {
	for _, t := range in.Tools {
		r.Tools = append(r.Tools, t.Name)
	}
	for _, it := range in.Input {
		switch {
		case strings.HasSuffix(it.Type, "_call_output"):
			r.Outputs = append(r.Outputs, textOf(it.Output))
		case it.Role == "user":
			r.Prompt = textOf(it.Content)
		}
	}
}

// textOf returns the text of a content field: a string, or parts that hold one.
func textOf(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return string(raw)
	}
	for _, p := range parts {
		text += p.Text
	}
	return text
}

func (s *Server) responses(w http.ResponseWriter, req *http.Request, r Request) {
	var in responsesRequest
	if err := json.Unmarshal(r.Body, &in); err != nil {
		s.refuse(w, r, http.StatusBadRequest, err.Error())
		return
	}
	r.Thread = req.Header.Get("Thread-Id")
	in.read(&r)
	turn, played, err := s.next(&r)
	if err == nil && !in.Stream {
		err = errNoStream
	}
	if err != nil {
		s.refuse(w, r, http.StatusBadRequest, err.Error())
		return
	}
	s.add(r)
	select {
	case <-time.After(time.Duration(turn.DelayMS) * time.Millisecond):
	case <-req.Context().Done():
		return
	}
	if turn.HTTPStatus != 0 {
		played()
		http.Error(w, `{"error":{"message":"mock: scripted error","type":"mock_error"}}`, turn.HTTPStatus)
		return
	}
	newStream(w, in.Model).play(req.Context(), turn, items(turn, r.Tools), played)
}

// item is an output item of a response; its keys are those of the API.
type item map[string]any

func items(t Turn, tools []string) []item {
	var list []item
	if t.Think != "" {
		list = append(list, item{"type": "reasoning", "id": newID("rs"), "summary": []item{{"type": "summary_text", "text": t.Think}}, "encrypted_content": nil})
	}
	if t.Say != "" {
		list = append(list, message(t.Say))
	}
	for _, command := range t.Run {
		list = append(list, shellCall(command, t.YieldMS))
	}
	if t.Patch != "" {
		list = append(list, patchCall(t.Patch, tools))
	}
	if t.Final != "" {
		list = append(list, message(t.Final))
	}
	return list
}

func message(text string) item {
	return item{"type": "message", "id": newID("msg"), "role": "assistant", "status": "completed",
		"content": []item{{"type": "output_text", "text": text, "annotations": []any{}}}}
}

func shellCall(command string, yieldMS int) item {
	args := map[string]any{"cmd": command}
	if yieldMS > 0 {
		args["yield_time_ms"] = yieldMS
	}
	text, _ := json.Marshal(args) // strings and numbers
	return item{"type": "function_call", "id": newID("fc"), "status": "completed", "call_id": newID("call"), "name": "exec_command", "arguments": string(text)}
}

// patchCall uses the client's apply_patch tool, or the shell where it has none: Codex understands
// such a heredoc itself.
func patchCall(patch string, tools []string) item {
	if !slices.Contains(tools, "apply_patch") {
		return shellCall("apply_patch <<'MOCK_PATCH'\n"+strings.TrimRight(patch, "\n")+"\nMOCK_PATCH", 0)
	}
	return item{"type": "custom_tool_call", "id": newID("ctc"), "status": "completed", "call_id": newID("call"), "name": "apply_patch", "input": patch}
}
