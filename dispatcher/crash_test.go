package dispatcher_test

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Whatever the settings of the database, what an enqueue, a claim and a settlement report is still true after a crash.
// A forgotten claim would hand out its epoch twice, and the fence would be lost. The server writes its log out only
// every ten seconds, unless a commit waits for it, so everything that did not wait is lost each time.
func TestWhatWasAcknowledgedSurvivesACrash(t *testing.T) {
	t.Parallel()
	server, err := pgdev.Start(t.Context(), pgdev.Options{
		Major: os.Getenv("PG"), Fast: true, Settings: map[string]string{"wal_writer_delay": "10s"}, Log: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	db := open(t, server.URL(), "on")
	if err := migrate.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	crash := func() {
		t.Helper()
		if err := server.Restart(t.Context(), pgdev.Immediate); err != nil {
			t.Fatal(err)
		}
		db.Reset()
	}

	id := enqueue(t, db, probe{}, outbox.Options{})
	crash()
	if got := state(t, db, id); got != "pending attempt=0 epoch=0 lost=0 error=" {
		t.Errorf("after a crash the enqueue is forgotten: the job is %q", got)
		return
	}

	config := quiet(nil)
	config.LeaseTTL = time.Hour // the crashes must not cost the lease
	started, finish := make(chan struct{}), make(chan struct{})
	var starts atomic.Int64
	d := start(t, open(t, server.URL(), "off"), handle(func(_ context.Context, job *outbox.Job[probe]) error {
		if starts.Add(1) > 1 { // the row may look the same
			t.Errorf("after a crash the claim is forgotten: the job runs once more, at epoch %d", job.Epoch)
			return nil
		}
		close(started)
		<-finish
		return nil
	}), config)
	receive(t, started, "the job to start")
	crash()
	if got := state(t, db, id); got != "running attempt=1 epoch=1 lost=0 error=" {
		t.Errorf("after a crash the claim is forgotten: the job is %q", got)
	}
	close(finish)
	awaitThat(t, "the dispatcher says that it has settled", func() bool { return d.metric(t, "job_completed_total") == 1 || t.Failed() })
	crash()
	if got := state(t, db, id); got != "succeeded attempt=1 epoch=1 lost=0 error=" {
		t.Errorf("after a crash the settlement is forgotten: the job is %q", got)
	}
}

// open returns a pool whose sessions begin with the given synchronous_commit.
func open(t *testing.T, url, synchronous string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["synchronous_commit"] = synchronous
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
