package outbox

import (
	"bytes"
	"cmp"
	"context"
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
	chunkSize  = 5000     // jobs per INSERT, and
	chunkBytes = 16 << 20 // of payloads and headers, so that no message grows without bound
)

// EnqueueMany stores any number of jobs, all or none, and returns their ids in the order of the requests, which is also
// that of the jobs of a key. If one is not acceptable, a [*RequestError] names the first that is not, and nothing is
// stored. Jobs whose idempotency key was used before are left out and answer with the first job's id.
//
// It costs one round trip for every 5 000 jobs or 16 MiB (INSERT). From 2 000 jobs on it is
// one for all of them (COPY), when db is of pgx, no request has a Delay, an IdempotencyKey
// or Hold and all or none have a RunAt.
//
// Every request is validated before anything is sent, but for a COPY of jobs of which
// none has a Check or Protect: there the first are sent while the others are validated
// and encoded. What was sent before a bad one is taken back, and leaves dead rows.
//
// Postgres takes COPY from no role that row-level security applies to, which is
// every one but superusers and those with BYPASSRLS: they go by INSERT, after
// the first attempt on a connection.
//
// Given a transaction of pgx, it runs in a savepoint: after an error the
// transaction is still usable.
func EnqueueMany(ctx context.Context, db DB, requests []Request) ([]ID, error) {
	return enqueueMany(ctx, db, requests, notifiesAtCommit(db, jobsChannel))
}

func enqueueMany(ctx context.Context, db DB, requests []Request, notify bool) ([]ID, error) {
	if len(requests) == 0 {
		return nil, nil
	}
	requests = withDefaults(requests)
	if t := engine.Tracing(); t != nil {
		ctx, span, requests := traceMany(ctx, t, requests)
		ids, err := storeMany(ctx, db, requests, notify)
		endTrace(span, ID{}, err)
		return ids, err
	}
	return storeMany(ctx, db, requests, notify)
}

func storeMany(ctx context.Context, db DB, requests []Request, notify bool) ([]ID, error) {
	if _, ok := db.(copier); ok && canCopy(requests) {
		ids, err := copyMany(ctx, db, requests, notify)
		if !isCopyRefused(err) {
			return ids, err
		} // else the savepoint or transaction of this attempt is gone
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

// oneStatement reports whether the rows are stored by a single statement that has no
// transaction around it: then it needs none. In a transaction it needs a savepoint.
func oneStatement(db DB, requests []Request, rows []row) bool {
	return outsideTx(db) && len(rows) <= chunkSize && size(rows) <= chunkBytes && !slices.ContainsFunc(requests, Request.once)
}

// outsideTx reports whether db is of pgx and has no transaction around a statement.
func outsideTx(db DB) bool {
	switch db.(type) {
	case *pgxpool.Pool, *pgxpool.Conn, *pgx.Conn:
		return true
	}
	return false
}

// once reports whether the request has an idempotency key.
func (r Request) once() bool { return r.Options.IdempotencyKey != "" }

func notStored(jobs int, err error) error {
	return fmt.Errorf("enqueue %d jobs: %w", jobs, explain(err))
}

// batcher makes rows of requests, in their order.
type batcher struct {
	requests []Request
	ids      []ID // of the rows that were made
	newID    func() ID
}

func newBatcher(requests []Request) *batcher {
	return &batcher{requests: requests, ids: make([]ID, 0, len(requests)), newID: newIDRun().next}
}

// all is the rows of all requests.
func (b *batcher) all(ctx context.Context) ([]row, error) {
	return b.next(ctx, make([]row, len(b.requests)))
}

// next is the rows of the next requests, in place of those in rows, or of all that are
// left: none at the end.
func (b *batcher) next(ctx context.Context, rows []row) ([]row, error) {
	first := len(b.ids)
	rows = rows[:min(len(rows), len(b.requests)-first)]
	for i := range rows {
		r := &b.requests[first+i]
		if r.Options.Key.MaxQueued != 0 {
			return nil, &RequestError{Index: first + i, Err: invalid("Options.Key.MaxQueued", "is decided on one job at a time: use Submit")}
		}
		if err := makeRow(ctx, &rows[i], b.newID, r.Args, &r.Options); err != nil {
			return nil, &RequestError{Index: first + i, Err: err}
		}
		b.ids = append(b.ids, ID(rows[i].ID.Bytes))
	}
	return rows, nil
}

// withDefaults leaves the caller's requests as they are.
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

// atomically runs the statements of one EnqueueMany or PublishMany and the wake-up on a
// channel, "" for none, so that all or none of them count.
func atomically(ctx context.Context, db DB, notify string, do func(DB) error) error {
	both := func(db DB) error {
		if err := do(db); err != nil || notify == "" {
			return err
		}
		_, err := db.Exec(ctx, `SELECT pg_notify($1, '')`, notify)
		return err
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

func insertJobs(ctx context.Context, q *sqlgen.Queries, requests []Request, rows []row, ids []ID, notify bool) error {
	for chunk := range chunks(rows, insertOrder(requests, rows)) {
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
	return findFirst(ctx, q, requests, rows, ids)
}

// insertOrder is the indexes of the requests, those with an idempotency key by
// their key: each statement takes its keys in the order of their bytes, and so
// have all statements of one call to, or two calls with the same keys deadlock.
// Of requests with the same key, the first stays first.
//
// If a job has a [KeyRules.Name], all stay as they were: jobs of a key are ordered as they
// are stored. Two such calls of several statements that repeat each other's idempotency keys
// in another order may deadlock, which Postgres ends with an error; a wrong order has none.
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
				return cmp.Compare(len(keyA), len(keyB)) // those without one come first, as they were
			}
			return cmp.Or(
				bytes.Compare(rows[a].TenantID.Bytes[:], rows[b].TenantID.Bytes[:]),
				strings.Compare(rows[a].Kind, rows[b].Kind),
				strings.Compare(keyA, keyB))
		})
	}
	return order
}

// chunks divides the rows, in this order, into statements.
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

// size is the bytes of what may be large in the rows.
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

// findFirst replaces the ids of repeats by those of the jobs that used their
// idempotency keys first.
func findFirst(ctx context.Context, q *sqlgen.Queries, requests []Request, rows []row, ids []ID) error {
	type used struct {
		tenant    [16]byte
		kind, key string
	}
	var p sqlgen.FindIdempotencyKeysParams
	wanted := map[used][]int{}
	for i, r := range rows {
		if key := requests[i].Options.IdempotencyKey; key != "" {
			u := used{r.TenantID.Bytes, r.Kind, key}
			if wanted[u] == nil {
				p.TenantIds = append(p.TenantIds, r.TenantID)
				p.Kinds = append(p.Kinds, r.Kind)
				p.IdempotencyKeys = append(p.IdempotencyKeys, key)
			}
			wanted[u] = append(wanted[u], i)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	p.MaxKeys = int32(len(wanted))
	found, err := q.FindIdempotencyKeys(ctx, p)
	if err != nil {
		return err
	}
	if len(found) != len(wanted) {
		return fmt.Errorf("%d of %d idempotency keys are held by jobs that this transaction cannot see", len(wanted)-len(found), len(wanted))
	}
	for _, f := range found {
		for _, i := range wanted[used{f.TenantID.Bytes, f.Kind, f.Key}] {
			ids[i] = ID(f.JobID.Bytes)
		}
	}
	return nil
}
