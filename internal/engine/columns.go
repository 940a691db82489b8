package engine

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// Row is a job to be stored. Package internal/jobcolumns lists its columns and generates the statements and their
// parameters. This file decides which columns are left to their defaults, how COPY sends them, and the arrays for many
// rows.
type Row = sqlgen.EnqueueJobParams

// ColumnSet is a set of columns that have defaults, one bit each.
type ColumnSet uint32

const (
	QueueColumn ColumnSet = 1 << iota
	TenantColumn
	PriorityColumn
	MaxAttemptsColumn
	RunAtColumn
	TimeoutColumn
	BackoffColumn
	KeyColumn
	ContentTypeColumn
	DeadlineColumn
	HeadersColumn
	WatchedColumn
	StreamedColumn
	MaxActiveColumn
	OrderedColumn
	PositionColumn
	OnDeathColumn
	ParkAfterColumn
	OnLapseColumn

	// These have expressions, which COPY cannot evaluate: see canCopy.
	DelayColumn
	HoldColumn
)

// ColumnsOf returns the columns that the row does not leave to their defaults.
func ColumnsOf(r *Row) (set ColumnSet) {
	needs := func(column ColumnSet, needed bool) {
		if needed {
			set |= column
		}
	}
	needs(QueueColumn, r.Queue != DefaultQueue)
	needs(TenantColumn, r.TenantID.Bytes != RootTenant)
	needs(PriorityColumn, r.Priority != 0)
	needs(MaxAttemptsColumn, r.MaxAttempts != DefaultMaxAttempts)
	needs(RunAtColumn, r.RunAt.Valid)
	needs(TimeoutColumn, r.Timeout.Valid)
	needs(BackoffColumn, r.Backoff != nil)
	needs(KeyColumn, r.Key != nil)
	needs(ContentTypeColumn, r.ContentType != ContentJSON)
	needs(DeadlineColumn, r.Deadline.Valid)
	needs(HeadersColumn, r.Headers != nil)
	needs(WatchedColumn, r.Watched)
	needs(StreamedColumn, r.Streamed)
	needs(MaxActiveColumn, r.MaxActive != nil)
	needs(OrderedColumn, r.Ordered != nil)
	needs(PositionColumn, r.Position != nil)
	needs(OnDeathColumn, r.OnDeath != nil)
	needs(ParkAfterColumn, r.ParkAfter.Valid)
	needs(OnLapseColumn, r.OnLapse != nil)
	needs(DelayColumn, r.Delay.Valid)
	needs(HoldColumn, r.Hold)
	return set
}

// Arrays returns the columns of the chunk's rows as arrays. An array is nil, which is NULL, if every row leaves the
// column to its default.
func Arrays(rows []Row, chunk []int) sqlgen.EnqueueJobsParams {
	c := columns{rows: rows, chunk: chunk}
	for _, i := range chunk {
		c.needs |= ColumnsOf(&rows[i])
	}
	return sqlgen.EnqueueJobsParams{
		Ids:          values(c, 0, func(r *Row) pgtype.UUID { return r.ID }),
		TenantIds:    values(c, TenantColumn, func(r *Row) pgtype.UUID { return r.TenantID }),
		Queues:       values(c, QueueColumn, func(r *Row) string { return r.Queue }),
		Kinds:        values(c, 0, func(r *Row) string { return r.Kind }),
		Priorities:   values(c, PriorityColumn, func(r *Row) int16 { return r.Priority }),
		MaxAttempts:  values(c, MaxAttemptsColumn, func(r *Row) int32 { return r.MaxAttempts }),
		RunAts:       values(c, RunAtColumn, func(r *Row) pgtype.Timestamptz { return r.RunAt }),
		Delays:       values(c, DelayColumn, func(r *Row) pgtype.Interval { return r.Delay }),
		Timeouts:     values(c, TimeoutColumn, func(r *Row) pgtype.Interval { return r.Timeout }),
		Backoffs:     values(c, BackoffColumn, func(r *Row) string { return pgvalue.OrZero(r.Backoff) }),
		Keys:         values(c, KeyColumn, func(r *Row) string { return pgvalue.OrZero(r.Key) }),
		Payloads:     values(c, 0, func(r *Row) []byte { return r.Payload }),
		ContentTypes: values(c, ContentTypeColumn, func(r *Row) string { return r.ContentType }),
		Headers:      values(c, HeadersColumn, func(r *Row) string { return pgvalue.OrZero(r.Headers) }),
		Deadlines:    values(c, DeadlineColumn, func(r *Row) pgtype.Timestamptz { return r.Deadline }),
		Holds:        values(c, HoldColumn, func(r *Row) bool { return r.Hold }),
		Watched:      values(c, WatchedColumn, func(r *Row) bool { return r.Watched }),
		Streamed:     values(c, StreamedColumn, func(r *Row) bool { return r.Streamed }),
		MaxActives:   values(c, MaxActiveColumn, func(r *Row) int16 { return pgvalue.OrZero(r.MaxActive) }),
		Ordereds:     values(c, OrderedColumn, func(r *Row) bool { return pgvalue.OrZero(r.Ordered) }),
		Positions:    values(c, PositionColumn, func(r *Row) int64 { return pgvalue.OrZero(r.Position) }),
		OnDeaths:     values(c, OnDeathColumn, func(r *Row) string { return pgvalue.OrZero(r.OnDeath) }),
		ParkAfters:   values(c, ParkAfterColumn, func(r *Row) pgtype.Interval { return r.ParkAfter }),
		OnLapses:     values(c, OnLapseColumn, func(r *Row) string { return pgvalue.OrZero(r.OnLapse) }),
	}
}

// columns holds the input for the arrays of one statement.
type columns struct {
	rows  []Row
	chunk []int
	needs ColumnSet
}

func values[T any](c columns, column ColumnSet, value func(*Row) T) []T {
	if column&^c.needs != 0 {
		return nil
	}
	all := make([]T, len(c.chunk))
	for at, i := range c.chunk {
		all[at] = value(&c.rows[i])
	}
	return all
}

// Size returns the bytes of the columns of a row that may be large.
func Size(r *Row) int { return len(r.Payload) + len(pgvalue.OrZero(r.Headers)) }
