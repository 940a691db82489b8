package api

import (
	"context"
	"net/http"
)

// holdAnswer counts an answer of n bytes among the bodies, as one of its caller, until the client has read it: slow
// readers of large answers take no more memory than senders of large bodies. It waits for room as a body does; what
// the answer needs is loaded afterwards, where its size is known before. An answer is counted once, and as no more than
// a quarter of the room, so that there is room for the largest.
func (s *server) holdAnswer(ctx context.Context, n int) error {
	r := ctx.Value(answerKey).(*room)
	if n <= smallBody || r.bytes > 0 {
		return nil
	}
	return r.take(ctx, min(int64(n), r.of.total/4))
}

// answer remembers the status. Before the first of it is written begun is called, if it
// is set: what there is to do has been done then, and who reads slowly keeps nobody else
// from being worked for.
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

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
