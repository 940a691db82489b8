package dispatcher_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A dispatcher is in the list from its start to its stop, with what it works and what it runs.
func TestADispatcherShowsItself(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var mux dispatcher.Mux
	started, release := make(chan struct{}), make(chan struct{})
	mux.HandleRaw("slow", func(context.Context, *outbox.Claimed) error {
		close(started)
		<-release
		return nil
	})
	r := start(t, db, &mux, dispatcher.Config{Queues: map[string]dispatcher.QueueConfig{"mail": {Concurrency: 3}, "default": {}}})
	enqueue(t, db, outbox.Raw{KindName: "slow", Payload: []byte("{}")}, outbox.Options{Queue: "mail"})
	receive(t, started, "the job to start")
	await(t, db, "the dispatcher to show itself", `SELECT count(*) = 1 FROM outbox.workers`)
	workers, err := operator.New(db).Workers(t.Context())
	if err != nil || len(workers) != 1 {
		t.Fatalf("got %v, %v; want one", workers, err)
	}
	w := workers[0]
	if w.Name != r.Worker() || w.Running != 1 || w.Missing || w.Listening || w.Queues["mail"] != 3 || w.Queues["default"] != 64 ||
		!slices.Equal(w.Kinds, []string{"slow"}) || w.Version == "" {
		t.Errorf("got %+v", w)
	}
	close(release)
	r.stop(t)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.workers`); n != 0 {
		t.Errorf("%d dispatchers are there after the stop, want none", n)
	}
}

// A dispatcher shows itself before its listener is connected, and reports soon after that it hears notifications, not a
// minute later.
func TestADispatcherSaysAtOnceThatItHears(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var hears atomic.Bool
	config := quiet(nil)
	config.Listening = hears.Load
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), config)
	for _, now := range []bool{false, true, false} {
		hears.Store(now)
		await(t, db, "the dispatcher to say what it hears", `SELECT count(*) = 1 FROM outbox.workers WHERE hearing = $1`, now)
	}
	if age := ask[float64](t, db, `SELECT extract(epoch FROM clock_timestamp() - started_at)::float8 FROM outbox.workers`); age > 50 {
		t.Errorf("it took %.0f s", age)
	}
}

// The database refuses to show a dispatcher, and would accept it a moment later:
//
//	another   lock                  released
//	heartbeat      lock timeout …            shown
func TestADispatcherThatCouldNotShowItselfTriesAgainSoon(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	foreign := begin(t, db)
	exec(t, foreign, `LOCK TABLE outbox.workers IN ACCESS EXCLUSIVE MODE`)
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	const waiting = `SELECT count(*) = $1 FROM pg_locks WHERE NOT granted AND relation = 'outbox.workers'::regclass`
	await(t, db, "the heartbeat to wait", waiting, 1)
	await(t, db, "the heartbeat to give up", waiting, 0)
	if err := foreign.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	released := time.Now()
	await(t, db, "the dispatcher to show itself", `SELECT count(*) = 1 FROM outbox.workers`)
	if took := time.Since(released); took > 20*time.Second { // a heartbeat comes each minute
		t.Errorf("it took %s", took)
	}
}
