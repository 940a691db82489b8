package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
	"github.com/posthaste-dev/posthaste/operator"
)

var problemType = reflect.TypeFor[Problem]()

// maxBodyTimeout is how long a body may take to arrive, unless the request's own timeout is shorter.
const maxBodyTimeout = 10 * time.Second

func (s *server) bodyTimeout() time.Duration {
	return min(cmp.Or(s.config.bodyTimeout, maxBodyTimeout), s.config.Timeout)
}

type contextKey int

const (
	requestIDKey contextKey = iota
	principalKey
	traceKey
	callerKey
	connectionKey
	slotsKey
	answerKey
)

func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey).(string)
	return id
}

// principal returns the caller of the request; every route runs behind enter, which sets it.
func principal(ctx context.Context) access.Principal {
	p, _ := ctx.Value(principalKey).(access.Principal)
	return p
}

// outermost wraps everything: it sets the request's id and the headers of every answer, limits the time of a request,
// recovers panics, and answers paths without a route.
func (s *server) outermost(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if !callers.IsRequestID(id) {
			id = rand.Text()
		}
		h := w.Header()
		h.Set("X-Request-Id", id)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		ctx, cancel := context.WithTimeout(context.WithValue(context.WithValue(r.Context(), requestIDKey, id),
			connectionKey, r.Context()), s.config.Timeout)
		defer cancel()
		r = r.WithContext(ctx)
		answer := &answer{ResponseWriter: w}
		started := time.Now()
		returned := false
		defer func() {
			if v := recover(); !returned { // v is nil for panic(nil) with GODEBUG=panicnil=1
				s.recovered(answer, r, v)
			}
			s.metrics.answered(r.Pattern, answer.status, time.Since(started))
		}()
		if p := misplaced(mux, r); p != nil {
			writeProblem(answer, r, p)
		} else {
			mux.ServeHTTP(answer, r)
		}
		returned = true
	})
}

// recovered answers after a panic. The panic value goes only to the log.
func (s *server) recovered(w *answer, r *http.Request, v any) {
	if v == http.ErrAbortHandler { //nolint:errorlint // the documented way to say it
		panic(v)
	}
	s.log.LogAttrs(r.Context(), slog.LevelError, "request panicked", slog.String("request_id", requestID(r.Context())),
		slog.String("route", r.Pattern), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
	if w.status != 0 {
		panic(http.ErrAbortHandler) // half an answer is out: cut the connection
	}
	writeProblem(w, r, internalError.because(""))
}

// misplaced returns the problem with a request that no route handles.
func misplaced(mux *http.ServeMux, r *http.Request) *Problem {
	handler, pattern := mux.Handler(r)
	if pattern == "" {
		var refused refusal
		handler.ServeHTTP(&refused, r)
		if refused.status == http.StatusMethodNotAllowed {
			p := methodNotAllowed.because("It takes " + refused.Header().Get("Allow") + ".")
			p.allow = refused.Header().Get("Allow")
			return p
		}
		return routeNotFound.because("")
	}
	// The mux would redirect. An escaped slash is part of a name: a key may be any text.
	if escaped := r.URL.EscapedPath(); path.Clean(escaped) != escaped {
		return routeNotFound.because("")
	}
	return nil
}

// refusal captures what the mux would answer.
type refusal struct {
	header http.Header
	status int
}

func (f *refusal) Header() http.Header {
	if f.header == nil {
		f.header = http.Header{}
	}
	return f.header
}
func (f *refusal) Write(b []byte) (int, error) { return len(b), nil }
func (f *refusal) WriteHeader(status int)      { f.status = status }

// enter wraps every route: it authenticates, authorizes, limits and validates the request. The admission is passed
// twice, so that a slow body does not occupy a slot that another request could use.
func (s *server) enter(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	rt := ctx.Operation().Metadata["route"].(*entry)
	refuse := func(p *Problem) { writeProblem(w, r, p.unbegun()) }
	inSpan, end := traced(r.Context(), ctx.Operation(), r.Header, w)
	defer end()

	who, p := s.admit(r, rt)
	if p != nil {
		refuse(p)
		return
	}
	if ctx.Operation().RequestBody != nil { // a caller that would be refused later need not send its body
		leave, err := s.admission.acquire(r.Context(), who, func() {})
		if err != nil {
			refuse(problemOf(err))
			return
		}
		leave()
	}
	room := s.bodies.room(who)
	defer room.release()
	if p = s.readRequest(ctx.Operation(), rt.shape, room, w, r); p != nil {
		refuse(p)
		return
	}
	done, p := s.begin(w, r, who, room)
	if p != nil {
		refuse(p)
		return
	}
	defer done()
	answer := s.bodies.room(who)
	defer answer.release()
	inner := operator.WithTenant(inSpan, tenantOf(who))
	for key, value := range map[contextKey]any{
		principalKey: who, callerKey: callerOf(who, r), slotsKey: done,
		answerKey: answer,
	} {
		inner = context.WithValue(inner, key, value)
	}
	next(huma.WithContext(ctx, inner))
}

// begin waits until a request that has been read may be worked on. Its slot of the admission, and its body, are
// released when the answer begins; done releases its part of the quota of answers.
func (s *server) begin(w http.ResponseWriter, r *http.Request, who access.Principal,
	room *room,
) (done func(), refused *Problem) {
	forget := func() {
		if read, ok := r.Body.(*body); ok {
			_ = read.Close()
		}
		room.release()
	}
	leave, err := s.admission.acquire(r.Context(), who, forget)
	if err != nil {
		return nil, problemOf(err)
	}
	answered, p := s.answers.take(who)
	if p != nil {
		leave()
		forget()
		if err = s.admission.hold(r.Context()); err != nil {
			p = problemOf(err)
		}
		return nil, p
	}
	worked := sync.OnceFunc(func() {
		leave()
		forget()
	})
	if a, ok := w.(*answer); ok {
		a.begun = worked
	}
	return sync.OnceFunc(func() {
		worked()
		answered()
	}), nil
}

// admit authenticates and authorizes the caller, and limits its rate.
func (s *server) admit(r *http.Request, rt *entry) (who access.Principal, refused *Problem) {
	who, err := s.authenticate(r) // a request whose token is being looked up holds no slot
	if err != nil {
		p := s.explain(r.Context(), err)
		if p.Status == http.StatusUnauthorized && s.unknown.Take(access.Principal{}) > 0 {
			_ = s.admission.hold(r.Context()) // a client that has gone reads no answer
		}
		return who, p
	}
	switch {
	case !who.Can(rt.needs):
		return who, forbidden.because("It takes the capability " + string(rt.needs) + ".")
	case rt.also != "" && !who.Can(rt.also):
		return who, forbidden.because("It takes the capability " + string(rt.also) + ".")
	case rt.everything && !who.AllTenants:
		return who, forbidden.because("It concerns all tenants: it takes a token of all tenants.")
	}
	if wait := s.limits.Take(who); wait > 0 {
		return who, rateLimited.because("").after(wait)
	}
	return who, nil
}

// readRequest reads the body, validates it and the parameters, and leaves the body for huma.
func (s *server) readRequest(op *huma.Operation, shape *shape, room *room, w http.ResponseWriter,
	r *http.Request,
) *Problem {
	if p := checkParameters(r); p != nil {
		return p
	}
	if p := refuseKey(op, r); p != nil {
		return p
	}
	if op.RequestBody == nil {
		return s.wantNoBody(w, r)
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return mediaType.because("Send the body without a Content-Encoding.")
	}
	sent := r.Header.Get("Content-Type")
	contentType, _, err := mime.ParseMediaType(sent)
	if _, taken := op.RequestBody.Content[contentType]; err != nil || !taken {
		return mediaType.because(fmt.Sprintf("It takes %s, and the Content-Type is %.100q.",
			oneOf(op.RequestBody.Content), sent))
	}
	lines := contentType == ndjson
	limit := int64(s.config.MaxBodyBytes)
	if lines {
		limit *= batchFactor
	}
	// Some tests' connections do not support it.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyTimeout()))
	data, err := room.read(w, r, limit)
	if err != nil {
		room.release()
		p := bodyProblem(err, limit)
		if p.Status == http.StatusTooManyRequests {
			_ = s.admission.hold(r.Context()) // a client that has gone reads no answer
		}
		return p
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if len(data) == 0 {
		return malformed.because("The body is empty.")
	}
	if !lines {
		if p := readable(data, shape); p != nil {
			return p
		}
	}
	r.Body = &body{data}
	return nil
}

func oneOf(content map[string]*huma.MediaType) string {
	for name := range content {
		return name
	}
	return "no body"
}

// checkParameters refuses values that no parameter can hold, and repeated parameters.
func checkParameters(r *http.Request) *Problem {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return malformed.because("The query string cannot be read.")
	}
	for name, values := range query {
		if len(values) > 1 {
			return malformed.because("", Fault{Parameter: printable(name), Detail: "is there twice"})
		}
		if fault := textFault(name + values[0]); fault != "" {
			return malformed.because("", Fault{Parameter: printable(name), Detail: fault})
		}
		// For an act, an empty tenant would mean any, or the root tenant, which a script with an unset variable does
		// not intend.
		if name == "tenant" && values[0] == "" && r.Method == http.MethodPost {
			return invalidInput.because("", Fault{Parameter: name, Detail: "is empty: leave it out, or name a tenant"})
		}
		if name == "blocks" && values[0] == "" { // it would mean any
			return invalidInput.because("", Fault{Parameter: name, Detail: "is empty: leave it out, or send the key's"})
		}
	}
	for _, name := range []string{"Idempotency-Key", "Content-Type", "Last-Event-ID", headerUser, headerCorrelationID} {
		if values := r.Header.Values(name); len(values) > 1 {
			return malformed.because("", Fault{Header: name, Detail: "is there twice"})
		} else if len(values) == 1 && values[0] == "" && name == "Idempotency-Key" { // it would store repeats
			return malformed.because("", Fault{Header: name, Detail: "is empty"})
		}
	}
	for _, name := range []string{headerUser, headerCorrelationID} {
		value := r.Header.Get(name)
		if fault := textFault(value); fault != "" {
			return malformed.because("", Fault{Header: name, Detail: fault})
		} else if len(value) > maxCallerBytes {
			return malformed.because(
				"", Fault{Header: name, Detail: fmt.Sprintf("is %d bytes, want at most %d", len(value),
					maxCallerBytes)})
		}
	}
	if fault := textFault(r.URL.Path); fault != "" {
		return malformed.because("", Fault{Parameter: "path", Detail: fault})
	}
	return nil
}

func textFault(s string) string {
	switch {
	case strings.IndexByte(s, 0) >= 0:
		return "has a NUL"
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	}
	return ""
}

func printable(s string) string { return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "?"), "?") }

// explain logs what clients must not see, and returns the problem for them. It logs an outage once in ten seconds.
func (s *server) explain(ctx context.Context, err error) *Problem {
	p := problemOf(err)
	level := slog.LevelWarn
	switch p.Status {
	case http.StatusInternalServerError:
		level = slog.LevelError
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
	default:
		return p
	}
	missed, due := 0, true
	if level == slog.LevelWarn {
		missed, due = s.complaints.Due(p.Code, time.Now())
	}
	if due {
		s.log.LogAttrs(ctx, level, "request failed", slog.String("request_id", requestID(ctx)),
			slog.String("code", p.Code), slog.String("err", err.Error()), slog.Int("since_last_line", missed))
	}
	return p
}
