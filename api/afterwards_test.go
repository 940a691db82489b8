package api_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// awayAfter refuses connections once a statement was sent.
type awayAfter struct {
	statement atomic.Pointer[string] // its name
	away      atomic.Bool
}

func (a *awayAfter) sent(sql string) {
	if name := a.statement.Load(); name != nil && strings.Contains(sql, *name) {
		a.away.Store(true)
	}
}

func (a *awayAfter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	a.sent(data.SQL)
	return ctx
}

func (a *awayAfter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		a.sent(q.SQL)
	}
	return ctx
}

func (*awayAfter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (*awayAfter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*awayAfter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (a *awayAfter) prepare(context.Context, *pgx.Conn) (bool, error) {
	if a.away.Load() {
		return false, &pgconn.ConnectError{}
	}
	return true, nil
}

// of refuses connections after the statement while the request is answered.
func (a *awayAfter) of(statement string, request func() response) response {
	a.statement.Store(&statement)
	defer func() {
		a.statement.Store(nil)
		a.away.Store(false)
	}()
	res := request()
	if !a.away.Load() {
		res.t.Errorf("%s was not sent", statement)
	}
	return res
}

func newAwayRig(t *testing.T) (*rig, *awayAfter) {
	t.Helper()
	db, a := pgtest.New(t), &awayAfter{}
	config := pgtest.Login(t, db, "outbox_api").Config()
	config.ConnConfig.Tracer, config.PrepareConn = a, a.prepare
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return rigOn(t, db, func(c *api.Config) { c.Pool = pool }), a
}

// A client that is told to try again what is done has it done twice.
func TestAnActIsAnsweredThoughTheDatabaseIsAwayAfterwards(t *testing.T) {
	t.Parallel()
	r, after := newAwayRig(t)
	r.exec(`INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	for _, tenant := range []outbox.ID{outbox.RootTenant, tenantA} {
		r.event("order.paid", tenant)
	}
	for _, token := range []string{"root", "operator-a"} {
		r := r.as(token)
		var started api.ReplayAnswer
		after.of("StartReplay", func() response {
			return r.post("/sinks/orders/replays", `{"since":"2020-01-01T00:00:00Z","reason":"lost"}`)
		}).want(202, &started)
		var list struct{ Replays []api.Replay }
		r.get("/sinks/orders/replays").want(200, &list)
		if len(list.Replays) == 0 || started.Replay == nil || list.Replays[0].ID != started.Replay.ID || list.Replays[0].Events != started.Replay.Events || !list.Replays[0].StartedAt.Equal(started.Replay.StartedAt) {
			t.Errorf("%s: started %+v, want the one of %+v", token, started.Replay, list.Replays)
		}

		var op, now api.Operation
		r.post("/operations", `{"act":"retry","jobs":{"kind":"mail"},"reason":"now"}`).want(202, &op)
		for act, state := range map[string]string{"stop": "stopped", "resume": "running"} {
			if act == "resume" {
				r.post("/operations/"+op.ID+"/stop", "").want(200, nil)
			}
			after.of("SwitchOperation", func() response { return r.post("/operations/"+op.ID+"/"+act, "") }).want(200, &now)
			if now.State != state || now.Act != "retry" || now.Jobs.Kind != "mail" || now.Reason != "now" {
				t.Errorf("%s, %s: %+v", token, act, now)
			}
		}
	}
	var list struct{ Replays []api.Replay }
	if r.as("root").get("/sinks/orders/replays").want(200, &list); len(list.Replays) != 2 {
		t.Errorf("replays = %+v, want two", list.Replays)
	}
}

// The job is stored: "try again" would be right, but not that nothing was done.
func TestAJobWithAKeyIsStoredThoughTheDatabaseIsAwayAfterwards(t *testing.T) {
	t.Parallel()
	r, after := newAwayRig(t)
	for _, c := range []struct{ name, body string }{
		{"one", `{"kind":"mail","idempotencyKey":"one"}`},
		{"one of a key", `{"kind":"mail","key":"k","idempotencyKey":"two"}`},
		{"batch", `{"kind":"mail","idempotencyKey":"three"}`},
	} {
		post := r.post
		if c.name == "batch" {
			post = func(_, body string) response { return r.postBatch(body) }
		}
		res := after.of("commit", func() response { return post("/jobs", c.body) })
		p := res.problem(503, "unavailable")
		if p.Outcome != "unknown" || !strings.Contains(p.Detail, "idempotency key") || res.Header().Get("Retry-After") != "" {
			t.Errorf("%s: %+v %v, want that it is not known what became of it", c.name, p, res.Header())
		}
		post("/jobs", c.body).want(202, nil)
	}
	var n int
	if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&n); err != nil || n != 3 {
		t.Errorf("%d jobs are stored, %v; want 3", n, err)
	}
}
