package rpc

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// These are headers of a request and of its answer.
const (
	headerAuthorization = "Authorization"
	headerRequestID     = "request-id"
	headerStatus        = "status" // "error" in an answer that is an error
)

// maxNamed limits how much of a field's name is repeated to its client.
const maxNamed = 100

// maxAnswerMargin is the part of the server's max_payload that an answer leaves for its headers.
const maxAnswerMargin = 1 << 10

// request is one request that has a slot. Its answer does not use micro's Respond, which belongs to the goroutine of
// the subscription; so the statistics count requests, but none of their errors.
type request struct {
	micro.Request
	nc     *nats.Conn
	method method
	id     string
	room   int // size limit of the answer
	who    access.Principal
}

// take finds a slot for a request, or refuses it: a request that waited would be executed after its client has given
// up. A message without a subject for the answer is not a request. Nor is one whose answer would go to anything but an
// inbox, whose name begins with an underscore: the service may publish where its client may not, such as into a stream.
func (s *Service) take(nc *nats.Conn, m method, incoming micro.Request) {
	if incoming.Reply() == "" {
		return
	}
	if !strings.HasPrefix(incoming.Reply(), "_") {
		if missed, due := s.refused.Due("reply", time.Now()); due {
			s.log.LogAttrs(context.Background(), slog.LevelWarn,
				"request dropped: the subject for its answer is no inbox",
				slog.String("method", m.name), slog.String("reply", fmt.Sprintf("%.100q", incoming.Reply())),
				slog.Int("since_last_line", missed))
		}
		return
	}
	r := &request{Request: incoming, nc: nc, method: m, room: int(nc.MaxPayload()) - maxAnswerMargin}
	if r.id = first(incoming.Headers(), headerRequestID); !callers.IsRequestID(r.id) {
		r.id = rand.Text()
	}
	select {
	case s.slots <- struct{}{}:
		go func() {
			defer func() { <-s.slots }()
			s.answer(r)
		}()
	default:
		s.respond(r, nil, overloaded())
	}
}

// answer executes a request. It answers a panic like any other internal error.
func (s *Service) answer(r *request) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	done := false
	defer func() {
		if v := recover(); !done { // v is nil for panic(nil) with GODEBUG=panicnil=1
			s.log.LogAttrs(ctx, slog.LevelError, "request panicked", slog.String("request_id", r.id),
				slog.String("method", r.method.name),
				slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			s.respond(r, nil, unexpected("internal_error"))
		}
	}()
	body, err := s.carryOut(ctx, r)
	s.respond(r, body, err)
	done = true
}

func (s *Service) carryOut(ctx context.Context, r *request) (any, error) {
	if err := s.admit(ctx, r); err != nil {
		return nil, err
	}
	if !s.enter(r.who) {
		return nil, overloaded()
	}
	defer s.leave(r.who)
	return r.method.answer(s, operator.WithTenant(ctx, r.tenant()), r)
}

// admit authenticates the caller and checks its permission.
func (s *Service) admit(ctx context.Context, r *request) error {
	given := all(r.Headers(), headerAuthorization)
	const scheme = "bearer "
	if len(given) != 1 || len(given[0]) <= len(scheme) || !strings.EqualFold(given[0][:len(scheme)], scheme) {
		return unauthenticated()
	}
	bearer := given[0][len(scheme):]
	who, err := s.config.Authenticator.Authenticate(ctx, bearer)
	switch {
	case errors.Is(err, access.ErrUnauthenticated):
		s.noteRefused(r, bearer, err)
		return unauthenticated()
	case err != nil:
		return err
	case who.Tenant.IsZero() && !who.AllTenants:
		return forbidden("The token belongs to no tenant.")
	}
	for _, needed := range r.method.needs {
		if !who.Can(needed) {
			return forbidden("It takes the capability " + string(needed) + ".")
		}
	}
	if r.method.everything && !who.AllTenants {
		return forbidden("It concerns all tenants: it takes a token of all tenants.")
	}
	if s.limits.Take(who) > 0 {
		return unexpected("rate_limited")
	}
	r.who = who
	return nil
}

// enter reports whether the caller may have one more request in progress.
func (s *Service) enter(who access.Principal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := callers.Of(who)
	if s.callers[c] >= maxOfCaller {
		return false
	}
	s.callers[c]++
	return true
}

func (s *Service) leave(who access.Principal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := callers.Of(who)
	if s.callers[c]--; s.callers[c] == 0 {
		delete(s.callers, c)
	}
}

// tenant returns the tenant that the caller is restricted to; zero means none.
func (r *request) tenant() outbox.ID {
	if r.who.AllTenants {
		return outbox.ID{}
	}
	return r.who.Tenant
}

// read decodes the request's body. No body counts as an empty object. Unknown fields are mistakes, and so are fields
// that occur twice, because readers differ in which of them counts.
func (r *request) read(into any) error {
	data := r.Data()
	if len(bytes.TrimSpace(data)) == 0 {
		data = []byte("{}")
	}
	if name := ambiguous(data); name != "" {
		return invalid(issue{"", "has a field twice, or one that is not spelled in ASCII: " +
			name[:min(len(name), maxNamed)]})
	}
	from := json.NewDecoder(bytes.NewReader(data))
	from.DisallowUnknownFields()
	err := from.Decode(into)
	if err == nil {
		if _, err = from.Token(); err == io.EOF {
			return nil
		}
		return invalid(issue{"", "has something after its JSON object"})
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		return invalid(issue{"/" + strings.ReplaceAll(wrong.Field, ".", "/"), "is a JSON " + wrong.Value +
			", which is not what belongs there"})
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return invalid(issue{"", "has a field that this method does not take: " + name[:min(len(name), maxNamed)]})
	}
	return invalid(issue{"", "is not a JSON object that this method takes"})
}

// ambiguous returns the name of a member that may be taken for another: encoding/json accepts Id, and letters that look
// alike, for id. It ignores everything but objects.
func ambiguous(data []byte) string {
	from := json.NewDecoder(bytes.NewReader(data))
	if first, err := from.Token(); err != nil || first != json.Delim('{') {
		return ""
	}
	seen := map[string]bool{}
	for from.More() {
		token, err := from.Token()
		name, isName := token.(string)
		if err != nil || !isName {
			return ""
		}
		folded := strings.ToLower(name)
		if seen[folded] || strings.IndexFunc(name, func(c rune) bool { return c >= 0x80 }) >= 0 {
			return name
		}
		seen[folded] = true
		var value json.RawMessage
		if from.Decode(&value) != nil {
			return ""
		}
	}
	return ""
}

// respond sends the answer, or the error. If the client can no longer be reached, the answer is lost.
func (s *Service) respond(r *request, body any, err error) {
	answer := nats.NewMsg(r.Reply())
	answer.Header.Set(headerRequestID, r.id)
	if err == nil {
		if answer.Data, err = json.Marshal(body); err == nil && len(answer.Data) > r.room {
			err = unexpected("too_large")
		}
	}
	if err != nil {
		f := s.explain(r, err)
		answer.Header.Set(headerStatus, "error")
		answer.Header.Set(micro.ErrorHeader, f.Type)
		answer.Header.Set(micro.ErrorCodeHeader, f.code)
		answer.Data, _ = json.Marshal(f) // cannot fail: strings
	}
	_ = r.nc.PublishMsg(answer)
}

// explain turns an error into a fault, and logs what clients must not see. It logs an outage once in ten seconds.
func (s *Service) explain(r *request, err error) *fault {
	f := faultOf(err)
	f.ID = r.id
	if !f.ours() {
		return f
	}
	if missed, due := s.failed.Due(f.Context["code"].(string), time.Now()); due {
		s.log.LogAttrs(context.Background(), slog.LevelWarn, "request failed", slog.String("request_id", r.id),
			slog.String("method", r.method.name),
			slog.Any("code", f.Context["code"]), slog.String("err", err.Error()), slog.Int("since_last_line", missed))
	}
	return f
}

// noteRefused logs a refused bearer token with the reason, which the caller does not get: once in ten seconds for each
// reason.
func (s *Service) noteRefused(r *request, bearer string, err error) {
	reason := callers.Refusal(bearer, err)
	if missed, due := s.refused.Due(reason, time.Now()); due {
		s.log.LogAttrs(context.Background(), slog.LevelWarn, "bearer refused", slog.String("request_id", r.id),
			slog.String("method", r.method.name),
			slog.String("token", access.TokenID(bearer)), slog.String("reason", reason),
			slog.Int("since_last_line", missed))
	}
}

// all returns the values of a header whatever the case of its name.
func all(h micro.Headers, name string) (values []string) {
	for written, v := range h {
		if strings.EqualFold(written, name) {
			values = append(values, v...)
		}
	}
	return values
}

func first(h micro.Headers, name string) string {
	if values := all(h, name); len(values) == 1 {
		return values[0]
	}
	return ""
}
