package outbox

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// row is a job that is to be stored. Its columns are in internal/jobcolumns, from which the
// statements and their parameters are made, and here: which are left to their defaults, how
// COPY sends them, and the arrays of many.
type row = sqlgen.EnqueueJobParams

// columnSet is columns that have a default, a bit each.
type columnSet uint32

const (
	queueColumn columnSet = 1 << iota
	tenantColumn
	priorityColumn
	maxAttemptsColumn
	runAtColumn
	timeoutColumn
	backoffColumn
	keyColumn
	contentTypeColumn
	deadlineColumn
	headersColumn
	watchedColumn
	maxActiveColumn
	orderedColumn
	positionColumn
	onDeathColumn
	parkAfterColumn
	onLapseColumn

	// These have expressions, which COPY does not know: see canCopy.
	delayColumn
	holdColumn
)

// columnsOf is the columns that the row does not leave to their defaults.
func columnsOf(r *row) (set columnSet) {
	needs := func(column columnSet, needed bool) {
		if needed {
			set |= column
		}
	}
	needs(queueColumn, r.Queue != DefaultQueue)
	needs(tenantColumn, r.TenantID.Bytes != RootTenant)
	needs(priorityColumn, r.Priority != 0)
	needs(maxAttemptsColumn, r.MaxAttempts != engine.DefaultMaxAttempts)
	needs(runAtColumn, r.RunAt.Valid)
	needs(timeoutColumn, r.Timeout.Valid)
	needs(backoffColumn, r.Backoff != nil)
	needs(keyColumn, r.Key != nil)
	needs(contentTypeColumn, r.ContentType != contentJSON)
	needs(deadlineColumn, r.Deadline.Valid)
	needs(headersColumn, r.Headers != nil)
	needs(watchedColumn, r.Watched)
	needs(maxActiveColumn, r.MaxActive != nil)
	needs(orderedColumn, r.Ordered != nil)
	needs(positionColumn, r.Position != nil)
	needs(onDeathColumn, r.OnDeath != nil)
	needs(parkAfterColumn, r.ParkAfter.Valid)
	needs(onLapseColumn, r.OnLapse != nil)
	needs(delayColumn, r.Delay.Valid)
	needs(holdColumn, r.Hold)
	return set
}

type copyColumn struct {
	name  string
	value func(*row) any
	in    columnSet // 0: always sent

	// How a copyStream encodes it: by itself, or with pgx as a value of this type.
	append func([]byte, *row) []byte
	oid    uint32
}

// A column that some job sets is sent for all of them, so its value must be right
// for those that leave it to the default: run_at is the one that is not known
// here, so a mixture of jobs with and without it goes by INSERT.
var copyColumns = []copyColumn{
	{name: "id", value: func(r *row) any { return &r.ID }, append: func(b []byte, r *row) []byte { return appendBytes(b, r.ID.Bytes[:]) }},
	{name: "kind", value: func(r *row) any { return r.Kind }, append: func(b []byte, r *row) []byte { return appendBytes(b, r.Kind) }},
	{name: "payload", value: func(r *row) any { return r.Payload }, append: func(b []byte, r *row) []byte { return appendBytes(b, r.Payload) }}, // never nil
	{name: "queue", value: func(r *row) any { return r.Queue }, in: queueColumn, append: func(b []byte, r *row) []byte { return appendBytes(b, r.Queue) }},
	{name: "tenant_id", value: func(r *row) any { return &r.TenantID }, in: tenantColumn, append: func(b []byte, r *row) []byte { return appendBytes(b, r.TenantID.Bytes[:]) }},
	{name: "priority", value: func(r *row) any { return r.Priority }, in: priorityColumn, append: func(b []byte, r *row) []byte { return appendInt16(b, r.Priority) }},
	{name: "max_attempts", value: func(r *row) any { return r.MaxAttempts }, in: maxAttemptsColumn, append: func(b []byte, r *row) []byte { return appendInt32(b, r.MaxAttempts) }},
	{name: "run_at", value: func(r *row) any { return r.RunAt }, in: runAtColumn, append: func(b []byte, r *row) []byte { return appendTime(b, r.RunAt) }},
	{name: "timeout", value: func(r *row) any { return r.Timeout }, in: timeoutColumn, oid: pgtype.IntervalOID},
	{name: "backoff", value: backoffOf, in: backoffColumn}, // of all that is sent only pgx's own COPY makes an array of a text
	{name: "key", value: func(r *row) any { return r.Key }, in: keyColumn, oid: pgtype.TextOID},
	{name: "content_type", value: func(r *row) any { return r.ContentType }, in: contentTypeColumn, append: func(b []byte, r *row) []byte { return appendBytes(b, r.ContentType) }},
	{name: "deadline", value: func(r *row) any { return &r.Deadline }, in: deadlineColumn, append: func(b []byte, r *row) []byte { return appendTime(b, r.Deadline) }},
	{name: "headers", value: headersOf, in: headersColumn, oid: pgtype.JSONBOID},
	{name: "watched", value: watchedOf, in: watchedColumn, oid: pgtype.BoolOID},
	{name: "max_active", value: func(r *row) any { return r.MaxActive }, in: maxActiveColumn, oid: pgtype.Int2OID},
	{name: "ordered", value: func(r *row) any { return r.Ordered }, in: orderedColumn, oid: pgtype.BoolOID},
	{name: "line_position", value: func(r *row) any { return r.Position }, in: positionColumn, oid: pgtype.Int8OID},
	{name: "on_death", value: func(r *row) any { return r.OnDeath }, in: onDeathColumn, oid: pgtype.TextOID},
	{name: "park_after", value: func(r *row) any { return r.ParkAfter }, in: parkAfterColumn, oid: pgtype.IntervalOID},
	{name: "on_lapse", value: func(r *row) any { return r.OnLapse }, in: onLapseColumn, oid: pgtype.TextOID},
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

// textOf is "" for NULL.
func textOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// arrays is the columns of the chunk's rows: nil is NULL, for one that every row leaves
// to its default.
func arrays(rows []row, chunk []int) sqlgen.EnqueueJobsParams {
	c := columns{rows: rows, chunk: chunk}
	for _, i := range chunk {
		c.needs |= columnsOf(&rows[i])
	}
	return sqlgen.EnqueueJobsParams{
		Ids:          values(c, 0, func(r *row) pgtype.UUID { return r.ID }),
		TenantIds:    values(c, tenantColumn, func(r *row) pgtype.UUID { return r.TenantID }),
		Queues:       values(c, queueColumn, func(r *row) string { return r.Queue }),
		Kinds:        values(c, 0, func(r *row) string { return r.Kind }),
		Priorities:   values(c, priorityColumn, func(r *row) int16 { return r.Priority }),
		MaxAttempts:  values(c, maxAttemptsColumn, func(r *row) int32 { return r.MaxAttempts }),
		RunAts:       values(c, runAtColumn, func(r *row) pgtype.Timestamptz { return r.RunAt }),
		Delays:       values(c, delayColumn, func(r *row) pgtype.Interval { return r.Delay }),
		Timeouts:     values(c, timeoutColumn, func(r *row) pgtype.Interval { return r.Timeout }),
		Backoffs:     values(c, backoffColumn, func(r *row) string { return textOf(r.Backoff) }),
		Keys:         values(c, keyColumn, func(r *row) string { return textOf(r.Key) }),
		Payloads:     values(c, 0, func(r *row) []byte { return r.Payload }),
		ContentTypes: values(c, contentTypeColumn, func(r *row) string { return r.ContentType }),
		Headers:      values(c, headersColumn, func(r *row) string { return textOf(r.Headers) }),
		Deadlines:    values(c, deadlineColumn, func(r *row) pgtype.Timestamptz { return r.Deadline }),
		Holds:        values(c, holdColumn, func(r *row) bool { return r.Hold }),
		Watched:      values(c, watchedColumn, func(r *row) bool { return r.Watched }),
		MaxActives:   values(c, maxActiveColumn, func(r *row) int16 { return valueOf(r.MaxActive) }),
		Ordereds:     values(c, orderedColumn, func(r *row) bool { return valueOf(r.Ordered) }),
		Positions:    values(c, positionColumn, func(r *row) int64 { return valueOf(r.Position) }),
		OnDeaths:     values(c, onDeathColumn, func(r *row) string { return valueOf(r.OnDeath) }),
		ParkAfters:   values(c, parkAfterColumn, func(r *row) pgtype.Interval { return r.ParkAfter }),
		OnLapses:     values(c, onLapseColumn, func(r *row) string { return valueOf(r.OnLapse) }),
	}
}

// columns is what the arrays of one statement are made of.
type columns struct {
	rows  []row
	chunk []int
	needs columnSet
}

func values[T any](c columns, column columnSet, value func(*row) T) []T {
	if column&^c.needs != 0 {
		return nil
	}
	all := make([]T, len(c.chunk))
	for at, i := range c.chunk {
		all[at] = value(&c.rows[i])
	}
	return all
}
