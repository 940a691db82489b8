package outbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// Request is one job of [EnqueueMany].
type Request struct {
	Args    Args
	Options Options
}

const (
	chunkSize  = 5000     // jobs per INSERT
	chunkBytes = 16 << 20 // payloads and headers per INSERT, so that no message grows without bound
)

// EnqueueMany stores any number of jobs, all or none, and returns their ids in the order of the requests, which is also
// the order of the jobs of a key. If a request is not acceptable, a [*RequestError] names the first such one, and
// nothing is stored. A request whose idempotency key was used before stores nothing and gets the first job's id. A
// request with Key.MaxQueued is not acceptable: use [Submit].
//
// EnqueueMany takes one round trip for every 5 000 jobs or 16 MiB (INSERT). From 2 000 jobs on, it takes a single one
// for all of them (COPY) if db is of pgx, no request has a Delay, an IdempotencyKey or Hold, and all or none have a
// RunAt.
//
// Every request is validated before anything is sent, except in a COPY of jobs that have neither Check nor Protect:
// there the first jobs are sent while the others are validated and encoded. If a later one is refused, those already
// sent are rolled back and leave dead rows.
//
// Postgres refuses COPY to every role that row-level security applies to, which is all but superusers and roles with
// BYPASSRLS. Their jobs are stored by INSERT, after one attempt of COPY on each connection.
//
// In a transaction of pgx, or one begun by a BEGIN on its connection, EnqueueMany uses a savepoint: after an error the
// transaction is still usable.
func EnqueueMany(ctx context.Context, db DB, requests []Request) ([]ID, error) {
	return enqueueMany(ctx, db, requests, notifiesAtCommit(db, jobsChannel))
}

func enqueueMany(ctx context.Context, db DB, requests []Request, notify bool) (ids []ID, err error) {
	if len(requests) == 0 {
		return nil, nil
	}
	requests = withDefaults(requests)
	if t := engine.Tracing(); t != nil {
		var span engine.Span
		ctx, span, requests = traceMany(ctx, t, requests)
		defer func() { endTrace(span, ID{}, err) }()
	}
	return storeMany(ctx, db, requests, notify)
}

func storeMany(ctx context.Context, db DB, requests []Request, notify bool) ([]ID, error) {
	if _, ok := db.(copier); ok && canCopy(requests) {
		ids, err := copyMany(ctx, db, requests, notify)
		if !isCopyRefused(err) {
			return ids, err
		} // the savepoint or transaction of this attempt is gone
	}
	b := newBatcher(requests)
	rows, err := b.all(ctx)
	if err != nil {
		return nil, err
	}
	insert := func(db DB) error { return insertJobs(ctx, sqlgen.New(db), requests, rows, b.ids, notify) }
	if oneStatement(db, requests, rows) {
		err = insert(db)
	} else {
		err = atomically(ctx, db, "", insert)
	}
	if err != nil {
		return nil, notStored(len(requests), err)
	}
	return b.ids, nil
}

// oneStatement reports whether a single statement stores the rows and db has no transaction around it. Such a statement
// needs no transaction of its own; in a transaction it would need a savepoint.
func oneStatement(db DB, requests []Request, rows []row) bool {
	return outsideTx(db) && len(rows) <= chunkSize && size(rows) <= chunkBytes &&
		!slices.ContainsFunc(requests, Request.once)
}

// outsideTx reports whether db is of pgx and runs a statement outside any transaction.
func outsideTx(db DB) bool {
	if _, ok := db.(*pgxpool.Pool); ok {
		return true
	}
	conn := connOf(db)
	return conn != nil && !inManualTx(conn)
}

// connOf returns the connection that db is, or nil.
func connOf(db DB) *pgx.Conn {
	switch db := db.(type) {
	case *pgxpool.Conn:
		return db.Conn()
	case *pgx.Conn:
		return db
	}
	return nil
}

// inManualTx reports whether a BEGIN sent as a statement has begun a transaction on the connection. To begin another
// one there would only be a warning, and its COMMIT would commit the caller's.
func inManualTx(conn *pgx.Conn) bool { return conn.PgConn().TxStatus() != 'I' }

// once reports whether the request has an idempotency key.
func (r Request) once() bool { return r.Options.IdempotencyKey != "" }

func notStored(jobs int, err error) error {
	return fmt.Errorf("enqueue %d jobs: %w", jobs, explain(err))
}

// A batcher makes rows from requests, in their order.
type batcher struct {
	requests []Request
	ids      []ID // of the rows made so far
	newID    func() ID
}

func newBatcher(requests []Request) *batcher {
	return &batcher{requests: requests, ids: make([]ID, 0, len(requests)), newID: newIDRun().next}
}

// all returns the rows of all requests.
func (b *batcher) all(ctx context.Context) ([]row, error) {
	return b.next(ctx, make([]row, len(b.requests)))
}

// next makes the rows of the next requests in the memory of rows, as many as fit, and returns them: none at the end.
func (b *batcher) next(ctx context.Context, rows []row) ([]row, error) {
	first := len(b.ids)
	rows = rows[:min(len(rows), len(b.requests)-first)]
	for i := range rows {
		r := &b.requests[first+i]
		if r.Options.Key.MaxQueued != 0 {
			return nil, &RequestError{
				Index: first + i,
				Err:   invalid("Options.Key.MaxQueued", "is decided on one job at a time: use Submit"),
			}
		}
		if err := makeRow(ctx, &rows[i], b.newID, r.Args, &r.Options); err != nil {
			return nil, &RequestError{Index: first + i, Err: err}
		}
		b.ids = append(b.ids, ID(rows[i].ID.Bytes))
	}
	return rows, nil
}

// withDefaults fills in the requests' DefaultOptions, in a copy if there are any.
func withDefaults(requests []Request) []Request {
	mine := false
	for i := range requests {
		if _, ok := requests[i].Args.(Defaulter); !ok {
			continue
		}
		if !mine {
			requests, mine = slices.Clone(requests), true
		}
		requests[i].Options.fillFrom(requests[i].Args)
	}
	return requests
}

// atomically runs do, which makes the statements of one EnqueueMany or PublishMany, and the wake-up on the channel
// notify ("" for none), so that all or none of them take effect.
func atomically(ctx context.Context, db DB, notify string, do func(DB) error) error {
	both := func(db DB) error {
		if err := do(db); err != nil || notify == "" {
			return err
		}
		_, err := db.Exec(ctx, `SELECT pg_notify($1, '')`, notify)
		return err
	}
	if conn := connOf(db); conn != nil && inManualTx(conn) {
		return inSavepoint(ctx, db, both)
	}
	switch db := db.(type) {
	case interface {
		Begin(ctx context.Context) (pgx.Tx, error)
	}:
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return both(tx) })
	case sqlBeginner:
		return db.inTx(ctx, both)
	default:
		return both(db)
	}
}

// inSavepoint runs do in a savepoint of the transaction that db is in, and undoes it if it fails.
func inSavepoint(ctx context.Context, db DB, do func(DB) error) error {
	if _, err := db.Exec(ctx, `SAVEPOINT outbox_many`); err != nil {
		return err
	}
	err := do(db)
	if err != nil {
		_, undone := db.Exec(ctx, `ROLLBACK TO SAVEPOINT outbox_many`)
		err = errors.Join(err, undone)
	}
	_, released := db.Exec(ctx, `RELEASE SAVEPOINT outbox_many`)
	return errors.Join(err, released)
}

// insertJobs stores the rows, and replaces the id of each repeated request by that of the job that used its idempotency
// key first. That job may be trimmed between the two statements; then the key is free again. If one of these requests
// has a [KeyRules.Name], the call fails, because the jobs behind it are stored already.
func insertJobs(ctx context.Context, q *sqlgen.Queries, requests []Request, rows []row, ids []ID, notify bool) error {
	left := insertOrder(requests, rows)
	for range 3 {
		if err := insertChunks(ctx, q, requests, rows, left, notify); err != nil {
			return err
		}
		var err error
		if left, err = findFirst(ctx, q, requests, rows, left, ids); err != nil || len(left) == 0 {
			return err
		}
		if slices.ContainsFunc(left, func(i int) bool { return requests[i].Options.Key.Name != "" }) {
			break
		}
	}
	return fmt.Errorf("%d of %d jobs have an idempotency key that is held by a job that this transaction cannot see, "+
		"or has just become free", len(left), len(rows))
}

// insertChunks stores the rows in this order, unless their idempotency keys are in use.
func insertChunks(ctx context.Context, q *sqlgen.Queries, requests []Request, rows []row, order []int, notify bool) error {
	for chunk := range chunks(rows, order) {
		p := engine.Arrays(rows, chunk)
		p.Notify = notify
		var err error
		if slices.ContainsFunc(chunk, func(i int) bool { return requests[i].once() }) {
			err = q.EnqueueJobsOnce(ctx, p.Once(keysOf(requests, chunk)))
		} else {
			err = q.EnqueueJobs(ctx, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// insertOrder returns the order in which to insert the requests, as indexes: those with an idempotency key sorted by
// it. Each statement locks its keys in the order of their bytes; all statements of one call together must do so too, or
// two calls with the same keys could deadlock. Of requests with the same key, the first stays first.
//
// If any job has a [KeyRules.Name], the order stays unchanged, because the jobs of a key run in the order in which they
// are stored. Two such calls of several statements that repeat each other's idempotency keys in another order may then
// deadlock. Postgres ends a deadlock with an error, but nothing would report a wrong order.
func insertOrder(requests []Request, rows []row) []int {
	order := make([]int, len(rows))
	for i := range order {
		order[i] = i
	}
	keyed := func(r Request) bool { return r.Options.Key.Name != "" }
	if (len(rows) > chunkSize || size(rows) > chunkBytes) && !slices.ContainsFunc(requests, keyed) {
		slices.SortStableFunc(order, func(a, b int) int {
			keyA, keyB := requests[a].Options.IdempotencyKey, requests[b].Options.IdempotencyKey
			if keyA == "" || keyB == "" {
				return cmp.Compare(len(keyA), len(keyB)) // requests without one come first, in their order
			}
			return cmp.Or(
				bytes.Compare(rows[a].TenantID.Bytes[:], rows[b].TenantID.Bytes[:]),
				strings.Compare(rows[a].Kind, rows[b].Kind),
				strings.Compare(keyA, keyB))
		})
	}
	return order
}

// chunks divides the rows, in this order, into the rows of each statement.
func chunks(rows []row, order []int) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		for len(order) > 0 {
			n, total := 1, size(rows[order[0]:][:1])
			for ; n < min(len(order), chunkSize); n++ {
				if total += size(rows[order[n]:][:1]); total > chunkBytes {
					break
				}
			}
			if !yield(order[:n]) {
				return
			}
			order = order[n:]
		}
	}
}

// size returns the bytes of those fields of the rows that may be large.
func size(rows []row) (n int) {
	for i := range rows {
		n += engine.Size(&rows[i])
	}
	return n
}

func keysOf(requests []Request, chunk []int) []string {
	keys := make([]string, len(chunk))
	for at, i := range chunk {
		keys[at] = requests[i].Options.IdempotencyKey
	}
	return keys
}

// findFirst replaces the ids of the requests with an idempotency key by those of the jobs that used the keys first, and
// returns the requests for whose key it has found no job.
func findFirst(ctx context.Context, q *sqlgen.Queries, requests []Request, rows []row, order []int, ids []ID) (
	left []int, err error,
) {
	type used struct {
		tenant    [16]byte
		kind, key string
	}
	var p sqlgen.FindIdempotencyKeysParams
	firsts := map[used]ID{} // zero if not found
	keyOf := func(i int) used {
		return used{rows[i].TenantID.Bytes, rows[i].Kind, requests[i].Options.IdempotencyKey}
	}
	for _, i := range order {
		u := keyOf(i)
		if _, asked := firsts[u]; u.key != "" && !asked {
			firsts[u] = ID{}
			p.TenantIds = append(p.TenantIds, rows[i].TenantID)
			p.Kinds = append(p.Kinds, u.kind)
			p.IdempotencyKeys = append(p.IdempotencyKeys, u.key)
		}
	}
	if len(firsts) == 0 {
		return nil, nil
	}
	p.MaxKeys = int32(len(firsts))
	found, err := q.FindIdempotencyKeys(ctx, p)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		firsts[used{f.TenantID.Bytes, f.Kind, f.Key}] = f.JobID.Bytes
	}
	for _, i := range order {
		switch u := keyOf(i); {
		case u.key == "":
		case firsts[u].IsZero():
			left = append(left, i)
		default:
			ids[i] = firsts[u]
		}
	}
	return left, nil
}
