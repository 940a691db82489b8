package reaper

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestEveryMistakeInAConfigIsNamed(t *testing.T) {
	t.Parallel()
	_, err := New(nil, Config{
		Keep: -1, KeepInbox: 14, KeepAudit: 30*24*time.Hour - 1, HistoryAhead: -1, DepthInterval: 1,
		KeepByStatus: map[outbox.Status]time.Duration{outbox.Running: time.Hour, outbox.Succeeded: -1, outbox.Expired: 24*time.Hour - 1, outbox.Stale: 24 * time.Hour, outbox.Skipped: 0},
		KeepByQueue:  map[string]map[outbox.Status]time.Duration{"": nil, "no such!": {}, "mail": {outbox.Dead: -1, outbox.Retrying: 1}},
	})
	if err == nil {
		t.Fatal("New accepted it")
	}
	for _, want := range []string{"Keep is -1ns, want at least 24h, or 0 for 720h0m0s", "KeepByStatus[expired] is 23h59m59.999999999s, want at least 24h, or 0 to keep none", "KeepInbox is 14ns, want at least 24h, or 0 for 336h0m0s", "HistoryAhead is -1", "DepthInterval is 1ns", "KeepAudit is 719h59m59.999999999s, want at least 720h0m0s", `KeepByQueue has a queue whose name is empty`, `KeepByQueue has a queue whose name is "no such!": byte 2 is " "`, "KeepByQueue[mail][dead] is -1ns", `KeepByQueue[mail] has "retrying"`, `KeepByStatus has "running"`, "KeepByStatus[succeeded] is -1ns"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	want := []string{
		"Config.Keep", "Config.KeepInbox", "Config.KeepAudit", "Config.KeepByStatus[expired]", "Config.KeepByStatus", "Config.KeepByStatus[succeeded]",
		"Config.KeepByQueue", "Config.KeepByQueue[mail][dead]", "Config.KeepByQueue[mail]", "Config.KeepByQueue", "Config.HistoryAhead", "Config.DepthInterval",
	}
	var got []string
	for _, mistake := range errors.Unwrap(err).(interface{ Unwrap() []error }).Unwrap() {
		if e, ok := errors.AsType[*outbox.InvalidError](mistake); ok {
			got = append(got, e.Field)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	if _, err := New(nil, Config{}); err != nil {
		t.Errorf("New with the zero config = %v", err)
	}
}

func TestRunDoesEverythingAndStops(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	reg := prometheus.NewRegistry()
	r, err := New(db, Config{Registerer: reg, HistoryAhead: 40})
	if err != nil {
		t.Fatal(err)
	}
	if r.Ready() == nil {
		t.Error("ready before Run")
	}
	storeClosed(t, db, 1, outbox.Succeeded, 20*day)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload) VALUES (outbox.uuid_v7(), 'mail', '')`)
	run(t, r)
	await(t, "ready", func() bool { return r.Ready() == nil })
	storeRunning(t, db, 10, -time.Millisecond)
	await(t, "leases expired", func() bool { return value(t, r.metrics.expired) == 10 })
	await(t, "the old day dropped", func() bool { return value(t, r.metrics.dropped) == 1 })
	await(t, "depth sampled", func() bool { return depths(t, reg)["mail"] == 1 })
	await(t, "partitions made", func() bool {
		return query[int](t, db, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.history'::regclass`) > 40
	})
	if err := r.Run(t.Context()); err == nil {
		t.Error("a second Run was accepted")
	}
}

// What an idle process asks is bounded: 17 queries a minute.
func TestAnIdleReaperAsksLittle(t *testing.T) {
	t.Parallel()
	config := pgtest.New(t).Config()
	asked := new(queryCount)
	config.ConnConfig.Tracer = asked
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	r := newReaper(t, db, Config{Listening: func() bool { return true }})
	aMinute := 0.0
	for name, chore := range map[string]struct {
		do    func(context.Context) (time.Duration, error)
		every time.Duration
	}{
		"expire":    {r.expirer.expire, quietInterval},
		"keys":      {r.sweeper.sweep, sweepInterval},
		"partition": {r.days.ensure, partitionInterval},
		"trim":      {r.trimmer.trim, trimInterval},
		"depth":     {r.sampler.sample, r.config.DepthInterval},
		"watch":     {r.watchdog.watch, watchInterval},
	} {
		if _, err := chore.do(t.Context()); err != nil { // what a connection costs once
			t.Fatal(err)
		}
		r.expirer.looksAhead = true // whatever the first pass cost on this machine
		before := asked.n.Load()
		wait, err := chore.do(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if wait < chore.every*3/4 || wait > chore.every*5/4 {
			t.Errorf("%s waits %s, want %s give or take a quarter", name, wait, chore.every)
		}
		t.Logf("%s: %d queries every %s", name, asked.n.Load()-before, chore.every)
		aMinute += float64(asked.n.Load()-before) * float64(time.Minute) / float64(chore.every)
	}
	if aMinute > 17 {
		t.Errorf("an idle reaper asks %.1f queries a minute, want at most 17", aMinute)
	}
}

// queryCount counts queries; pings and what prepares a session are among them.
type queryCount struct{ n atomic.Int64 }

func (c *queryCount) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *queryCount) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestReadyTellsThatTheDatabaseIsReadOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r, err := New(db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	run(t, r)
	await(t, "ready", func() bool { return r.Ready() == nil })
	name := query[string](t, db, `SELECT quote_ident(current_database())`)
	setReadOnly := func(on string) {
		exec(t, db, `BEGIN READ WRITE; ALTER DATABASE `+name+` SET default_transaction_read_only = `+on+`; COMMIT`)
		exec(t, db, `BEGIN READ WRITE; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid(); COMMIT`)
	}
	setReadOnly("on")
	await(t, "not ready", func() bool { err := r.Ready(); return err != nil && pgsession.State(err) == pgsession.ReadOnly })
	setReadOnly("off")
	await(t, "ready again", func() bool { return r.Ready() == nil })
}

func TestACutConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r, err := New(db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	run(t, r)
	await(t, "ready", func() bool { return r.Ready() == nil })
	exec(t, db, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	storeRunning(t, db, 1, -time.Millisecond)
	await(t, "the lease expired", func() bool { return value(t, r.metrics.expired) == 1 })
}

func TestMetricsAreThereBeforeAnythingHappens(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	if _, err := New(nil, Config{Registerer: reg}); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	for _, f := range families {
		series += len(f.GetMetric())
		if help := f.GetHelp(); !strings.HasSuffix(help, ".") {
			t.Errorf("the help of %s is no sentence: %q", f.GetName(), help)
		}
	}
	if series != 36 { // job_queue_depth has none until there is a kind
		t.Errorf("series = %d, want 36", series)
	}
}

// A killed worker's jobs must be free three seconds after their leases lapsed.
func TestLeasesAreExpiredWithinThreeSeconds(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r, err := New(db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	run(t, r)
	const jobs = 60
	exec(t, db, `
		INSERT INTO outbox.jobs (id, kind, payload, status, epoch, attempt, started_at, lease_owner, lease_expires_at)
		SELECT outbox.uuid_v7(), 'test', '', 'running', 1, 1, now(), extract(epoch FROM lapses), lapses
		FROM (SELECT now() + i * interval '100 ms' AS lapses FROM generate_series(1, $1) AS i) AS lease`, jobs)
	await(t, "all leases expired", func() bool { return value(t, r.metrics.expired) == jobs })
	late := query[float64](t, db, `SELECT max(extract(epoch FROM finished_at) - worker::numeric) FROM outbox.attempts`)
	t.Logf("the latest lease was expired %.1f s after it had lapsed", late)
	if late > 3 {
		t.Errorf("a lease was expired %.1f s after it had lapsed, want at most 3", late)
	}
}
