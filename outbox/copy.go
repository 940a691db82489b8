package outbox

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	copyFrom = 32  // from this many jobs on, COPY beats one INSERT
	copyStep = 500 // jobs that are made ready while those before are sent
)

type copier interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

// canCopy reports whether COPY stores the requests as INSERT would. It has no
// ON CONFLICT and no expression, and a column that it sends has no default: whoever
// has no RunAt is due at the server's now.
func canCopy(requests []Request) bool {
	for i := range requests {
		o := &requests[i].Options
		if o.Delay != 0 || o.IdempotencyKey != "" || o.Hold || o.RunAt.IsZero() != requests[0].Options.RunAt.IsZero() {
			return false
		}
	}
	return len(requests) >= copyFrom
}

// copyMany makes rows while another goroutine sends those that are made: it is the
// server that takes the time, and it need not wait. What is called of the caller's
// (Args, and what encodes and checks them) is called in the caller's goroutine, where
// a panic is the caller's.
//
// What checks payloads takes its time, and what seals them may wait for others: then
// all rows are made before, outside of the transaction. So are those of two steps or
// fewer, where there is little to gain, and where no transaction can be begun that
// takes the first COPY back with the last.
func copyMany(ctx context.Context, db DB, requests []Request, notify bool) ([]ID, error) {
	b, step := newBatcher(requests), copyStep
	slow := func(r Request) bool { return r.Options.Protect != nil || r.Options.Check != nil }
	if _, begins := db.(Beginner); !begins || len(requests) <= 2*copyStep || slices.ContainsFunc(requests, slow) {
		step = len(requests)
	}
	rows, err := b.next(ctx, step)
	if err != nil {
		return nil, err // and nothing was sent
	}
	made, stored := &rowStream{steps: make(chan []row, 2)}, make(chan error, 1)
	go func() {
		stored <- atomically(ctx, db, notify, func(db DB) error { return storeAll(ctx, db, requests, made) })
	}()
	bad := errors.New("the request could not be made") // a panic: whoever called knows more
	defer func() {
		if bad != nil {
			made.close(bad)
			<-stored // no statement outlives the call
		}
	}()
	for ; len(rows) > 0 && err == nil; rows, err = b.next(ctx, step) {
		select {
		case made.steps <- rows:
		case err := <-stored: // it waits for no more rows
			bad = nil
			return nil, notStored(len(requests), err)
		}
	}
	bad = nil
	made.close(err)
	if failed := <-stored; err == nil && failed != nil {
		err = notStored(len(requests), failed)
	}
	if err != nil {
		return nil, err
	}
	return b.ids, nil
}

// rowStream is rows on their way from who makes them to who sends them.
type rowStream struct {
	steps chan []row
	err   error // why there are no more, written before steps is closed
}

func (s *rowStream) next() ([]row, error) {
	if rows, more := <-s.steps; more {
		return rows, nil
	}
	return nil, s.err
}

func (s *rowStream) close(err error) {
	s.err = err
	close(s.steps)
}

// storeAll sends the rows by COPY, or all at the end where the connection knows that
// COPY is refused.
func storeAll(ctx context.Context, db DB, requests []Request, made *rowStream) error {
	if !refusesCopy(db) {
		err := copyJobs(ctx, db.(copier), made)
		rememberRefusal(db, err)
		return err
	}
	var all []row
	for {
		rows, err := made.next()
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return insertJobs(ctx, sqlgen.New(db), requests, all, nil)
		}
		all = append(all, rows...)
	}
}

// copyJobs sends only the columns that some job needs; the others take their
// defaults. A COPY ends before the first jobs that need another column.
func copyJobs(ctx context.Context, db copier, made *rowStream) error {
	source := &copySource{made: made, sends: make([]bool, len(copyColumns))}
	source.rows, source.err = made.next()
	for source.err == nil && len(source.rows) > 0 {
		if _, err := db.CopyFrom(ctx, pgx.Identifier{"outbox", "jobs"}, source.begin(), source); err != nil {
			return err
		}
	}
	return source.err
}

// copySource is the rows of one COPY after the other.
type copySource struct {
	made  *rowStream
	sends []bool // by copyColumns: by this COPY, and all after it
	rows  []row  // of which the first next were sent: at the end of a COPY, those that need another
	next  int
	err   error

	columns []copyColumn
	values  []any // reused: pgx encodes a row before it asks for the next
}

// begin returns the columns of the next COPY, whose first rows are there.
func (s *copySource) begin() (names []string) {
	s.columns = s.columns[:0]
	for i, c := range copyColumns {
		s.sends[i] = s.sends[i] || !c.isDefaultIn(s.rows)
		if s.sends[i] {
			s.columns, names = append(s.columns, c), append(names, c.name)
		}
	}
	s.values, s.next = make([]any, len(s.columns)), 0
	return names
}

func (s *copySource) Next() bool {
	if s.next == len(s.rows) {
		s.next = 0
		if s.rows, s.err = s.made.next(); s.err != nil || len(s.rows) == 0 || s.needMore() {
			return false
		}
	}
	s.next++
	return true
}

// needMore reports whether the rows need a column that this COPY does not send.
func (s *copySource) needMore() bool {
	for i, c := range copyColumns {
		if !s.sends[i] && !c.isDefaultIn(s.rows) {
			return true
		}
	}
	return false
}

func (s *copySource) Values() ([]any, error) {
	r := &s.rows[s.next-1]
	for i := range s.columns {
		s.values[i] = s.columns[i].value(r)
	}
	return s.values, nil
}

func (s *copySource) Err() error { return s.err }

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
