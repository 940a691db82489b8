package api

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Kind is a kind of job whose payloads are validated.
type Kind struct {
	Kind   string          `json:"kind"`
	Schema json.RawMessage `json:"schema" doc:"JSON Schema of the payload"`
}

type kindsOutput struct {
	Body struct {
		Kinds []Kind `json:"kinds" nullable:"false"`
	}
}

// listKinds lists the schemas against which POST /jobs validates. Jobs of other kinds are accepted with any payload.
func (s *server) listKinds(context.Context, *struct{}) (*kindsOutput, error) {
	out := &kindsOutput{}
	out.Body.Kinds = []Kind{}
	for kind, schema := range s.config.Kinds.All() {
		out.Body.Kinds = append(out.Body.Kinds, Kind{Kind: kind, Schema: schema})
	}
	return out, nil
}

// checkJob checks what a schema of the API cannot express: that a caller does not pose as another service, and that the
// payload is valid for its kind.
func checkJob(ctx context.Context, job NewJob, check checkFunc) *Problem {
	if p := checkService(ctx, job.Headers); p != nil {
		return p
	}
	if err := check(job.Kind, outbox.Content{Type: "application/json", Bytes: job.payload()}); err != nil {
		return problemOf(err)
	}
	return nil
}

// checkService refuses headers that name another service than the caller, or whose receivers might read them so.
func checkService(ctx context.Context, headers map[string]string) *Problem {
	for name, value := range headers {
		var detail string
		switch {
		case engine.PosesAsService(name):
			detail = "is another spelling of " + engine.HeaderService + ", which is always the name of the token"
		case name == engine.HeaderService && value != callerIn(ctx).Service:
			detail = "is not the name of the token, which it always is"
		default:
			continue
		}
		escaped := strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		return invalidInput.because("", Fault{Pointer: "#/headers/" + escaped, Detail: detail})
	}
	return nil
}

// checker validates the payloads of a request against their kinds' schemas. A validation takes many times the payload's
// size in memory, so at most as many run at once as there are processors, and one caller's leave places to the others.
func (s *server) checker(ctx context.Context) checkFunc {
	return func(kind string, payload outbox.Content) error {
		check, done := s.checkerOfMany(ctx)
		defer done()
		return check(kind, payload)
	}
}

// checkerOfMany returns a check for several payloads of a request: it takes its turn once, for the first one that has a
// schema, and keeps its place until done is called.
func (s *server) checkerOfMany(ctx context.Context) (check checkFunc, done func()) {
	leave := func() {}
	begun := false
	return func(kind string, payload outbox.Content) error {
		if !s.config.Kinds.Has(kind) {
			return nil
		}
		if !begun {
			place, err := s.checks.take(ctx)
			if err != nil {
				return err
			}
			leave, begun = place, true
		}
		return s.config.Kinds.Check(kind, payload)
	}, func() { leave() }
}

// once returns a check that accepts at once what it has accepted last.
func once(check checkFunc) checkFunc {
	var accepted string
	var last outbox.Content
	return func(kind string, payload outbox.Content) error {
		if last.Bytes != nil && kind == accepted && payload.Type == last.Type && bytes.Equal(payload.Bytes, last.Bytes) {
			return nil
		}
		err := check(kind, payload)
		if err == nil {
			accepted, last = kind, payload
		}
		return err
	}
}

// checkFunc makes a function an [outbox.Checker].
type checkFunc func(kind string, payload outbox.Content) error

func (check checkFunc) Check(kind string, payload outbox.Content) error { return check(kind, payload) }
