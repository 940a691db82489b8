package memory

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/outbox"
)

// These are the errors of [Queue.Submit].
var (
	// ErrBackpressure reports that the maximum number of jobs are waiting: try again later, or ask the caller to.
	ErrBackpressure = errors.New("too many jobs wait in memory")
	// ErrStopped reports that Run is stopping or has stopped.
	ErrStopped = errors.New("the queue in memory has stopped")
)

// Config configures a queue. The zero value means 4 jobs at once and 256 waiting ones.
type Config struct {
	Capacity    int                      // jobs that may wait, for a worker or for their next attempt; 0 means 256
	Concurrency int                      // jobs that run at once; 0 means 4
	Timeout     time.Duration            // of one attempt; 0 means 5 min
	Backoff     dispatcher.BackoffPolicy // of jobs with more than one attempt; nil means Exponential(1 s, 1 h)
	Keep        time.Duration            // how long the outcome of a job is known; 0 means 10 min
	GracePeriod time.Duration            // for accepted jobs, after a stop; 0 means 20 s, negative none

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere
}

func (c Config) withDefaults() Config {
	c.Capacity = cmp.Or(c.Capacity, 256)
	c.Concurrency = cmp.Or(c.Concurrency, 4)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Minute)
	c.Keep = cmp.Or(c.Keep, 10*time.Minute)
	c.GracePeriod = cmp.Or(c.GracePeriod, 20*time.Second)
	if c.Backoff == nil {
		c.Backoff = dispatcher.Exponential(time.Second, time.Hour)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Capacity < 1 || c.Capacity > 1_000_000 {
		errs = append(errs, invalid.Field("Config.Capacity", "is %d, want 1 to 1000000, or 0 for 256", c.Capacity))
	}
	if c.Concurrency < 1 || c.Concurrency > 100_000 {
		errs = append(errs, invalid.Field("Config.Concurrency", "is %d, want 1 to 100000, or 0 for 4", c.Concurrency))
	}
	if c.Timeout < time.Millisecond {
		errs = append(errs, invalid.Field("Config.Timeout", "is %s, want at least 1ms, or 0 for 5m", c.Timeout))
	}
	if c.Keep < 0 {
		errs = append(errs, invalid.Field("Config.Keep", "is %s, want more than 0, or 0 for 10m", c.Keep))
	}
	return errors.Join(errs...)
}

// A Queue holds jobs in memory and runs them. Make one with [New]. It is safe for concurrent use.
type Queue struct {
	config  Config
	routes  map[string]*route
	store   *store
	started atomic.Bool
}

// New validates config and registers the metrics.
func New(mux *Mux, config Config) (*Queue, error) {
	config = config.withDefaults()
	if err := errors.Join(config.validate(), mux.validate()); err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	m := newMetrics(config.Registerer)
	return &Queue{
		config: config,
		routes: mux.build(config.Timeout, config.Backoff, m),
		store:  newStore(config, m, config.Logger.With(slog.String("component", "memory"))),
	}, nil
}

// Options set how a job is run. The zero value means one attempt. If the arguments are an [outbox.Defaulter], it
// supplies the fields left at the zero value; its options without a counterpart here have no effect.
type Options struct {
	MaxAttempts int            // 0 means 1
	Timeout     time.Duration  // of one attempt; 0 means the kind's
	Backoff     outbox.Backoff // waits between attempts; nil means the kind's backoff
	// IdempotencyKey is unique per tenant and kind: while its job is known, a repeat returns that job's id.
	IdempotencyKey string
	Headers        map[string]string // handed to the handler
	Tenant         outbox.ID         // zero means outbox.RootTenant
}

// Submit accepts a job, which starts as soon as a worker is free, and returns at once. It returns [ErrBackpressure] if
// too many jobs wait, [ErrStopped] once Run was asked to stop, and an [*outbox.InvalidError] that names the field for
// invalid input or a kind without a handler. Jobs start in the order in which they were accepted. Before Run, they
// wait.
func (q *Queue) Submit(args outbox.Args, opts Options) (outbox.ID, error) {
	opts = opts.withDefaults(args)
	r, err := q.newRecord(args, opts)
	if err != nil {
		return outbox.ID{}, err
	}
	if opts.IdempotencyKey != "" {
		r.key = keyOf{r.tenant, r.route.kind, opts.IdempotencyKey}
	}
	return q.store.add(r)
}

func (o Options) withDefaults(args outbox.Args) Options {
	if args == nil {
		return o
	}
	kept, _ := outbox.Encode(unread{args}, outbox.Options{ // newRecord reports what is not acceptable
		MaxAttempts: o.MaxAttempts, Timeout: o.Timeout, Backoff: o.Backoff, IdempotencyKey: o.IdempotencyKey,
		Headers: o.Headers, Tenant: o.Tenant,
	})
	all := kept.Options
	return Options{
		MaxAttempts: all.MaxAttempts, Timeout: all.Timeout, Backoff: all.Backoff, IdempotencyKey: all.IdempotencyKey,
		Headers: engine.Caller(all.Caller).AddTo(all.Headers), Tenant: cmp.Or(all.Tenant, outbox.RootTenant),
	}
}

// unread wraps arguments so that package outbox sees their kind and default options, but not their content.
type unread struct{ outbox.Args }

func (u unread) DefaultOptions() outbox.Options {
	if kind, ok := u.Args.(outbox.Defaulter); ok {
		return kind.DefaultOptions()
	}
	return outbox.Options{}
}

func (unread) MarshalJSON() ([]byte, error) { return []byte("0"), nil }

// newRecord validates a request by the rules of package outbox, without looking into the arguments themselves.
func (q *Queue) newRecord(args outbox.Args, opts Options) (*record, error) {
	if args == nil {
		return nil, invalid.Field("Args", "is nil")
	}
	route := q.routes[args.Kind()]
	if route == nil {
		return nil, invalid.Field("Args.Kind()", "is %q, which has no handler", args.Kind())
	}
	if err := route.accept(args); err != nil {
		return nil, err
	}
	_, err := outbox.Encode(outbox.Raw{KindName: route.kind, Payload: []byte("0")}, outbox.Options{
		MaxAttempts: opts.MaxAttempts, Timeout: opts.Timeout, Backoff: opts.Backoff,
		IdempotencyKey: opts.IdempotencyKey, Headers: opts.Headers,
	})
	if err != nil {
		return nil, err
	}
	return &record{
		id: outbox.NewID(), tenant: opts.Tenant, route: route, args: args,
		maxAttempts: cmp.Or(opts.MaxAttempts, 1), timeout: cmp.Or(opts.Timeout, route.config.Timeout),
		backoff: slices.Clone(opts.Backoff), headers: headersJSON(opts.Headers),
		submitted: time.Now(), done: make(chan struct{}),
	}, nil
}
