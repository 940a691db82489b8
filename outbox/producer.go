package outbox

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// A Producer commits transactions that enqueue jobs or publish events, and then wakes the dispatchers and relays: once
// for many commits and outside of them, so that producers never wait for one another. It is safe for concurrent use.
// Make one per process.
//
// [Submit] and [PublishMany] follow the producer's notify mode, too, in a transaction that it has begun. Through
// anything else they notify at the commit, whatever the mode.
type Producer struct {
	pool *pgxpool.Pool
	mode NotifyMode
	wake *coalescer

	local
}

// local is the dispatcher of this process, if there is one; see dispatcher.Dispatcher.Attach.
type local = engine.Internal[engine.Local]

// NewProducer returns a producer; mode "" means [NotifyCoalesced]. It panics on an unknown mode, so that a program with
// a wrong setting ends when it starts.
func NewProducer(pool *pgxpool.Pool, mode NotifyMode) *Producer {
	mode, err := mode.orDefault()
	if err != nil {
		panic("outbox.NewProducer: " + err.Error())
	}
	return &Producer{pool: pool, mode: mode, wake: newCoalescer(pool)}
}

// InTx runs fn in a transaction and commits it if fn returns nil; otherwise it rolls back and returns fn's error. Jobs
// enqueued through the transaction wake dispatchers after the commit, and events published through it wake relays.
func (p *Producer) InTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, p, fn)
}

// Begin starts a transaction as a pool does. Its Commit wakes dispatchers if jobs were enqueued through it, and relays
// if events were published.
//
// The transaction saves round trips: BEGIN goes with the first statement. Enqueue and Publish send with the next
// statement or with COMMIT, unless the job has an idempotency key or Key.MaxQueued, or the event is Serial. If the
// database refuses to store the job or event, that statement or Commit returns the error.
func (p *Producer) Begin(ctx context.Context) (pgx.Tx, error) {
	return p.BeginTx(ctx, pgx.TxOptions{})
}

// BeginTx starts a transaction as Begin does, with transaction options that differ from the defaults of the role or the
// database.
func (p *Producer) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &producerTx{producer: p, options: opts, conn: conn, raw: conn.Conn()}, nil
}

// Enqueue stores a job as the function [Enqueue] does, with the producer's notify mode. In a transaction that the
// producer did not begin, coalesced means transactional.
func (p *Producer) Enqueue(ctx context.Context, db DB, args Args, opts Options) (ID, error) {
	return enqueue(ctx, db, args, opts, p.mode != NotifyOff && notifiesAtCommit(db, jobsChannel))
}

// EnqueueMany stores jobs as the function [EnqueueMany] does, with the producer's notify mode.
func (p *Producer) EnqueueMany(ctx context.Context, db DB, requests []Request) ([]ID, error) {
	return enqueueMany(ctx, db, requests, p.mode != NotifyOff && notifiesAtCommit(db, jobsChannel))
}

// Publish stores an event as the function [Publish] does, with the producer's notify mode. In a transaction that the
// producer did not begin, coalesced means transactional.
func (p *Producer) Publish(ctx context.Context, db DB, event Event, opts EventOptions) (ID, error) {
	return publish(ctx, db, event, opts, p.mode != NotifyOff && notifiesAtCommit(db, eventsChannel))
}

// Flush waits until the wake-ups for all earlier commits have been sent; it gives up on one that fails for 5 seconds.
// It returns an error only if ctx ends first. Call it before the process exits and before the pool is closed, with a
// context that the end of the process has not cancelled. Without Flush a wake-up may be lost; dispatchers and relays
// then find the work by polling.
func (p *Producer) Flush(ctx context.Context) error { return p.wake.flush(ctx) }

// committed wakes the listeners of the channels after a commit that returned err, unless it certainly failed. A
// needless wake-up does no harm.
func (p *Producer) committed(wakes channels, err error) {
	if err != nil && pgsession.ChangedNothing(err) {
		return
	}
	if wakes&jobsChannel != 0 {
		engine.InternalOf(&p.local).Wake()
	}
	if p.mode == NotifyCoalesced {
		p.wake.wake(wakes)
	}
}

// notifiesAtCommit reports whether a statement through db must send its own NOTIFY. If db is a producer's transaction,
// it records the channels to wake after the commit instead.
func notifiesAtCommit(db DB, whom channels) bool {
	var tx *producerTx
	switch db := db.(type) {
	case *producerTx:
		tx = db
	case *savepoint:
		tx = db.of
	default:
		return true
	}
	if whom&jobsChannel != 0 {
		tx.jobs++
	}
	if tx.producer.mode != NotifyOff {
		tx.wakes |= whom
	}
	return tx.producer.mode == NotifyTransactional
}
