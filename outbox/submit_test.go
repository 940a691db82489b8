package outbox

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// A hundred producers submit at once to a key that may have ten jobs waiting.
func TestConcurrentSubmissionsNeverExceedTheDepth(t *testing.T) {
	t.Parallel()
	for policy, want := range map[DepthPolicy]map[string]int{
		"":            {"accepted": 10, "rejected": 90},
		CoalesceFull:  {"accepted": 10, "coalesced": 90},
		ReplaceOldest: {"accepted": 10, "replaced": 90},
	} {
		t.Run("policy "+string(policy), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			var mu sync.Mutex
			got := map[string]int{}
			var producers sync.WaitGroup
			for range 100 {
				producers.Go(func() {
					err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
						done, err := Submit(t.Context(), tx, greet{"ada"}, Options{Key: KeyRules{Name: "k", MaxQueued: 10, WhenFull: policy}})
						mu.Lock()
						defer mu.Unlock()
						got[verdict(done)]++
						return err
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			producers.Wait()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("verdicts (-want +got):\n%s", diff)
			}
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs`); n != 10 {
				t.Errorf("jobs that wait = %d, want 10", n)
			}
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE status = 'skipped' AND closed_from = 'pending'`); n != want["replaced"] {
				t.Errorf("skipped jobs = %d, want %d", n, want["replaced"])
			}
		})
	}
}

// What counts as waiting, and which job is named.
func TestSubmitNamesTheJobThatStandsForTheRequest(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	submit := func(policy DepthPolicy, opts Options) Submitted {
		t.Helper()
		opts.Key.Name, opts.Key.MaxQueued, opts.Key.WhenFull = "k", 2, policy
		done, err := Submit(t.Context(), db, greet{"ada"}, opts)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	first := submit("", Options{}).ID
	second := submit("", Options{Key: KeyRules{Ordered: true}}).ID // in line or not, it waits
	if got, want := submit(CoalesceFull, Options{}), (Submitted{ID: second, Queued: 2}); got != want {
		t.Errorf("coalesced: %+v, want %+v", got, want)
	}
	third := submit(ReplaceOldest, Options{})
	if want := (Submitted{Stored: true, ID: third.ID, Replaced: first, Queued: 2}); third != want {
		t.Errorf("replaced: %+v, want %+v", third, want)
	}
	if got, want := submit("", Options{}), (Submitted{Queued: 2}); got != want {
		t.Errorf("rejected: %+v, want %+v", got, want)
	}
	exec(t, db, `UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, started_at = now(), lease_owner = 'w', lease_expires_at = now() + interval '1 hour'`)
	if got := submit(ReplaceOldest, Options{}); !got.Stored || !got.Replaced.IsZero() {
		t.Errorf("beside two that run: %+v, want accepted", got)
	}
	for name, other := range map[string]Options{
		"another queue":  {Key: KeyRules{Name: "k", MaxQueued: 1}, Queue: "q"},
		"another tenant": {Key: KeyRules{Name: "k", MaxQueued: 1}, Tenant: tenant},
		"another key":    {Key: KeyRules{Name: "l", MaxQueued: 1}},
	} {
		if done, err := Submit(t.Context(), db, greet{"ada"}, other); err != nil || !done.Stored {
			t.Errorf("%s: %+v, %v; want accepted", name, done, err)
		}
	}
	once, err1 := Submit(t.Context(), db, greet{"ada"}, Options{IdempotencyKey: "i"})
	again, err2 := Submit(t.Context(), db, greet{"ada"}, Options{IdempotencyKey: "i"})
	if err := errors.Join(err1, err2); err != nil || !once.Stored || again != (Submitted{ID: once.ID}) {
		t.Errorf("a repeat: %+v after %+v, %v; want the first job, and not stored", again, once, err)
	}
}

// The error is typed, and the transaction of the caller goes on.
func TestEnqueueToAFullKeyLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	opts := Options{Key: KeyRules{Name: "k", MaxQueued: 1}}
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := Enqueue(t.Context(), tx, greet{"ada"}, opts); err != nil {
			return err
		}
		_, err := Enqueue(t.Context(), tx, greet{"bob"}, opts)
		full, ok := errors.AsType[*QueueFullError](err)
		if want := (QueueFullError{Queue: engine.DefaultQueue, Key: "k", Queued: 1, MaxQueued: 1}); !ok || *full != want {
			t.Errorf("the second gets %v, want %v", err, &want)
		}
		_, err = Enqueue(t.Context(), tx, greet{"cid"}, Options{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs`); n != 2 {
		t.Errorf("jobs stored = %d, want 2", n)
	}
}

// A snapshot from before the lock would count what others have changed since.
func TestSubmitNeedsReadCommitted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	err := pgx.BeginTxFunc(t.Context(), db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		_, err := Submit(t.Context(), tx, greet{"ada"}, Options{Key: KeyRules{Name: "k", MaxQueued: 1}})
		if invalid, ok := errors.AsType[*InvalidError](err); !ok || invalid.Field != "Options.Key.MaxQueued" {
			t.Errorf("got %v, want an InvalidError of Options.Key.MaxQueued", err)
		}
		_, err = Enqueue(t.Context(), tx, greet{"bob"}, Options{})
		return err
	})
	if err != nil {
		t.Errorf("the transaction is not usable any more: %v", err)
	}
}

func TestManyJobsAreNotSubmittedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := EnqueueMany(t.Context(), nil, []Request{{Args: greet{"ada"}, Options: Options{Key: KeyRules{Name: "k", MaxQueued: 1}}}})
	if invalid, ok := errors.AsType[*InvalidError](err); !ok || invalid.Field != "Options.Key.MaxQueued" {
		t.Errorf("got %v, want an InvalidError of Options.Key.MaxQueued", err)
	}
}

// The job that would have run next is replaced by one that is not due: the one
// behind it does not wait for a reaper.
//
//	before   A retrying, the head of its line      B blocked behind it
//	commit   A skipped                             B pending, C at the end, due tomorrow
func TestTheJobBehindOneThatWasReplacedIsMovedOn(t *testing.T) {
	t.Parallel()
	for name, ordered := range map[string]bool{"in line": true, "limited": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			opts := Options{Key: KeyRules{Name: "k", Ordered: ordered, MaxQueued: 2, WhenFull: ReplaceOldest}}
			var ids []ID
			for range 2 {
				done, err := Submit(t.Context(), db, greet{"ada"}, opts)
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, done.ID)
			}
			exec(t, db, `UPDATE outbox.jobs SET status = 'blocked' WHERE id = $1`, ids[1])
			exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'k')`, RootTenant)

			opts.Delay = 24 * time.Hour
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			if done, err := Submit(t.Context(), tx, greet{"ada"}, opts); err != nil || done.Replaced != ids[0] {
				t.Fatalf("submitted %+v, %v; want %s replaced", done, err, ids[0])
			}
			// Claims and settlements do not wait for a producer's transaction.
			exec(t, db, `SELECT FROM outbox.keys WHERE key = 'k' FOR UPDATE NOWAIT`)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := ask[string](t, db, `SELECT status::text FROM outbox.jobs WHERE id = $1`, ids[1]); got != "pending" {
				t.Errorf("the job behind is %s, want pending", got)
			}
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.freed_keys`); n != 0 {
				t.Errorf("rows that nobody needs any more = %d, want 0", n)
			}
		})
	}
}

// A job of another kind may be another program's, which would miss it.
func TestAJobReplacesOnlyOneOfItsKind(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, tenant := range []ID{RootTenant, NewID()} {
		for key, ordered := range map[string]bool{"in line": true, "limited": false} {
			opts := Options{Tenant: tenant, Key: KeyRules{Name: key, Ordered: ordered}}
			other, err := Enqueue(t.Context(), db, Raw{KindName: "other", Payload: []byte("1")}, opts)
			if err != nil {
				t.Fatal(err)
			}
			opts.Key.MaxQueued, opts.Key.WhenFull = 1, ReplaceOldest
			if done, err := Submit(t.Context(), db, greet{"ada"}, opts); err != nil || verdict(done) != "rejected" {
				t.Errorf("%s of %s: submitted %+v, %v; want it rejected", key, tenant, done, err)
			}
			inSQL := ask[*ID](t, db, `SELECT outbox.enqueue('greet', key => $1, ordered => $2, tenant_id => $3, max_queued => 1, when_full => 'replace-oldest')`, key, ordered, tenant)
			if inSQL != nil {
				t.Errorf("%s of %s: SQL has stored %s, want it rejected", key, tenant, inSQL)
			}
			opts.Key.MaxQueued = 2
			var own ID
			for _, want := range []string{"accepted", "replaced"} {
				done, err := Submit(t.Context(), db, greet{"ada"}, opts)
				if err != nil || verdict(done) != want || done.Replaced != own {
					t.Errorf("%s of %s: submitted %+v, %v; want %s, of %s", key, tenant, done, err, want, own)
				}
				own = done.ID
			}
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE id = $1 AND status = 'pending'`, other); n != 1 {
				t.Errorf("%s of %s: the other's job was replaced", key, tenant)
			}
		}
	}
}

// A producer's commit waits for nobody who decides about the key.
func TestAProducerDoesNotWaitForAKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	opts := Options{Key: KeyRules{Name: "k", MaxQueued: 1, WhenFull: ReplaceOldest}}
	if _, err := Submit(t.Context(), db, greet{"ada"}, opts); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'k')`, RootTenant)
	claim, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer claim.Rollback(context.Background())
	if _, err := claim.Exec(t.Context(), `SELECT FROM outbox.keys FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if done, err := Submit(ctx, db, greet{"ada"}, opts); err != nil || done.Replaced.IsZero() {
		t.Errorf("submitted %+v, %v; want replaced without waiting", done, err)
	}
}

// verdict returns a word for what was decided.
func verdict(s Submitted) string {
	switch {
	case s.ID.IsZero():
		return "rejected"
	case !s.Stored:
		return "coalesced"
	case !s.Replaced.IsZero():
		return "replaced"
	}
	return "accepted"
}
