package dispatcher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// Handler carries out one attempt of a job. Returning nil settles it as
// succeeded; an error is tried again by the kind's retry policy, unless it says
// otherwise: see [Discard], [RetryAfter], [Unavailable] and [Snooze].
//
// The context ends when the attempt's timeout is over, the lease is lost, or a
// shutdown's grace period is over; context.Cause tells which.
type Handler func(ctx context.Context, job *outbox.Claimed) error

// Middleware wraps every handler of a [Mux].
type Middleware func(next Handler) Handler

// KindConfig is how one kind is attempted. The zero value takes the dispatcher's
// defaults.
type KindConfig struct {
	Timeout time.Duration // of one attempt; 0 is Config.Timeout. A job's own Options.Timeout comes first
	Retry   RetryPolicy   // nil is Config.Retry. A job's own Options.Backoff comes first

	// FailOn are error codes that fail a job for good, as [Discard] does, whatever
	// attempts are left; its own Options.MaxAttempts is for all others. A lost lease
	// is not among them: no handler was there to fail.
	FailOn []string
	// OutageLimit is how long [Unavailable] spends no attempts, from the first in a
	// row on; 0 is 24 h, and less than that not at all.
	OutageLimit time.Duration
}

// Validate tells every mistake, as [*outbox.InvalidError]s that name the field. [New]
// asks it of every kind.
func (c KindConfig) Validate() error {
	var errs []error
	if c.Timeout < 0 {
		errs = append(errs, invalid("KindConfig.Timeout", "is %s, want more than 0, or 0 for that of the process", c.Timeout))
	}
	for _, code := range c.FailOn {
		if code == "" || len(code) > engine.MaxNameBytes { // no failure is stored with such a code
			errs = append(errs, invalid("KindConfig.FailOn", "has the code %q, want 1 to %d bytes", code, engine.MaxNameBytes))
		}
	}
	return errors.Join(errs...)
}

// Mux knows the handler of each kind. Its zero value is ready to use. Register
// everything before the dispatcher is made.
type Mux struct {
	routes     map[string]*route
	middleware []Middleware
	hooks      hooks
}

type route struct {
	kind    string
	handler Handler // nil if
	many    *many   // the kind's jobs are handled together
	config  KindConfig
	success *successHook // nil for none
	dies    bool         // there is a hook for its death
	counts  *kindMetrics
}

// Use adds middleware around every handler; the first added is the outermost.
func (m *Mux) Use(middleware ...Middleware) { m.middleware = append(m.middleware, middleware...) }

// Handle registers the handler of T's kind. A second handler for a kind, or a kind that
// no job can be stored with (see [outbox.ValidName]), is a bug in the program and panics, as
// http.ServeMux does, with an error that wraps an [*outbox.InvalidError].
func Handle[T outbox.Args](m *Mux, handler func(ctx context.Context, job *outbox.Job[T]) error, config ...KindConfig) {
	var zero T
	m.HandleRaw(zero.Kind(), func(ctx context.Context, claimed *outbox.Claimed) error {
		job, err := decode[T](claimed)
		if err != nil {
			return err
		}
		return handler(ctx, job)
	}, config...)
}

// HandleResult is Handle for a handler with a result, which is stored as JSON
// with the succeeded job. T says by embedding [outbox.Returns] what the result is,
// so that whoever waits for it (package await) and the handler agree.
func HandleResult[T outbox.ResultArgs[R], R any](m *Mux, handler func(ctx context.Context, job *outbox.Job[T]) (R, error), config ...KindConfig) {
	var zero T
	m.HandleRaw(zero.Kind(), func(ctx context.Context, claimed *outbox.Claimed) error {
		job, err := decode[T](claimed)
		if err != nil {
			return err
		}
		result, err := handler(ctx, job)
		if err != nil {
			return err
		}
		if claimed.Result, err = json.Marshal(result); err != nil {
			return Discard(fmt.Errorf("encode the result of %s: %w", claimed.Kind, err))
		}
		return nil
	}, config...)
}

// HandleRaw registers a handler that reads the payload's bytes itself. It panics as
// [Handle] does.
func (m *Mux) HandleRaw(kind string, handler Handler, config ...KindConfig) {
	err := outbox.ValidName("kind", kind)
	if _, taken := m.routes[kind]; taken {
		err = invalid("kind", "is %q, which has a handler already", kind)
	}
	if err != nil {
		panic(fmt.Errorf("dispatcher: %w", err))
	}
	if m.routes == nil {
		m.routes = map[string]*route{}
	}
	r := &route{kind: kind, handler: handler}
	if len(config) > 0 {
		r.config = config[0]
	}
	m.routes[kind] = r
}

// Kinds returns the kinds with a handler, sorted.
func (m *Mux) Kinds() []string { return slices.Sorted(maps.Keys(m.routes)) }

func (m *Mux) validate() error {
	var errs []error
	for _, kind := range m.Kinds() {
		if err := m.routes[kind].config.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("kind %q: %w", kind, err))
		}
	}
	return errors.Join(errs...)
}

// build returns the routes with middleware and defaults applied.
func (m *Mux) build(defaults KindConfig) map[string]*route {
	built := make(map[string]*route, len(m.routes))
	for kind, r := range m.routes {
		handler := r.handler
		for _, wrap := range slices.Backward(m.middleware) {
			if r.many == nil {
				handler = wrap(handler)
			}
		}
		config := r.config
		if config.Timeout == 0 {
			config.Timeout = defaults.Timeout
		}
		if config.Retry == nil {
			config.Retry = defaults.Retry
		}
		config.OutageLimit = cmp.Or(config.OutageLimit, defaultOutageLimit)
		built[kind] = &route{kind: kind, handler: handler, many: r.many, config: config, success: m.hooks.success[kind], dies: m.hooks.death[kind]}
	}
	return built
}

// decode fails for good: the same bytes will not decode tomorrow either.
func decode[T any](claimed *outbox.Claimed) (*outbox.Job[T], error) {
	job := &outbox.Job[T]{Claimed: claimed}
	if strings.HasPrefix(claimed.ContentType, outbox.SealedTypes) {
		return nil, &codedError{codes.UnreadablePayload, fmt.Errorf("the payload of %s is %s: it needs mux.Use(dispatcher.Opens(…)), or BatchConfig.Protect", claimed.Kind, claimed.ContentType)}
	}
	if err := json.Unmarshal(claimed.Payload, &job.Args); err != nil {
		return nil, Discard(&codedError{code: codes.UndecodablePayload, err: fmt.Errorf("decode the payload of %s: %w", claimed.Kind, err)})
	}
	return job, nil
}
