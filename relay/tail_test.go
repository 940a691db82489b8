package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/relay"
)

// tailed is what a tail has yielded.
type tailed struct {
	mu  sync.Mutex
	got []string
	err error
}

func (r *tailed) bodies() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func (r *tailed) await(t *testing.T, want ...string) {
	t.Helper()
	waitFor(t, func() bool { return len(r.bodies()) >= len(want) }, func() string { return fmt.Sprintf("got %q, want %q", r.bodies(), want) })
	if got := r.bodies(); !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// startTail follows the log until the test ends.
func startTail(t *testing.T, db *pgxpool.Pool, config relay.TailConfig) *tailed {
	t.Helper()
	config.Interval = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var r tailed
	var tailing sync.WaitGroup
	tailing.Go(func() {
		for e, err := range relay.Tail(ctx, db, config) {
			r.mu.Lock()
			if r.err = err; err == nil {
				r.got = append(r.got, string(e.Payload))
			}
			r.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		cancel()
		tailing.Wait()
		if r.err != nil {
			t.Error(r.err)
		}
	})
	return &r
}

// A tail yields what commits from then on, also of transactions that began before, and
// nothing that was there.
func TestATailSeesWhatASinkSees(t *testing.T) {
	t.Parallel()
	db := database(t)
	open := begin(t, db)
	publish(t, db, "t", "k", "1")
	publish(t, open, "t", "a", "a")
	publish(t, db, "t", "k", "2")
	tail := startTail(t, db, relay.TailConfig{})
	time.Sleep(300 * time.Millisecond)
	publish(t, db, "t", "k", "3")
	tail.await(t, "3")
	end(t, open.Commit)
	tail.await(t, "3", "a")
}

func TestATailBeginsInThePastOrWithASink(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1", "2", "3")
	if _, err := db.Exec(t.Context(), `UPDATE outbox.events SET at = at - interval '2 hours' WHERE position = 1`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.sinks (sink, top, holes) VALUES ('s', 2, '{[1,2)}')`); err != nil {
		t.Fatal(err)
	}
	past := startTail(t, db, relay.TailConfig{Since: time.Now().Add(-time.Hour)})
	sink := startTail(t, db, relay.TailConfig{Sink: "s"})
	past.await(t, "2", "3")
	sink.await(t, "1", "3")
	publish(t, db, "t", "k", "4")
	past.await(t, "2", "3", "4")
	sink.await(t, "1", "3", "4")
	for _, err := range relay.Tail(t.Context(), db, relay.TailConfig{Sink: "none"}) {
		if err == nil || err.Error() != `tail: there is no sink "none"` {
			t.Errorf("of no sink: %v", err)
		}
	}
}

// Sessions end while the tail looks: with Failed it says so, and goes on where it was; without, it ends.
func TestATailGoesOnAfterAnOutage(t *testing.T) {
	t.Parallel()
	db := database(t)
	config := db.Config()
	config.ConnConfig.RuntimeParams["application_name"] = "tail-cut-off"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	failed := make(chan error, 100)
	past := time.Now().Add(-time.Hour)
	tail := startTail(t, pool, relay.TailConfig{Since: past, Failed: func(err error) { failed <- err }})
	publish(t, db, "t", "k", "1")
	tail.await(t, "1")
	const cutOff = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tail-cut-off' AND datname = current_database()`
	waitFor(t, func() bool {
		if len(failed) == 0 {
			exec(t, db, cutOff)
		}
		return len(failed) > 0
	}, func() string { return "it does not notice that its sessions have ended" })
	publish(t, db, "t", "k", "2")
	tail.await(t, "1", "2")
	if err := <-failed; !strings.HasPrefix(err.Error(), "read the log: ") {
		t.Errorf("it was told %v", err)
	}
	// Without Failed it ends. Its sessions are ended again and again, because the pool replaces one that it finds ended
	// before the tail uses it.
	ctx, stop := context.WithCancel(t.Context())
	var cutting sync.WaitGroup
	defer cutting.Wait()
	defer stop()
	cutting.Go(func() {
		for ctx.Err() == nil {
			_, _ = db.Exec(ctx, cutOff)
			time.Sleep(5 * time.Millisecond)
		}
	})
	var last error
	for _, last = range relay.Tail(t.Context(), pool, relay.TailConfig{Since: past, Interval: 10 * time.Millisecond}) {
	}
	if last == nil {
		t.Error("it ends without an error")
	}
}

// A privilege that is revoked does not come back by waiting: the tail ends with the error, Failed or not.
func TestATailEndsWithItsPrivileges(t *testing.T) {
	t.Parallel()
	db := database(t)
	pool := pgtest.Login(t, db, "outbox_worker")
	config := relay.TailConfig{
		Since: time.Now().Add(-time.Hour), Interval: 10 * time.Millisecond,
		Failed: func(err error) { t.Errorf("it goes on after %v", err) },
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	publish(t, db, "t", "k", "1")
	var last error
	for e, err := range relay.Tail(ctx, pool, config) {
		if last = err; err == nil && string(e.Payload) == "1" {
			exec(t, db, `REVOKE outbox_worker FROM `+pool.Config().ConnConfig.User)
		}
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](last); !ok || pgErr.Code != "42501" {
		t.Errorf("it ended with %v, want that permission is denied", last)
	}
}

// A transaction that was open when a tail began with a time commits later than one that took a higher position.
func TestATailSinceATimeSeesOpenTransactions(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1")
	if _, err := db.Exec(t.Context(), `UPDATE outbox.events SET at = at - interval '2 hours'`); err != nil {
		t.Fatal(err)
	}
	open := begin(t, db)
	publish(t, open, "t", "a", "a")
	publish(t, db, "t", "k", "2")
	tail := startTail(t, db, relay.TailConfig{Since: time.Now().Add(-time.Hour)})
	tail.await(t, "2")
	end(t, open.Commit)
	tail.await(t, "2", "a")
}
