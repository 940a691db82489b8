package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/posthaste-dev/posthaste/access"
)

const (
	keepAlive    = 15 * time.Second // without events a stream says at least so often that it is there
	writeTimeout = 10 * time.Second // in which a reader has to take what is sent to him
	askAgain     = time.Second      // whether the token is still good
	comeBack     = 2 * time.Second  // after which clients whose stream ended are asked to come again

	eventStream = "text/event-stream"
)

// stream is an answer that goes on: server-sent events. It does not count as a
// request that is worked on, nor does a request's time end it.
type stream struct {
	server *server
	ctx    context.Context // ends when the client has gone, the server stops or the token is no longer good
	w      http.ResponseWriter
	head   bool // a HEAD request: there is no body
}

// tale is what a stream tells. A nil one has nothing to tell, ever.
type tale struct {
	tell func(*stream)
	end  func() // nil, or called once, told or not
}

// streaming registers a handler whose answer is a stream. It is called with the
// request's time, and returns what is told without; an error is answered as usual.
func streaming[I any](handle func(*server, context.Context, *I) (*tale, error)) func(*server, huma.API, huma.Operation) {
	return func(s *server, to huma.API, op huma.Operation) {
		op.DefaultStatus = http.StatusOK
		op.Responses = map[string]*huma.Response{
			"200": {Description: "Server-sent events, until the server stops or the client goes", Content: map[string]*huma.MediaType{
				eventStream: {Schema: &huma.Schema{Type: huma.TypeString}},
			}},
			"204": {Description: "There is nothing more to tell: do not ask again"},
		}
		huma.Register(to, op, func(ctx context.Context, in *I) (*huma.StreamResponse, error) {
			leave, p := s.streams.take(principal(ctx))
			if p != nil {
				return nil, p
			}
			place := sync.OnceFunc(leave)
			// It has a place of its own from here on, and may wait for a look of others: that
			// must not keep requests out.
			if leave, ok := ctx.Value(gateKey).(func()); ok {
				leave()
			}
			begun := false
			defer func() {
				if !begun { // nor after a panic
					place()
				}
			}()
			told, err := handle(s, ctx, in)
			if err != nil {
				return nil, s.explain(ctx, err)
			}
			begun = true
			return &huma.StreamResponse{Body: func(hc huma.Context) {
				defer place()
				s.stream(hc, told)
			}}, nil
		})
	}
}

func (s *server) stream(hc huma.Context, told *tale) {
	r, w := humago.Unwrap(hc)
	if told == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if told.end != nil {
		defer told.end()
	}
	connection := http.NewResponseController(w)
	if err := errors.Join(connection.SetReadDeadline(time.Time{}), connection.SetWriteDeadline(time.Now().Add(s.config.writeTimeout))); err != nil {
		// A reader who does not read could not be got rid of.
		s.log.LogAttrs(r.Context(), slog.LevelError, "no streams through what is around the API's handler: it has no deadlines", slog.Any("err", err))
		writeProblem(w, r, internalError.because(""))
		return
	}
	ctx, cancel := s.streamContext(hc.Context(), r, hc.Operation().Metadata["route"].(*entry))
	defer cancel()
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	w.Header().Set("Content-Type", eventStream)
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep events back
	w.WriteHeader(http.StatusOK)
	out := &stream{server: s, ctx: ctx, w: w, head: r.Method == http.MethodHead}
	if !out.head {
		told.tell(out)
	}
}

// streamContext has the values of the request's context, and ends with its
// connection, with the server, and when the token is no longer good: it is asked for
// every second, which the authenticator's memory answers.
func (s *server) streamContext(request context.Context, r *http.Request, rt *entry) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(request))
	connection, _ := request.Value(connectionKey).(context.Context)
	gone := context.AfterFunc(connection, cancel)
	go func() {
		defer cancel()
		again := time.NewTicker(askAgain)
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.config.Stopping:
				return
			case <-again.C:
				if !s.mayStill(ctx, r, rt) {
					return
				}
			}
		}
	}()
	return ctx, func() { gone(); cancel() }
}

// mayStill reports whether the token still gives what the stream began with. A
// database that cannot say so ends no stream.
func (s *server) mayStill(ctx context.Context, r *http.Request, rt *entry) bool {
	began := principal(ctx)
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	who, err := s.authenticate(r.WithContext(ctx))
	if err != nil {
		status := problemOf(err).Status
		return status != http.StatusUnauthorized && status != http.StatusForbidden
	}
	return who.Can(rt.needs) && who.Tenant == began.Tenant && who.AllTenants == began.AllTenants && who.Can(access.AdminRead) == began.Can(access.AdminRead)
}

// slowest is the bytes a second that a reader has to take: a text of 4 MiB does not keep
// its memory for longer than a minute.
const slowest = 64 << 10

// send writes text, at least its beginning, within the write timeout, or ends the stream.
func (o *stream) send(text []byte) bool { return o.sendUnless(nil, text) }

// sendUnless stops behind an event when end is closed, with the mark that says so.
func (o *stream) sendUnless(end <-chan struct{}, text []byte) bool {
	connection := http.NewResponseController(o.w)
	patience := o.server.config.writeTimeout
	until := time.Now().Add(patience + time.Duration(len(text))*time.Second/slowest)
	for len(text) > 0 && o.ctx.Err() == nil {
		select {
		case <-end:
			if i := bytes.Index(text, []byte("\n\n")); i >= 0 {
				o.send(text[:i+2])
			}
			o.send(tooSlow) // what it missed it can have by its Last-Event-ID, or look for
			return false
		default:
		}
		part := text[:min(len(text), 32<<10)] // each has its own time, and all have theirs
		text = text[len(part):]
		deadline := time.Now().Add(patience)
		if deadline.After(until) {
			deadline = until
		}
		err := connection.SetWriteDeadline(deadline)
		if err == nil {
			_, err = o.w.Write(part)
		}
		if err == nil {
			err = connection.Flush()
		}
		if err != nil {
			return false
		}
	}
	return o.ctx.Err() == nil
}

// greet is the beginning of a stream: where it is, and when to come back.
func greet(id string) []byte {
	var text bytes.Buffer
	_, _ = io.WriteString(&text, "retry: "+millis(comeBack)+"\n")
	if id != "" {
		_, _ = io.WriteString(&text, "id: "+id+"\n")
	}
	text.WriteByte('\n')
	return text.Bytes()
}

// still is sent when there was nothing else: a comment, and where the stream is,
// without an event.
func still(id string) []byte {
	if id == "" {
		return []byte(": still here\n\n")
	}
	return []byte(": still here\nid: " + id + "\n\n")
}
