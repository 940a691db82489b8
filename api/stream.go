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
	"github.com/posthaste-dev/posthaste/watch"
)

const (
	keepAlive    = 15 * time.Second // between comments on a stream without events
	writeTimeout = 10 * time.Second // for each write: a reader that takes longer is dropped
	comeBack     = 2 * time.Second  // before clients reconnect: the retry field of a stream

	eventStream = "text/event-stream"
)

// stream is a response of server-sent events. It does not count as a request in progress, and the timeout of requests
// does not end it.
type stream struct {
	*watch.Stream
	server *server
	ctx    context.Context // ends when the client has gone, the server stops or the token is no longer valid
}

// source is what a stream sends. A nil source means that there is nothing more to send: a 204.
type source struct {
	sendTo func(*stream)
	close  func() // nil, or called once, whether or not anything was sent
}

// streaming registers a handler whose response is a stream. The timeout of requests applies to the handler itself, but
// not to the source that it returns; an error is answered as usual.
func streaming[I any](handle func(*server, context.Context, *I) (*source, error)) func(*server, huma.API,
	huma.Operation) {
	return func(s *server, to huma.API, op huma.Operation) {
		op.DefaultStatus = http.StatusOK
		op.Responses = map[string]*huma.Response{
			"200": {
				Description: "Server-sent events, until the server stops or the client disconnects",
				Content: map[string]*huma.MediaType{
					eventStream: {Schema: &huma.Schema{Type: huma.TypeString}},
				},
			},
		}
		if op.Path == "/jobs/{id}/changes" {
			op.Responses["204"] = &huma.Response{
				Description: "The job has closed, and the client has its last state: do not reconnect",
			}
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
	out, err := watch.NewStream(w, r, s.config.writeTimeout)
	if errors.Is(err, watch.ErrBody) {
		writeProblem(w, r, unwantedBody(r))
		return
	}
	if err != nil {
		s.log.LogAttrs(r.Context(), slog.LevelError,
			"the handler around the API does not support write deadlines: streams are refused", slog.Any("err", err))
		writeProblem(w, r, internalError.because(""))
		return
	}
	connection, _ := hc.Context().Value(connectionKey).(context.Context)
	ctx, cancel := watch.WhileAllowed(hc.Context(), connection, s.config.Stopping, func(ctx context.Context) bool {
		return s.mayStill(ctx, r, hc.Operation().Metadata["route"].(*entry))
	})
	defer cancel()
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	out.Begin(ctx)
	if r.Method != http.MethodHead {
		from.sendTo(&stream{out, s, ctx})
	}
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
	return who.Can(rt.needs) && who.Tenant == began.Tenant && who.AllTenants == began.AllTenants &&
		who.Can(access.AdminRead) == began.Can(access.AdminRead)
}

// sendUnless stops after the present event when end is closed, and sends a resync.
func (o *stream) sendUnless(end <-chan struct{}, text []byte) bool {
	unsent, ok := o.SendUnless(end, text)
	if len(unsent) == 0 {
		return ok
	}
	if i := bytes.Index(unsent, []byte("\n\n")); i >= 0 {
		o.Send(unsent[:i+2])
	}
	o.Send(tooSlow) // the client can reconnect with its Last-Event-ID
	return false
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
