package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// leases tracks every job that this process holds, and extends the leases of those that run long enough to need it. A
// short job costs two map operations and no statement.
type leases struct {
	ttl       time.Duration
	trust     time.Duration // how long after sending a claim or an extension we trust the lease
	db        leaseStatements
	extending extendStatement // on a connection of its own: extensions wait for no claim and no settlement
	health    *health
	late      prometheus.Counter // counts late extensions

	wake chan struct{} // one slot: a job may have been cancelled

	mu   sync.Mutex
	held map[*attempt]struct{}
}

type extendStatement interface {
	ExtendLeases(context.Context, sqlgen.ExtendLeasesParams) ([]sqlgen.ExtendLeasesRow, error)
}

type leaseStatements interface {
	ListCancelRequests(ctx context.Context, ids []pgtype.UUID, epochs []int64) ([]sqlgen.ListCancelRequestsRow, error)
}

// newLeases sets the margin by which we stop a handler before the database lets another worker start. The database
// counts from the write and we count from the sending, so the margin only has to cover the time that a handler takes to
// notice.
func newLeases(p *common, db leaseStatements, extending extendStatement) *leases {
	return &leases{
		ttl: p.leaseTTL, trust: p.leaseTTL - p.leaseTTL/10, db: db, extending: extending, health: p.health,
		late: p.metrics.extensionsLate, wake: make(chan struct{}, 1), held: map[*attempt]struct{}{},
	}
}

func (l *leases) add(attempts []*attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range attempts {
		l.held[a] = struct{}{}
	}
}

func (l *leases) remove(attempts []*attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range attempts {
		delete(l.held, a)
	}
}

// ids returns the id of every held job.
func (l *leases) ids() []pgtype.UUID {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids, _ := keysOf(slices.Collect(maps.Keys(l.held)))
	return ids
}

// cut ends every attempt because of a shutdown.
func (l *leases) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a := range l.held {
		a.end(ErrShutdown)
	}
}

func (l *leases) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

// keep extends leases until ctx ends.
func (l *leases) keep(ctx context.Context) {
	every(ctx, l.ttl/15, func(now time.Time) {
		if err := l.extend(ctx, l.due(now)); err != nil && ctx.Err() == nil {
			l.health.Failed(err)
			l.health.Complain(ctx, "leases not extended", err)
		}
	})
}

// watch stops handlers on time until ctx ends, even while an extension hangs.
func (l *leases) watch(ctx context.Context) { every(ctx, l.ttl/50, l.dropLapsed) }

type leaseKey struct {
	id    pgtype.UUID
	epoch int64
}

// due returns the held jobs that have used a third of their lease.
func (l *leases) due(now time.Time) []*attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	var due []*attempt
	renewBelow := l.trust - l.ttl/3 // remaining trust at which an extension is due
	for a := range l.held {
		if a.needsExtension(now, renewBelow) {
			due = append(due, a)
		}
	}
	return due
}

// extend extends leases. If the database refuses to change a job's row, as a user's trigger may, only that job's lease
// is not extended.
func (l *leases) extend(ctx context.Context, due []*attempt) error {
	for batch := range slices.Chunk(due, maxBatch) {
		err := pgsession.Apart(batch, func(part []*attempt) error { return l.extendSome(ctx, part) },
			func(a *attempt, err error) {
				l.health.Complain(ctx, "lease not extended: the database refuses it", err,
					slog.String("job_id", a.job.ID.String()))
			})
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *leases) extendSome(ctx context.Context, batch []*attempt) error {
	params := sqlgen.ExtendLeasesParams{LeaseTtl: pgvalue.Interval(l.ttl)}
	params.Ids, params.Epochs = keysOf(batch)
	sent := time.Now()
	bound, cancel := context.WithTimeout(ctx, min(statementTimeout, l.ttl/5)) // several tries before the lease lapses
	rows, err := l.extending.ExtendLeases(bound, params)
	cancel()
	if err != nil {
		return fmt.Errorf("extend %d leases: %w", len(batch), err)
	}
	l.health.OK()
	kept := make(map[leaseKey]bool, len(rows)) // false if lost
	for _, row := range rows {
		kept[leaseKey{row.ID, row.Epoch}] = !row.Lost
	}
	late := 0
	l.mu.Lock()
	for i, a := range batch {
		ours, listed := kept[leaseKey{params.Ids[i], params.Epochs[i]}]
		switch {
		case !listed:
			if a.extended(sent, sent.Add(l.trust)) {
				late++
			}
		case ours:
			// The row is locked, most likely by the handler's own transaction, so the lease was extended in
			// outbox.lease_extensions. If the extension was late, a reaper may have locked the row and may be taking
			// the job right now: look again with the next tick.
			if a.extended(sent, sent.Add(l.trust)) {
				a.extended(sent, sent.Add(l.ttl/3))
			}
		case engine.InternalOf(a.job).Completed.Load():
			// The handler's own transaction has most likely deleted the row. If it did not commit, the fence decides:
			// nothing more is stored of this attempt.
			a.extended(sent, sent.Add(l.trust))
		default:
			a.end(outbox.ErrLeaseLost)
		}
	}
	l.mu.Unlock()
	l.late.Add(float64(late))
	return nil
}

// dropLapsed stops handlers whose lease we could not extend in time, before the database lets another worker start. The
// fence decides about their outcome: it is still stored if no worker has taken the job meanwhile.
func (l *leases) dropLapsed(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a := range l.held {
		if a.lapsed(now) {
			a.end(outbox.ErrLeaseLost)
		}
	}
}

// A handler learns that its job was cancelled within some tenths of a second if a notification arrives (cancelTick +
// cancelSpacing), and otherwise within a second of the request and of its own start: cancelTick + noticeWithin after
// its first cancelTick. While all handlers start and return within cancelAfter, no query runs, whatever notifications
// arrive. A job that waits in this process counts like one that runs: if it is cancelled after it has waited for about
// a second, it does not start.
const (
	cancelTick    = 100 * time.Millisecond
	cancelSpacing = 2 * cancelTick // between queries when a notification arrived, however many do
	cancelAfter   = 4 * cancelTick // no query runs unless some handler has run this long
)

// watchCancellations ends the contexts of handlers whose jobs were cancelled, until ctx ends. It looks only while some
// handler has been running for a while. Nothing depends on it: a missed request is found when the attempt is settled,
// or when its lease lapses.
func (l *leases) watchCancellations(ctx context.Context) {
	var looked time.Time
	spacing := noticeWithin
	every(ctx, cancelTick, func(now time.Time) {
		select {
		case <-l.wake:
			spacing = cancelSpacing
		default:
		}
		if now.Sub(looked) < spacing {
			return
		}
		spacing = noticeWithin
		running := l.longRunning(now)
		if len(running) == 0 {
			return
		}
		looked = now
		if err := l.endCancelled(ctx, running); err != nil && ctx.Err() == nil {
			l.health.Failed(err)
			l.health.Complain(ctx, "cancelled jobs not looked for", err)
		}
	})
}

// poke makes watchCancellations look soon; it never blocks.
func (l *leases) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// longRunning returns the attempts to ask about: none until some handler has been running long enough.
func (l *leases) longRunning(now time.Time) []*attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	var running []*attempt
	long := false
	for a := range l.held {
		if age := a.age(now, cancelAfter); age >= cancelTick {
			running = append(running, a)
			long = long || age >= cancelAfter
		}
	}
	if !long {
		return nil
	}
	return running
}

func (l *leases) endCancelled(ctx context.Context, running []*attempt) error {
	bound, cancel := bounded(ctx)
	defer cancel()
	ids, epochs := keysOf(running)
	byKey := make(map[leaseKey]*attempt, len(running))
	for i, a := range running {
		byKey[leaseKey{ids[i], epochs[i]}] = a
	}
	asked, err := l.db.ListCancelRequests(bound, ids, epochs)
	if err != nil {
		return fmt.Errorf("look for cancelled jobs among %d: %w", len(running), err)
	}
	for _, row := range asked {
		byKey[leaseKey{row.ID, row.Epoch}].end(ErrCancelled)
	}
	return nil
}
