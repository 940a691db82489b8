package probe

import (
	"cmp"
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
)

// tracer writes to the ledger how long claims take, and which calls to the database have no deadline or run on after
// their context has ended.
type tracer struct{ book *ledger.Writer }

// returnWithin is how soon a call must return after its context has ended.
const returnWithin = time.Second

type callKey struct{}

// call is a call to the database that has not returned yet.
type call struct {
	what  string
	began time.Time
	ended atomic.Pointer[time.Time] // when its context ended; nil before that
	stop  func() bool
}

func (t *tracer) begin(ctx context.Context, what string, bounded bool) context.Context {
	if !bounded {
		t.book.Write(ledger.Entry{Event: ledger.Unbounded, Do: what})
	}
	c := &call{what: what, began: time.Now()}
	c.stop = context.AfterFunc(ctx, func() { c.ended.Store(new(time.Now())) })
	return context.WithValue(ctx, callKey{}, c)
}

func (t *tracer) end(ctx context.Context) {
	c := ctx.Value(callKey{}).(*call)
	c.stop()
	if ended := c.ended.Load(); ended != nil {
		t.late(c.what, time.Since(*ended))
	}
	if c.what == "ClaimJobs" {
		t.book.Write(ledger.Entry{Event: ledger.Called, Do: c.what, N: int(time.Since(c.began).Microseconds())})
	}
}

func (t *tracer) late(what string, by time.Duration) {
	if by > returnWithin {
		t.book.Write(ledger.Entry{Event: ledger.Overdue, Do: what, N: int(by.Microseconds())})
	}
}

func hasDeadline(ctx context.Context) bool { _, has := ctx.Deadline(); return has }

// TraceQueryStart begins a query.
func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return t.begin(ctx, statement(data.SQL), hasDeadline(ctx))
}

// TraceQueryEnd ends it.
func (t *tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) { t.end(ctx) }

// TraceCopyFromStart begins a COPY.
func (t *tracer) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceCopyFromStartData) context.Context {
	return t.begin(ctx, "COPY", hasDeadline(ctx))
}

// TraceCopyFromEnd ends it.
func (t *tracer) TraceCopyFromEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceCopyFromEndData) {
	t.end(ctx)
}

// TraceConnectStart begins to connect, with a timeout of its own.
func (t *tracer) TraceConnectStart(ctx context.Context, data pgx.TraceConnectStartData) context.Context {
	ctx, cancel := ctx, context.CancelFunc(func() {})
	if limit := data.ConnConfig.ConnectTimeout; limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
	}
	ctx = t.begin(ctx, "connect", hasDeadline(ctx))
	return context.WithValue(ctx, cancelKey{}, cancel)
}

// TraceConnectEnd ends it.
func (t *tracer) TraceConnectEnd(ctx context.Context, _ pgx.TraceConnectEndData) {
	t.end(ctx)
	ctx.Value(cancelKey{}).(context.CancelFunc)()
}

type cancelKey struct{}

// statement returns the name of one of our named statements, or the first word of any other.
func statement(sql string) string {
	if name, ours := strings.CutPrefix(sql, "-- name: "); ours {
		sql = name
	}
	return cmp.Or(strings.Fields(sql)...)
}
