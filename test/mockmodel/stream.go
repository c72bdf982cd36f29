package mockmodel

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"
)

var errNoStream = errors.New("want stream: true")

func newID(prefix string) string { return prefix + "_" + rand.Text() }

// stream writes one response as server-sent events.
type stream struct {
	w     http.ResponseWriter
	id    string
	model string
	seq   int
}

func newStream(w http.ResponseWriter, model string) *stream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	return &stream{w: w, id: newID("resp"), model: model}
}

// event writes one event. A client that is gone is noticed by the server, not here.
func (st *stream) event(kind string, fields item) {
	fields["type"], fields["sequence_number"] = kind, st.seq
	st.seq++
	text, _ := json.Marshal(fields)
	fmt.Fprintf(st.w, "event: %s\ndata: %s\n\n", kind, text)
	_ = http.NewResponseController(st.w).Flush()
}

func (st *stream) response(status string) item {
	return item{"id": st.id, "object": "response", "created_at": time.Now().Unix(), "status": status, "model": st.model, "output": []any{}}
}

// play sends a turn. It calls played before the last event: a client that has seen the end may ask
// for the next turn at once.
func (st *stream) play(ctx context.Context, t Turn, out []item, played func()) {
	st.event("response.created", item{"response": st.response("in_progress")})
	switch {
	case t.Hang:
		<-ctx.Done()
		return
	case t.Fail != nil:
		played()
		r := st.response("failed")
		r["error"] = t.Fail
		st.event("response.failed", item{"response": r})
		return
	}
	for i, it := range out {
		st.item(i, it)
	}
	played()
	if t.Drop {
		panic(http.ErrAbortHandler) // net/http's way to cut the connection
	}
	r := st.response("completed")
	r["output"], r["usage"] = out, t.Usage.wire()
	st.event("response.completed", item{"response": r})
}

func (st *stream) item(i int, it item) {
	added := maps.Clone(it)
	added["status"] = "in_progress"
	if it["type"] == "message" {
		added["content"] = []any{}
	}
	st.event("response.output_item.added", item{"output_index": i, "item": added})
	if content, ok := it["content"].([]item); ok {
		st.event("response.output_text.delta", item{"output_index": i, "content_index": 0, "item_id": it["id"], "delta": content[0]["text"]})
	}
	st.event("response.output_item.done", item{"output_index": i, "item": it})
}

func (u *Usage) wire() item {
	return item{
		"input_tokens": u.Input, "input_tokens_details": item{"cached_tokens": u.Cached},
		"output_tokens": u.Output, "output_tokens_details": item{"reasoning_tokens": u.Reasoning},
		"total_tokens": u.Input + u.Output,
	}
}
