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

// Errors of [Queue.Submit].
var (
	// ErrBackpressure says that as many jobs wait as may: try again later, or tell
	// the caller to.
	ErrBackpressure = errors.New("too many jobs wait in memory")
	// ErrStopped says that the process is stopping, or has stopped, working.
	ErrStopped = errors.New("the queue in memory has stopped")
)

// Config is how a queue works. The zero value is 4 workers and 256 waiting jobs.
type Config struct {
	Capacity    int                      // jobs that may wait, for a worker or for their next attempt; 0 is 256
	Workers     int                      // jobs that run at once; 0 is 4
	Timeout     time.Duration            // of one attempt; 0 is 5 min
	Backoff     dispatcher.BackoffPolicy // of jobs with more than one attempt; nil is Exponential(1 s, 1 h)
	Keep        time.Duration            // how long it is known what became of a job; 0 is 10 min
	GracePeriod time.Duration            // for the jobs that were taken, after a stop; 0 is 20 s, negative none

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere
}

func (c Config) withDefaults() Config {
	c.Capacity = cmp.Or(c.Capacity, 256)
	c.Workers = cmp.Or(c.Workers, 4)
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
	if c.Workers < 1 || c.Workers > 100_000 {
		errs = append(errs, invalid.Field("Config.Workers", "is %d, want 1 to 100000, or 0 for 4", c.Workers))
	}
	if c.Timeout < 0 {
		errs = append(errs, invalid.Field("Config.Timeout", "is %s, want more than 0, or 0 for 5m", c.Timeout))
	}
	if c.Keep < 0 {
		errs = append(errs, invalid.Field("Config.Keep", "is %s, want more than 0, or 0 for 10m", c.Keep))
	}
	return errors.Join(errs...)
}

// Queue holds jobs in memory and works them. Make it with [New]. It is safe for
// concurrent use.
type Queue struct {
	config  Config
	routes  map[string]*route
	store   *store
	started atomic.Bool
}

// New checks config and registers the metrics.
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

// Options say how a job is to be run. The zero value is one attempt. Arguments that
// are an [outbox.Defaulter] fill in what is left to the zero value; of their options,
// those that are not here mean nothing.
type Options struct {
	MaxAttempts int            // 0 is 1
	Timeout     time.Duration  // of one attempt; 0 is the kind's
	Backoff     outbox.Backoff // waits between attempts; nil is the kind's back-off
	// IdempotencyKey is unique per tenant and kind: while its job is known, a repeat returns that job's id.
	IdempotencyKey string
	Headers        map[string]string // handed to the handler
	Tenant         outbox.ID         // zero is outbox.RootTenant
}

// Submit takes a job, to be started as soon as a worker is free, and returns at
// once: with [ErrBackpressure] if too many wait, [ErrStopped] once Run was asked
// to stop, and an [*outbox.InvalidError] that names the field for bad input or a
// kind without a handler. Jobs start in the order in which they were taken. Before
// Run, they wait.
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
	kept, _ := outbox.Encode(unread{args}, outbox.Options{ // newRecord says what is not acceptable
		MaxAttempts: o.MaxAttempts, Timeout: o.Timeout, Backoff: o.Backoff, IdempotencyKey: o.IdempotencyKey, Headers: o.Headers, Tenant: o.Tenant,
	})
	all := kept.Options
	return Options{
		MaxAttempts: all.MaxAttempts, Timeout: all.Timeout, Backoff: all.Backoff, IdempotencyKey: all.IdempotencyKey,
		Headers: engine.Caller(all.Caller).AddTo(all.Headers), Tenant: cmp.Or(all.Tenant, outbox.RootTenant),
	}
}

// unread is arguments of which package outbox sees the kind and its default options, and not what
// is in them.
type unread struct{ outbox.Args }

func (u unread) DefaultOptions() outbox.Options {
	if kind, ok := u.Args.(outbox.Defaulter); ok {
		return kind.DefaultOptions()
	}
	return outbox.Options{}
}

func (unread) MarshalJSON() ([]byte, error) { return []byte("0"), nil }

// newRecord checks a request by the rules of package outbox; the arguments
// themselves are nobody's to look into.
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
		MaxAttempts: opts.MaxAttempts, Timeout: opts.Timeout, Backoff: opts.Backoff, IdempotencyKey: opts.IdempotencyKey, Headers: opts.Headers,
	})
	if err != nil {
		return nil, err
	}
	return &record{
		id: outbox.NewID(), tenant: opts.Tenant, route: route, args: args,
		maxAttempts: cmp.Or(opts.MaxAttempts, 1), timeout: cmp.Or(opts.Timeout, route.config.Timeout), backoff: slices.Clone(opts.Backoff), headers: headersJSON(opts.Headers),
		submitted: time.Now(), done: make(chan struct{}),
	}, nil
}
