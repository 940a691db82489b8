package outbox

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// row is a job ready to be stored.
type row = engine.Row

type copyColumn struct {
	name  string
	value func(*row) any
	in    engine.ColumnSet // 0: always sent

	// These encode the column for a copyStream: append without pgx, oid with pgx as a value of that type.
	append func([]byte, *row) []byte
	oid    uint32
}

// copyColumns are the columns that COPY can send. If any job sets a column, it is sent for all of them, so value must
// return the default for jobs that leave it unset. The default of run_at is not known here, so a mixture of jobs with
// and without it goes by INSERT.
var copyColumns = []copyColumn{
	{name: "id", value: func(r *row) any { return &r.ID }, append: func(b []byte, r *row) []byte {
		return appendBytes(b, r.ID.Bytes[:])
	}},
	{name: "kind", value: func(r *row) any { return r.Kind }, append: func(b []byte, r *row) []byte {
		return appendBytes(b, r.Kind)
	}},
	// The payload is never nil.
	{name: "payload", value: func(r *row) any { return r.Payload }, append: func(b []byte, r *row) []byte {
		return appendBytes(b, r.Payload)
	}},
	{
		name: "queue", value: func(r *row) any { return r.Queue }, in: engine.QueueColumn,
		append: func(b []byte, r *row) []byte { return appendBytes(b, r.Queue) },
	},
	{
		name: "tenant_id", value: func(r *row) any { return &r.TenantID }, in: engine.TenantColumn,
		append: func(b []byte, r *row) []byte { return appendBytes(b, r.TenantID.Bytes[:]) },
	},
	{
		name: "priority", value: func(r *row) any { return r.Priority }, in: engine.PriorityColumn,
		append: func(b []byte, r *row) []byte { return appendInt16(b, r.Priority) },
	},
	{
		name: "max_attempts", value: func(r *row) any { return r.MaxAttempts }, in: engine.MaxAttemptsColumn,
		append: func(b []byte, r *row) []byte { return appendInt32(b, r.MaxAttempts) },
	},
	{
		name: "run_at", value: func(r *row) any { return r.RunAt }, in: engine.RunAtColumn,
		append: func(b []byte, r *row) []byte { return appendTime(b, r.RunAt) },
	},
	{name: "timeout", value: func(r *row) any { return r.Timeout }, in: engine.TimeoutColumn, oid: pgtype.IntervalOID},
	// Only pgx's own COPY can make an array from a text.
	{name: "backoff", value: backoffOf, in: engine.BackoffColumn},
	{name: "key", value: func(r *row) any { return r.Key }, in: engine.KeyColumn, oid: pgtype.TextOID},
	{
		name: "content_type", value: func(r *row) any { return r.ContentType }, in: engine.ContentTypeColumn,
		append: func(b []byte, r *row) []byte { return appendBytes(b, r.ContentType) },
	},
	{
		name: "deadline", value: func(r *row) any { return &r.Deadline }, in: engine.DeadlineColumn,
		append: func(b []byte, r *row) []byte { return appendTime(b, r.Deadline) },
	},
	{name: "headers", value: headersOf, in: engine.HeadersColumn, oid: pgtype.JSONBOID},
	{name: "watched", value: watchedOf, in: engine.WatchedColumn, oid: pgtype.BoolOID},
	{name: "streamed", value: streamedOf, in: engine.StreamedColumn, oid: pgtype.Int4OID},
	{
		name: "max_active", value: func(r *row) any { return r.MaxActive }, in: engine.MaxActiveColumn,
		oid: pgtype.Int2OID,
	},
	{name: "ordered", value: func(r *row) any { return r.Ordered }, in: engine.OrderedColumn, oid: pgtype.BoolOID},
	{
		name: "line_position", value: func(r *row) any { return r.Position }, in: engine.PositionColumn,
		oid: pgtype.Int8OID,
	},
	{name: "on_death", value: func(r *row) any { return r.OnDeath }, in: engine.OnDeathColumn, oid: pgtype.TextOID},
	{
		name: "park_after", value: func(r *row) any { return r.ParkAfter }, in: engine.ParkAfterColumn,
		oid: pgtype.IntervalOID,
	},
	{name: "on_lapse", value: func(r *row) any { return r.OnLapse }, in: engine.OnLapseColumn, oid: pgtype.TextOID},
}

// headersOf returns a string rather than a pointer to one, which pgx would quote as a JSON string.
func headersOf(r *row) any {
	if r.Headers == nil {
		return nil
	}
	return *r.Headers
}

// backoffOf returns a string too, from which pgx makes an array.
func backoffOf(r *row) any {
	if r.Backoff == nil {
		return nil
	}
	return *r.Backoff
}

// watchedOf returns NULL for false.
func watchedOf(r *row) any {
	if !r.Watched {
		return nil
	}
	return true
}

// streamedOf returns 1, the number of the event that the insert stores, or NULL for false.
func streamedOf(r *row) any {
	if !r.Streamed {
		return nil
	}
	return int32(1)
}
