package dispatcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/verify/rebuilt"
	"github.com/posthaste-dev/posthaste/lifecycle"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Two workers' handlers end in every way, their leases lapse, and one worker stops and comes back; a reaper works, and
// an operator cancels, retries and dismisses. At the end the events of each streamed job rebuild what the database
// holds of it.
func TestEventsRebuildEveryFlow(t *testing.T) {
	var mu sync.Mutex
	names := map[lifecycle.Name]int{} // of all flows: in one, chance may leave one out
	t.Cleanup(func() {
		for _, name := range []lifecycle.Name{lifecycle.Started, lifecycle.Retry, lifecycle.Progressed, lifecycle.Logged, lifecycle.Completed} {
			if names[name] == 0 {
				t.Errorf("no event is %s", name)
			}
		}
	})
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		flow.Streamed, flow.MaxAttempts, flow.Backoff = true, 3, outbox.Backoff{10 * time.Millisecond}
		if flow.Key.Name != "" {
			flow.Key = outbox.KeyRules{Name: flow.Key.Name, MaxActive: 3}
		}
		var ids []outbox.ID
		for i := range 24 {
			opts := flow
			if i%10 == 9 {
				opts.Deadline = time.Now().Add(300 * time.Millisecond)
			}
			opts.Hold = i%7 == 6
			ids = append(ids, enqueue(t, db, probe{i}, opts))
		}
		mux := handle(endSomehow)
		config := dispatcher.Config{PollInterval: 20 * time.Millisecond, FallbackPollInterval: 20 * time.Millisecond, LeaseTTL: time.Minute}
		start(t, db, mux, config)
		second := start(t, db, mux, config)
		reapAll(t, db)
		o, r := operator.New(db), rand.New(rand.NewPCG(1, 2))
		open := ids
		for begun, acts := time.Now(), 0; ; acts++ {
			among := open // for the most part: an act on a job that is closed is refused
			if acts%8 == 0 {
				among = ids
			}
			id := among[r.IntN(len(among))]
			switch r.IntN(6) {
			case 0:
				_, err := o.Cancel(t.Context(), id)
				wantDoneOrRefused(t, err)
			case 1:
				wantDoneOrRefused(t, o.Retry(t.Context(), id))
			case 2:
				wantDoneOrRefused(t, o.Dismiss(t.Context(), id))
			case 3:
				wantDoneOrRefused(t, o.Release(t.Context(), id))
			default:
				exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = statement_timestamp() - interval '1 second' WHERE id = $1 AND status = 'running'`, id)
			}
			if acts == 20 {
				second.stop(t)
				second = start(t, db, mux, config)
			}
			rows, _ := db.Query(t.Context(), `SELECT id FROM outbox.jobs`)
			var err error
			if open, err = pgx.CollectRows(rows, pgx.RowTo[outbox.ID]); err != nil {
				t.Fatal(err)
			}
			if len(open) == 0 {
				break
			}
			if time.Since(begun) > patience {
				t.Fatalf("%d of %d jobs are still open", len(open), len(ids))
			}
			time.Sleep(5 * time.Millisecond)
		}
		second.stop(t)
		found, err := rebuilt.Compare(t.Context(), db, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, difference := range found.Differences {
			t.Error(difference)
		}
		t.Logf("%d jobs, %d events: %v", found.Jobs, found.Events, found.Names)
		if found.Jobs != len(ids) {
			t.Errorf("%d jobs are streamed, want %d", found.Jobs, len(ids))
		}
		mu.Lock()
		defer mu.Unlock()
		for name, n := range found.Names {
			names[name] += n
		}
	})
}

// wantDoneOrRefused fails the test unless an act was done or refused: each act is in some states of a job.
func wantDoneOrRefused(t *testing.T, err error) {
	t.Helper()
	if _, refused := errors.AsType[*operator.StatusError](err); err != nil && !refused && !errors.Is(err, operator.ErrNotFound) && !errors.Is(err, operator.ErrPastDeadline) {
		t.Error(err)
	}
}

// endSomehow reports something, and ends in a random way.
func endSomehow(ctx context.Context, job *outbox.Job[probe]) error {
	if rand.IntN(2) == 0 {
		_ = job.Progress(ctx, int64(rand.IntN(100)), 100, "so far")
		_ = job.Log(ctx, slog.LevelInfo, "a line")
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
	}
	switch rand.IntN(6) {
	case 0:
		return errors.New("it failed")
	case 1:
		return dispatcher.Discard(errors.New("never"))
	case 2:
		return dispatcher.Snooze(5 * time.Millisecond)
	case 3:
		return dispatcher.Unavailable(errors.New("away"), 5*time.Millisecond)
	}
	job.Result = fmt.Appendf(nil, `{"n": %d}`, job.Args.N)
	return nil
}

// A worker that has lost the lease ends its attempt: the outcome is refused, and the stream records that.
func TestARefusedOutcomeIsInTheStream(t *testing.T) {
	t.Run("settled by the dispatcher", func(t *testing.T) {
		refuseFirst(t, outbox.Succeeded, func(context.Context, *pgxpool.Pool, *outbox.Job[probe]) error { return nil })
	})
	// The handler returns the error, and would try again.
	t.Run("completed in the handler's transaction", func(t *testing.T) {
		refuseFirst(t, outbox.Retrying, func(ctx context.Context, db *pgxpool.Pool, job *outbox.Job[probe]) error {
			err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return job.Complete(ctx, tx) })
			if !errors.Is(err, outbox.ErrLeaseLost) {
				t.Errorf("Complete returned %v, want ErrLeaseLost", err)
			}
			return err
		})
	})
}

// refuseFirst lets another worker have the job, and then ends the first attempt.
func refuseFirst(t *testing.T, refused outbox.Status, end func(context.Context, *pgxpool.Pool, *outbox.Job[probe]) error) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		flow.Streamed = true
		id := enqueue(t, db, probe{}, flow)
		began, ends := make(chan int64, 10), map[int]chan struct{}{1: make(chan struct{}), 2: make(chan struct{})}
		start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
			began <- job.Epoch
			<-ends[job.Attempt]
			if job.Attempt == 1 {
				return end(context.WithoutCancel(ctx), db, job)
			}
			return nil
		}), dispatcher.Config{PollInterval: 50 * time.Millisecond, LeaseTTL: time.Minute})
		epoch := receive(t, began, "the first attempt")
		exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = statement_timestamp() - interval '1 second' WHERE id = $1`, id)
		reapAll(t, db)
		receive(t, began, "the second attempt")
		close(ends[1])
		endSecond := sync.OnceFunc(func() { close(ends[2]) })
		t.Cleanup(endSecond) // or its worker could not be stopped after a failure
		var body []byte
		const question = `SELECT payload FROM outbox.events WHERE topic = 'job.staleCompletionIgnored' AND key = $1`
		for begun := time.Now(); db.QueryRow(t.Context(), question, id.String()).Scan(&body) != nil; time.Sleep(5 * time.Millisecond) {
			if time.Since(begun) > patience/4 {
				t.Fatal("the refusal is not in the stream")
			}
		}
		endSecond()
		becomes(t, db, id, "succeeded attempt=2 lost=1")
		e, err := lifecycle.Decode(body)
		if err != nil || e.Epoch != epoch || e.Refused != refused || e.Job != id || e.Attempt != 1 {
			t.Errorf("the event is %s, %v; want the refusal of epoch %d", body, err, epoch)
		}
		if !json.Valid(body) {
			t.Errorf("the body is no JSON: %s", body)
		}
		if found, err := rebuilt.Compare(t.Context(), db, nil); err != nil || len(found.Differences) > 0 {
			t.Error(found.Differences, err)
		}
		compareMessages(t, db)
	})
}

// compareMessages checks that the messages of a stream rebuild its jobs in order, and in no other.
func compareMessages(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	rows, _ := db.Query(t.Context(), `SELECT convert_from(payload, 'UTF8') FROM outbox.events WHERE topic LIKE 'job.%' ORDER BY position`)
	bodies, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(bodies) < 3 {
		t.Fatal(len(bodies), err)
	}
	if found, err := rebuilt.CompareMessages(t.Context(), db, bodies); err != nil || len(found.Differences) > 0 {
		t.Error(found.Differences, err)
	}
	bodies[0], bodies[1] = bodies[1], bodies[0]
	if found, err := rebuilt.CompareMessages(t.Context(), db, bodies); err != nil || len(found.Differences) == 0 {
		t.Errorf("two events in the wrong order make no difference (%v)", err)
	}
}

// An event that was stored and not committed never existed.
func TestEventsGoWithTheirTransaction(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		flow.Streamed = true
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		enqueue(t, tx, probe{}, flow)
		var inside, outside int
		if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM outbox.events`).Scan(&inside); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.events`).Scan(&outside); err != nil {
			t.Fatal(err)
		}
		if inside != 1 || outside != 0 {
			t.Errorf("%d events in the transaction and %d after its rollback, want 1 and none", inside, outside)
		}
	})
}
