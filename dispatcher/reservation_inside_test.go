package dispatcher

import (
	"context"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The queue looks for orphans while a commit that claims is under way:
//
//	producer     Reserve   [INSERT claimed, COMMIT]                 Committed
//	dispatcher                                      returnOrphans
//
// The reservation makes the job known: if it were given back, it would run under an epoch that is over, and a second
// time.
func TestWhatIsReservedForIsNoOrphan(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var mux Mux
	ran := make(chan int64, 2)
	Handle(&mux, func(_ context.Context, job *outbox.Job[tiny]) error { ran <- job.Epoch; return nil })
	d, err := New(db, &mux, Config{PollInterval: time.Hour, FallbackPollInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if r := d.Reserve(tiny{}.Kind(), engine.DefaultQueue, outbox.NewID()); r != nil {
		t.Error("there is a reservation before Run")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	id := outbox.NewID()
	var r engine.Reservation
	for began := time.Now(); r == nil; time.Sleep(time.Millisecond) {
		if r = d.Reserve(tiny{}.Kind(), engine.DefaultQueue, id); time.Since(began) > time.Minute {
			t.Fatal("the dispatcher takes no reservation")
		}
	}
	q := d.queues[engine.DefaultQueue]
	known := q.reserved.ask() // a look that began before
	if len(known) != 1 || known[0].Bytes != id {
		t.Errorf("known are %v, want what is reserved for", known)
	}
	q.reserved.asked()

	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	worker, ttl := r.Lease()
	rows, err := tx.Query(t.Context(), `SELECT `+sqlgen.ClaimedColumns+`, place FROM outbox.enqueue_claimed($1, 'default', $2, 0::smallint, 25, NULL, NULL, '{}', 'application/json', NULL, false, false, $3, $4)`,
		id, tiny{}.Kind(), worker, ttl)
	if err != nil {
		t.Fatal(err)
	}
	r.Read(rows)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = q.returnOrphans(t.Context())
	if !r.Committed() {
		t.Error("the job does not start")
	}
	if epoch := <-ran; epoch != 1 {
		t.Errorf("the job runs with epoch %d, want 1", epoch)
	}

	// While a look is under way none begins: its job could be taken for an
	// orphan.
	for q.capacity.inHand.Load() != 0 {
		time.Sleep(time.Millisecond)
	}
	q.reserved.ask()
	if r := d.Reserve(tiny{}.Kind(), engine.DefaultQueue, outbox.NewID()); r != nil {
		t.Error("there is a reservation while orphans are looked for")
		r.Failed(false)
	}
	q.reserved.asked()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := len(ran); n != 0 {
		t.Errorf("the job ran %d times more", n)
	}
}
