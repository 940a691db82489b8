package memory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Mux maps each kind to its handler. Its zero value is ready to use. Register everything before [New].
type Mux struct{ routes map[string]*route }

// route is the handler of one kind, with its settings.
type route struct {
	kind   string
	config dispatcher.KindConfig
	policy outcome.Policy // from the config
	accept func(outbox.Args) error
	handle func(ctx context.Context, job *outbox.Claimed, args outbox.Args) (result any, err error)
	counts *kindMetrics
}

// Handle registers the handler of T's kind. The handler receives the very value that was submitted. A second handler
// for a kind, or an invalid kind (see outbox.Args), is a bug in the program: Handle panics with an error that wraps an
// [*outbox.InvalidError].
func Handle[T outbox.Args](m *Mux, handler func(ctx context.Context, job *outbox.Job[T]) error,
	config ...dispatcher.KindConfig,
) {
	HandleResult(m, func(ctx context.Context, job *outbox.Job[T]) (none, error) { return none{}, handler(ctx, job) },
		config...)
}

// none is the result type of a handler without a result.
type none struct{}

// HandleResult registers a handler as Handle does. [Result] returns the handler's result.
func HandleResult[T outbox.Args, R any](m *Mux, handler func(ctx context.Context, job *outbox.Job[T]) (R, error),
	config ...dispatcher.KindConfig,
) {
	var zero T
	m.add(&route{
		kind: zero.Kind(),
		accept: func(args outbox.Args) error {
			if _, ok := args.(T); !ok {
				return invalid.Field("Args", "is a %T, but the handler of kind %q wants a %T", args, args.Kind(), zero)
			}
			return nil
		},
		handle: func(ctx context.Context, job *outbox.Claimed, args outbox.Args) (any, error) {
			return handler(ctx, &outbox.Job[T]{Claimed: job, Args: args.(T)})
		},
	}, config)
}

// HandleRaw registers a dispatcher's handler, which reads the payload's bytes itself. Submit an [outbox.Raw].
func (m *Mux) HandleRaw(kind string, handler dispatcher.Handler, config ...dispatcher.KindConfig) {
	m.add(&route{
		kind: kind,
		accept: func(args outbox.Args) error {
			raw, ok := args.(outbox.Raw)
			if !ok {
				return invalid.Field("Args", "is a %T, but the handler of kind %q wants an outbox.Raw", args, kind)
			}
			return validate(raw)
		},
		handle: func(ctx context.Context, job *outbox.Claimed, args outbox.Args) (any, error) {
			raw := args.(outbox.Raw)
			job.Payload, job.ContentType = raw.Payload, cmp.Or(raw.ContentType, engine.ContentJSON)
			return none{}, handler(ctx, job)
		},
	}, config)
}

// validate validates arguments as package outbox does, except that they may be of any size.
func validate(raw outbox.Raw) error {
	_, err := outbox.Encode(outbox.Raw{KindName: raw.KindName, Payload: []byte("0"), ContentType: raw.ContentType},
		outbox.Options{})
	isJSON := cmp.Or(raw.ContentType, engine.ContentJSON) == engine.ContentJSON
	if err == nil && isJSON && !(utf8.Valid(raw.Payload) && json.Valid(raw.Payload)) {
		return invalid.Field("Raw.Payload", "is not valid JSON")
	}
	return err
}

func (m *Mux) add(r *route, config []dispatcher.KindConfig) {
	var err error
	if fault := engine.NameFault(r.kind); fault != "" {
		err = invalid.Field("kind", "%s", fault)
	}
	if m.routes[r.kind] != nil {
		err = invalid.Field("kind", "is %q, which has a handler already", r.kind)
	}
	if len(config) > 1 {
		err = errors.Join(err, invalid.Field("config", "was given %d times for the kind %q, want once at most",
			len(config), r.kind))
	}
	if err != nil {
		panic(fmt.Errorf("memory: %w", err))
	}
	if m.routes == nil {
		m.routes = map[string]*route{}
	}
	if len(config) > 0 {
		r.config = config[0]
	}
	m.routes[r.kind] = r
}

func (m *Mux) validate() error {
	var errs []error
	for _, kind := range slices.Sorted(maps.Keys(m.routes)) {
		if err := m.routes[kind].config.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("kind %q: %w", kind, err))
		}
	}
	return errors.Join(errs...)
}

// build returns the routes, with defaults filled in and metrics attached.
func (m *Mux) build(timeout time.Duration, retry dispatcher.BackoffPolicy, metrics *metrics) map[string]*route {
	built := make(map[string]*route, len(m.routes))
	for kind, r := range m.routes {
		own := *r
		if own.config.Timeout == 0 {
			own.config.Timeout = timeout
		}
		if own.config.Backoff == nil {
			own.config.Backoff = retry
		}
		own.policy = outcome.Policy{
			Backoff: own.config.Backoff, FailOn: own.config.FailOn,
			OutageLimit: own.config.OutageLimit,
		}
		own.counts = metrics.forKind(kind)
		built[kind] = &own
	}
	return built
}
