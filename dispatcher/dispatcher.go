package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/circuit"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/health"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/lease"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/limit"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/promote"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/search"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/slot"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/wake"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Dispatcher works the queues of one process. Make it with [New].
type Dispatcher struct {
	common       *common
	config       Config
	callerPool   *pgxpool.Pool     // reset on failover, together with the dispatcher's own pools
	deathHooks   map[string]string // maps each kind that dies to the kind of its hook
	producerWake slot.Slot         // the attached producer has committed a job

	// Made by Run.
	giveUp   context.CancelFunc // ends common.settling
	hangUp   context.CancelFunc // ends common.waiting
	db       *sqlgen.Queries
	queues   map[string]*loop // by name
	leases   *lease.Keeper
	promoter *promote.Promoter
	recorder *report.Recorder
	settler  *settler
	waiters  *notifier      // of the callers waiting for jobs: one job has ended
	peers    *notifier      // of the other processes: there may be jobs for them
	running  sync.WaitGroup // the workers
}

// New checks config and registers the metrics. The dispatcher opens a small pool of its own to the same database, so
// that handlers that exhaust pool cannot keep leases from being extended. It only reads the settings of pool, and
// resets pool if the database turns out to be read-only after a failover.
func New(pool *pgxpool.Pool, mux *Mux, config Config) (*Dispatcher, error) {
	label := cmp.Or(config.Worker, hostname())
	config = config.withDefaults()
	if err := errors.Join(config.validate(), mux.validate()); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	suffix := outbox.NewID()
	log := config.Logger.With(slog.String("component", "dispatcher"))
	d := &Dispatcher{
		common: &common{
			worker:   fmt.Sprintf("%.80s-%x", config.Worker, suffix[12:]),
			kinds:    mux.Kinds(),
			routes:   mux.build(KindConfig{Timeout: config.Timeout, Backoff: config.Backoff}),
			leaseTTL: config.LeaseTTL, claimBytes: config.claimBytes, poll: config.poll,
			log:     log,
			logJobs: config.LogJobs,
			metrics: newMetrics(config.Registerer),
			health:  health.New(log),
			phase:   new(phase),

			waiting: context.Background(), settling: context.Background(),
		},
		config:       config,
		callerPool:   pool,
		producerWake: slot.New(),
	}
	d.deathHooks = mux.deathHooks()
	for name, queue := range config.Queues {
		d.common.metrics.forQueue(name, queue.Concurrency)
		d.common.metrics.busy.WithLabelValues(name)
	}
	for kind, r := range d.common.routes {
		r.counts = d.common.metrics.forKind(kind, fmt.Sprintf("%.80s", label))
		for queue := range config.Queues {
			d.common.metrics.unavailable.WithLabelValues(kind, queue)
		}
	}
	return d, nil
}

// compose creates the parts of the dispatcher. It starts none of them.
func (d *Dispatcher) compose(ctx context.Context, pool, extending *pgxpool.Pool) {
	p := d.common
	p.handlerContext = context.WithoutCancel(ctx)
	p.waiting, d.hangUp = context.WithCancel(p.handlerContext)
	p.settling, d.giveUp = context.WithCancel(p.waiting)
	p.health.Leave = func(err error) { leaveServer(err, pool, extending, d.callerPool) }
	d.composeParts(pool, sqlgen.New(extending))
	d.recorder = d.newRecorder(func(a report.Owner) { d.settler.ended <- a.(*attempt) })
	d.queues = make(map[string]*loop, len(d.config.Queues))
	finder := search.New(search.Pool{Pool: pool, Most: maxBatch}, statementTimeout)
	for name, config := range d.config.Queues {
		d.queues[name] = d.composeQueue(name, config.Concurrency, pool, finder)
	}
}

// composeParts creates the parts that an [Inline] uses, too.
func (d *Dispatcher) composeParts(conn outbox.DB, extending lease.Extensions) {
	p := d.common
	d.db = sqlgen.New(conn)
	d.waiters = newNotifier(p.boundHint, d.db, engine.SettledChannel)
	d.peers = newNotifier(p.boundHint, d.db, engine.Channel)
	d.leases = lease.NewKeeper(lease.Config{
		TTL: p.leaseTTL, DB: d.db, Extending: extending, Timeout: statementTimeout, Most: maxBatch,
		Notice: noticeWithin, Cancelled: ErrCancelled, Health: p.health, Late: p.metrics.extensionsLate,
	})
	d.promoter = promote.New(promote.Config{
		DB: d.db, Health: p.health, Offer: d.offer, Notify: d.peers.notify, Bound: p.boundSettling,
		Most: maxBatch / 2, Context: p.handlerContext, CutOff: p.phase.isCutOff, Pause: scheduler.LockedPause,
		Rest: func(wait time.Duration, err error) { p.health.Rest(p.settling, wait, err) },
	})
	statements := &store{common: p, db: d.db, conn: conn, pokeAll: d.pokeAll, peers: d.peers}
	d.settler = newSettler(p, statements, newReporter(p, d.db, d.waiters, d.peers), d.leases, d.promoter)
}

// newRecorder makes a recorder. onDone takes an attempt that is over, after its last report.
func (d *Dispatcher) newRecorder(onDone func(report.Owner)) *report.Recorder {
	p := d.common
	return report.NewRecorder(report.Config{
		DB: d.db, Health: p.health, Log: p.log, Timeout: statementTimeout,
		Most: maxBatch / 4, Bytes: statementBytes / 4,
		Bound: p.boundSettling, Settling: p.settling, OnDone: onDone,
	})
}

func (d *Dispatcher) composeQueue(name string, concurrency int, pool *pgxpool.Pool, finder *search.Finder) *loop {
	p := d.common
	c := &capacity{
		Waker: wake.New(), concurrency: concurrency, claimBytes: p.claimBytes,
		busy: p.metrics.busy.WithLabelValues(name),
	}
	circuits := circuit.New(circuit.Config{
		Queue: name, Kinds: p.kinds, Poke: c.Poke, Health: p.health, Context: p.handlerContext,
		Unavailable: p.metrics.unavailable,
	})
	pause := &limit.PauseCheck{
		Queue: name, DB: d.db, Context: p.handlerContext, Timeout: hintTimeout, Notice: noticeWithin,
	}
	w := newWorkers(p, c, pause, circuits, d.settler.ended, &d.running)
	claims := &claims{
		common: p, queue: name, capacity: c, recorder: d.recorder, handlers: d.callerPool,
	}
	return newLoop(&claimer{
		common: p, queue: name, db: d.db, pool: pool, claims: claims,
		limiter: &limit.Limiter{
			Queue: name, Pool: pool, State: &c.limits, Poll: p.poll,
			Timeout: statementTimeout, Notice: noticeWithin, OK: p.health.OK,
			Reached: func(limit string) { p.metrics.atLimit.WithLabelValues(name, limit).Inc() },
		},
		capacity: c, circuits: circuits, sched: scheduler.New(concurrency), keyed: scheduler.NewKeyed(maxBatch),
		workers: w, batches: newBatches(w),
		reserved: &reserved{common: p, capacity: c, workers: w, leases: d.leases, claims: claims},
		leases:   d.leases, promoter: d.promoter, peers: d.peers,
	}, finder)
}

func (d *Dispatcher) pokeAll() {
	for _, q := range d.queues {
		q.capacity.Poke()
	}
}

// offer gives promoted jobs to the queues of this process, and reports whether other processes should be notified of
// them. A job whose kind is unavailable here may be available to them: their circuits are their own.
func (d *Dispatcher) offer(promoted []sqlgen.PromoteKeysRow) (elsewhere bool) {
	here := map[*loop]int{}
	for _, job := range promoted {
		q := d.queues[job.Queue]
		if q == nil || d.common.routes[job.Kind] == nil || !q.circuits.IsAvailable(job.Kind) {
			elsewhere = true
			continue
		}
		q.keyed.Offer(job.TenantID.Bytes, job.ID)
		here[q]++
	}
	for q, n := range here {
		// If this process no longer claims, isClaiming reports it here; if it stops claiming after this check,
		// endWorkers notifies the others after the last claim.
		elsewhere = elsewhere || !d.common.phase.isClaiming() || q.capacity.room() < n
		q.capacity.RoomMade()
	}
	return elsewhere
}

// Config configures a dispatcher. Its zero value is a sane production setup that works the queue "default" and polls
// every two seconds; set Wake and Listening, from a listener, to start jobs within milliseconds.
type Config struct {
	Queues map[string]QueueConfig // nil works the queue "default". outbox.Options.Queue documents valid names
	// Worker names the holder of the leases; "" means host-pid. A random suffix is added, so names may repeat. The
	// metrics' label worker_id is the name without the suffix and the pid.
	Worker string

	// Wake signals that there may be work. A receive is a hint; any number may be lost. If it is nil, the dispatcher
	// polls only.
	Wake <-chan struct{}
	// Listening reports whether Wake is currently reliable. Nil means it never is.
	Listening func() bool

	PollInterval         time.Duration // between polls while Listening reports true; 0 means 30 s
	FallbackPollInterval time.Duration // between polls otherwise; 0 means 2 s, or PollInterval if that is less
	LeaseTTL             time.Duration // 0 means 15 s, the least is 1 s; after it others take over a dead worker's jobs
	Timeout              time.Duration // of one attempt; 0 means 5 min
	Backoff              BackoffPolicy // nil means Exponential(1 s, 1 h)
	GracePeriod          time.Duration // for running jobs after a stop; 0 means 20 s, negative none

	LogJobs    LogJobs               // which lines about jobs are logged; "" means LogAll
	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere

	claimBytes int // of a claim's payloads, estimated from the last ones; 0 means maxClaimBytes
}

// QueueConfig configures how the dispatcher works one queue.
type QueueConfig struct {
	Concurrency int // jobs of the queue running at once in this process; 0 means 64
}

func (c Config) withDefaults() Config {
	if len(c.Queues) == 0 {
		c.Queues = map[string]QueueConfig{engine.DefaultQueue: {}}
	}
	c.Queues = maps.Clone(c.Queues) // the caller's map stays as it is
	for name, q := range c.Queues {
		q.Concurrency = cmp.Or(q.Concurrency, defaultConcurrency)
		c.Queues[name] = q
	}
	if c.Worker == "" {
		c.Worker = fmt.Sprintf("%.40s-%d", hostname(), os.Getpid())
	}
	c.LogJobs = cmp.Or(c.LogJobs, LogAll)
	c.PollInterval = cmp.Or(c.PollInterval, 30*time.Second)
	c.FallbackPollInterval = cmp.Or(c.FallbackPollInterval, min(2*time.Second, c.PollInterval))
	c.LeaseTTL = cmp.Or(c.LeaseTTL, 15*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Minute)
	c.claimBytes = cmp.Or(c.claimBytes, maxClaimBytes)
	c.GracePeriod = cmp.Or(c.GracePeriod, 20*time.Second)
	if c.Backoff == nil {
		c.Backoff = Exponential(time.Second, time.Hour)
	}
	if c.Listening == nil {
		c.Listening = func() bool { return false }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// poll returns the time between polls for jobs of which no notification came.
func (c Config) poll() time.Duration {
	if c.Listening() {
		return c.PollInterval
	}
	return c.FallbackPollInterval
}

func hostname() string {
	host, _ := os.Hostname()
	return cmp.Or(host, "host")
}

func (c Config) validate() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Queues)) {
		if fault := engine.NameFault(name); fault != "" {
			errs = append(errs, invalid.Field("Config.Queues", "has a queue whose name %s", fault))
		}
		if n := c.Queues[name].Concurrency; n < 0 || n > 100_000 {
			errs = append(errs, invalid.Field(fmt.Sprintf("Config.Queues[%q].Concurrency", name),
				"is %d, want 1 to 100000, or 0 for %d", n, defaultConcurrency))
		}
	}
	if fault := engine.WorkerFault(c.Worker); fault != "" {
		errs = append(errs, invalid.Field("Config.Worker", "%s", fault))
	}
	within := func(field string, d, least time.Duration) {
		if d < least || d > engine.MaxDuration {
			errs = append(errs, invalid.Field(field, "is %s, want %s to 100 years", d, least))
		}
	}
	switch c.LogJobs {
	case LogAll, LogFailures, LogNone:
	default:
		errs = append(errs, invalid.Field("Config.LogJobs", "is %q, want all, failures or off, or nothing for all",
			c.LogJobs))
	}
	within("Config.LeaseTTL", c.LeaseTTL, time.Second)
	within("Config.PollInterval", c.PollInterval, 10*time.Millisecond)
	within("Config.FallbackPollInterval", c.FallbackPollInterval, 10*time.Millisecond)
	within("Config.Timeout", c.Timeout, engine.MinTimeout)
	within("Config.GracePeriod", max(c.GracePeriod, 0), 0)
	return errors.Join(errs...)
}
