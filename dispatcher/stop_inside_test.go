package dispatcher

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// stuck answers no statement, or each with a lock timeout.
type stuck struct{ locks bool }

func (s stuck) wait(ctx context.Context) error {
	var lock <-chan time.Time
	if s.locks {
		lock = time.After(2 * time.Second)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-lock:
		return &pgconn.PgError{Code: pgsession.LockNotAvailable}
	}
}

func (s stuck) Exec(ctx context.Context, _ string, _ ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, s.wait(ctx)
}

func (s stuck) Query(ctx context.Context, _ string, _ ...any) (pgx.Rows, error) {
	return nil, s.wait(ctx)
}

func (s stuck) QueryRow(ctx context.Context, _ string, _ ...any) pgx.Row {
	return stuckRow{s.wait(ctx)}
}

type stuckRow struct{ err error }

func (r stuckRow) Scan(...any) error { return r.err }

// Every handler behaves, and the database does not answer, or keeps all rows locked. The grace period is over while
// statements are under way and settlers hold batches:
//
//	stop     grace period over    giveUpAfter            abandonAfter
//	settle … no answer …          … ends; one try each   Run has returned nil
//
// Goroutines that went on would leak, with their connections. Thousands of outcomes of all kinds are left, of which
// each statement has only some.
func TestAStopEndsThoughTheDatabaseIsStuck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		locks bool
		grace time.Duration
	}{
		"no answer": {false, 8 * time.Second}, "locked, no grace period": {true, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { stopWhileStuck(t, stuck{c.locks}, c.grace) })
		})
	}
}

func stopWhileStuck(t *testing.T, db stuck, grace time.Duration) {
	mux := new(Mux)
	var ran atomic.Int64
	end := make(chan struct{})
	Handle(mux, func(ctx context.Context, job *outbox.Job[tiny]) error {
		switch ran.Add(1) % 8 {
		case 0:
			_ = job.Progress(ctx, 1, 2, "half")
		case 1, 2:
			return errors.New("fails")
		case 3, 4:
			_, err := job.Then(tiny{}, outbox.Options{})
			return err
		case 5:
			return TargetUnavailable(errors.New("away"), 0)
		}
		return nil
	})
	Handle(mux, func(ctx context.Context, _ *outbox.Job[small]) error { // runs when the stop begins
		ran.Add(1)
		<-end
		return ctx.Err()
	})
	d, err := New(nil, mux, Config{GracePeriod: grace, PollInterval: time.Hour, FallbackPollInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	d.compose(t.Context(), nil, nil)
	d.common.health.Leave = func(error) {}
	statements := sqlgen.New(db)
	d.db, d.recorder.DB, d.promoter.DB, d.waiters.db, d.peers.db = statements, statements, statements, statements, statements
	d.settler.statements.conn = db
	d.settler.statements.db, d.settler.reporter.db, d.leases.DB, d.leases.Extending = statements, statements, statements, statements
	q := d.queues[engine.DefaultQueue]
	store := &memoryStore{routes: d.common.routes, capacity: q.capacity, recorder: d.recorder}
	q.claimer.claims, q.db, q.workers.pause.DB, q.searches.finder.DB = store, store, store, store
	for n := range 2 {
		for _, key := range []string{"", "k"} {
			store.addKeyed(numbered(n), 2010, 0, key)
			store.addOf(small{}.Kind(), numbered(n), 2, 0, key)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.work(ctx) }()
	time.Sleep(9 * time.Second)
	if n := ran.Load(); n < 4*maxBatch {
		t.Fatalf("%d handlers were called, want thousands", n)
	}
	stop()
	began := time.Now()
	time.Sleep(time.Second)
	close(end)
	err = <-ended
	if took := time.Since(began); err != nil || took > max(grace, 0)+abandonAfter {
		t.Errorf("after %s: %v, want that all goroutines have ended", took, err)
	}
	if n := d.leases.Count(); n != 0 {
		t.Errorf("%d jobs are still held", n)
	}
}
