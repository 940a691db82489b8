package outbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// producerTx is a transaction that a [Producer] began. It saves round trips: BEGIN goes with the first statement, and
// the INSERTs of [Enqueue] and [Publish] go with the next statement or with COMMIT. To everybody else it looks like a
// transaction that sends each of them in turn, because any call that could tell the difference sends the deferred
// statements first. Once statements can reach the connection without passing through it (those of a savepoint or of the
// connection itself), it defers nothing any more: a job enqueued before ROLLBACK TO SAVEPOINT would be stored after it.
type producerTx struct {
	producer *Producer
	options  pgx.TxOptions
	conn     *pgxpool.Conn // nil once the transaction is over
	raw      *pgx.Conn
	tx       pgx.Tx   // nil until BEGIN is sent
	deferred []queued // jobs and events not yet sent
	size     int      // of their payloads
	wakes    channels
	jobs     int // how many times jobs were stored, sent or not
	// deferOff is set by Begin, Conn and LargeObjects: statements may bypass this type, so nothing is deferred.
	deferOff bool

	// aborted is set when a batch failed and Postgres does not know: the error after which a transaction accepts only
	// ROLLBACK.
	aborted error
}

// queued is the deferred statement of a job or an event.
type queued struct {
	verb, name string // "enqueue" and the kind, or "publish" and the topic
	sql        string
	args       []any
	size       int // of the payload

	plain *sqlgen.EnqueueJobParams // the job, if any worker can start it at once; nil otherwise
	own   engine.Reservation       // the worker for which the same statement claims it; nil if none
}

// These limit what is deferred. A thousand jobs enqueued one by one thereby cost ten round trips.
const (
	maxDeferred      = 100
	maxDeferredBytes = 1 << 20
	flushTimeout     = 10 * time.Second
)

var errAborted = &pgconn.PgError{
	Severity: "ERROR", Code: "25P02",
	Message: "current transaction is aborted, commands ignored until end of transaction block",
}

// plainColumns are the columns that outbox.enqueue_claimed stores: a job that sets any other is not claimed by its own
// INSERT.
const plainColumns = engine.QueueColumn | engine.PriorityColumn | engine.MaxAttemptsColumn | engine.TimeoutColumn | engine.BackoffColumn |
	engine.ContentTypeColumn | engine.HeadersColumn | engine.WatchedColumn

// deferJob returns a DB that defers the INSERT of a job, which was made from args.
func (t *producerTx) deferJob(job *sqlgen.EnqueueJobParams, args Args) DB {
	job.Payload = keep(job.Payload, args)
	q := queued{verb: "enqueue", name: job.Kind, size: len(job.Payload)}
	// Its only attempt could be over before the COMMIT is, which has no limit of time.
	if engine.ColumnsOf(job)&^plainColumns == 0 && job.MaxAttempts != 1 {
		q.plain = job
	}
	return &deferral{t, q}
}

// deferEvent returns a DB that defers the INSERT of an event, as deferJob's does that of a job.
func (t *producerTx) deferEvent(row *eventRow, event Event) DB {
	row.Payload = keep(row.Payload, event)
	return &deferral{t, queued{verb: "publish", name: row.Topic, size: len(row.Payload)}}
}

// keep returns the payload of a value for a statement that is sent later: the bytes of a [Raw] belong to the caller,
// who may write something else to them meanwhile.
func keep(payload []byte, of any) []byte {
	switch of.(type) {
	case Raw, *Raw:
		return bytes.Clone(payload)
	}
	return payload
}

// deferral is a producerTx with an Exec that defers its statement.
type deferral struct {
	*producerTx
	queued queued
}

func (d *deferral) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	t := d.producerTx
	if t.deferOff {
		return t.Exec(ctx, sql, args...)
	}
	if err := errors.Join(ctx.Err(), t.usable()); err != nil {
		return tag, err
	}
	if len(t.deferred) == maxDeferred || t.size+d.queued.size > maxDeferredBytes {
		if err := t.flush(ctx); err != nil {
			return tag, err
		}
	}
	d.queued.sql, d.queued.args = sql, args
	t.deferred = append(t.deferred, d.queued)
	t.size += d.queued.size
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

// takeDeferred returns a batch of the statements that must precede all others: BEGIN, if it is not yet sent, and the
// deferred ones.
func (t *producerTx) takeDeferred() (b *pgx.Batch, sent []queued) {
	b, sent = &pgx.Batch{}, t.deferred
	if t.tx == nil {
		b.BeginTx(t.options)
	}
	for _, q := range sent {
		b.Queue(q.sql, q.args...)
	}
	t.deferred, t.size = nil, 0
	return b, sent
}

// sendBatch sends the batch that takeDeferred made and reads the answers to takeDeferred's statements. The caller reads
// the answers to what follows them in the batch, and closes the answers with [producerTx.closeBatch].
func (t *producerTx) sendBatch(ctx context.Context, b *pgx.Batch, sent []queued) (answers pgx.BatchResults, err error) {
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
	if err != nil {
		t.notStored(answers, sent, err)
	}
	return answers, err
}

// notStored handles the failure of BEGIN or of a deferred statement, after which the caller may go on and commit. If
// Postgres has seen it, it refuses the commit. Otherwise the statements are deferred again if none was sent, as when
// ctx had ended before or rows are open; if that is not certain, notStored records the failure.
func (t *producerTx) notStored(answers pgx.BatchResults, sent []queued, err error) {
	_ = answers.Close() // before this, the status is that of the previous statement
	switch {
	case t.raw.PgConn().TxStatus() != 'T':
	case pgconn.SafeToRetry(err):
		t.deferred = sent
		for _, q := range sent {
			t.size += q.size
		}
	default:
		t.aborted = err
	}
}

// closeBatch closes answers. If the batch failed before BEGIN reached the server, there is no transaction to abort, so
// closeBatch records the failure itself.
func (t *producerTx) closeBatch(answers pgx.BatchResults, err error) error {
	if closed := answers.Close(); err == nil {
		err = closed
	}
	if err != nil && t.conn.Conn().PgConn().TxStatus() == 'I' {
		t.aborted = err
	}
	return err
}

// flush sends the deferred statements.
func (t *producerTx) flush(ctx context.Context) error {
	if err := t.usable(); err != nil {
		return err
	}
	if t.tx != nil && len(t.deferred) == 0 {
		return nil
	}
	b, sent := t.takeDeferred()
	answers, err := t.sendBatch(ctx, b, sent)
	return t.closeBatch(answers, err)
}

// Exec sends sql together with the deferred statements.
func (t *producerTx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if t.tx != nil && len(t.deferred) == 0 || !batchable(args) {
		if err := t.flush(ctx); err != nil {
			return tag, err
		}
		return t.tx.Exec(ctx, sql, args...)
	}
	if err := t.usable(); err != nil {
		return tag, err
	}
	b, sent := t.takeDeferred()
	b.Queue(sql, args...)
	answers, err := t.sendBatch(ctx, b, sent)
	if err == nil {
		tag, err = answers.Exec()
	}
	return tag, t.closeBatch(answers, err)
}

// batchable reports whether a statement can go in a batch: without arguments, sql may contain several statements, and
// pgx options among the arguments do not work in a batch.
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

// Query sends the deferred statements first.
func (t *producerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.flush(ctx); err != nil {
		return failed{err: err}, err
	}
	return t.tx.Query(ctx, sql, args...)
}

// QueryRow sends sql together with the deferred statements.
func (t *producerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.tx != nil && len(t.deferred) == 0 || !batchable(args) {
		if err := t.flush(ctx); err != nil {
			return failed{err: err}
		}
		return t.tx.QueryRow(ctx, sql, args...)
	}
	if err := t.usable(); err != nil {
		return failed{err: err}
	}
	b, sent := t.takeDeferred()
	b.Queue(sql, args...)
	answers, err := t.sendBatch(ctx, b, sent)
	return &lastRow{t, answers, err}
}

// lastRow is the row of the last statement of a batch.
type lastRow struct {
	tx      *producerTx
	answers pgx.BatchResults
	err     error
}

func (r *lastRow) Scan(dest ...any) error {
	if r.err == nil {
		r.err = r.answers.QueryRow().Scan(dest...)
	}
	return r.tx.closeBatch(r.answers, r.err)
}

// failed is the result of a statement that was not sent.
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

func (t *producerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
	rows pgx.CopyFromSource,
) (int64, error) {
	if err := t.flush(ctx); err != nil {
		return 0, err
	}
	return t.tx.CopyFrom(ctx, table, columns, rows)
}

func (t *producerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.flush(ctx); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return t.tx.SendBatch(ctx, b)
}

func (t *producerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	return t.tx.Prepare(ctx, name, sql)
}

// LargeObjects returns the large objects of the transaction, with BEGIN sent. If that fails, or the transaction is
// over, each of their calls fails.
func (t *producerTx) LargeObjects() pgx.LargeObjects {
	t.deferOff = true
	t.flushNow()
	if t.tx == nil || t.usable() != nil {
		unsent := &pgx.Batch{}
		unsent.BeginTx(t.options)
		return pgx.FailedBatchResults(unsent, pgx.ErrTxClosed).Tx().LargeObjects() // of a transaction that is over
	}
	return t.tx.LargeObjects()
}

// Conn returns the connection, with the transaction begun. If it cannot begin, Conn closes the connection, because
// statements sent on it must not commit on their own.
func (t *producerTx) Conn() *pgx.Conn {
	t.deferOff = true
	t.flushNow()
	return t.raw
}

// flushNow sends the deferred statements as flush does, for methods without a context and an error.
func (t *producerTx) flushNow() {
	if t.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	err := t.flush(ctx)
	switch {
	case err == nil:
	case t.raw.PgConn().TxStatus() == 'I':
		_ = t.raw.Close(ctx)
	default: // statements of the connection must not come before those that are still deferred
		t.aborted = cmp.Or(t.aborted, err)
	}
}

// Begin makes a savepoint. From then on, statements through it or through t are no longer deferred.
func (t *producerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	t.deferOff = true
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	tx, err := t.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &savepoint{Tx: tx, of: t}, nil
}

// Commit sends COMMIT together with the deferred statements, and then wakes dispatchers if a job was enqueued, and
// relays if an event was published.
func (t *producerTx) Commit(ctx context.Context) error {
	if t.conn == nil {
		return pgx.ErrTxClosed
	}
	defer t.release()
	if t.aborted != nil {
		_ = t.tx.Rollback(ctx)
		return fmt.Errorf("%w: %w", pgx.ErrTxCommitRollback, t.aborted)
	}
	own := t.reserve()
	err := t.commit(ctx)
	started := false
	switch {
	case own == nil:
	case err == nil:
		started = own.Committed()
	default:
		own.Failed(!pgsession.ChangedNothing(err))
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
	case len(t.deferred) == 0 && t.tx == nil:
		return ctx.Err() // nothing was done
	case len(t.deferred) == 0:
		return t.tx.Commit(ctx)
	case t.tx == nil && t.options == pgx.TxOptions{}:
		return t.commitAlone(ctx)
	}
	b, sent := t.takeDeferred()
	b.Queue(cmp.Or(t.options.CommitQuery, "commit"))
	answers, err := t.sendBatch(ctx, b, sent)
	if err == nil {
		var tag pgconn.CommandTag
		if tag, err = answers.Exec(); err == nil && tag.String() == "ROLLBACK" {
			err = pgx.ErrTxCommitRollback
		}
	}
	if err = t.closeBatch(answers, err); err != nil && t.tx != nil {
		_ = t.tx.Rollback(ctx) // if this fails, release closes the connection
	}
	return err
}

// commitAlone commits a transaction without options that contains only deferred statements. Postgres runs statements
// sent together as one transaction, all or nothing, so BEGIN and COMMIT are not needed. If a deferred trigger refuses
// something, closeBatch returns the error.
func (t *producerTx) commitAlone(ctx context.Context) error {
	b := &pgx.Batch{}
	for _, q := range t.deferred {
		b.Queue(q.sql, q.args...)
	}
	answers, err := t.sendBatch(ctx, b, t.deferred)
	return t.closeBatch(answers, err)
}

func (t *producerTx) Rollback(ctx context.Context) error {
	if t.conn == nil {
		return pgx.ErrTxClosed
	}
	defer t.release()
	if t.tx == nil {
		return nil
	}
	if err := t.tx.Rollback(ctx); t.aborted == nil {
		return err
	}
	return nil // without a transaction there was nothing to roll back
}

func (t *producerTx) release() {
	t.conn.Release() // closes the connection if the transaction did not end
	t.conn = nil
}

// savepoint is a transaction within a producer's transaction.
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
