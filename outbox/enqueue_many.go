package outbox

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// Request is one job of [EnqueueMany].
type Request struct {
	Args    Args
	Options Options
}

const (
	copyFrom   = 32       // from this many jobs on, COPY beats one INSERT
	chunkSize  = 5000     // jobs per INSERT, and
	chunkBytes = 16 << 20 // of payloads and headers, so that no message grows without bound
)

// EnqueueMany stores any number of jobs, all or none, and returns their ids in the
// order of the requests. Every request is validated before anything is sent; a
// [*RequestError] names the first bad one. It costs one round trip (COPY) when
// db is of pgx, no request has a Delay, an IdempotencyKey or Hold and all or none
// have a RunAt, else one for every 5 000 jobs or 16 MiB. Jobs whose idempotency key was
// used before are left out and answer with the first job's id.
//
// Postgres takes COPY from no role that row-level security applies to, which is
// every one but superusers and those with BYPASSRLS: they go by INSERT, after
// the first attempt on a connection.
//
// Given a transaction of pgx, it runs in a savepoint: after an error the
// transaction is still usable.
func EnqueueMany(ctx context.Context, db DB, requests []Request) ([]ID, error) {
	return enqueueMany(ctx, db, requests, notifiesAtCommit(db))
}

func enqueueMany(ctx context.Context, db DB, requests []Request, notify bool) ([]ID, error) {
	if len(requests) == 0 {
		return nil, nil
	}
	requests = withDefaults(requests)
	rows := make([]sqlgen.EnqueueJobParams, len(requests))
	ids := make([]ID, len(requests))
	canCopy := len(requests) >= copyFrom
	random := bufio.NewReader(rand.Reader) // asked once for 4 096 bytes: half of what an id costs
	for i := range requests {
		r := &requests[i]
		row, err := newRow(ctx, random, r.Args, &r.Options)
		if err != nil {
			return nil, &RequestError{Index: i, Err: err}
		}
		if r.Options.MaxQueued != 0 {
			return nil, &RequestError{Index: i, Err: invalid("Options.MaxQueued", "is decided on one job at a time: use Submit")}
		}
		rows[i], ids[i] = row, ID(row.ID.Bytes)
		canCopy = canCopy && r.Options.Delay == 0 && r.Options.IdempotencyKey == "" && !r.Options.Hold &&
			r.Options.RunAt.IsZero() == requests[0].Options.RunAt.IsZero()
	}

	storeAll := func(db DB) error {
		if copier, ok := db.(copier); ok && canCopy && !refusesCopy(db) {
			err := copyJobs(ctx, copier, rows)
			rememberRefusal(db, err)
			return err
		}
		return insertJobs(ctx, sqlgen.New(db), requests, rows, ids)
	}
	err := atomically(ctx, db, notify, storeAll)
	if canCopy && isCopyRefused(err) {
		canCopy = false // the savepoint or transaction of the first attempt is gone
		err = atomically(ctx, db, notify, storeAll)
	}
	if err != nil {
		return nil, fmt.Errorf("enqueue %d jobs: %w", len(requests), explain(err))
	}
	return ids, nil
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

type copier interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

// atomically runs the statements of one EnqueueMany and its wake-up so that all
// or none of them count.
func atomically(ctx context.Context, db DB, notify bool, do func(DB) error) error {
	both := func(db DB) error {
		if err := do(db); err != nil || !notify {
			return err
		}
		_, err := db.Exec(ctx, `SELECT pg_notify($1, '')`, Channel)
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

// copyJobs sends only the columns that some job needs; the others take their defaults.
func copyJobs(ctx context.Context, db copier, rows []sqlgen.EnqueueJobParams) error {
	columns := slices.DeleteFunc(slices.Clone(copyColumns), func(c copyColumn) bool { return c.isDefaultIn(rows) })
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	values := make([]any, len(columns)) // reused: pgx encodes a row before it asks for the next
	i := 0
	_, err := db.CopyFrom(ctx, pgx.Identifier{"outbox", "jobs"}, names, pgx.CopyFromFunc(func() ([]any, error) {
		if i == len(rows) {
			return nil, nil
		}
		for c := range columns {
			values[c] = columns[c].value(&rows[i])
		}
		i++
		return values, nil
	}))
	return err
}

type copyColumn struct {
	name      string
	value     func(*sqlgen.EnqueueJobParams) any
	isDefault func(*sqlgen.EnqueueJobParams) bool // nil: always sent
}

// isDefaultIn reports whether every row leaves the column to its default. Rows
// are large: they are looked at in place.
func (c copyColumn) isDefaultIn(rows []row) bool {
	if c.isDefault == nil {
		return false
	}
	for i := range rows {
		if !c.isDefault(&rows[i]) {
			return false
		}
	}
	return true
}

type row = sqlgen.EnqueueJobParams

// A column that some job sets is sent for all of them, so its value must be right
// for those that leave it to the default: run_at is the one that is not known
// here, so a mixture of jobs with and without it goes by INSERT.
var copyColumns = []copyColumn{
	{"id", func(r *row) any { return &r.ID }, nil},
	{"kind", func(r *row) any { return r.Kind }, nil},
	{"payload", func(r *row) any { return r.Payload }, nil},
	{"queue", func(r *row) any { return r.Queue }, func(r *row) bool { return r.Queue == DefaultQueue }},
	{"tenant_id", func(r *row) any { return &r.TenantID }, func(r *row) bool { return r.TenantID.Bytes == RootTenant }},
	{"priority", func(r *row) any { return r.Priority }, func(r *row) bool { return r.Priority == 0 }},
	{"max_attempts", func(r *row) any { return r.MaxAttempts }, func(r *row) bool { return r.MaxAttempts == DefaultMaxAttempts }},
	{"run_at", func(r *row) any { return r.RunAt }, func(r *row) bool { return !r.RunAt.Valid }},
	{"timeout", func(r *row) any { return r.Timeout }, func(r *row) bool { return !r.Timeout.Valid }},
	{"backoff", backoffOf, func(r *row) bool { return r.Backoff == nil }},
	{"key", func(r *row) any { return r.Key }, func(r *row) bool { return r.Key == nil }},
	{"content_type", func(r *row) any { return r.ContentType }, func(r *row) bool { return r.ContentType == contentJSON }},
	{"deadline", func(r *row) any { return &r.Deadline }, func(r *row) bool { return !r.Deadline.Valid }},
	{"headers", headersOf, func(r *row) bool { return r.Headers == nil }},
	{"watched", watchedOf, func(r *row) bool { return !r.Watched }},
	{"max_active", func(r *row) any { return r.MaxActive }, func(r *row) bool { return r.MaxActive == nil }},
	{"ordered", func(r *row) any { return r.Ordered }, func(r *row) bool { return r.Ordered == nil }},
	{"line_position", func(r *row) any { return r.Position }, func(r *row) bool { return r.Position == nil }},
	{"on_death", func(r *row) any { return r.OnDeath }, func(r *row) bool { return r.OnDeath == nil }},
	{"park_after", func(r *row) any { return r.ParkAfter }, func(r *row) bool { return !r.ParkAfter.Valid }},
	{"on_lapse", func(r *row) any { return r.OnLapse }, func(r *row) bool { return r.OnLapse == nil }},
}

// headersOf is a string and no pointer to one: pgx would quote that as a JSON string.
func headersOf(r *row) any {
	if r.Headers == nil {
		return nil
	}
	return *r.Headers
}

// backoffOf is a string, too: pgx makes an array of it.
func backoffOf(r *row) any {
	if r.Backoff == nil {
		return nil
	}
	return *r.Backoff
}

// watchedOf is NULL for false.
func watchedOf(r *row) any {
	if !r.Watched {
		return nil
	}
	return true
}

func insertJobs(ctx context.Context, q *sqlgen.Queries, requests []Request, rows []row, ids []ID) error {
	for chunk := range chunks(rows, insertOrder(requests, rows)) {
		if err := q.EnqueueJobs(ctx, arrays(requests, rows, chunk)); err != nil {
			return err
		}
	}
	return findFirst(ctx, q, requests, rows, ids)
}

// insertOrder is the indexes of the requests, those with an idempotency key by
// their key: each statement takes its keys in the order of their bytes, and so
// have all statements of one call to, or two calls with the same keys deadlock.
// Of requests with the same key, the first stays first.
func insertOrder(requests []Request, rows []row) []int {
	order := make([]int, len(rows))
	for i := range order {
		order[i] = i
	}
	if len(rows) > chunkSize || size(rows) > chunkBytes {
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
		n += len(rows[i].Payload) + len(textOf(rows[i].Headers))
	}
	return n
}

// textOf is "" for NULL.
func textOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func arrays(requests []Request, rows []row, chunk []int) sqlgen.EnqueueJobsParams {
	var p sqlgen.EnqueueJobsParams
	for _, i := range chunk {
		r := &rows[i]
		p.Ids = append(p.Ids, r.ID)
		p.TenantIds = append(p.TenantIds, r.TenantID)
		p.Queues = append(p.Queues, r.Queue)
		p.Kinds = append(p.Kinds, r.Kind)
		p.Priorities = append(p.Priorities, r.Priority)
		p.MaxAttempts = append(p.MaxAttempts, r.MaxAttempts)
		p.RunAts = append(p.RunAts, r.RunAt)
		p.Delays = append(p.Delays, r.Delay)
		p.Timeouts = append(p.Timeouts, r.Timeout)
		p.Backoffs = append(p.Backoffs, textOf(r.Backoff))
		p.Keys = append(p.Keys, textOf(r.Key))
		p.Payloads = append(p.Payloads, r.Payload)
		p.ContentTypes = append(p.ContentTypes, r.ContentType)
		p.Headers = append(p.Headers, textOf(r.Headers))
		p.Deadlines = append(p.Deadlines, r.Deadline)
		p.Holds = append(p.Holds, r.Hold)
		p.Watched = append(p.Watched, r.Watched)
		p.IdempotencyKeys = append(p.IdempotencyKeys, requests[i].Options.IdempotencyKey)
		keyArrays(&p, r)
	}
	return p
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
