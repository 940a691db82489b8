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
	keepAlive    = 15 * time.Second // between comments on a stream without events
	writeTimeout = 10 * time.Second // for each write: a reader that takes longer is dropped
	askAgain     = time.Second      // between checks that the token is still good
	comeBack     = 2 * time.Second  // before clients reconnect: the retry field of a stream

	eventStream = "text/event-stream"
)

// stream is a response of server-sent events. It does not count as a request in progress, and the timeout of requests
// does not end it.
type stream struct {
	server *server
	ctx    context.Context // ends when the client has gone, the server stops or the token is no longer valid
	w      http.ResponseWriter
	head   bool // a HEAD request: there is no body
}

// source is what a stream sends. A nil source means that there is nothing more to send: a 204.
type source struct {
	sendTo func(*stream)
	close  func() // nil, or called once, whether or not anything was sent
}

// streaming registers a handler whose response is a stream. The timeout of requests applies to the handler itself, but
// not to the source that it returns; an error is answered as usual.
func streaming[I any](handle func(*server, context.Context, *I) (*source, error)) func(*server, huma.API, huma.Operation) {
	return func(s *server, to huma.API, op huma.Operation) {
		op.DefaultStatus = http.StatusOK
		op.Responses = map[string]*huma.Response{
			"200": {Description: "Server-sent events, until the server stops or the client disconnects", Content: map[string]*huma.MediaType{
				eventStream: {Schema: &huma.Schema{Type: huma.TypeString}},
			}},
			"204": {Description: "The job has closed, and the client has its last state: do not reconnect"},
		}
		huma.Register(to, op, func(ctx context.Context, in *I) (*huma.StreamResponse, error) {
			leave, p := s.streams.take(principal(ctx))
			if p != nil {
				return nil, p
			}
			end := sync.OnceFunc(leave)
			// From here on the stream has its own part of the quota, and releases the request's slots: it may wait for
			// a look at the database, and must not block requests meanwhile.
			if leave, ok := ctx.Value(slotsKey).(func()); ok {
				leave()
			}
			begun := false
			defer func() {
				if !begun { // nor after a panic
					end()
				}
			}()
			from, err := handle(s, ctx, in)
			if err != nil {
				return nil, s.explain(ctx, err)
			}
			begun = true
			return &huma.StreamResponse{Body: func(hc huma.Context) {
				defer end()
				s.stream(hc, from)
			}}, nil
		})
	}
}

func (s *server) stream(hc huma.Context, from *source) {
	r, w := humago.Unwrap(hc)
	if from == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if from.close != nil {
		defer from.close()
	}
	connection := http.NewResponseController(w)
	if err := errors.Join(connection.SetReadDeadline(time.Time{}), connection.SetWriteDeadline(time.Now().Add(s.config.writeTimeout))); err != nil {
		// Without deadlines, a client that does not read could not be dropped.
		s.log.LogAttrs(r.Context(), slog.LevelError, "the handler around the API does not support write deadlines: streams are refused", slog.Any("err", err))
		writeProblem(w, r, internalError.because(""))
		return
	}
	ctx, cancel := s.streamContext(hc.Context(), r, hc.Operation().Metadata["route"].(*entry))
	defer cancel()
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	w.Header().Set("Content-Type", eventStream)
	w.Header().Set("X-Accel-Buffering", "no") // nginx would buffer the stream
	w.WriteHeader(http.StatusOK)
	out := &stream{server: s, ctx: ctx, w: w, head: r.Method == http.MethodHead}
	if !out.head {
		from.sendTo(out)
	}
}

// streamContext returns a context with the values of the request's. It ends with the connection, with the server, and
// when the token is no longer valid: the authenticator's cache is asked every second.
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

// mayStill reports whether the token still has the capabilities with which the stream began. While the database does
// not answer, the stream goes on.
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

// slowest is how many bytes per second a client must read: a text of 4 MiB is in memory for at most a minute.
const slowest = 64 << 10

// send writes text, at least its beginning, within the write timeout, or ends the stream.
func (o *stream) send(text []byte) bool { return o.sendUnless(nil, text) }

// sendUnless stops after the present event when end is closed, and sends a resync.
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
			o.send(tooSlow) // the client can reconnect with its Last-Event-ID
			return false
		default:
		}
		part := text[:min(len(text), 32<<10)] // each part has a deadline, and so has the whole
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

// preamble returns the beginning of a stream: its position, and when to reconnect.
func preamble(id string) []byte {
	var text bytes.Buffer
	_, _ = io.WriteString(&text, "retry: "+millis(comeBack)+"\n")
	if id != "" {
		_, _ = io.WriteString(&text, "id: "+id+"\n")
	}
	text.WriteByte('\n')
	return text.Bytes()
}

// keepAliveText is sent when there was nothing else: a comment, and the stream's position, without an event.
func keepAliveText(id string) []byte {
	if id == "" {
		return []byte(": still here\n\n")
	}
	return []byte(": still here\nid: " + id + "\n\n")
}
