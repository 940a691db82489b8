package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// producerTx is a transaction that a [Producer] began. It saves round trips: BEGIN
// goes with the first statement, and what [Enqueue] and [Publish] store goes with the next
// statement or with COMMIT. To everybody else that looks like a transaction that
// does each in its turn: whatever could tell the difference sends them first. From
// where statements can come that do not pass through it (a savepoint's, those of the
// connection itself), it keeps nothing back any more: a job that was enqueued
// before ROLLBACK TO SAVEPOINT would be stored after it.
type producerTx struct {
	producer *Producer
	options  pgx.TxOptions
	conn     *pgxpool.Conn // nil once the transaction is over
	raw      *pgx.Conn
	tx       pgx.Tx   // nil until BEGIN was sent
	later    []queued // jobs and events that were not sent yet
	size     int      // of their payloads
	wakes    channels
	jobs     int  // how often something stored jobs, sent or not
	direct   bool // nothing is kept back any more

	// aborted is the error after which Postgres would refuse everything but
	// ROLLBACK, of a statement that it refused before it had seen BEGIN.
	aborted error
}

// queued is a job or an event on its way.
type queued struct {
	verb, name string // "enqueue" and its kind, "publish" and its topic
	sql        string
	args       []any

	plain *sqlgen.EnqueueJobParams // the job, if it can start at once, by any worker; nil otherwise
	own   engine.Reservation       // the worker that it is claimed for in the same statement; nil: none
}

// What is kept back at most. A thousand jobs one by one thereby cost ten round trips.
const (
	maxLater      = 100
	maxLaterBytes = 1 << 20
	sendTimeout   = 10 * time.Second
)

var errAborted = &pgconn.PgError{
	Severity: "ERROR", Code: "25P02",
	Message: "current transaction is aborted, commands ignored until end of transaction block",
}

// plainColumns are those that outbox.enqueue_claimed stores: a job that sets another is not claimed by its own INSERT.
const plainColumns = engine.QueueColumn | engine.PriorityColumn | engine.MaxAttemptsColumn | engine.TimeoutColumn | engine.BackoffColumn |
	engine.ContentTypeColumn | engine.HeadersColumn | engine.WatchedColumn

// defers returns a DB that keeps the INSERT of a job back.
func (t *producerTx) defers(job *sqlgen.EnqueueJobParams) DB {
	q := queued{verb: "enqueue", name: job.Kind}
	if engine.ColumnsOf(job)&^plainColumns == 0 {
		q.plain = job
	}
	return &deferral{t, q, len(job.Payload)}
}

// defersEvent is defers for an event.
func (t *producerTx) defersEvent(event *eventRow) DB {
	return &deferral{t, queued{verb: "publish", name: event.Topic}, len(event.Payload)}
}

// deferral is a producerTx whose Exec is sent later.
type deferral struct {
	*producerTx
	queued queued
	size   int
}

func (d *deferral) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	t := d.producerTx
	if t.direct {
		return t.Exec(ctx, sql, args...)
	}
	if err := errors.Join(ctx.Err(), t.usable()); err != nil {
		return tag, err
	}
	if len(t.later) == maxLater || t.size+d.size > maxLaterBytes {
		if err := t.send(ctx); err != nil {
			return tag, err
		}
	}
	d.queued.sql, d.queued.args = sql, args
	t.later = append(t.later, d.queued)
	t.size += d.size
	return tag, nil
}

func (t *producerTx) usable() error {
	switch {
	case t.conn == nil:
		return pgx.ErrTxClosed
	case t.aborted != nil:
		return errAborted
	}
	return nil
}

// ahead is a batch of what has to be sent before anything else: BEGIN, if it was
// not, and what was kept back.
func (t *producerTx) ahead() (b *pgx.Batch, sent []queued) {
	b, sent = &pgx.Batch{}, t.later
	if t.tx == nil {
		b.BeginTx(t.options)
	}
	for _, q := range sent {
		b.Queue(q.sql, q.args...)
	}
	t.later, t.size = nil, 0
	return b, sent
}

// begin sends the batch, which ahead made, and reads the answers to what ahead put
// into it. What comes after that in the batch is for the caller to read; the
// answers have to be closed with [producerTx.end].
func (t *producerTx) begin(ctx context.Context, b *pgx.Batch, sent []queued) (answers pgx.BatchResults, err error) {
	answers = t.conn.SendBatch(ctx, b)
	if tx := answers.Tx(); tx != nil {
		_, err = answers.Exec()
		t.tx = tx
	}
	for _, q := range sent {
		if err != nil {
			break
		}
		if err = q.read(answers); err != nil {
			err = fmt.Errorf("%s %s: %w", q.verb, q.name, explain(err))
		}
	}
	return answers, err
}

// end closes answers. A batch that failed before BEGIN got to the server has left
// no transaction to fail: it is remembered as failed.
func (t *producerTx) end(answers pgx.BatchResults, err error) error {
	if closed := answers.Close(); err == nil {
		err = closed
	}
	if err != nil && t.conn.Conn().PgConn().TxStatus() == 'I' {
		t.aborted = err
	}
	return err
}

// send sends what has been kept back.
func (t *producerTx) send(ctx context.Context) error {
	if err := t.usable(); err != nil {
		return err
	}
	if t.tx != nil && len(t.later) == 0 {
		return nil
	}
	b, sent := t.ahead()
	answers, err := t.begin(ctx, b, sent)
	return t.end(answers, err)
}

// Exec sends sql together with what has been kept back.
func (t *producerTx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if t.tx != nil && len(t.later) == 0 || !batchable(args) {
		if err := t.send(ctx); err != nil {
			return tag, err
		}
		return t.tx.Exec(ctx, sql, args...)
	}
	if err := t.usable(); err != nil {
		return tag, err
	}
	b, sent := t.ahead()
	b.Queue(sql, args...)
	answers, err := t.begin(ctx, b, sent)
	if err == nil {
		tag, err = answers.Exec()
	}
	return tag, t.end(answers, err)
}

// batchable reports whether a statement can go in a batch: one without arguments
// may be several, and one with options for pgx cannot.
func batchable(args []any) bool {
	if len(args) == 0 {
		return false
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return false
	}
	return true
}

// Query sends what has been kept back first.
func (t *producerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.send(ctx); err != nil {
		return failed{err: err}, err
	}
	return t.tx.Query(ctx, sql, args...)
}

// QueryRow sends sql together with what has been kept back.
func (t *producerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.tx != nil && len(t.later) == 0 || !batchable(args) {
		if err := t.send(ctx); err != nil {
			return failed{err: err}
		}
		return t.tx.QueryRow(ctx, sql, args...)
	}
	if err := t.usable(); err != nil {
		return failed{err: err}
	}
	b, sent := t.ahead()
	b.Queue(sql, args...)
	answers, err := t.begin(ctx, b, sent)
	return &lastRow{t, answers, err}
}

// lastRow is the row of the statement that ends a batch.
type lastRow struct {
	tx      *producerTx
	answers pgx.BatchResults
	err     error
}

func (r *lastRow) Scan(dest ...any) error {
	if r.err == nil {
		r.err = r.answers.QueryRow().Scan(dest...)
	}
	return r.tx.end(r.answers, r.err)
}

// failed is the rows of a statement that was not sent.
type failed struct {
	pgx.Rows
	err error
}

func (f failed) Close()                        {}
func (f failed) Err() error                    { return f.err }
func (f failed) Next() bool                    { return false }
func (f failed) Scan(...any) error             { return f.err }
func (f failed) Values() ([]any, error)        { return nil, f.err }
func (f failed) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

func (t *producerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.send(ctx); err != nil {
		return 0, err
	}
	return t.tx.CopyFrom(ctx, table, columns, rows)
}

func (t *producerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.send(ctx); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return t.tx.SendBatch(ctx, b)
}

func (t *producerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.send(ctx); err != nil {
		return nil, err
	}
	return t.tx.Prepare(ctx, name, sql)
}

// LargeObjects are those of the transaction, with BEGIN sent. If that fails, or the transaction is over, each of their
// calls fails.
func (t *producerTx) LargeObjects() pgx.LargeObjects {
	t.direct = true
	t.sendNow()
	if t.tx == nil || t.usable() != nil {
		unsent := &pgx.Batch{}
		unsent.BeginTx(t.options)
		return pgx.FailedBatchResults(unsent, pgx.ErrTxClosed).Tx().LargeObjects() // of a transaction that is over
	}
	return t.tx.LargeObjects()
}

// Conn is the connection, with the transaction begun. If that fails, the
// connection is closed: what is sent on it must not commit by itself.
func (t *producerTx) Conn() *pgx.Conn {
	t.direct = true
	t.sendNow()
	return t.raw
}

// sendNow is send for methods without a context and an error.
func (t *producerTx) sendNow() {
	if t.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	if err := t.send(ctx); err != nil && t.raw.PgConn().TxStatus() == 'I' {
		_ = t.raw.Close(ctx)
	}
}

// Begin makes a savepoint. What is enqueued through it, or through t from now on, is not
// kept back.
func (t *producerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	t.direct = true
	if err := t.send(ctx); err != nil {
		return nil, err
	}
	tx, err := t.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &savepoint{Tx: tx, of: t}, nil
}

// Commit sends COMMIT together with what has been kept back, and then wakes
// dispatchers if anything was enqueued, and relays if anything was published.
func (t *producerTx) Commit(ctx context.Context) error {
	if t.conn == nil {
		return pgx.ErrTxClosed
	}
	defer t.release()
	if t.aborted != nil {
		return pgx.ErrTxCommitRollback
	}
	own := t.reserve()
	err := t.commit(ctx)
	started := false
	switch {
	case own == nil:
	case err == nil:
		started = own.Committed()
	default:
		own.Failed(mayHaveCommitted(err))
	}
	wakes := t.wakes
	if started {
		wakes &^= jobsChannel
	}
	if wakes != 0 {
		t.producer.committed(wakes, err)
	}
	return err
}

func (t *producerTx) commit(ctx context.Context) error {
	switch {
	case len(t.later) == 0 && t.tx == nil:
		return ctx.Err() // nothing was done
	case len(t.later) == 0:
		return t.tx.Commit(ctx)
	case t.tx == nil && t.options == pgx.TxOptions{}:
		return t.commitAlone(ctx)
	}
	b, sent := t.ahead()
	b.Queue(cmp.Or(t.options.CommitQuery, "commit"))
	answers, err := t.begin(ctx, b, sent)
	if err == nil {
		var tag pgconn.CommandTag
		if tag, err = answers.Exec(); err == nil && tag.String() == "ROLLBACK" {
			err = pgx.ErrTxCommitRollback
		}
	}
	if err = t.end(answers, err); err != nil && t.tx != nil {
		_ = t.tx.Rollback(ctx) // or the connection is closed
	}
	return err
}

// commitAlone commits a transaction without options that has done nothing but enqueue. What is sent
// together is one transaction to Postgres, all of it or nothing: BEGIN and COMMIT would
// say no more. What a deferred trigger refuses is the error of the end.
func (t *producerTx) commitAlone(ctx context.Context) error {
	b := &pgx.Batch{}
	for _, q := range t.later {
		b.Queue(q.sql, q.args...)
	}
	answers, err := t.begin(ctx, b, t.later)
	return t.end(answers, err)
}

func (t *producerTx) Rollback(ctx context.Context) error {
	if t.conn == nil {
		return pgx.ErrTxClosed
	}
	defer t.release()
	if t.tx == nil || t.aborted != nil {
		return nil
	}
	return t.tx.Rollback(ctx)
}

func (t *producerTx) release() {
	t.conn.Release() // which closes the connection if the transaction did not end
	t.conn = nil
}

// savepoint is a transaction within one of a producer.
type savepoint struct {
	pgx.Tx
	of *producerTx
}

func (s *savepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := s.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &savepoint{Tx: tx, of: s.of}, nil
}
