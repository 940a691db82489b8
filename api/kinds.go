package api

import (
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
func (s *server) checkJob(ctx context.Context, job NewJob) *Problem {
	if p := checkService(ctx, job.Headers); p != nil {
		return p
	}
	return s.checkPayload(ctx, job.Kind, outbox.Content{Type: "application/json", Bytes: job.payload()})
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

// checkPayload returns the faults of a payload by its kind's schema.
func (s *server) checkPayload(ctx context.Context, kind string, payload outbox.Content) *Problem {
	if err := s.checker(ctx).Check(kind, payload); err != nil {
		return problemOf(err)
	}
	return nil
}

// checker validates the payloads of a request against their kinds' schemas. A validation takes many times the payload's
// size in memory, so at most as many run at once as there are processors.
func (s *server) checker(ctx context.Context) checkFunc {
	return func(kind string, payload outbox.Content) error {
		if !s.config.Kinds.Has(kind) {
			return nil
		}
		select {
		case s.checks <- struct{}{}:
			defer func() { <-s.checks }()
		case <-ctx.Done():
			return ctx.Err()
		}
		return s.config.Kinds.Check(kind, payload)
	}
}

// checkFunc makes a function an [outbox.Checker].
type checkFunc func(kind string, payload outbox.Content) error

func (check checkFunc) Check(kind string, payload outbox.Content) error { return check(kind, payload) }
