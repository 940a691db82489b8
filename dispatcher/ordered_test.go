package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The first transaction inserts first and commits last.
func TestOrderedJobsRunInTheOrderOfCommits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ordered := outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true}}
	late, early := begin(t, db), begin(t, db)
	enqueue(t, late, probe{3}, ordered)
	enqueueProbes(t, early, 2, ordered) // 0 and 1
	enqueue(t, late, probe{4}, ordered)
	if err := early.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	enqueueProbes(t, db, 1, outbox.Options{}) // beside the line
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `SELECT outbox.enqueue('probe', '{"n": 9}')`)
	s := newTurnstile()
	start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		s.enter(job.Key, job.Args.N)
		return nil
	}), quiet(nil))
	awaitSucceeded(t, db, 6)
	if diff := cmp.Diff([]int{0, 1, 3, 4}, s.starts["k"]); diff != "" {
		t.Errorf("order of starts (-want +got):\n%s", diff)
	}
}

func TestOrderedJobsRunInTheOrderOfTheirSequence(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var requests []outbox.Request
	for _, n := range rand.Perm(40) {
		requests = append(requests, outbox.Request{Args: probe{n}, Options: outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true, Sequence: int64(n + 1)}, Priority: n % 3}})
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	s := newTurnstile()
	start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		s.enter(job.Key, job.Args.N)
		return nil
	}), quiet(nil))
	awaitSucceeded(t, db, 40)
	if !slices.IsSorted(s.starts["k"]) {
		t.Errorf("order of starts = %v, want the sequence", s.starts["k"])
	}
}

// Three processes run jobs that fail, snooze and lose their leases while they run: whenever one starts, the database
// has no unfinished job before it.
func TestOrderSurvivesRetriesAndLostLeases(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var requests []outbox.Request
	for n := range 300 {
		requests = append(requests, outbox.Request{Args: probe{n}, Options: outbox.Options{Key: outbox.KeyRules{Name: fmt.Sprint("k", n%15), Ordered: true}}})
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var inversions []string
	handler := func(ctx context.Context, job *outbox.Job[probe]) error {
		// Nothing can be said of a lease that has been lost already.
		var before int
		err := db.QueryRow(context.WithoutCancel(ctx), `
			SELECT count(*)
			FROM outbox.jobs AS mine
			JOIN outbox.jobs AS other ON other.key = mine.key AND other.line_position < mine.line_position
			WHERE mine.id = $1 AND mine.epoch = $2`, job.ID, job.Epoch).Scan(&before)
		if err != nil {
			return err
		}
		if before > 0 {
			mu.Lock()
			inversions = append(inversions, fmt.Sprintf("%s: job %d runs before %d others", job.Key, job.Args.N, before))
			mu.Unlock()
		}
		switch rand.IntN(12) {
		case 0:
			return errors.New("try again")
		case 1:
			return dispatcher.Snooze(time.Millisecond)
		case 2: // the worker is taken for dead
			if job.Attempt > 3 { // after the sixth time in a row it would wait for half a minute
				return nil
			}
			_, err := db.Exec(context.WithoutCancel(ctx), `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 s' WHERE id = $1 AND epoch = $2`, job.ID, job.Epoch)
			if err == nil {
				_, err = expireLapsed(context.WithoutCancel(ctx), db)
			}
			return err
		}
		return nil
	}
	for range 3 {
		start(t, db, handle(handler, dispatcher.KindConfig{Backoff: dispatcher.Waits(time.Millisecond)}), dispatcher.Config{
			FallbackPollInterval: 50 * time.Millisecond, // nobody is notified of a lease that expired
			Queues:               map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 8}},
		})
	}
	awaitSucceeded(t, db, len(requests))
	if len(inversions) > 0 {
		t.Errorf("inversions = %d, the first: %s", len(inversions), inversions[0])
	}
}

// What happens behind a job that fails for good.
func TestWhatADeadHeadDoesToItsLine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts   outbox.Options
		starts []int // before anybody does something
		after  []int // after the key was unblocked
		parked bool
	}{
		"hold":       {outbox.Options{}, []int{0}, []int{0, 0, 1, 2, 3}, false},
		"skip":       {outbox.Options{Key: outbox.KeyRules{OnDeath: outbox.SkipDead}}, []int{0, 1, 2, 3}, nil, false},
		"park":       {outbox.Options{Key: outbox.KeyRules{OnDeath: outbox.ParkKey}}, []int{0}, []int{0, 0, 1, 2, 3}, true},
		"park later": {outbox.Options{Key: outbox.KeyRules{OnDeath: outbox.ParkKey, ParkAfter: time.Hour}}, []int{0}, []int{0, 0, 1, 2, 3}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			c.opts.Key.Name, c.opts.Key.Ordered = "k", true
			enqueueProbes(t, db, 4, c.opts)
			s := newTurnstile()
			wake := make(chan struct{}, 1)
			start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
				s.enter(job.Key, job.Args.N)
				if job.Args.N == 0 && job.Epoch < 3 {
					return dispatcher.Discard(errors.New("no"))
				}
				return nil
			}), quiet(wake))
			await(t, db, "nothing of the key is left to do", `
				SELECT count(*) FILTER (WHERE status = 'failed') = 1 AND count(*) = $1 AND count(*) FILTER (WHERE status IN ('pending', 'running', 'retrying')) = 0 FROM outbox.jobs`, 5-len(c.starts))
			if c.parked {
				await(t, db, "the key is parked", `SELECT EXISTS (SELECT FROM outbox.keys WHERE parked_at IS NOT NULL)`)
			} else if ask[bool](t, db, `SELECT EXISTS (SELECT FROM outbox.keys WHERE parked_at IS NOT NULL)`) {
				t.Error("the key is parked")
			}
			s.mu.Lock()
			if diff := cmp.Diff(c.starts, s.starts["k"]); diff != "" {
				t.Errorf("starts (-want +got):\n%s", diff)
			}
			s.mu.Unlock()
			if c.after == nil {
				return
			}
			retried, err := sqlgen.New(db).UnblockKey(t.Context(), sqlgen.UnblockKeyParams{TenantID: pgID(outbox.RootTenant), Queue: engine.DefaultQueue, Key: "k"})
			if err != nil || retried != 1 {
				t.Fatalf("unblocked with %d retried, %v; want 1", retried, err)
			}
			wake <- struct{}{}
			awaitSucceeded(t, db, 4)
			if diff := cmp.Diff(c.after, s.starts["k"]); diff != "" {
				t.Errorf("starts after it was unblocked (-want +got):\n%s", diff)
			}
		})
	}
}

// Jobs of a parked key that arrive later are set aside, too.
func TestNothingOfAParkedKeyStarts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) VALUES ($1, 'default', 'k', now())`, pgID(outbox.RootTenant))
	enqueue(t, db, probe{1}, outbox.Options{Key: outbox.KeyRules{Name: "k"}})
	enqueue(t, db, probe{2}, outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true}})
	other := enqueue(t, db, probe{3}, outbox.Options{Key: outbox.KeyRules{Name: "l"}})
	if got, want := claimKeyed(t, db, 10), (keyedClaim{Claimed: 1, Looked: 3, Blocked: 2}); got != want {
		t.Errorf("the claim did %+v, want %+v", got, want)
	}
	wantState(t, db, other, "running attempt=1 epoch=1 lost=0 error=")
}

// The head of a line has become free while nobody looked: the next claim finds it.
func TestAClaimPromotesTheHeadThatWasForgotten(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first := enqueue(t, db, probe{1}, outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true}})
	exec(t, db, `UPDATE outbox.jobs SET status = 'blocked'`)
	enqueue(t, db, probe{2}, outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true}})
	if got, want := claimKeyed(t, db, 10), (keyedClaim{Looked: 1, Blocked: 1, Promoted: 1}); got != want {
		t.Errorf("the claim did %+v, want %+v", got, want)
	}
	if got, want := claimKeyed(t, db, 10), (keyedClaim{Claimed: 1, Looked: 1}); got != want {
		t.Errorf("the next claim did %+v, want %+v", got, want)
	}
	wantState(t, db, first, "running attempt=1 epoch=1 lost=0 error=")
}
