package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Dispatcher works the queues of one process. Make it with [New].
type Dispatcher struct {
	process    *process
	config     Config
	user       *pgxpool.Pool     // reset on failover, together with the dispatcher's own pools
	deathHooks map[string]string // maps each kind that dies to the kind of its hook
	own        chan struct{}     // one slot: the attached producer has committed a job
	started    atomic.Bool

	// Made by Run.
	db       *sqlgen.Queries
	queues   map[string]*loop // by name
	leases   *leases
	promoter *promoter
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
		process: &process{
			worker:   fmt.Sprintf("%.80s-%x", config.Worker, suffix[12:]),
			kinds:    mux.Kinds(),
			routes:   mux.build(KindConfig{Timeout: config.Timeout, Backoff: config.Backoff}),
			leaseTTL: config.LeaseTTL, claimBytes: config.claimBytes,
			log:     log,
			logJobs: config.LogJobs,
			metrics: newMetrics(config.Registerer),
			health:  &health{log: log},
			phase:   new(phase),
		},
		config: config,
		user:   pool,
		own:    make(chan struct{}, 1),
	}
	d.deathHooks = mux.deathHooks()
	for name, queue := range config.Queues {
		d.process.metrics.slots.WithLabelValues(name).Set(float64(cmp.Or(queue.Concurrency, defaultConcurrency)))
		d.process.metrics.busy.WithLabelValues(name)
	}
	for kind, r := range d.process.routes {
		r.counts = d.process.metrics.forKind(kind, fmt.Sprintf("%.80s", label))
		for queue := range config.Queues {
			d.process.metrics.unavailable.WithLabelValues(kind, queue)
		}
	}
	return d, nil
}

// Ready returns nil while the database answers claims, and otherwise an error that says what is wrong.
func (d *Dispatcher) Ready() error {
	if !d.started.Load() {
		return errors.New("not started")
	}
	return d.process.health.err()
}

// Run works until ctx ends. Then it stops claiming, gives back jobs that have not started, lets running jobs finish
// within the grace period, ends the contexts of the remaining ones with the cause [ErrShutdown], and returns nil once
// every outcome is stored. It may be called once. It returns an error if handlers ignore the end of their contexts; it
// also returns one, before it claims anything, if a release has migrated the schema that no longer works alongside this
// one. An unreachable database is no error.
func (d *Dispatcher) Run(ctx context.Context) error {
	if d.started.Swap(true) {
		return fmt.Errorf("dispatcher: %w", backoff.ErrRanBefore)
	}
	pool, extending, err := d.openPools(ctx)
	if err != nil {
		return fmt.Errorf("dispatcher: %w", err)
	}
	d.compose(ctx, pool, extending)
	p := d.process
	p.log.LogAttrs(ctx, slog.LevelInfo, "dispatcher started", slog.String("worker", p.worker),
		slog.Any("queues", slices.Sorted(maps.Keys(d.config.Queues))), slog.Any("kinds", p.kinds))

	if err = awaitFloor(ctx, p, d.db); err != nil || ctx.Err() != nil || !registerHooks(ctx, p, d.db, d.deathHooks) {
		pool.Close()
		extending.Close()
		return err
	}
	if err = d.work(ctx); err == nil { // after an error some goroutine may still use them
		pool.Close()
		extending.Close()
	}
	d.settler.reporter.failures.End()
	p.log.LogAttrs(ctx, slog.LevelInfo, "dispatcher stopped", slog.String("worker", p.worker))
	return err
}

// openPools opens the dispatcher's own connections, and one more that only extends leases, so that nothing else delays
// extensions.
func (d *Dispatcher) openPools(ctx context.Context) (pool, extending *pgxpool.Pool, err error) {
	pool, err = openControlPool(ctx, d.user, settlers+2+report.Conns+min(len(d.config.Queues), 16))
	if err != nil {
		return nil, nil, err
	}
	extending, err = openControlPool(ctx, d.user, 1)
	if err != nil {
		pool.Close()
	}
	return pool, extending, err
}

// compose creates the parts of the dispatcher. It starts none of them.
func (d *Dispatcher) compose(ctx context.Context, pool, extending *pgxpool.Pool) {
	p := d.process
	p.handlerContext = context.WithoutCancel(ctx)
	p.health.leave = func(err error) { leaveServer(err, pool, extending, d.user) }
	d.composeParts(pool, sqlgen.New(extending))
	d.recorder = report.NewRecorder(report.Config{
		DB: d.db, Health: p.health, Log: p.log, Timeout: statementTimeout, CutOff: p.phase.isCutOff,
		Over: func(a report.Owner) { d.settler.ended <- a.(*attempt) },
	})
	d.queues = make(map[string]*loop, len(d.config.Queues))
	for name, config := range d.config.Queues {
		d.queues[name] = d.composeQueue(name, cmp.Or(config.Concurrency, defaultConcurrency), pool)
	}
}

// composeParts creates the parts that an [Inline] uses, too.
func (d *Dispatcher) composeParts(conn outbox.DB, extending extendStatement) {
	p := d.process
	d.db = sqlgen.New(conn)
	d.waiters = newNotifier(waitersWindow, d.db.WakeWaiters)
	d.peers = newNotifier(peersWindow, func(ctx context.Context) error { return d.db.Notify(ctx, []string{engine.Channel}) })
	d.leases = newLeases(p, d.db, extending)
	d.promoter = newPromoter(p, d.db, d.peers, d.offer)
	followed := func(ctx context.Context, jobs []engine.Success) ([]pgtype.UUID, error) {
		return engine.SettleSucceeded(ctx, conn, jobs, false)
	}
	statements := &store{process: p, db: d.db, followed: followed, pokeAll: d.pokeAll, peers: d.peers}
	d.settler = newSettler(p, statements, newReporter(p, d.db, d.waiters, d.peers), d.leases, d.promoter)
}

func (d *Dispatcher) composeQueue(name string, concurrency int, pool *pgxpool.Pool) *loop {
	p := d.process
	c := &capacity{waker: newWaker(), concurrency: concurrency, claimBytes: p.claimBytes, busy: p.metrics.busy.WithLabelValues(name)}
	w := newWorkers(p, c, newPauseCheck(p, name, d.db), newOutages(p, name, c.waker), d.settler.ended, &d.running, batchRoom(p.routes))
	reader := &claimReader{process: p, queue: name, trust: d.leases.trust, waker: c.waker, recorder: d.recorder, handlers: d.user}
	return newLoop(&claimer{
		process: p, queue: name, db: d.db, source: claims{claimReader: reader, db: pool}, poll: d.config.poll,
		limiter:  &limiter{process: p, queue: name, capacity: c, pool: pool, claims: claims{claimReader: reader}, poll: d.config.poll},
		capacity: c, sched: scheduler.New(concurrency), keyed: newKeyedClaims(), workers: w, batches: newBatches(w),
		reserved: &reserved{process: p, capacity: c, workers: w, leases: d.leases, reader: reader},
		leases:   d.leases, promoter: d.promoter, peers: d.peers,
	})
}

// pokeAll makes every queue look for jobs.
func (d *Dispatcher) pokeAll() {
	for _, q := range d.queues {
		q.capacity.poke()
	}
}

// offer gives promoted jobs to the queues of this process, and reports whether other processes should be notified of
// them.
func (d *Dispatcher) offer(promoted []sqlgen.PromoteKeysRow) (elsewhere bool) {
	here := map[*loop]int{}
	for _, job := range promoted {
		q := d.queues[job.Queue]
		if q == nil || d.process.routes[job.Kind] == nil {
			elsewhere = true
			continue
		}
		q.keyed.offer(job.TenantID.Bytes, job.ID)
		here[q]++
	}
	for q, n := range here {
		// If this process no longer claims, isClaiming reports it here; if it stops claiming after this check, endAll
		// notifies the others after the last claim.
		elsewhere = elsewhere || !d.process.phase.isClaiming() || q.capacity.room() < n
		q.capacity.roomMade()
	}
	return elsewhere
}

// showing returns the dispatcher's row in the list of workers.
func (d *Dispatcher) showing() sqlgen.ShowWorkerParams {
	row := sqlgen.ShowWorkerParams{Worker: d.process.worker, Kinds: d.process.kinds, Queues: slices.Sorted(maps.Keys(d.config.Queues))}
	for _, name := range row.Queues {
		row.Concurrency = append(row.Concurrency, int32(cmp.Or(d.config.Queues[name].Concurrency, defaultConcurrency)))
	}
	return row
}

// Presence describes a dispatcher as the list of workers shows it.
type Presence struct {
	Worker  string         // name under which it holds leases
	Version string         // of the program
	Queues  map[string]int // how many jobs of each queue it runs at once
	Kinds   []string       // with a handler
}

// Presence returns the dispatcher's description. It never changes.
func (d *Dispatcher) Presence() Presence {
	row := d.showing()
	p := Presence{Worker: row.Worker, Version: engine.Version(), Queues: map[string]int{}, Kinds: row.Kinds}
	for i, queue := range row.Queues {
		p.Queues[queue] = int(row.Concurrency[i])
	}
	return p
}

// abandonAfter is how long after the grace period handlers have to return and settlements to be stored.
const abandonAfter = 8 * time.Second

// goroutines groups a dispatcher's goroutines by when they end: doc.go has the table.
type goroutines struct {
	claiming, recording, settling, refused, promoting sync.WaitGroup
	waiters, peers                                    sync.WaitGroup
	endAfterJobs                                      context.CancelFunc // ends those that end after all jobs
}

// work runs every goroutine of the dispatcher and returns when all have ended: first the claiming ones, then the
// workers, then reports, leases and settlement. It abandons what has not ended some seconds after the grace period:
// handlers that ignore the end of their context, and outcomes that the database does not accept.
func (d *Dispatcher) work(ctx context.Context) error {
	g := d.startAll(ctx)
	defer g.endAfterJobs()
	d.process.phase.Store(claiming)
	<-ctx.Done()
	d.process.phase.Store(draining)
	// The grace period starts here. It covers both the handlers and the storing of their outcomes.
	grace := max(d.config.GracePeriod, 0)
	defer time.AfterFunc(grace, d.cutOff).Stop()
	abandoned := time.NewTimer(grace + abandonAfter)
	defer abandoned.Stop()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		d.endAll(g)
	}()
	select {
	case <-finished:
		return nil
	case <-abandoned.C:
		return fmt.Errorf("dispatcher: %d jobs were not settled %s after the grace period; their leases lapse", d.leases.count(), abandonAfter)
	}
}

func (d *Dispatcher) startAll(ctx context.Context) *goroutines {
	g := new(goroutines)
	afterJobs, end := context.WithCancel(context.WithoutCancel(ctx))
	g.endAfterJobs = end
	g.waiters.Go(d.waiters.run)
	g.peers.Go(d.peers.run)
	g.refused.Go(func() { d.settler.settleRefused(afterJobs) })
	g.promoting.Go(d.promoter.run)
	for range settlers {
		g.settling.Go(d.settler.run)
	}
	g.recording.Go(d.recorder.Run)
	g.settling.Go(func() { d.leases.keep(afterJobs) })
	g.settling.Go(func() { d.leases.watch(afterJobs) })
	g.settling.Go(func() { d.leases.watchCancellations(afterJobs) })
	g.settling.Go(func() { heartbeat(afterJobs, d.db, d.showing(), d.config.Hearing) })
	g.claiming.Go(func() { d.fanOut(ctx) })
	for _, q := range d.queues {
		g.claiming.Go(func() { q.run(ctx) })
		q.workers.start()
	}
	return g
}

// endAll waits for the goroutines in the order in which they end, and stops each one once nothing uses it any more.
func (d *Dispatcher) endAll(g *goroutines) {
	g.claiming.Wait()
	for _, q := range d.queues {
		q.batches.giveBack()
		q.workers.close()
	}
	// Other processes do not know of the jobs that this process promoted or was about to start: notify them.
	d.peers.notify()
	d.running.Wait()
	d.recorder.Stop()
	g.recording.Wait()
	g.endAfterJobs()
	close(d.settler.ended)
	g.settling.Wait()
	close(d.settler.refused)
	g.refused.Wait()
	d.waiters.stop()
	g.waiters.Wait()
	close(d.promoter.stop)
	g.promoting.Wait()
	d.peers.stop()
	g.peers.Wait()
}

// cutOff ends the grace period: it ends the contexts of handlers that still run.
func (d *Dispatcher) cutOff() {
	d.process.phase.Store(cutOff)
	if n := d.leases.count(); n > 0 {
		d.process.log.LogAttrs(d.process.handlerContext, slog.LevelWarn, "running jobs cut off: the grace period is over", slog.Int("jobs", n))
	}
	d.leases.cut()
}

// Channel is the NOTIFY channel on which dispatchers learn of jobs. A listener whose signal is Config.Wake listens to
// it. Notifications carry no data: any role may read and forge them.
const Channel = engine.Channel

// Attach connects the dispatcher to a producer in the same program that uses the same database. When a transaction that
// the producer began has enqueued jobs, its commit wakes the dispatcher before it returns: the dispatcher learns of its
// jobs without waiting for the database's notification, which goes to the other processes. If a transaction enqueued
// one job that can start at once, and the dispatcher has nothing else to do in that queue, the commit also claims the
// job for it: the job starts as soon as the commit is known. If the process dies right after such a commit, the job
// waits for its lease to lapse, as after any claim.
//
// A producer has one dispatcher at a time, until detach is called. A producer with outbox.NotifyOff wakes nobody.
// Package app attaches its dispatcher to the producer that it is given. Attach is safe for concurrent use.
func (d *Dispatcher) Attach(p *outbox.Producer) (detach func()) {
	local := engine.Of(p)
	local.SetWake(d.wake)
	local.SetReserve(d.reserve)
	return func() {
		local.SetWake(nil)
		local.SetReserve(nil)
	}
}

// wake makes every queue look for jobs now. The attached producer calls it after it has committed a job. It never
// blocks, and may be called at any time.
//
// A wake-up that arrives by Config.Wake may come from anybody, often for jobs that another process has long begun; the
// queue paces wake-ups that find nothing. A call of wake is answered at once, as long as such calls find jobs.
func (d *Dispatcher) wake() {
	select {
	case d.own <- struct{}{}:
	default: // an earlier call has not been answered yet
	}
}

// fanOut passes each wake-up on to every queue.
func (d *Dispatcher) fanOut(ctx context.Context) {
	others := d.config.Wake
	for {
		own := false
		select {
		case <-ctx.Done():
			return
		case <-d.own:
			own = true
		case _, open := <-others:
			if !open {
				others = nil
				continue
			}
		}
		d.leases.poke()
		for _, q := range d.queues {
			if own {
				q.pace.own.Store(true)
			}
			q.capacity.poke()
		}
	}
}

// reserve keeps a worker for a single job that the attached producer is about to commit. The commit then claims the
// job, which starts when the commit is known, without a wake-up and a claim's own round trip and disk flush. It returns
// nil if the job is to be claimed in the ordinary way: while the queue has jobs in hand, while another reservation is
// under way, or if this process has no handler for the kind, or handles it in batches. It never blocks; a caller that
// gets a reservation must end it.
func (d *Dispatcher) reserve(kind, queue string, id [16]byte) engine.Reservation {
	if !d.process.phase.isClaiming() {
		return nil
	}
	if q, r := d.queues[queue], d.process.routes[kind]; q != nil && r != nil && r.many == nil {
		if reservation := q.reserved.reserve(id); reservation != nil {
			return reservation
		}
	}
	return nil
}

// Outage is a kind whose jobs wait in a queue of this process because their dependency is unavailable ([Unavailable]).
type Outage struct {
	Queue, Kind string
	Since       time.Time
}

// Outages returns the present outages, sorted by queue and kind. It returns none unless Run is at work.
func (d *Dispatcher) Outages() (all []Outage) {
	if !d.process.phase.isClaiming() {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.config.Queues)) {
		for _, kind := range d.process.kinds {
			if since, lasts := d.queues[name].workers.outages.of[kind].Since(); lasts {
				all = append(all, Outage{name, kind, since})
			}
		}
	}
	return all
}
