package outbox

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	// COPY beats INSERT from this many jobs on: it takes rows by the thousand, and for each of the first thousand
	// allocates a slot that costs as much as storing the row.
	copyFrom = 2000
	copyStep = 500 // jobs that are encoded while the previous ones are sent
)

type copier interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

// canCopy reports whether COPY stores the requests as INSERT would. COPY has no ON CONFLICT and no expressions, and a
// column that it sends gets no default: a job without a RunAt is due at the server's now().
func canCopy(requests []Request) bool {
	for i := range requests {
		o := &requests[i].Options
		if o.Delay != 0 || o.IdempotencyKey != "" || o.Hold || o.RunAt.IsZero() != requests[0].Options.RunAt.IsZero() {
			return false
		}
	}
	return len(requests) >= copyFrom
}

// copyMany makes rows while another goroutine sends those already made, so that the server, which takes most of the
// time, need not wait. Args, and the code that encodes and checks them, run in the caller's goroutine, where the caller
// can recover a panic.
//
// Checking payloads takes time, and sealing them may wait for other services. If any request does either, copyMany
// makes all rows first, outside the transaction. It does the same where it cannot begin a transaction that would roll
// the first COPY back together with the last.
func copyMany(ctx context.Context, db DB, requests []Request, notify bool) ([]ID, error) {
	b, step := newBatcher(requests), copyStep
	slow := func(r Request) bool { return r.Options.Protect != nil || r.Options.Check != nil }
	if _, begins := db.(Beginner); !begins || slices.ContainsFunc(requests, slow) {
		step = len(requests)
	}
	channel := ""
	if notify {
		channel = engine.Channel
	}
	made, stored := newRowStream(), make(chan error, 1)
	rows, err := b.next(ctx, made.room(step))
	if err != nil {
		return nil, err // nothing has been sent
	}
	go func() {
		stored <- atomically(ctx, db, channel, func(db DB) error { return storeAll(ctx, db, requests, made) })
	}()
	bad := errors.New("the request could not be made") // stays set after a panic, which the caller reports
	defer func() {
		if bad != nil {
			made.close(bad)
			<-stored // no statement outlives the call
		}
	}()
	for ; len(rows) > 0 && err == nil; rows, err = b.next(ctx, made.room(step)) {
		select {
		case made.steps <- rows:
		case err := <-stored: // the sender has stopped taking rows
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
	made.keep()
	return b.ids, nil
}

// A rowStream passes rows from their maker to their sender, and back again for reuse.
type rowStream struct {
	steps chan []row
	sent  chan []row
	err   error // why there are no more rows; set before steps is closed
}

func newRowStream() *rowStream {
	return &rowStream{steps: make(chan []row, 2), sent: make(chan []row, 4)} // a sender holds one, the maker another
}

func (s *rowStream) next() ([]row, error) {
	if rows, more := <-s.steps; more {
		return rows, nil
	}
	return nil, s.err
}

// done returns rows that the sender no longer reads.
func (s *rowStream) done(rows []row) { s.sent <- rows[:cap(rows)] }

// room returns rows for the next step to fill.
func (s *rowStream) room(step int) []row {
	select {
	case rows := <-s.sent:
		return rows
	default:
	}
	if step != copyStep {
		return make([]row, step)
	}
	return *steps.Get().(*[]row)
}

// steps holds rows of earlier calls for reuse: allocating memory costs more than writing the rows to it.
var steps = sync.Pool{New: func() any {
	rows := make([]row, copyStep)
	return &rows
}}

// keep returns the sent rows to the pool, cleared of all that they refer to.
func (s *rowStream) keep() {
	for {
		select {
		case rows := <-s.sent:
			if len(rows) == copyStep {
				clear(rows)
				steps.Put(&rows)
			}
		default:
			return
		}
	}
}

func (s *rowStream) close(err error) {
	s.err = err
	close(s.steps)
}

// storeAll sends the rows by COPY. On a connection known to refuse COPY, it collects them and inserts them all at the
// end.
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
			return insertJobs(ctx, sqlgen.New(db), requests, all, nil, false)
		}
		all = append(all, rows...)
		made.done(rows)
	}
}

// copyJobs sends only the columns that some job needs; the others take their defaults. It ends a COPY before the first
// jobs that need another column, and begins a new one.
func copyJobs(ctx context.Context, db copier, made *rowStream) error {
	source, conn := &copySource{made: made}, pgxConn(db)
	source.take()
	for source.err == nil && len(source.rows) > 0 {
		var err error
		if names := source.begin(); conn != nil && source.sends&engine.BackoffColumn == 0 {
			err = source.copyTo(ctx, conn, names)
		} else {
			_, err = db.CopyFrom(ctx, jobsTable, names, source)
		}
		if err != nil {
			return err
		}
	}
	return source.err
}

var jobsTable = pgx.Identifier{"outbox", "jobs"}

// copySource supplies the rows of one COPY after another.
type copySource struct {
	made  *rowStream
	sends engine.ColumnSet // the columns of this COPY and of all later ones
	rows  []row            // the first next are sent; at the end of a COPY, the rows that need another one
	needs engine.ColumnSet // the columns that rows need
	next  int
	err   error

	columns []copyColumn
	values  []any // reused: pgx encodes a row before it asks for the next
}

// take replaces the rows, which have been sent, with the next ones, or with none.
func (s *copySource) take() {
	if len(s.rows) > 0 {
		s.made.done(s.rows)
	}
	s.rows, s.err = s.made.next()
	s.needs = 0
	for i := range s.rows {
		s.needs |= engine.ColumnsOf(&s.rows[i])
	}
}

// begin returns the columns of the next COPY, whose first rows have been taken.
func (s *copySource) begin() (names []string) {
	s.sends |= s.needs
	s.columns = s.columns[:0]
	for _, c := range copyColumns {
		if c.in&^s.sends == 0 {
			s.columns, names = append(s.columns, c), append(names, c.name)
		}
	}
	s.values, s.next = make([]any, len(s.columns)), 0
	return names
}

func (s *copySource) Next() bool {
	if s.next == len(s.rows) {
		s.next = 0
		if s.take(); len(s.rows) == 0 || s.needs&^s.sends != 0 {
			return false
		}
	}
	s.next++
	return true
}

func (s *copySource) Values() ([]any, error) {
	r := &s.rows[s.next-1]
	for i := range s.columns {
		s.values[i] = s.columns[i].value(r)
	}
	return s.values, nil
}

func (s *copySource) Err() error { return s.err }
