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
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
	"github.com/posthaste-dev/posthaste/protect"
)

// Handler carries out one attempt of a job. If it returns nil, the job has succeeded. If it returns an error, the job
// is retried by the kind's backoff, unless the error asks for something else: see [Discard], [RetryAfter],
// [Unavailable] and [Snooze].
//
// The context ends when the attempt's timeout is over ([ErrTimeout]), the job is cancelled ([ErrCancelled]), its
// deadline comes ([ErrDeadline]), the lease is lost ([outbox.ErrLeaseLost]), or a shutdown's grace period is over
// ([ErrShutdown]); context.Cause returns which.
type Handler func(ctx context.Context, job *outbox.Claimed) error

// Middleware wraps the handlers of a [Mux] that get one job at a time. It does not wrap those of [HandleMany].
type Middleware func(next Handler) Handler

// Mux maps each kind to its handler. Its zero value is ready to use. Register everything before the dispatcher is made.
type Mux struct {
	routes     map[string]*route
	middleware []Middleware
	hooks      []endHook
	renamed    map[string]string // maps a former name to the kind's current name
}

type route struct {
	kind    string
	handler Handler // nil if many is set
	many    *many   // set if the kind's jobs are handled together
	config  KindConfig
	success *successHook // nil if there is none
	dies    bool         // the kind has a death hook
	counts  *kindMetrics
}

// many holds the settings and the handler of a kind whose jobs are handled together.
type many struct {
	BatchConfig
	handle func(context.Context, []*outbox.Claimed) []error // returns one outcome for each job
}

// BatchConfig configures how the jobs of a kind are gathered. The zero value gathers up to 100 jobs for at most 50 ms.
type BatchConfig struct {
	Max  int           // jobs in a batch, 1 to 1000; 0 means 100
	Wait time.Duration // for more jobs, after the first, up to a minute; 0 means 50 ms

	// Protect opens sealed payloads and seals results, as the middleware [Protect] does for handlers of one job. Nil
	// does neither.
	Protect outbox.Protector
}

const (
	defaultBatchMax  = 100
	defaultBatchWait = 50 * time.Millisecond
)

func (b BatchConfig) validate() error {
	var errs []error
	if b.Max < 1 || b.Max > engine.MaxBatch {
		errs = append(errs, invalid.Field("BatchConfig.Max", "is %d, want 1 to %d, or 0 for %d", b.Max, engine.MaxBatch,
			defaultBatchMax))
	}
	if b.Wait < 0 || b.Wait > engine.MaxBatchWait {
		errs = append(errs, invalid.Field("BatchConfig.Wait", "is %s, want up to %s, or 0 for %s", b.Wait, engine.MaxBatchWait,
			defaultBatchWait))
	}
	return errors.Join(errs...)
}

// endHook runs when jobs of a kind end.
type endHook struct {
	kind    string
	by      string       // the function that registered it
	success *successHook // nil if it runs when jobs die
}

// Suffixes that turn the name of a kind into the name of its hook's kind.
const (
	successSuffix = ":on_success"
	deathSuffix   = ":on_death"
)

type successHook struct {
	kind       string
	withResult bool
}

// Use adds middleware around every handler that gets one job at a time, hooks included; the first added is the
// outermost. It does not wrap handlers of [HandleMany].
func (m *Mux) Use(middleware ...Middleware) { m.middleware = append(m.middleware, middleware...) }

// Handle registers the handler of T's kind. It panics, as http.ServeMux does, if the handler is nil, if the kind has a
// handler already or is not a valid name (see outbox.Args), or if there is more than one config: each is a bug in the
// program. The panic's error wraps an [*outbox.InvalidError].
func Handle[T outbox.Args](m *Mux, handler func(ctx context.Context, job *outbox.Job[T]) error, config ...KindConfig) {
	var zero T
	handleAs(m, zero.Kind(), handler, config)
}

// handleAs registers a handler that receives decoded payloads.
func handleAs[T any](m *Mux, kind string, handler func(context.Context, *outbox.Job[T]) error, config []KindConfig) {
	m.register(kind, func(ctx context.Context, claimed *outbox.Claimed) error {
		job, err := decode[T](claimed)
		if err != nil {
			return err
		}
		return handler(ctx, job)
	}, handler == nil, config)
}

// HandleResult registers a handler as [Handle] does. The handler returns a result, which is stored as JSON with the
// succeeded job. T declares the result's type by embedding [outbox.Returns], so that the handler agrees with callers
// that wait for the result (package await).
func HandleResult[T outbox.ResultArgs[R], R any](m *Mux,
	handler func(ctx context.Context, job *outbox.Job[T]) (R, error), config ...KindConfig,
) {
	if handler == nil {
		Handle[T](m, nil, config...) // panics
	}
	Handle(m, func(ctx context.Context, job *outbox.Job[T]) error {
		result, err := handler(ctx, job)
		if err != nil {
			return err
		}
		if job.Result, err = json.Marshal(result); err != nil {
			return Discard(fmt.Errorf("encode the result of %s: %w", job.Kind, err))
		}
		return nil
	}, config...)
}

// HandleRaw registers a handler that reads the payload's bytes. It panics as [Handle] does.
func (m *Mux) HandleRaw(kind string, handler Handler, config ...KindConfig) {
	m.register(kind, handler, handler == nil, config)
}

// register adds a handler, or panics if it is missing: handler itself may call one that is nil.
func (m *Mux) register(kind string, handler Handler, missing bool, config []KindConfig) {
	err := m.checkNew("kind", kind)
	if missing {
		err = errors.Join(err, invalid.Field("handler", "of the kind %q is nil", kind))
	}
	if len(config) > 1 {
		err = errors.Join(err, invalid.Field("config", "was given %d times for the kind %q, want once at most",
			len(config), kind))
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

// Alias makes the handler and the hooks of a kind also carry out jobs stored under its former names: jobs stored before
// the kind was renamed, and jobs that older producers still store. Such a job keeps its name, and its handler, logs,
// metrics and webhooks see that name. Remove the alias when no open job, no dead letter and no producer uses the name
// any more.
//
// Alias panics, as a second handler does, if a former name has a handler of its own, is an alias already, or is not a
// valid name. [New] returns an [*outbox.InvalidError] if the kind has no handler.
func (m *Mux) Alias(kind string, former ...string) {
	for _, name := range former {
		if err := m.checkNew("former", name); err != nil {
			panic(fmt.Errorf("dispatcher: %w", err))
		}
		if m.renamed == nil {
			m.renamed = map[string]string{}
		}
		m.renamed[name] = kind
	}
}

// checkNew returns an error if the name is no name of a kind, or has a meaning already. field is for the error.
func (m *Mux) checkNew(field, name string) error {
	if fault := engine.NameFault(name); fault != "" {
		return invalid.Field(field, "%s", fault)
	}
	if _, taken := m.routes[name]; taken {
		return invalid.Field(field, "is %q, which has a handler already", name)
	}
	if kind, taken := m.renamed[name]; taken {
		return invalid.Field(field, "is %q, which is a former name of %q", name, kind)
	}
	return nil
}

// names maps each kind with a handler, and each of its former names, to the kind whose handler it uses. It includes the
// former names of hook kinds: jobs of a former name's hooks were stored under that name.
func (m *Mux) names() map[string]string {
	all := make(map[string]string, len(m.routes))
	for former, kind := range m.renamed {
		all[former] = kind
		for _, suffix := range []string{successSuffix, deathSuffix} {
			if m.routes[kind+suffix] != nil {
				all[former+suffix] = kind + suffix
			}
		}
	}
	for kind := range m.routes {
		all[kind] = kind
	}
	return all
}

// Kinds returns the kinds with a handler and their former names, sorted.
func (m *Mux) Kinds() []string { return slices.Sorted(maps.Keys(m.names())) }

func (m *Mux) validate() error {
	var errs []error
	for _, kind := range slices.Sorted(maps.Keys(m.routes)) {
		if err := m.routes[kind].config.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("kind %q: %w", kind, err))
		}
	}
	for _, former := range slices.Sorted(maps.Keys(m.renamed)) {
		if kind := m.renamed[former]; m.routes[kind] == nil {
			errs = append(errs, invalid.Field("Alias", "of %q is for kind %q, which has no handler", former, kind))
		}
	}
	byKind := func(a, b endHook) int { return cmp.Compare(a.kind, b.kind) }
	for _, h := range slices.SortedStableFunc(slices.Values(m.hooks), byKind) {
		if m.routes[h.kind] == nil { // of its current name: no job would ever trigger the hook
			errs = append(errs, invalid.Field(h.by, "is for kind %q, which has no handler", h.kind))
		}
	}
	return errors.Join(errs...)
}

// hooksOf returns the hook that runs when jobs of the kind succeed, or nil, and whether one runs when they die.
func (m *Mux) hooksOf(kind string) (success *successHook, dies bool) {
	for _, h := range m.hooks {
		switch {
		case h.kind != kind:
		case h.success != nil:
			success = h.success
		default:
			dies = true
		}
	}
	return success, dies
}

// build returns the routes with middleware and defaults applied.
func (m *Mux) build(defaults KindConfig) map[string]*route {
	built := make(map[string]*route, len(m.routes))
	for name, kind := range m.names() {
		r := m.routes[kind]
		if r == nil {
			continue // validate reports it
		}
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
		if config.Backoff == nil {
			config.Backoff = defaults.Backoff
		}
		built[name] = &route{kind: name, handler: handler, many: r.many, config: config}
		built[name].success, built[name].dies = m.hooksOf(kind)
	}
	return built
}

// decode decodes the payload. A failure is final: the same bytes will not decode tomorrow either.
func decode[T any](claimed *outbox.Claimed) (*outbox.Job[T], error) {
	job := &outbox.Job[T]{Claimed: claimed}
	if strings.HasPrefix(claimed.ContentType, protect.SealedPrefix) {
		return nil, outcome.WithCode(codes.UnreadablePayload,
			fmt.Errorf("the payload of %s is %s: it needs mux.Use(dispatcher.Protect(…)), or BatchConfig.Protect",
				claimed.Kind, claimed.ContentType))
	}
	if err := json.Unmarshal(claimed.Payload, &job.Args); err != nil {
		return nil, Discard(outcome.WithCode(codes.UndecodablePayload,
			fmt.Errorf("decode the payload of %s: %w", claimed.Kind, err)))
	}
	return job, nil
}
