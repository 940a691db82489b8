package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// A DB stores jobs: a pgx.Tx, *pgx.Conn or *pgxpool.Pool, or a database/sql transaction by [FromSQL]. Only a
// transaction ties the job to your business change.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Enqueue stores a job through db and returns its id. Pass the [pgx.Tx] that makes your business change: the job then
// exists exactly when the change does, and dispatchers wake when it commits.
//
// If a job of the same tenant and kind has already used the idempotency key, Enqueue changes nothing and returns that
// first job's id. It waits for a concurrent transaction that is using the key.
//
// With Key.MaxQueued, Enqueue works like [Submit]: it returns the id of the job that stands for the request, or a
// [*QueueFullError] if there is none.
//
// A request that is not acceptable gets [*InvalidError]s, joined, before anything is sent.
//
// In a transaction that a [Producer] began, a job without an idempotency key and without Key.MaxQueued is sent with the
// next statement or with COMMIT. If the database refuses it, that call returns the error, which begins with
// "enqueue KIND:".
func Enqueue(ctx context.Context, db DB, args Args, opts Options) (ID, error) {
	return enqueue(ctx, db, args, opts, notifiesAtCommit(db, jobsChannel))
}

func enqueue(ctx context.Context, db DB, args Args, opts Options, notify bool) (ID, error) {
	opts.fillFrom(args)
	done, err := submit(ctx, db, args, &opts, notify)
	if err == nil && done.ID.IsZero() {
		err = fmt.Errorf("enqueue %s: %w", args.Kind(), &QueueFullError{
			Queue: queueOf(&opts), Key: opts.Key.Name, Queued: done.Queued, MaxQueued: opts.Key.MaxQueued,
		})
	}
	return done.ID, err
}

// storeJob stores a job, with Key.MaxQueued only if there is room for it.
func storeJob(ctx context.Context, db DB, args Args, opts *Options, notify bool) (Submitted, error) {
	job, err := newRow(ctx, args, opts)
	if err != nil {
		return Submitted{}, err
	}
	job.Notify = notify
	if opts.Key.MaxQueued != 0 {
		return storeIfRoom(ctx, db, job, opts)
	}
	if tx, ok := db.(*producerTx); ok && opts.IdempotencyKey == "" {
		db = tx.deferJob(&job, args)
	}
	id, err := storeRow(ctx, sqlgen.New(db), job, opts.IdempotencyKey)
	if err != nil {
		return Submitted{}, fmt.Errorf("enqueue %s: %w", job.Kind, explain(err))
	}
	return Submitted{Stored: id == ID(job.ID.Bytes), ID: id}, nil
}

// storeRow stores the job and returns its id, or that of the first job with the idempotency key.
func storeRow(ctx context.Context, q *sqlgen.Queries, job row, idempotencyKey string) (ID, error) {
	if idempotencyKey == "" {
		return ID(job.ID.Bytes), q.EnqueueJob(ctx, job)
	}
	once := job.Once(idempotencyKey)
	// The first job may be trimmed between the two statements; then the key is free again.
	for range 3 {
		stored, err := q.EnqueueJobOnce(ctx, once)
		if err != nil {
			return ID{}, err
		}
		if len(stored) == 1 {
			return ID(job.ID.Bytes), nil
		}
		first, err := q.FindIdempotencyKey(ctx, sqlgen.FindIdempotencyKeyParams{
			TenantID: job.TenantID, Kind: job.Kind, IdempotencyKey: idempotencyKey,
		})
		if err != nil {
			return ID{}, err
		}
		if len(first) == 1 {
			return ID(first[0].Bytes), nil
		}
	}
	return ID{}, fmt.Errorf("idempotency key %q is held by a job that this transaction cannot see", idempotencyKey)
}

// newRow validates a request and returns the row to store for it, under a new id.
func newRow(ctx context.Context, args Args, opts *Options) (row, error) {
	var made row
	err := makeRow(ctx, &made, NewID, args, opts)
	return made, err
}

// makeRow makes the row that newRow returns, in existing memory, because rows are large. On an error it leaves *into
// unchanged.
func makeRow(ctx context.Context, into *row, newID func() ID, args Args, opts *Options) error {
	if args == nil {
		return invalid("Args", "is nil")
	}
	kind := args.Kind()
	plain, headers, err := accept(kind, args, opts)
	if err != nil {
		with := ""
		if _, ok := args.(Defaulter); ok {
			with = " with its DefaultOptions"
		}
		return fmt.Errorf("enqueue %q%s: %w", kind, with, err)
	}
	id, tenant := newID(), opts.Tenant
	if tenant.IsZero() {
		tenant = RootTenant
	}
	content, err := seal(ctx, opts.Protect, Part{tenant, id, "payload"}, plain, ofJob)
	if err != nil {
		return fmt.Errorf("enqueue %q: %w", kind, err)
	}

	*into = row{
		ID:          pgvalue.UUID(id),
		TenantID:    pgvalue.UUID(tenant),
		Queue:       opts.Queue,
		Kind:        kind,
		Priority:    int16(opts.Priority),
		MaxAttempts: int32(opts.MaxAttempts),
		RunAt:       pgtype.Timestamptz{Time: opts.RunAt, Valid: !opts.RunAt.IsZero()},
		Delay:       pgvalue.IntervalOrNull(opts.Delay),
		Timeout:     pgvalue.IntervalOrNull(opts.Timeout),
		Backoff:     opts.Backoff.text(),
		Payload:     content.Bytes,
		ContentType: content.Type,
		Headers:     headers,
		Deadline:    pgtype.Timestamptz{Time: opts.Deadline, Valid: !opts.Deadline.IsZero()},
		Hold:        opts.Hold,
		Watched:     bool(*engine.InternalOf(opts)),
		Streamed:    opts.Streamed,
	}
	opts.Key.into(into)
	if into.Queue == "" {
		into.Queue = engine.DefaultQueue
	}
	if into.MaxAttempts == 0 {
		into.MaxAttempts = engine.DefaultMaxAttempts
	}
	return nil
}

// accept returns the payload and headers to store for a request, or every mistake in it.
func accept(kind string, args Args, opts *Options) (payload Content, headers *string, err error) {
	errs := opts.validate()
	if fault := engine.KindFault(kind); fault != "" {
		errs = append(errs, invalid("Args.Kind()", "%s", fault))
	}
	payload.Bytes, payload.Type, err = encode(args, ofJob)
	if err == nil && opts.Check != nil {
		err = opts.Check.Check(kind, payload)
	}
	if err != nil {
		errs = append(errs, err)
	}
	headers, err = headersJSON("Options.Headers", engine.Caller(opts.Caller).AddTo(opts.Headers))
	if err != nil {
		errs = append(errs, err)
	}
	return payload, headers, errors.Join(errs...)
}
