package outbox

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// Producer commits transactions that enqueue jobs and then wakes the dispatchers:
// once for many commits, outside of them, so that producers never wait for one
// another. It is safe for concurrent use. Make one for the process.
type Producer struct {
	pool *pgxpool.Pool
	mode NotifyMode
	wake *coalescer
	near atomic.Pointer[func() bool] // wakes the dispatcher of this process, if there is one
	own  atomic.Pointer[Claimer]     // that dispatcher
}

// NewProducer makes a producer; mode "" is [NotifyCoalesced]. It panics if there is
// no such mode; [ParseNotifyMode] checks one that comes from outside.
func NewProducer(pool *pgxpool.Pool, mode NotifyMode) *Producer {
	mode, err := ParseNotifyMode(string(mode))
	if err != nil {
		panic("outbox.NewProducer: " + err.Error())
	}
	return &Producer{pool: pool, mode: mode, wake: newCoalescer(pool)}
}

// InTx runs fn in a transaction and commits it if fn returns nil; otherwise it
// rolls back and returns fn's error. Jobs enqueued through the transaction wake
// dispatchers after the commit.
func (p *Producer) InTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, p, fn)
}

// Begin starts a transaction like a pool does. Its Commit wakes dispatchers if
// jobs were enqueued through it.
//
// It saves round trips: BEGIN goes with the first statement, and what Enqueue
// stores, unless it has an idempotency key, with the next statement or with
// COMMIT. A refusal of the database to store a job is then the error of that
// statement, or of Commit.
func (p *Producer) Begin(ctx context.Context) (pgx.Tx, error) {
	return p.BeginTx(ctx, pgx.TxOptions{})
}

// BeginTx is Begin for a transaction of another kind than the role or the database has as
// its default.
func (p *Producer) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &producerTx{producer: p, options: opts, conn: conn, raw: conn.Conn()}, nil
}

// Enqueue is like the function [Enqueue] with the producer's notify mode: in a
// transaction that the producer did not begin, coalesced means transactional.
func (p *Producer) Enqueue(ctx context.Context, db DB, args Args, opts Options) (ID, error) {
	return enqueue(ctx, db, args, opts, p.mode != NotifyOff && notifiesAtCommit(db))
}

// Submit is like the function [Submit] with the producer's notify mode.
func (p *Producer) Submit(ctx context.Context, db DB, args Args, opts Options) (Submitted, error) {
	return submit(ctx, db, args, opts, p.mode != NotifyOff && notifiesAtCommit(db))
}

// EnqueueMany is like the function [EnqueueMany] with the producer's notify mode.
func (p *Producer) EnqueueMany(ctx context.Context, db DB, requests []Request) ([]ID, error) {
	return enqueueMany(ctx, db, requests, p.mode != NotifyOff && notifiesAtCommit(db))
}

// AlsoWake has the commit of every transaction that the producer began, and that
// enqueued, call wake before it returns: a dispatcher in the same process learns
// of its jobs without the way through the database, on which the others are told.
// Wake must not block; a dispatcher's Wake is meant. The app package
// calls AlsoWake for the producer that it is given. A producer has one wake at a
// time; nil takes it away. With [NotifyOff] nobody is woken.
func (p *Producer) AlsoWake(wake func() bool) {
	if wake == nil {
		p.near.Store(nil)
		return
	}
	p.near.Store(&wake)
}

// Claimer starts jobs of the program that stores them: a dispatcher.
type Claimer interface {
	// Reserve keeps a worker for a job that is about to be committed. It returns nil if
	// the job is to be claimed like any. It must not block, and is safe for concurrent use.
	Reserve(kind, queue string, id ID) Reservation
}

// Reservation is a worker that waits for a job. Lease and Read are called in turn, at
// most once each, and then either Committed or Failed.
type Reservation interface {
	Lease() (worker string, ttl time.Duration) // what the statement that stores the job claims it with
	Read(answer pgx.Rows)                      // of that statement: the job as it was claimed, or nothing
	Committed() (started bool)                 // the transaction is
	Failed(mayHaveCommitted bool)              // the transaction has, or there was no answer
}

// AlsoClaim has transactions that the producer began claim their job for a dispatcher in
// the same process, of the same database, if it is one job that can start at once and the
// dispatcher has nothing else to do in its queue. The job then starts as soon as the
// commit is known: one round trip and one wait for the disk where there were two, and
// nobody else is woken. It takes what an attempt after any claim takes: a process that dies
// right after the commit leaves a lease to lapse. All other jobs are claimed after their
// commits, for which AlsoWake is. The app package calls both for the producer that it is
// given. A producer has one claimer at a time; nil takes it away. With [NotifyOff] nothing
// is claimed.
func (p *Producer) AlsoClaim(own Claimer) {
	if own == nil {
		p.own.Store(nil)
		return
	}
	p.own.Store(&own)
}

// Flush waits until the wake-ups for all commits before it have been sent; one that
// fails for 5 seconds is given up. It returns an error only when ctx ends first.
// Call it before the process exits; without it a wake-up may be lost, and the poll
// covers that.
func (p *Producer) Flush(ctx context.Context) error { return p.wake.flush(ctx) }

// committed wakes dispatchers after a commit that returned err.
func (p *Producer) committed(err error) {
	if !mayHaveCommitted(err) {
		return
	}
	if wake := p.near.Load(); wake != nil {
		(*wake)()
	}
	if p.mode == NotifyCoalesced {
		p.wake.wake()
	}
}

// mayHaveCommitted reports whether a commit that returned err counts, or might:
// the connection may break before the answer, and a needless wake-up does no harm.
func mayHaveCommitted(err error) bool {
	return !pgsession.Refused(err) && !errors.Is(err, pgx.ErrTxCommitRollback) && !errors.Is(err, pgx.ErrTxClosed)
}

// notifiesAtCommit reports whether an enqueue through db has to carry its own
// NOTIFY, and tells a producer's transaction that it has something to wake for.
func notifiesAtCommit(db DB) bool {
	var tx *producerTx
	switch db := db.(type) {
	case *producerTx:
		tx = db
	case *savepoint:
		tx = db.of
	default:
		return true
	}
	tx.enqueued = tx.enqueued || tx.producer.mode != NotifyOff
	return tx.producer.mode == NotifyTransactional
}
