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
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Config is how a dispatcher works. Its zero value is a sane production setup
// that works the queue "default" and polls every two seconds; give it Wake and
// Hearing, from a listener, to start jobs within milliseconds.
type Config struct {
	Queues map[string]QueueConfig // nil works the queue "default". Names are those of outbox.ValidName
	Worker string                 // who holds the leases; "" is host-pid. A random suffix is added, so names may repeat

	// Wake says that there may be work. A receive is a hint; any number may be lost.
	Wake <-chan struct{}
	// Hearing reports whether Wake can be relied on now; nil is never.
	Hearing func() bool

	PollInterval     time.Duration // between looks while Hearing; 0 is 30 s
	DeafPollInterval time.Duration // between looks otherwise; 0 is 2 s, or PollInterval if that is less
	LeaseTTL         time.Duration // 0 is 15 s; at least 1 s. A dead worker's jobs are taken over when it is over
	Timeout          time.Duration // of one attempt; 0 is 5 min
	Retry            RetryPolicy   // nil is Exponential(1 s, 1 h)
	GracePeriod      time.Duration // for running jobs after a stop; 0 is 20 s, negative none

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere
}

// QueueConfig is how one queue is worked.
type QueueConfig struct {
	Concurrency int // jobs of the queue running at once in this process; 0 is 64
}

func (c Config) withDefaults() Config {
	if len(c.Queues) == 0 {
		c.Queues = map[string]QueueConfig{outbox.DefaultQueue: {}}
	}
	if c.Worker == "" {
		host, _ := os.Hostname()
		c.Worker = fmt.Sprintf("%.40s-%d", cmp.Or(host, "host"), os.Getpid())
	}
	c.PollInterval = cmp.Or(c.PollInterval, 30*time.Second)
	c.DeafPollInterval = cmp.Or(c.DeafPollInterval, min(2*time.Second, c.PollInterval))
	c.LeaseTTL = cmp.Or(c.LeaseTTL, 15*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Minute)
	c.GracePeriod = cmp.Or(c.GracePeriod, 20*time.Second)
	if c.Retry == nil {
		c.Retry = Exponential(time.Second, time.Hour)
	}
	if c.Hearing == nil {
		c.Hearing = func() bool { return false }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Queues)) {
		if bad, ok := errors.AsType[*outbox.InvalidError](outbox.ValidName("Config.Queues", name)); ok {
			errs = append(errs, invalid(bad.Field, "has a queue whose name %s", bad.Reason))
		}
		if n := c.Queues[name].Concurrency; n < 0 || n > 100_000 {
			errs = append(errs, invalid(fmt.Sprintf("Config.Queues[%q].Concurrency", name), "is %d, want 1 to 100000, or 0 for %d", n, defaultConcurrency))
		}
	}
	atLeast := func(field string, d, least time.Duration) {
		if d < least {
			errs = append(errs, invalid(field, "is %s, want at least %s", d, least))
		}
	}
	atLeast("Config.LeaseTTL", c.LeaseTTL, time.Second)
	atLeast("Config.PollInterval", c.PollInterval, 10*time.Millisecond)
	atLeast("Config.DeafPollInterval", c.DeafPollInterval, 10*time.Millisecond)
	atLeast("Config.Timeout", c.Timeout, time.Millisecond)
	return errors.Join(errs...)
}

func invalid(field, format string, args ...any) error {
	return &outbox.InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// Dispatcher works the queues of one process. Make it with [New].
type Dispatcher struct {
	process
	config     Config
	user       *pgxpool.Pool // reset on failover, together with our own
	deathHooks []string      // kinds that have one
	gathers    bool          // some kind's jobs are handled together

	// Set by Run.
	pool   *pgxpool.Pool // our own: handlers cannot exhaust it
	db     *sqlgen.Queries
	queues []*queue
	near   chan struct{} // one slot: the own producer has committed a job

	leases   *leases
	promoter *promoter
	recorder *report.Recorder
	settler  *settler
	waiters  *notifier // of those who wait for jobs: one has ended
	peers    *notifier // of the other processes: there may be jobs for them

	working sync.WaitGroup

	started atomic.Bool
}

// New checks config and registers the metrics. The dispatcher opens a small pool
// of its own to the same database, so that handlers that use up pool cannot keep
// leases from being extended; pool itself is only read for its settings, and reset
// when the database turns out to be read-only after a failover.
func New(pool *pgxpool.Pool, mux *Mux, config Config) (*Dispatcher, error) {
	config = config.withDefaults()
	if err := errors.Join(config.validate(), mux.validate()); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	suffix := outbox.NewID()
	log := config.Logger.With(slog.String("component", "dispatcher"))
	d := &Dispatcher{
		process: process{
			worker:   fmt.Sprintf("%.80s-%x", config.Worker, suffix[12:]),
			kinds:    mux.Kinds(),
			routes:   mux.build(KindConfig{Timeout: config.Timeout, Retry: config.Retry}),
			leaseTTL: config.LeaseTTL,
			log:      log,
			metrics:  newMetrics(config.Registerer),
			health:   &health{log: log},
			phase:    new(phase),
		},
		config: config,
		user:   pool,
		near:   make(chan struct{}, 1),
	}
	if err := mux.hooks.validate(d.routes); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	d.deathHooks = slices.Sorted(maps.Keys(mux.hooks.death))
	for kind, r := range d.routes {
		d.gathers = d.gathers || r.many != nil
		r.counts = d.metrics.forKind(kind, d.worker)
		for queue := range config.Queues {
			d.metrics.unavailable.WithLabelValues(kind, queue)
		}
	}
	return d, nil
}

// Worker is the name under which this dispatcher holds leases.
func (d *Dispatcher) Worker() string { return d.worker }

// Ready returns nil while the database answers claims, and otherwise what is wrong.
func (d *Dispatcher) Ready() error {
	if !d.started.Load() {
		return errors.New("not started")
	}
	return d.health.err()
}

// Run works until ctx ends; then it stops claiming, gives back what had not
// started, lets running jobs finish for the grace period, cuts those that are left
// with the cause [ErrShutdown], and returns nil once every outcome is stored. It
// may be called once. It returns an error if handlers ignore that they were cut
// off; a database that is away is not one.
func (d *Dispatcher) Run(ctx context.Context) error {
	if d.started.Swap(true) {
		return errors.New("dispatcher: Run was called before")
	}
	pool, err := openControlPool(ctx, d.user, settlers+2+report.Conns+min(len(d.config.Queues), 16))
	if err != nil {
		return fmt.Errorf("dispatcher: %w", err)
	}
	extending, err := openControlPool(ctx, d.user, 1)
	if err != nil {
		return fmt.Errorf("dispatcher: %w", err)
	}
	d.compose(ctx, pool, sqlgen.New(extending))
	d.log.LogAttrs(ctx, slog.LevelInfo, "dispatcher started", slog.String("worker", d.worker), slog.Any("kinds", d.kinds))

	if !d.registerHooks(ctx) {
		pool.Close()
		extending.Close()
		return nil
	}
	if err = d.work(ctx); err == nil { // else somebody may still use them
		pool.Close()
		extending.Close()
	}
	d.settler.failures.End()
	d.log.LogAttrs(ctx, slog.LevelInfo, "dispatcher stopped", slog.String("worker", d.worker))
	return err
}

// compose makes the parts of the dispatcher. Nothing runs yet.
func (d *Dispatcher) compose(ctx context.Context, pool *pgxpool.Pool, extending extendStatement) {
	d.pool, d.db = pool, sqlgen.New(pool)
	d.health.leave = func(err error) { leaveServer(err, pool, d.user) }
	d.jobs = outbox.WithPool(context.WithoutCancel(ctx), d.user)
	d.leases = newLeases(&d.process, d.db, extending)
	d.promoter = newPromoter(d)
	d.waiters = newNotifier(waitersWindow, d.db.WakeWaiters)
	d.peers = newNotifier(peersWindow, func(ctx context.Context) error { return d.db.WakeDispatchers(ctx, outbox.Channel) })
	d.settler = newSettler(&d.process, d.db, d.leases, d.promoter)
	d.settler.waiters, d.settler.peers, d.settler.pokeAll = d.waiters, d.peers, d.pokeAll
	d.settler.followed = func(ctx context.Context, jobs []*outbox.Claimed) ([]outbox.ID, error) {
		return outbox.SettleSucceeded(ctx, pool, jobs)
	}
	d.recorder = report.NewRecorder(report.Config{
		DB: d.db, Health: d.health, Log: d.log, Timeout: statementTimeout, CutOff: d.phase.isCutOff,
		Over: func(a report.Owner) { d.settler.ended <- a.(*attempt) },
	})
	for name, config := range d.config.Queues {
		d.queues = append(d.queues, newQueue(d, name, config))
	}
}

// showing is the dispatcher's row in the list of workers.
func (d *Dispatcher) showing() sqlgen.ShowWorkerParams {
	row := sqlgen.ShowWorkerParams{Worker: d.worker, Kinds: d.kinds, Queues: slices.Sorted(maps.Keys(d.config.Queues))}
	for _, name := range row.Queues {
		row.Concurrency = append(row.Concurrency, int32(cmp.Or(d.config.Queues[name].Concurrency, defaultConcurrency)))
	}
	return row
}

// abandonAfter is how long handlers have to return once they were cut off, and
// settlements to go through.
const abandonAfter = 8 * time.Second

// work runs every goroutine of the dispatcher and returns when all have ended:
// first the claiming ones, then the workers, then reports, leases and settlement. What has
// not ended some seconds after the grace period is left behind: handlers that
// ignore the end of their context, outcomes that the database does not take.
func (d *Dispatcher) work(ctx context.Context) error {
	var claims, recording, settling, refused, announcing, telling, promoting sync.WaitGroup
	afterJobs, endAfterJobs := context.WithCancel(context.WithoutCancel(ctx))
	defer endAfterJobs()

	announcing.Go(d.waiters.run)
	telling.Go(d.peers.run)
	refused.Go(func() { d.settler.settleRefused(afterJobs) })
	promoting.Go(d.promoter.run)
	for range settlers {
		settling.Go(d.settler.run)
	}
	recording.Go(d.recorder.Run)
	settling.Go(func() { d.leases.keep(afterJobs) })
	settling.Go(func() { d.leases.watch(afterJobs) })
	settling.Go(func() { heartbeat(afterJobs, d.db, d.showing(), d.config.Hearing) })
	settling.Go(func() { d.leases.watchCancellations(afterJobs) })
	claims.Go(func() { d.fanOut(ctx) })
	for _, q := range d.queues {
		claims.Go(func() { q.claimUntil(ctx) })
		reserved := q.concurrency / reservePart
		for range q.concurrency - reserved {
			d.working.Go(q.work)
		}
		for range reserved {
			d.working.Go(q.workReserved)
		}
	}

	d.phase.Store(claiming)
	<-ctx.Done()
	d.phase.Store(draining)
	// From here on the grace period runs, for the handlers and for storing what
	// they did.
	grace := max(d.config.GracePeriod, 0)
	defer time.AfterFunc(grace, d.cutOff).Stop()
	abandoned := time.NewTimer(grace + abandonAfter)
	defer abandoned.Stop()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		claims.Wait()
		for _, q := range d.queues {
			q.giveBackBuffered()
			close(q.buffer)
			close(q.express)
		}
		// Of jobs that were promoted for claims that were not made, and of the next starts
		// that this process would have waited for, nobody knows.
		d.peers.notify()
		d.working.Wait()
		d.recorder.Stop()
		recording.Wait()
		endAfterJobs()
		close(d.settler.ended)
		settling.Wait()
		close(d.settler.refused)
		refused.Wait()
		d.waiters.stop()
		announcing.Wait()
		close(d.promoter.stop)
		promoting.Wait()
		d.peers.stop()
		telling.Wait()
	}()
	select {
	case <-finished:
		return nil
	case <-abandoned.C:
		return fmt.Errorf("dispatcher: %d jobs were not settled %s after the grace period; their leases lapse", d.leases.count(), abandonAfter)
	}
}

// cutOff ends the grace period: handlers that still run are told to stop.
func (d *Dispatcher) cutOff() {
	d.phase.Store(cutOff)
	if n := d.leases.count(); n > 0 {
		d.log.LogAttrs(d.jobs, slog.LevelWarn, "running jobs cut off: the grace period is over", slog.Int("jobs", n))
	}
	d.leases.cut()
}
