package api

import (
	"context"
	"net/http"
)

// holdAnswer counts an answer of n bytes among the bodies of its caller until the client has read it, so that slow
// readers of large answers take no more memory than senders of large bodies. It waits for room as a body does; if the
// size is known in advance, the content is loaded afterwards. An answer is counted once, and as at most a quarter of
// the room, so that there is room for the largest.
func (s *server) holdAnswer(ctx context.Context, n int) error {
	r := ctx.Value(answerKey).(*room)
	if n <= smallBody || r.bytes > 0 {
		return nil
	}
	return r.take(ctx, min(int64(n), r.of.total/4))
}

// answer records the status. It calls begun, if set, before it writes the first part: the work is done then, and a slow
// reader must not keep the server from working for others.
type answer struct {
	http.ResponseWriter
	status int
	begun  func()
}

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	a.begin()
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	a.begin()
	return a.ResponseWriter.Write(b)
}

func (a *answer) begin() {
	if a.begun != nil {
		a.begun()
		a.begun = nil
	}
}

// Unwrap serves http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
