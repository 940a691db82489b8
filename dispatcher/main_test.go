package dispatcher_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

// patience is how long a test waits for what must happen. Tests state what happens and in which order, not how fast.
const patience = time.Minute

// probe is the job of most tests.
type probe struct {
	N int `json:"n"`
}

func (probe) Kind() string { return "probe" }

// returning is a probe whose handler returns an R.
type returning[R any] struct {
	outbox.Returns[R]
	probe
}

type handler = func(context.Context, *outbox.Job[probe]) error

func ignore(context.Context, *outbox.Claimed) error { return nil }

// handle makes a mux with one handler, for probes; nil ignores them.
func handle(h handler, config ...dispatcher.KindConfig) *dispatcher.Mux {
	if h == nil {
		h = func(context.Context, *outbox.Job[probe]) error { return nil }
	}
	mux := new(dispatcher.Mux)
	dispatcher.Handle(mux, h, config...)
	return mux
}

// quiet returns a configuration in which only the startup scan, a timer for a known due time, or Wake makes the
// dispatcher look for jobs.
func quiet(wake <-chan struct{}) dispatcher.Config {
	return dispatcher.Config{PollInterval: time.Hour, FallbackPollInterval: time.Hour, Wake: wake}
}

// running is a dispatcher at work.
type running struct {
	*dispatcher.Dispatcher
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	log    *logbook
	gather prometheus.Gatherer
}

// start runs a dispatcher until the test ends, or stop is called.
func start(t *testing.T, db *pgxpool.Pool, mux *dispatcher.Mux, config dispatcher.Config) *running {
	t.Helper()
	registry := prometheus.NewRegistry()
	r := &running{done: make(chan struct{}), log: new(logbook), gather: registry}
	config.Registerer = registry
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	}
	d, err := dispatcher.New(db, mux, config)
	if err != nil {
		t.Fatal(err)
	}
	r.Dispatcher = d
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.err = d.Run(ctx)
	}()
	t.Cleanup(func() {
		r.stop(t)
		if t.Failed() {
			t.Logf("log of %s:\n%s", d.Worker(), r.log.tail())
		}
	})
	return r
}

// stop asks the dispatcher to stop and waits until it has.
func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	r.wait(t)
}

func (r *running) wait(t *testing.T) {
	t.Helper()
	receive(t, r.done, "Run to return")
	if r.err != nil {
		t.Errorf("Run returned %v, want nil after an asked-for stop", r.err)
	}
}

// metric returns the sum of a counter's or gauge's series, or a histogram's sample count.
func (r *running) metric(t *testing.T, name string) float64 {
	t.Helper()
	families, err := r.gather.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if f.GetType() == dto.MetricType_HISTOGRAM {
				sum += float64(m.GetHistogram().GetSampleCount())
			} else {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// logbook keeps what a dispatcher logged.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// tail returns the lines that are worth reading after a failed test.
func (l *logbook) tail() string {
	lines := strings.Split(strings.TrimSpace(l.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// complaints returns the lines of level WARN and above.
func (l *logbook) complaints() string {
	var found strings.Builder
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			found.WriteString(line)
		}
	}
	return found.String()
}

// receive waits for a channel, which must not stay silent.
func receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %s in vain for %s", patience, what)
		panic("unreachable")
	}
}

// await returns once a query returns true. The query may be asked often.
func await(t *testing.T, db outbox.DB, what, sql string, args ...any) {
	t.Helper()
	awaitThat(t, what, func() bool { return ask[bool](t, db, sql, args...) })
}

func awaitThat(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range pgtest.Looks(patience) {
		if holds() {
			return
		}
	}
	t.Fatalf("waited %s in vain: %s", patience, what)
}

// awaitSucceeded waits until n jobs have succeeded, and checks that none is left open.
func awaitSucceeded(t *testing.T, db outbox.DB, n int) {
	t.Helper()
	await(t, db, fmt.Sprintf("%d jobs succeed", n), `SELECT count(*) >= $1 FROM outbox.history WHERE status = 'succeeded'`, n)
	if open := ask[int](t, db, `SELECT count(*) FROM outbox.jobs`); open != 0 {
		t.Errorf("jobs still open = %d, want 0", open)
	}
}

func enqueue(t *testing.T, db outbox.DB, args outbox.Args, opts outbox.Options) outbox.ID {
	t.Helper()
	id, err := outbox.Enqueue(t.Context(), db, args, opts)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// enqueueProbes stores probes numbered from 0, in one statement.
func enqueueProbes(t *testing.T, db outbox.DB, n int, opts outbox.Options) []outbox.ID {
	t.Helper()
	requests := make([]outbox.Request, n)
	for i := range requests {
		requests[i] = outbox.Request{Args: probe{i}, Options: opts}
	}
	ids, err := outbox.EnqueueMany(t.Context(), db, requests)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func exec(t *testing.T, db outbox.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// ask returns the single value of a query.
func ask[T any](t testing.TB, db outbox.DB, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// row returns the whole row of an open job as text: every change in it shows.
func row(t *testing.T, db outbox.DB, id outbox.ID) string {
	t.Helper()
	return ask[string](t, db, `SELECT coalesce((SELECT jobs::text FROM outbox.jobs WHERE id = $1), 'not in outbox.jobs')`, id)
}

// state returns the status, attempt, epoch, lost leases and last error code of a job, open or closed.
func state(t *testing.T, db outbox.DB, id outbox.ID) string {
	t.Helper()
	return ask[string](t, db, `
		SELECT coalesce(string_agg(format('%s attempt=%s epoch=%s lost=%s error=%s', status, attempt, epoch, lost_leases, last_error_code), '; '), 'gone')
		FROM (SELECT id, status, attempt, epoch, lost_leases, last_error_code FROM outbox.jobs
		      UNION ALL SELECT id, status, attempt, epoch, lost_leases, last_error_code FROM outbox.history) AS job
		WHERE id = $1`, id)
}

func wantState(t *testing.T, db outbox.DB, id outbox.ID, want string) {
	t.Helper()
	if got := state(t, db, id); got != want {
		t.Errorf("job is %q, want %q", got, want)
	}
}

// begin starts a transaction that is rolled back when the test ends without its end.
func begin(t *testing.T, db *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

func pgID(id outbox.ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// claimParams returns parameters that claim from the front of the given priorities of the default queue.
func claimParams(worker string, n int, priorities ...int16) sqlgen.ClaimJobsParams {
	p := sqlgen.ClaimJobsParams{
		Worker: worker, LeaseTtl: interval(time.Hour), Queue: engine.DefaultQueue, Kinds: []string{"probe"}, MaxJobs: int32(n),
	}
	if len(priorities) == 0 {
		priorities = []int16{0}
	}
	p.TenantIds, p.Quotas = []pgtype.UUID{pgID(outbox.RootTenant)}, []int32{int32(n)}
	p.Firsts, p.Lasts = []int32{1}, []int32{int32(len(priorities))}
	for _, priority := range priorities {
		p.Priorities = append(p.Priorities, priority)
		p.FromRunAt = append(p.FromRunAt, pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true})
		p.FromID = append(p.FromID, pgtype.UUID{Valid: true})
	}
	return p
}

// expireLapsed does once what a reaper does with every lapsed lease.
func expireLapsed(ctx context.Context, db sqlgen.DBTX) ([]sqlgen.ExpireLeasesRow, error) {
	return sqlgen.New(db).ExpireLeases(ctx, sqlgen.ExpireLeasesParams{
		FromLease:   pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
		BeforeLease: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true},
		Overlap:     interval(0),
		MaxJobs:     1000,
	})
}
