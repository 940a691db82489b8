package reaper

import (
	"context"
	"maps"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// depths returns the gauge of each kind.
func depths(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "job_queue_depth" {
			for _, m := range f.GetMetric() {
				found[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return found
}

func TestDepthIsSampled(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r, db := newRig(t, Config{Registerer: reg})
	sample := func(want map[string]float64, deadLetters float64, oldest float64) {
		t.Helper()
		takeSample(t, r, db)
		if got := depths(t, reg); !maps.Equal(got, want) {
			t.Errorf("job_queue_depth = %v, want %v", got, want)
		}
		if got := value(t, r.metrics.deadLetters); got != deadLetters {
			t.Errorf("dead letters = %v, want %v", got, deadLetters)
		}
		if got := value(t, r.metrics.oldestDue); got < oldest || got > oldest+30 {
			t.Errorf("the oldest due job is due for %v s, want %v", got, oldest)
		}
	}
	sample(map[string]float64{}, 0, 0)

	exec(t, db, `
		INSERT INTO outbox.jobs (id, kind, payload, status, run_at)
		SELECT outbox.uuid_v7(), kind, '', status::outbox.job_status, now() + due::interval
		FROM (VALUES ('mail', 'pending', '-100 s'), ('mail', 'retrying', '-50 s'), ('mail', 'pending', '1 hour'), ('mail', 'dead', '-1 day'),
		             ('bill', 'pending', '1 hour'), ('bill', 'failed', '-1 day'), ('held', 'created', '-1 day')) AS job(kind, status, due)`)
	storeRunning(t, db, 1, time.Minute)
	sample(map[string]float64{"mail": 3, "bill": 1, "held": 0, "test": 0}, 2, 100)

	exec(t, db, `DELETE FROM outbox.jobs WHERE kind <> 'bill'`)
	sample(map[string]float64{"mail": 0, "bill": 1, "held": 0, "test": 0}, 1, 0)
	sample(map[string]float64{"bill": 1}, 1, 0)
}

func TestOnlyTheDeepestKindsHaveAGauge(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r, db := newRig(t, Config{Registerer: reg})
	exec(t, db, `
		INSERT INTO outbox.jobs (id, kind, payload)
		SELECT outbox.uuid_v7(), 'kind-' || k, '' FROM generate_series(1, 120) AS k, generate_series(1, k)`)
	takeSample(t, r, db)
	got := depths(t, reg)
	if len(got) != 101 || got["kind-120"] != 120 || got["kind-21"] != 21 || got["other"] != 20*21/2 {
		t.Errorf("%d gauges, kind-120 %v, kind-21 %v, other %v, want 101, 120, 21, 210", len(got), got["kind-120"], got["kind-21"], got["other"])
	}
}

// A queue that is idle, paused or limited is shown, too: what scales by a gauge or silences
// a page has to find a 0 or a 1 there, and not nothing.
func TestQueuesAreSampled(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r, db := newRig(t, Config{Registerer: reg})
	exec(t, db, `
		INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing)
		VALUES ('w-1', 'v', '{default,idle}', '{1,1}', '{mail}', true);
		INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, seen_at)
		VALUES ('w-2', 'v', '{gone}', '{1}', '{bill}', true, now() - interval '1 hour');
		INSERT INTO outbox.queues (queue, paused_at) VALUES ('paused', now());
		INSERT INTO outbox.queues (queue, max_running, rate, rate_interval, limited_at) VALUES ('limited', 7, 30, '1 minute', now());
		INSERT INTO outbox.jobs (id, kind, queue, payload, status, run_at)
		SELECT outbox.uuid_v7(), kind, queue, '', status::outbox.job_status, now() + due::interval
		FROM (VALUES ('mail', 'default', 'pending', '-100 s'), ('mail', 'default', 'retrying', '1 hour'), ('bill', 'default', 'pending', '-1 hour'), ('bill', 'gone', 'pending', '-300 s'),
		             ('mail', 'paused', 'pending', '-1 day'), ('mail', 'limited', 'pending', '1 day'), ('relay:orders', 'default', 'retrying', '-1 day')) AS job(kind, queue, status, due)`)
	exec(t, db, `
		INSERT INTO outbox.jobs (id, kind, queue, payload, run_at)
		SELECT outbox.uuid_v7(), 'mail', 'limited', '', now() + interval '1 day' FROM generate_series(1, 10000)`)
	exec(t, db, `DO $$ BEGIN EXECUTE 'DROP TABLE outbox.events_' || to_char((now() + interval '5 days') AT TIME ZONE 'UTC', 'YYYYMMDD'); END $$`)
	takeSample(t, r, db)
	want := map[string]float64{
		"jobs_due default": 2, "jobs_due idle": 0, "jobs_due paused": 0, "jobs_due limited": 0, "jobs_due gone": 1,
		"paused default": 0, "paused idle": 0, "paused paused": 1, "paused limited": 0, "paused gone": 0,
		// Nobody handles the bill of an hour ago. In the queue that nobody works, it is the queue's jobs that wait.
		"jobs_unhandled default": 1, "jobs_unhandled idle": 0, "jobs_unhandled paused": 0, "jobs_unhandled limited": 0, "jobs_unhandled gone": 0,
		"oldest_due_age_seconds default": 100, "oldest_due_age_seconds idle": 0, "oldest_due_age_seconds paused": 0, "oldest_due_age_seconds limited": 0, "oldest_due_age_seconds gone": 300,
		"limit max_running limited": 7, "limit rate limited": 0.5,
		"unhandled relay:orders": 0, "unhandled bill": 2, "unhandled mail": 0, // one is due in the paused queue
	}
	if got := queueGauges(t, reg); !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := value(t, r.metrics.daysAhead); got != 4 {
		t.Errorf("there are partitions for %v days, want 4 until the gap", got)
	}
	if got := time.Since(time.UnixMilli(int64(1000 * value(t, r.metrics.sampled)))); got < 0 || got > 20*time.Second {
		t.Errorf("sampled %v ago", got)
	}

	exec(t, db, `DELETE FROM outbox.queues; DELETE FROM outbox.jobs; DELETE FROM outbox.workers WHERE worker = 'w-1'`)
	takeSample(t, r, db)
	got := queueGauges(t, reg)
	if len(got) != 23 || got["jobs_due default"] != 0 || got["paused paused"] != 0 {
		t.Errorf("what vanished is shown as %v, want zeros and no limits", got)
	}
	takeSample(t, r, db)
	if got := queueGauges(t, reg); len(got) != 0 {
		t.Errorf("long after it vanished it is shown as %v", got)
	}
}

// A relay that does not run shows nothing: that nobody publishes is for the reaper to say. The events that a sink loses
// are counted from 0 on, or no rate would see the first ones.
func TestSinksAreSampled(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	sinks := func() map[string]float64 {
		t.Helper()
		takeSample(t, r, db)
		return bySink(t, r.metrics.sinkOwned)
	}
	if got := sinks(); len(got) != 0 {
		t.Errorf("without sinks %v are shown", got)
	}
	exec(t, db, `
		INSERT INTO outbox.sinks (sink, owner, lease_expires_at)
		VALUES ('owned', 'a', now() + interval '5 minutes'), ('lapsed', 'b', now() - interval '1 s'), ('left', NULL, NULL)`)
	want := map[string]float64{"owned": 1, "lapsed": 0, "left": 0}
	if got := sinks(); !maps.Equal(got, want) {
		t.Errorf("owned: %v, want %v", got, want)
	}
	if got, want := bySink(t, r.metrics.eventsLost), (map[string]float64{"owned": 0, "lapsed": 0, "left": 0}); !maps.Equal(got, want) {
		t.Errorf("lost: %v, want %v", got, want)
	}
	exec(t, db, `DELETE FROM outbox.sinks WHERE sink <> 'owned'`)
	if got, want := sinks(), (map[string]float64{"owned": 1}); !maps.Equal(got, want) {
		t.Errorf("owned: %v, want %v", got, want)
	}

	// A process that is cut off shows what it knows for half an hour.
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		age   time.Duration
		shown int
	}{{29 * time.Minute, 1}, {31 * time.Minute, 0}} {
		r.sampler.gauges.taken = time.Now().Add(-c.age)
		if _, err := r.sampler.sample(cut); err == nil {
			t.Fatal("it samples without a database")
		}
		if got := bySink(t, r.metrics.sinkOwned); len(got) != c.shown || (value(t, r.metrics.sampled) > 0) != (c.shown > 0) {
			t.Errorf("after %s it shows %v, sampled at %v; want %d sinks", c.age, got, value(t, r.metrics.sampled), c.shown)
		}
	}
}

// bySink returns the values of a metric that has the label sink alone.
func bySink(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			found[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return found
}

// queueGauges returns the gauges of queues and of what has no handler, ages in hundreds of seconds.
func queueGauges(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		name, isQueue := strings.CutPrefix(f.GetName(), "outbox_queue_")
		if f.GetName() == "outbox_unhandled_jobs" {
			name, isQueue = "unhandled", true
		}
		for _, m := range f.GetMetric() {
			key, v := name, m.GetGauge().GetValue()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			if name == "oldest_due_age_seconds" {
				v = math.Floor(v/100) * 100
			}
			if isQueue {
				found[key] = v
			}
		}
	}
	return found
}

// takeSample has the reaper take a sample, though it is not its turn yet.
func takeSample(t *testing.T, r *Reaper, db *pgxpool.Pool) {
	t.Helper()
	exec(t, db, `UPDATE outbox.chores SET free_at = NULL WHERE chore = 'sample'`)
	if _, err := r.sampler.sample(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// However many reapers look, one counts at a time, and all show what it has found.
func TestOneOfManyReapersCounts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload) SELECT outbox.uuid_v7(), 'mail', '' FROM generate_series(1, 5)`)
	var reapers []*Reaper
	for range 10 {
		reapers = append(reapers, newReaper(t, db, Config{}))
	}
	turns := make(chan pgtype.Timestamptz, len(reapers))
	var looking sync.WaitGroup
	for _, r := range reapers {
		looking.Go(func() {
			turn, err := r.sampler.takeTurn(t.Context())
			if err != nil {
				t.Error(err)
			}
			if turn.Turn.Valid {
				turns <- turn.Turn
			}
		})
	}
	looking.Wait()
	if len(turns) != 1 {
		t.Fatalf("%d of ten reapers have the turn, want one", len(turns))
	}
	first := <-turns
	look := func(r *Reaper, want float64) {
		t.Helper()
		if _, err := r.sampler.sample(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := value(t, r.metrics.queueDue.WithLabelValues("default")); got != want {
			t.Errorf("%v jobs are due, want %v", got, want)
		}
	}
	look(reapers[1], 0) // nobody has found anything yet
	if err := reapers[0].sampler.count(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `DELETE FROM outbox.jobs`)
	for _, r := range reapers {
		look(r, 5)
	}

	// The turn is over, and another reaper counts. The first, which stood still, comes with an older count.
	exec(t, db, `UPDATE outbox.chores SET free_at = now()`)
	look(reapers[2], 0)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload) VALUES (outbox.uuid_v7(), 'mail', '')`)
	if err := reapers[0].sampler.count(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	look(reapers[3], 0)
	exec(t, db, `UPDATE outbox.chores SET free_at = now() + interval '1 day'`) // before the clock was set back
	look(reapers[4], 1)
}

// The age of a snapshot is that of its transaction, where the reaper's login may see when it began.
func TestTheAgeOfASnapshotIsSampled(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	snapshot, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snapshot.Rollback(context.WithoutCancel(t.Context())) }()
	age := func() (seconds float64) {
		if err := snapshot.QueryRow(t.Context(), `SELECT extract(epoch FROM clock_timestamp() - now())`).Scan(&seconds); err != nil {
			t.Fatal(err)
		}
		return seconds
	}
	r := newReaper(t, db, Config{})
	least := age()
	takeSample(t, r, db)
	if got, most := value(t, r.metrics.horizonSeconds), age(); got < least || got > most {
		t.Errorf("the horizon is %v s back, want %v s to %v s, the age of the snapshot", got, least, most)
	}
}

// A snapshot that a session of another role holds counts, whatever else of it the reaper's login is shown.
func TestASnapshotOfAnotherRoleIsSampled(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	snapshot, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snapshot.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := snapshot.Exec(t.Context(), `SELECT FROM outbox.jobs`); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `CREATE TABLE public.burnt ()`)
	r := newReaper(t, pgtest.Login(t, db, "outbox_worker"), Config{})
	takeSample(t, r, db)
	if got := value(t, r.metrics.horizonTransactions); got < 1 {
		t.Errorf("the horizon is %v transactions back, want those since the snapshot", got)
	}
	var latest float64
	if err := db.QueryRow(t.Context(), `SELECT max(version_id) FROM outbox.schema_version`).Scan(&latest); err != nil {
		t.Fatal(err)
	}
	if got := value(t, r.metrics.schema); got != latest {
		t.Errorf("the schema is that of migration %v, want %v", got, latest)
	}
}
