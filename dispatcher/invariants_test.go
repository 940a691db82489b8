package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/reaper"
)

// inEachFlow runs a test for the four kinds of job that claims distinguish: of root and of another tenant, without a
// key and with one. They share a database, which is emptied between them.
func inEachFlow(t *testing.T, test func(t *testing.T, db *pgxpool.Pool, flow outbox.Options)) {
	t.Helper()
	t.Parallel()
	db, tenant := pgtest.New(t), outbox.NewID()
	for name, flow := range map[string]outbox.Options{
		"root":               {},
		"root, with a key":   {Key: outbox.KeyRules{Name: "acme"}},
		"tenant":             {Tenant: tenant},
		"tenant, with a key": {Tenant: tenant, Key: outbox.KeyRules{Name: "acme", Ordered: true}},
	} {
		t.Run(name, func(t *testing.T) {
			pgtest.Empty(t, db)
			test(t, db, flow)
		})
	}
}

// where returns the status of a job, with its counters.
func where(t *testing.T, db *pgxpool.Pool, id outbox.ID) string {
	t.Helper()
	var status string
	var epoch, attempt, lost int64
	if err := db.QueryRow(t.Context(), `
		SELECT status::text, epoch, attempt, lost_leases FROM outbox.jobs WHERE id = $1
		UNION ALL SELECT status::text, epoch, attempt, lost_leases FROM outbox.history WHERE id = $1`, id).Scan(&status, &epoch, &attempt, &lost); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s attempt=%d lost=%d", status, attempt, lost)
}

// becomes waits until a job has reached a status.
func becomes(t *testing.T, db *pgxpool.Pool, id outbox.ID, want string) {
	t.Helper()
	for range pgtest.Looks(patience) {
		if where(t, db, id) == want {
			return
		}
	}
	t.Fatalf("the job is %s, want %s", where(t, db, id), want)
}

// reapAll runs a reaper until the test ends.
func reapAll(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	r, err := reaper.New(db, reaper.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := receive(t, done, "the reaper to stop"); err != nil {
			t.Error(err)
		}
	})
}

// Atomic: of two transactions the job of the one that commits runs, and that of the other never existed.
func TestEveryFlowExistsExactlyWhenItsTransactionCommits(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		none := enqueue(t, tx, probe{1}, flow)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		tx, err = db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		one := enqueue(t, tx, probe{2}, flow)
		ran := make(chan int, 10)
		wake := make(chan struct{}, 1)
		start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error { ran <- job.Args.N; return nil }), quiet(wake))
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		wake <- struct{}{}
		becomes(t, db, one, "succeeded attempt=1 lost=0")
		if n := receive(t, ran, "the job"); n != 2 || len(ran) > 0 {
			t.Errorf("ran %d, and %d more", n, len(ran))
		}
		if got := where(t, db, none); got != "no rows in result set" {
			t.Errorf("the job of the transaction that was rolled back is %s", got)
		}
	})
}

// Nothing lost, one live lease, fenced: a lease lapses while its handler works, and another attempt gets the job. After
// that the first handler's outcome changes nothing. TestFence tries every write of a worker.
func TestEveryFlowIsFenced(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		id := enqueue(t, db, probe{}, flow)
		type run struct {
			epoch int64
			end   chan error
		}
		runs := make(chan *run, 10)
		start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
			r := &run{epoch: job.Epoch, end: make(chan error)}
			runs <- r
			return <-r.end
		}), dispatcher.Config{PollInterval: 50 * time.Millisecond, LeaseTTL: time.Minute})
		first := receive(t, runs, "the first attempt")
		exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = statement_timestamp() - interval '1 second' WHERE id = $1`, id)
		reapAll(t, db)
		second := receive(t, runs, "the second attempt")
		if second.epoch <= first.epoch {
			t.Errorf("the second attempt has epoch %d, the first %d", second.epoch, first.epoch)
		}
		first.end <- dispatcher.Discard(errors.New("by the one that lost it"))
		time.Sleep(50 * time.Millisecond) // its outcome is under way
		second.end <- nil
		becomes(t, db, id, "succeeded attempt=2 lost=1")
	})
}

// A notification is a hint: a job that nobody announces is found by polling.
func TestEveryFlowIsFoundWithoutANotification(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		first := enqueue(t, db, probe{}, flow)
		start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }),
			dispatcher.Config{PollInterval: 100 * time.Millisecond})
		becomes(t, db, first, "succeeded attempt=1 lost=0")
		time.Sleep(300 * time.Millisecond) // it has gone to sleep
		var second outbox.ID
		if err := db.QueryRow(t.Context(), `SELECT outbox.enqueue('probe', '{"n":1}', "notify" => false, tenant_id => $1, key => nullif($2, ''), ordered => $3)`,
			tenantOf(flow), flow.Key.Name, flow.Key.Ordered).Scan(&second); err != nil {
			t.Fatal(err)
		}
		becomes(t, db, second, "succeeded attempt=1 lost=0")
	})
}

func tenantOf(flow outbox.Options) outbox.ID {
	if flow.Tenant.IsZero() {
		return outbox.RootTenant
	}
	return flow.Tenant
}

// The database's clock decides: a job starts at its time, by a timer, and not before.
func TestEveryFlowStartsAtItsTime(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		flow.Delay = time.Second
		id := enqueue(t, db, probe{}, flow)
		early := make(chan bool, 10)
		start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
			var before bool
			err := db.QueryRow(ctx, `SELECT clock_timestamp() < run_at FROM outbox.jobs WHERE id = $1`, job.ID).Scan(&before)
			early <- before
			return err
		}), quiet(nil))
		if receive(t, early, "the timer to start the job") {
			t.Error("it started before its time")
		}
		becomes(t, db, id, "succeeded attempt=1 lost=0")
	})
}

// Unknown kinds are left alone, and do not stop any other work.
func TestEveryFlowLeavesUnknownKindsAlone(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		unknown := enqueue(t, db, outbox.Raw{KindName: "of-another-program", Payload: []byte(`{}`)}, flow)
		flow.Key.Ordered = false // or it would wait for its place behind the other
		flow.Key.MaxActive = 2
		if flow.Key.Name == "" {
			flow.Key = outbox.KeyRules{}
		}
		known := enqueue(t, db, probe{}, flow)
		start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), dispatcher.Config{PollInterval: 50 * time.Millisecond})
		becomes(t, db, known, "succeeded attempt=1 lost=0")
		time.Sleep(200 * time.Millisecond)
		if got := where(t, db, unknown); got != "pending attempt=0 lost=0" {
			t.Errorf("the job of an unknown kind is %s", got)
		}
	})
}

// Interrupted is not failed: a job that a stop cuts off goes back with its attempt.
func TestEveryFlowGoesBackWhenItIsInterrupted(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		id := enqueue(t, db, probe{}, flow)
		begun := make(chan struct{}, 1)
		config := quiet(nil)
		config.GracePeriod = -1
		d := start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
			begun <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}), config)
		receive(t, begun, "the job to start")
		d.stop(t)
		if got := where(t, db, id); got != "pending attempt=0 lost=0" {
			t.Errorf("the job that was cut off is %s, want pending with its attempt", got)
		}
	})
}

// Deaths are bounded: the last attempt that fails leaves the job dead.
func TestEveryFlowDiesOfItsLastAttempt(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		flow.MaxAttempts = 3
		id := enqueue(t, db, probe{}, flow)
		var attempts atomic.Int32
		config := quiet(nil)
		config.Backoff = dispatcher.Waits(time.Millisecond)
		start(t, db, handle(func(context.Context, *outbox.Job[probe]) error {
			attempts.Add(1)
			return errors.New("again")
		}), config)
		becomes(t, db, id, "dead attempt=3 lost=0")
		if n := attempts.Load(); n != 3 {
			t.Errorf("%d attempts, want 3", n)
		}
	})
}

// Cancelled is not tried again: the handler's context ends, and whatever it returns, the job is cancelled.
func TestEveryFlowIsCancelledWhileItRuns(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		id := enqueue(t, db, probe{}, flow)
		begun := make(chan struct{}, 10)
		start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
			begun <- struct{}{}
			<-ctx.Done()
			return errors.New("interrupted")
		}), dispatcher.Config{PollInterval: 50 * time.Millisecond})
		receive(t, begun, "the job to start")
		if _, err := operator.New(db).Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		becomes(t, db, id, "cancelled attempt=1 lost=0")
		if len(begun) > 0 {
			t.Error("it was started again")
		}
	})
}

// Nothing runs on or succeeds past its deadline.
func TestEveryFlowExpiresAtItsDeadline(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		reapAll(t, db)
		causes := make(chan error, 10)
		d := start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			// The context may end a moment before the deadline, when a success still counts.
			time.Sleep(500 * time.Millisecond)
			return nil
		}), dispatcher.Config{PollInterval: 50 * time.Millisecond})
		awaitThat(t, "the dispatcher has started", func() bool { return strings.Contains(d.log.String(), "dispatcher started") })
		flow.Deadline = dbNow(t, db).Add(3 * time.Second)
		id := enqueue(t, db, probe{}, flow)
		if err := receive(t, causes, "the handler to be stopped"); !errors.Is(err, dispatcher.ErrDeadline) {
			t.Errorf("the cause is %v, want ErrDeadline", err)
		}
		becomes(t, db, id, "expired attempt=1 lost=0")
	})
}

// A pause holds for every flow, and ends for every one.
func TestEveryFlowIsPaused(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		o := operator.New(db)
		if err := o.Pause(t.Context(), engine.DefaultQueue); err != nil {
			t.Fatal(err)
		}
		id := enqueue(t, db, probe{}, flow)
		start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), dispatcher.Config{PollInterval: 50 * time.Millisecond})
		time.Sleep(300 * time.Millisecond)
		if got := where(t, db, id); got != "pending attempt=0 lost=0" {
			t.Errorf("in a paused queue the job is %s", got)
		}
		if err := o.Resume(t.Context(), engine.DefaultQueue); err != nil {
			t.Fatal(err)
		}
		becomes(t, db, id, "succeeded attempt=1 lost=0")
	})
}

// A key's limit and order hold, and no key is stuck, for root and for another tenant that uses the same name at the
// same time: one job of a key at a time, in order, behind a job that is retried, one that dies and one that is
// cancelled.
func TestEveryTenantsKeyKeepsItsLimitAndOrder(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const jobs = 12
	tenants := []outbox.ID{outbox.RootTenant, outbox.NewID()}
	var last [jobs][2]outbox.ID
	for n := range jobs {
		for i, tenant := range tenants {
			last[n][i] = enqueue(t, db, probe{n}, outbox.Options{
				Tenant: tenant, MaxAttempts: 2, Key: outbox.KeyRules{Name: "acme", Ordered: true, OnDeath: outbox.SkipDead},
			})
		}
	}
	for i := range tenants {
		if _, err := operator.New(db).Cancel(t.Context(), last[7][i]); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	order, running := map[outbox.ID][]int{}, map[outbox.ID]int{}
	config := dispatcher.Config{PollInterval: 50 * time.Millisecond, Backoff: dispatcher.Waits(time.Millisecond)}
	start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		mu.Lock()
		order[job.Tenant] = append(order[job.Tenant], job.Args.N)
		running[job.Tenant]++
		if n := running[job.Tenant]; n > 1 {
			t.Errorf("%d jobs of the key run at once", n)
		}
		mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		running[job.Tenant]--
		if job.Args.N == 5 || job.Args.N == 2 && job.Attempt == 1 {
			return errors.New("again")
		}
		return nil
	}), config)
	for i, tenant := range tenants {
		becomes(t, db, last[jobs-1][i], "succeeded attempt=1 lost=0")
		mu.Lock()
		if want := []int{0, 1, 2, 2, 3, 4, 5, 5, 6, 8, 9, 10, 11}; !slices.Equal(order[tenant], want) {
			t.Errorf("the jobs of %s ran as %v, want %v", tenant, order[tenant], want)
		}
		mu.Unlock()
	}
}
