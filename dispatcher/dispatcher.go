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
	user       *pgxpool.Pool     // reset on failover, together with our own
	deathHooks map[string]string // the kind of the hook, by the kind that dies
	own        chan struct{}     // one slot: the own producer has committed a job
	started    atomic.Bool

	// Made by Run.
	db       *sqlgen.Queries
	queues   map[string]*queue // by name
	leases   *leases
	promoter *promoter
	recorder *report.Recorder
	settler  *settler
	waiters  *notifier      // of those who wait for jobs: one has ended
	peers    *notifier      // of the other processes: there may be jobs for them
	running  sync.WaitGroup // the workers
}

// queue is the parts that claim and run the jobs of one queue.
type queue struct {
	capacity *capacity
	outages  *outages
	workers  *workers
	batches  *batches
	reserved *reserved
	keyed    *keyedClaims
	claimer  *claimer
	loop     *loop
}

// New checks config and registers the metrics. The dispatcher opens a small pool
// of its own to the same database, so that handlers that use up pool cannot keep
// leases from being extended; pool itself is only read for its settings, and reset
// when the database turns out to be read-only after a failover.
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

// Ready returns nil while the database answers claims, and otherwise what is wrong.
func (d *Dispatcher) Ready() error {
	if !d.started.Load() {
		return errors.New("not started")
	}
	return d.process.health.err()
}

// Run works until ctx ends; then it stops claiming, gives back what had not
// started, lets running jobs finish for the grace period, cuts those that are left
// with the cause [ErrShutdown], and returns nil once every outcome is stored. It
// may be called once. It returns an error if handlers ignore that they were cut
// off, and before it claims anything if a release has migrated the schema that no
// longer works beside this one; a database that is away is no error.
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
	if err = d.work(ctx); err == nil { // else somebody may still use them
		pool.Close()
		extending.Close()
	}
	d.settler.reporter.failures.End()
	p.log.LogAttrs(ctx, slog.LevelInfo, "dispatcher stopped", slog.String("worker", p.worker))
	return err
}

// openPools opens the dispatcher's own connections, and one more that extends leases: nothing else keeps that from it.
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

// compose makes the parts of the dispatcher. Nothing runs yet.
func (d *Dispatcher) compose(ctx context.Context, pool, extending *pgxpool.Pool) {
	p := d.process
	p.handlerContext = context.WithoutCancel(ctx)
	p.health.leave = func(err error) { leaveServer(err, pool, extending, d.user) }
	d.composeParts(pool, sqlgen.New(extending))
	d.recorder = report.NewRecorder(report.Config{
		DB: d.db, Health: p.health, Log: p.log, Timeout: statementTimeout, CutOff: p.phase.isCutOff,
		Over: func(a report.Owner) { d.settler.ended <- a.(*attempt) },
	})
	d.queues = make(map[string]*queue, len(d.config.Queues))
	for name, config := range d.config.Queues {
		d.queues[name] = d.composeQueue(name, cmp.Or(config.Concurrency, defaultConcurrency), pool)
	}
}

// composeParts makes those parts that an [Inline] has, too.
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

func (d *Dispatcher) composeQueue(name string, concurrency int, pool *pgxpool.Pool) *queue {
	p := d.process
	c := &capacity{waker: newWaker(), concurrency: concurrency, claimBytes: p.claimBytes, busy: p.metrics.busy.WithLabelValues(name)}
	q := &queue{capacity: c, outages: newOutages(p, name, c.waker), keyed: newKeyedClaims()}
	q.workers = newWorkers(p, c, newPauseCheck(p, name, d.db), q.outages, d.settler.ended, &d.running, batchRoom(p.routes))
	q.batches = newBatches(q.workers)
	reader := &claimReader{process: p, queue: name, trust: d.leases.trust, waker: c.waker, recorder: d.recorder, handlers: d.user}
	q.reserved = &reserved{process: p, capacity: c, workers: q.workers, leases: d.leases, reader: reader}
	intervals := pollIntervals{d.config.Hearing, d.config.PollInterval, d.config.DeafPollInterval}
	q.claimer = &claimer{
		process: p, queue: name, db: d.db, source: claims{claimReader: reader, db: pool}, poll: intervals.now,
		limiter:  &limiter{queue: name, pool: pool, claims: claims{claimReader: reader}},
		capacity: c, sched: scheduler.New(concurrency), keyed: q.keyed, workers: q.workers,
		batches: q.batches, reserved: q.reserved, leases: d.leases, promoter: d.promoter, peers: d.peers,
	}
	q.loop = newLoop(q.claimer, d.db, intervals)
	return q
}

// pokeAll makes every queue look for jobs.
func (d *Dispatcher) pokeAll() {
	for _, q := range d.queues {
		q.capacity.poke()
	}
}

// offer gives promoted jobs to the queues of this process, and reports whether others should hear of them.
func (d *Dispatcher) offer(promoted []sqlgen.PromoteKeysRow) (elsewhere bool) {
	here := map[*queue]int{}
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
		// When nobody claims here any more, this sees it, or else the others are notified
		// after the last claim.
		elsewhere = elsewhere || !d.process.phase.isClaiming() || q.capacity.room() < n
		q.capacity.roomMade()
	}
	return elsewhere
}

// showing is the dispatcher's row in the list of workers.
func (d *Dispatcher) showing() sqlgen.ShowWorkerParams {
	row := sqlgen.ShowWorkerParams{Worker: d.process.worker, Kinds: d.process.kinds, Queues: slices.Sorted(maps.Keys(d.config.Queues))}
	for _, name := range row.Queues {
		row.Concurrency = append(row.Concurrency, int32(cmp.Or(d.config.Queues[name].Concurrency, defaultConcurrency)))
	}
	return row
}

// Presence is what a dispatcher is, as the list of workers has it.
type Presence struct {
	Worker  string         // who holds the leases
	Version string         // of the program
	Queues  map[string]int // and how many jobs of each it runs at once
	Kinds   []string       // with a handler
}

// Presence returns what the dispatcher is. It never changes.
func (d *Dispatcher) Presence() Presence {
	row := d.showing()
	p := Presence{Worker: row.Worker, Version: engine.Version(), Queues: map[string]int{}, Kinds: row.Kinds}
	for i, queue := range row.Queues {
		p.Queues[queue] = int(row.Concurrency[i])
	}
	return p
}

// abandonAfter is how long handlers have to return once they were cut off, and
// settlements to go through.
const abandonAfter = 8 * time.Second

// goroutines are those of a dispatcher, by when they end: doc.go has the table.
type goroutines struct {
	claiming, recording, settling, refused, promoting sync.WaitGroup
	waiters, peers                                    sync.WaitGroup
	endAfterJobs                                      context.CancelFunc // of those that end when all jobs are over
}

// work runs every goroutine of the dispatcher and returns when all have ended:
// first the claiming ones, then the workers, then reports, leases and settlement. What has
// not ended some seconds after the grace period is left behind: handlers that
// ignore the end of their context, outcomes that the database does not take.
func (d *Dispatcher) work(ctx context.Context) error {
	g := d.startAll(ctx)
	defer g.endAfterJobs()
	d.process.phase.Store(claiming)
	<-ctx.Done()
	d.process.phase.Store(draining)
	// From here on the grace period runs, for the handlers and for storing what
	// they did.
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
		g.claiming.Go(func() { q.loop.run(ctx) })
		q.workers.start()
	}
	return g
}

// endAll waits for the goroutines in the order in which they end, and ends those that nobody needs any more.
func (d *Dispatcher) endAll(g *goroutines) {
	g.claiming.Wait()
	for _, q := range d.queues {
		q.batches.giveBack()
		q.workers.close()
	}
	// Jobs that this process promoted or was about to start are unknown to the others: notify them.
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

// cutOff ends the grace period: the contexts of handlers that still run end.
func (d *Dispatcher) cutOff() {
	d.process.phase.Store(cutOff)
	if n := d.leases.count(); n > 0 {
		d.process.log.LogAttrs(d.process.handlerContext, slog.LevelWarn, "running jobs cut off: the grace period is over", slog.Int("jobs", n))
	}
	d.leases.cut()
}

// Channel is the NOTIFY channel on which dispatchers hear of jobs: what a listener listens to whose
// signal is Config.Wake. Notifications carry no data: any role may read and forge them.
const Channel = engine.Channel

// Attach introduces the dispatcher to a producer in the same program, for the same database. The
// commit of each transaction that the producer began, and that enqueued, wakes the dispatcher
// before it returns: it learns of its jobs without the way through the database, on which others
// are notified. And where a transaction enqueued one job that can start at once, and the dispatcher
// has nothing else to do in its queue, the commit claims that job for it: the job starts as soon as
// the commit is known. A process that dies right after such a commit leaves a lease to lapse, as one
// that dies after any claim.
//
// A producer has one dispatcher at a time, until detach is called. One with outbox.NotifyOff wakes
// nobody. Package app attaches its dispatcher to the producer that it is given. Attach is safe for
// concurrent use.
func (d *Dispatcher) Attach(p *outbox.Producer) (detach func()) {
	local := engine.Of(p)
	local.SetWake(d.wake)
	local.SetReserve(d.reserve)
	return func() {
		local.SetWake(nil)
		local.SetReserve(nil)
	}
}

// wake makes every queue look for jobs now. It is for the producer in the same
// program, which has just committed one. It never blocks, and may be called at any time.
//
// What comes by Config.Wake may come from anybody, and often for jobs that another
// process has long begun; it is paced when it finds nothing. wake is answered at once,
// as long as it leads to jobs.
func (d *Dispatcher) wake() {
	select {
	case d.own <- struct{}{}:
	default: // one before it is not answered yet
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
				q.loop.pace.own.Store(true)
			}
			q.capacity.poke()
		}
	}
}

// reserve keeps a worker for a job that a producer in the same program is about to
// commit, by itself: the commit then claims it, and it starts when the commit is known,
// without a wake-up and a claim's own way to the disk and back. It returns nil if the job
// is to be claimed like any: while the queue has something in hand, one that was
// reserved for is under way, or the kind is not handled here, or in batches. It never
// blocks; a caller that gets a reservation has to end it.
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

// Outage is a kind whose jobs wait in a queue of this process, because what they need is unavailable ([Unavailable]).
type Outage struct {
	Queue, Kind string
	Since       time.Time
}

// Outages returns those that last now, by queue and kind; none unless Run is at work.
func (d *Dispatcher) Outages() (all []Outage) {
	if !d.process.phase.isClaiming() {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.config.Queues)) {
		for _, kind := range d.process.kinds {
			if since, lasts := d.queues[name].outages.of[kind].Since(); lasts {
				all = append(all, Outage{name, kind, since})
			}
		}
	}
	return all
}
