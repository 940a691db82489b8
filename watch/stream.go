package watch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

const (
	// slowest is how many bytes per second a reader must read: a text of 4 MiB is in memory for at most a minute.
	slowest  = 64 << 10
	askAgain = time.Second // between checks that the reader may still read
)

// Stream is a response of server-sent events. A reader that is too slow is dropped.
type Stream struct {
	ctx      context.Context
	w        http.ResponseWriter
	patience time.Duration // for each write
}

// ErrBody reports that a request for an answer without a time limit has a body. net/http reads what a handler leaves of
// it, and would wait without a time limit for a client that does not send it.
var ErrBody = errors.New("the request has a body, which is not taken here")

// NewStream takes over the connection of a request: from now on each write has patience. It returns [ErrBody], or an
// error if the handler around does not support deadlines, because a client that does not read could then not be
// dropped.
func NewStream(w http.ResponseWriter, r *http.Request, patience time.Duration) (*Stream, error) {
	if r.ContentLength != 0 {
		return nil, ErrBody
	}
	connection := http.NewResponseController(w)
	if err := errors.Join(connection.SetReadDeadline(time.Time{}),
		connection.SetWriteDeadline(time.Now().Add(patience))); err != nil {
		return nil, fmt.Errorf("stream: the handler around does not support deadlines: %w", err)
	}
	return &Stream{w: w, patience: patience}, nil
}

// Begin sends the header. The stream ends with ctx.
func (s *Stream) Begin(ctx context.Context) {
	s.ctx = ctx
	s.w.Header().Set("Content-Type", "text/event-stream")
	s.w.Header().Set("X-Accel-Buffering", "no") // nginx would buffer the stream
	s.w.WriteHeader(http.StatusOK)
}

// Done returns a channel that is closed when the stream has ended.
func (s *Stream) Done() <-chan struct{} { return s.ctx.Done() }

// Send sends text, each part of it within the patience and the whole as fast as a reader must read. It returns false if
// the stream has ended.
func (s *Stream) Send(text []byte) bool {
	_, ok := s.SendUnless(nil, text)
	return ok
}

// SendUnless sends text as Send does, except that it stops when end is closed, and returns what it has not sent.
func (s *Stream) SendUnless(end <-chan struct{}, text []byte) (unsent []byte, ok bool) {
	connection := http.NewResponseController(s.w)
	until := time.Now().Add(s.patience + time.Duration(len(text))*time.Second/slowest)
	for len(text) > 0 && s.ctx.Err() == nil {
		select {
		case <-end:
			return text, true
		default:
		}
		part := text[:min(len(text), 32<<10)] // each part has a deadline, and so has the whole
		text = text[len(part):]
		deadline := time.Now().Add(s.patience)
		if deadline.After(until) {
			deadline = until
		}
		err := connection.SetWriteDeadline(deadline)
		if err == nil {
			_, err = s.w.Write(part)
		}
		if err == nil {
			err = connection.Flush()
		}
		if err != nil {
			return nil, false
		}
	}
	return nil, s.ctx.Err() == nil
}

// StillHere returns what is sent when there was nothing else: a comment and, unless it is "", the stream's position,
// without an event.
func StillHere(position string) []byte {
	if position == "" {
		return []byte(": still here\n\n")
	}
	return []byte(": still here\nid: " + position + "\n\n")
}

// WhileAllowed returns a context with the values of a request's that ends with the connection, when stopping is closed,
// and when the reader may no longer read, which it asks every second.
func WhileAllowed(request, connection context.Context, stopping <-chan struct{},
	may func(context.Context) bool,
) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(request))
	gone := context.AfterFunc(connection, cancel)
	go func() {
		defer cancel()
		again := time.NewTicker(askAgain)
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-stopping:
				return
			case <-again.C:
				if !may(ctx) {
					return
				}
			}
		}
	}()
	return ctx, func() { gone(); cancel() }
}
