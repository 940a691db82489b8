package schedule

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

// report is the job of most tests.
type reportArgs struct {
	Of string `json:"of"`
}

func (reportArgs) Kind() string { return "report" }

// newScheduler returns a scheduler that can be made to do one thing at a time.
func newScheduler(t testing.TB, db *pgxpool.Pool, schedules ...Schedule) *Scheduler {
	t.Helper()
	s, err := New(db, Config{Schedules: schedules, Logger: slog.New(slog.NewTextHandler(testLog{t}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	return s
}

// testLog writes to the log of a test.
type testLog struct{ t testing.TB }

func (l testLog) Write(line []byte) (int, error) {
	l.t.Logf("%s", line)
	return len(line), nil
}

func declare(t testing.TB, s *Scheduler) {
	t.Helper()
	if err := s.declarer.declare(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func fire(t testing.TB, s *Scheduler) int {
	t.Helper()
	n, err := s.firer.fire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// run runs schedulers until the test is over or the returned function is called.
func run(t testing.TB, schedulers ...*Scheduler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, s := range schedulers {
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run after a stop = %v, want nil", err)
			}
		})
	}
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

func exec(t testing.TB, db outbox.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func ask[T any](t testing.TB, db outbox.DB, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// askAll returns the one column of a query.
func askAll[T any](t testing.TB, db outbox.DB, sql string, args ...any) []T {
	t.Helper()
	rows, _ := db.Query(t.Context(), sql, args...)
	list, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}

// firedFor returns the ticks that jobs were enqueued for, in the order in which the jobs will be claimed.
func firedFor(t testing.TB, db outbox.DB, name string) []string {
	t.Helper()
	return askAll[string](t, db, `SELECT headers ->> 'scheduled_for' FROM outbox.jobs WHERE headers ->> 'schedule' = $1 ORDER BY run_at, id`, name)
}

// age moves a schedule and everything that it knows of the past into the past.
func age(t testing.TB, db outbox.DB, name string, by time.Duration) {
	t.Helper()
	exec(t, db, `UPDATE outbox.schedules SET next_at = next_at - $2::interval, since = since - $2::interval WHERE name = $1`, name, by)
}

func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for range pgtest.Looks(time.Minute) {
		if holds() {
			return
		}
	}
	t.Fatalf("%s: not within a minute", what)
}

func value(t testing.TB, metric prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	if err := metric.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}
