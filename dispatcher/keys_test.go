package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// turnstile counts the handlers that are inside, by key.
type turnstile struct {
	mu     sync.Mutex
	inside map[string]int
	most   map[string]int
	starts map[string][]int // probes in the order in which they started
}

func newTurnstile() *turnstile {
	return &turnstile{inside: map[string]int{}, most: map[string]int{}, starts: map[string][]int{}}
}

func (s *turnstile) enter(key string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside[key]++
	s.most[key] = max(s.most[key], s.inside[key])
	s.starts[key] = append(s.starts[key], n)
}

func (s *turnstile) leave(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside[key]--
}

// Three processes share keys with limits 1, 2 and 5. The index that would refuse an excess job is gone: the claims
// alone must keep the limit.
func TestAKeyNeverRunsMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `DROP INDEX outbox.jobs_slot_idx; CREATE INDEX ON outbox.jobs (tenant_id, queue, key, slot) WHERE key IS NOT NULL AND status = 'running'`)
	limits, tenants := []int{1, 2, 5}, []outbox.ID{outbox.RootTenant, outbox.NewID()}
	var requests []outbox.Request
	for i := range 600 { // both tenants have all twelve keys
		requests = append(requests, outbox.Request{Args: probe{i}, Options: outbox.Options{
			Tenant: tenants[i/12%2],
			Key:    outbox.KeyRules{Name: fmt.Sprintf("k%d-%d", limits[i%3], i%12), MaxActive: limits[i%3]},
		}})
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	s := newTurnstile()
	for range 3 {
		start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
			key := job.Key + " of " + job.Tenant.String()
			s.enter(key, job.Args.N)
			defer s.leave(key)
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
			if job.Attempt == 1 && rand.IntN(10) == 0 {
				return errors.New("try again")
			}
			return nil
		}, dispatcher.KindConfig{Backoff: dispatcher.Waits(0)}), dispatcher.Config{
			Queues: map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 16}},
		})
	}
	awaitSucceeded(t, db, len(requests))
	if len(s.most) != 24 {
		t.Errorf("jobs of %d keys have run, want 24", len(s.most))
	}
	reached := map[int]int{}
	for key, most := range s.most {
		var limit, n int
		if _, err := fmt.Sscanf(key, "k%d-%d", &limit, &n); err != nil {
			t.Fatal(err)
		}
		if most > limit {
			t.Errorf("key %s had %d running at once, want at most %d", key, most, limit)
		}
		reached[limit] = max(reached[limit], most)
	}
	if reached[5] < 2 {
		t.Errorf("most running at once by limit = %v, want more than one of the keys that allow five", reached)
	}
}

// keyedClaim holds the results of one claim of jobs with keys.
type keyedClaim struct{ Claimed, Looked, Passed, Blocked, Promoted int }

// claimKeyed claims probes with keys from the front of priority 0 of the default queue.
func claimKeyed(t *testing.T, db outbox.DB, most int) (c keyedClaim) {
	t.Helper()
	err := db.QueryRow(t.Context(), `
		SELECT count(id), max(looked), max(passed), max(blocked), max(promoted)
		FROM (SELECT 0 AS looked, 0 AS passed, 0 AS blocked, 0 AS promoted, NULL::uuid AS id
		      UNION ALL
		      SELECT looked, passed, blocked, promoted, (job).id
		      FROM outbox.claim_keyed('w', '1 hour', '{00000000-0000-0000-0000-000000000001}', ARRAY[$1::integer], '{2000}', '{1}', '{1}',
		          '{0}', '{-infinity}', '{00000000-0000-0000-0000-000000000000}', 'default', '{probe}', NULL, $1)) AS c`,
		most).Scan(&c.Claimed, &c.Looked, &c.Passed, &c.Blocked, &c.Promoted)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// promoteKey moves the key "k" of the default queue on, by up to n jobs.
func promoteKey(ctx context.Context, db sqlgen.DBTX, n int32) ([]sqlgen.PromoteKeysRow, error) {
	return sqlgen.New(db).PromoteKeys(ctx, sqlgen.PromoteKeysParams{
		TenantIds: []pgtype.UUID{pgID(outbox.RootTenant)}, Queues: []string{engine.DefaultQueue}, Keys: []string{"k"}, Counts: []int32{n},
	})
}

// succeed settles a job as its worker would.
func succeed(t *testing.T, db sqlgen.DBTX, id outbox.ID, epoch int64) {
	t.Helper()
	settled, err := sqlgen.New(db).SettleSucceeded(t.Context(), sqlgen.SettleSucceededParams{
		Ids: []pgtype.UUID{pgID(id)}, Epochs: []int64{epoch}, Results: [][]byte{nil},
	})
	if err != nil || len(settled) != 1 {
		t.Fatalf("settled %d, %v; want 1", len(settled), err)
	}
}

// A is running; B is about to be blocked behind it while A ends. The promotion does not wait: it names the key, so that
// the promoter looks at it again, and moves another key on.
//
//	claim     lock, look: A runs → B blocked                        commit
//	settle                                     A ends  look: locked          look: B is blocked → promote
func TestAPromotionPassesByTheClaimThatIsBlocking(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	key := func(name string) outbox.Options { return outbox.Options{Key: outbox.KeyRules{Name: name}} }
	a, other := enqueue(t, db, probe{1}, key("k")), enqueue(t, db, probe{1}, key("other"))
	if got, want := claimKeyed(t, db, 10), (keyedClaim{Claimed: 2, Looked: 2}); got != want {
		t.Fatalf("the claim of two jobs did %+v, want %+v", got, want)
	}
	behind := enqueue(t, db, probe{2}, key("other"))
	if got, want := claimKeyed(t, db, 10), (keyedClaim{Looked: 1, Blocked: 1}); got != want {
		t.Fatalf("the claim of another key's did %+v, want %+v", got, want)
	}
	b := enqueue(t, db, probe{2}, key("k"))
	claim := begin(t, db)
	if got, want := claimKeyed(t, claim, 10), (keyedClaim{Looked: 1, Blocked: 1}); got != want {
		t.Fatalf("the claim of B did %+v, want %+v", got, want)
	}
	succeed(t, db, a, 1)
	succeed(t, db, other, 1)
	const beside, after = "k: passed by; other: promoted", "k: promoted"
	if got := promoteAtOnce(t, db, "k", "other"); got != beside {
		t.Errorf("beside the claim: %s, want %s", got, beside)
	}
	wantState(t, db, behind, "pending attempt=0 epoch=0 lost=0 error=")
	if err := claim.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := promoteAtOnce(t, db, "k", "other"); got != after {
		t.Errorf("after the claim: %s, want %s", got, after)
	}
	wantState(t, db, b, "pending attempt=0 epoch=0 lost=0 error=")
}

// promoteAtOnce gives one slot of each key away, and returns what it did with each.
func promoteAtOnce(t *testing.T, db sqlgen.DBTX, keys ...string) string {
	t.Helper()
	var move sqlgen.PromoteKeysParams
	for _, key := range keys {
		move.TenantIds, move.Queues = append(move.TenantIds, pgID(outbox.RootTenant)), append(move.Queues, engine.DefaultQueue)
		move.Keys, move.Counts = append(move.Keys, key), append(move.Counts, 1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	rows, err := sqlgen.New(db).PromoteKeys(ctx, move)
	if err != nil {
		t.Fatalf("promote %s: %v", strings.Join(keys, " and "), err)
	}
	var done []string
	for _, row := range rows {
		done = append(done, row.Key+map[bool]string{true: ": promoted", false: ": passed by"}[row.ID.Valid])
	}
	slices.Sort(done)
	return strings.Join(done, "; ")
}

// An edit of B commits after the promotion's snapshot and before its lock: the promotion locks the new version of B,
// which its UPDATE does not see. It names the key, so that the promoter looks at it again.
//
//	promotion   snapshot: B is blocked                     lock the new B, update the old one: none
//	edit                                 B edited, commit
func TestAPromotionComesBackForWhatWasEdited(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]outbox.KeyRules{"plain": {Name: "k"}, "ordered": {Name: "k", Ordered: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			a := enqueue(t, db, probe{1}, outbox.Options{Key: rules})
			claimKeyed(t, db, 10)
			b := enqueue(t, db, probe{2}, outbox.Options{Key: rules})
			exec(t, db, `UPDATE outbox.jobs SET status = 'blocked' WHERE id = $1`, b)
			succeed(t, db, a, 1)
			edit, promotion := begin(t, db), begin(t, db)
			exec(t, edit, `SELECT pg_advisory_xact_lock(7)`)
			exec(t, promotion, `SET LOCAL ROLE `+waitingRole(t, db))
			done := make(chan []sqlgen.PromoteKeysRow, 1)
			go func() {
				rows, err := promoteKey(t.Context(), promotion, 1)
				if err != nil {
					t.Error(err)
				}
				done <- rows
			}()
			pgtest.AwaitLocks(t, db, 1)
			exec(t, edit, `UPDATE outbox.jobs SET priority = 3 WHERE id = $1`, b)
			if err := edit.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if rows := <-done; len(rows) != 1 || rows[0].ID.Valid {
				t.Errorf("beside the edit it returned %v, want the key, without a job", rows)
			}
			if err := promotion.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, want := promoteAtOnce(t, db, "k"), "k: promoted"; got != want {
				t.Errorf("after the edit: %s, want %s", got, want)
			}
		})
	}
}

// waitingRole returns a role for which a row security policy waits, at the first look at a job, until the advisory lock
// 7 is free.
func waitingRole(t *testing.T, db *pgxpool.Pool) string {
	t.Helper()
	role := "waits_" + strings.ReplaceAll(outbox.NewID().String(), "-", "")
	exec(t, db, `CREATE FUNCTION waits() RETURNS boolean LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN true; END'`)
	exec(t, db, `CREATE ROLE `+role)
	t.Cleanup(func() {
		_, err := db.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role)
		if err != nil {
			t.Error(err)
		}
	})
	exec(t, db, `GRANT USAGE ON SCHEMA outbox TO `+role)
	exec(t, db, `GRANT SELECT, UPDATE ON outbox.jobs, outbox.keys TO `+role)
	exec(t, db, `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO `+role)
	exec(t, db, `CREATE POLICY waits ON outbox.jobs TO `+role+` USING (waits())`)
	exec(t, db, `CREATE POLICY waits ON outbox.keys TO `+role+` USING (true)`)
	exec(t, db, `ALTER TABLE outbox.jobs ENABLE ROW LEVEL SECURITY; ALTER TABLE outbox.keys ENABLE ROW LEVEL SECURITY`)
	return role
}

// The other way round: A has ended, and its slot is being given away, but no other transaction can see that yet.
//
//	settle   A ends   lock, look: nobody is blocked             commit
//	claim                                             no lock: B stays      A is gone → B runs
func TestAClaimLeavesAKeyAloneThatIsBeingMovedOn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	a := enqueue(t, db, probe{1}, outbox.Options{Key: outbox.KeyRules{Name: "k"}})
	claimKeyed(t, db, 10)
	b := enqueue(t, db, probe{2}, outbox.Options{Key: outbox.KeyRules{Name: "k"}})
	settle := begin(t, db)
	succeed(t, settle, a, 1)
	if rows, err := promoteKey(t.Context(), settle, 1); err != nil || len(rows) != 0 {
		t.Fatalf("promoted %d, %v; want 0: B is not blocked", len(rows), err)
	}
	if got, want := claimKeyed(t, db, 10), (keyedClaim{Looked: 1, Passed: 1}); got != want {
		t.Errorf("a claim beside it did %+v, want %+v", got, want)
	}
	wantState(t, db, b, "pending attempt=0 epoch=0 lost=0 error=")
	if err := settle.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := claimKeyed(t, db, 10), (keyedClaim{Claimed: 1, Looked: 1}); got != want {
		t.Errorf("the claim after it did %+v, want %+v", got, want)
	}
	wantState(t, db, b, "running attempt=1 epoch=1 lost=0 error=")
}

// Complete in a handler's own transaction takes the job away without the dispatcher: the key moves on when the attempt
// ends. The poll is far away, and there is no reaper.
func TestTheNextJobOfAKeyStartsAfterComplete(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 5, outbox.Options{Key: outbox.KeyRules{Name: "k"}})
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return job.Complete(ctx, tx) })
	}), quiet(nil))
	awaitSucceeded(t, db, 5)
}

// Every way in which an attempt can end gives the slot to the next job.
func TestEveryEndOfAnAttemptMovesTheKeyOn(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		how  func() error
		want string // the job's final status
	}{
		"failed, and retried tomorrow": {func() error { return dispatcher.RetryAfter(24*time.Hour, errors.New("e")) }, "retrying attempt=1 epoch=2 lost=0 error=error"},
		"snoozed until tomorrow":       {func() error { return dispatcher.Snooze(24 * time.Hour) }, "pending attempt=0 epoch=2 lost=0 error="},
		"failed for good":              {func() error { return dispatcher.Discard(errors.New("e")) }, "failed attempt=1 epoch=2 lost=0 error=error"},
		"panicked at the last attempt": {func() error { panic("p") }, "dead attempt=1 epoch=2 lost=0 error=panic"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			opts := outbox.Options{Key: outbox.KeyRules{Name: "k"}}
			if end.want[0] == 'd' {
				opts.MaxAttempts = 1
			}
			first := enqueue(t, db, probe{0}, opts)
			for n := range 3 {
				enqueue(t, db, probe{n + 1}, outbox.Options{Key: outbox.KeyRules{Name: "k"}})
			}
			start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
				if job.Args.N == 0 {
					return end.how()
				}
				return nil
			}), quiet(nil))
			await(t, db, "the others succeed", `SELECT count(*) = 3 FROM outbox.history WHERE status = 'succeeded'`)
			wantState(t, db, first, end.want)
		})
	}
}

// A was claimed long ago by a process that does not report its end. B is being blocked behind it while A ends, and the
// look after that does not see B yet:
//
//	other    A ends, commit, look: nobody is blocked
//	claim    … B blocked                             commit, look: A has ended → promote
//
// Nothing else would ever wake B: there is no reaper, and the poll finds nothing due.
func TestAClaimLooksAgainAfterItHasBlocked(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	a := enqueue(t, db, probe{1}, outbox.Options{Key: outbox.KeyRules{Name: "k"}})
	claimKeyed(t, db, 10)
	enqueue(t, db, probe{2}, outbox.Options{Key: outbox.KeyRules{Name: "k"}})
	// When B is blocked, A ends within the claim's own transaction: a look before it does not see B blocked, and one
	// after it does not see A.
	exec(t, db, `
		CREATE FUNCTION end_a() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			DELETE FROM outbox.jobs WHERE key = 'k' AND status = 'running';
			RETURN NULL;
		END $$;
		CREATE TRIGGER end_a AFTER UPDATE ON outbox.jobs FOR EACH ROW WHEN (NEW.status = 'blocked') EXECUTE FUNCTION end_a()`)
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	await(t, db, "B succeeds", `SELECT count(*) = 1 FROM outbox.history WHERE status = 'succeeded'`)
	wantState(t, db, a, "gone")
}

// B is blocked behind A, and another transaction has its row when A ends: in practice a claim that saw B due before it
// was blocked, and locks it until its commit.
//
//	claim    snapshot: B is due       lock B, leave it alone                         commit
//	another            B blocked
//	settle                                                    A ends, look: B is locked
//
// There is no reaper, and the poll finds nothing due. B is a job of its key, or the head of its line.
func TestAPromotionComesBackForWhatIsLocked(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]outbox.Options{
		"plain": {Key: outbox.KeyRules{Name: "k"}}, "two slots": {Key: outbox.KeyRules{Name: "k", MaxActive: 2}}, "a line": {Key: outbox.KeyRules{Name: "k", Ordered: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			running := max(options.Key.MaxActive, 1)
			enqueueProbes(t, db, running, options)
			end := make(chan struct{})
			wake := make(chan struct{}, 1)
			start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
				if job.Args.N < 100 {
					<-end
				}
				return nil
			}), quiet(wake))
			await(t, db, "A runs", `SELECT count(*) = $1 FROM outbox.jobs WHERE status = 'running'`, running)
			ids := []outbox.ID{enqueue(t, db, probe{100}, options), enqueue(t, db, probe{101}, options)}
			wake <- struct{}{}
			await(t, db, "B and C are blocked", `SELECT count(*) = 2 FROM outbox.jobs WHERE status = 'blocked'`)

			tx := begin(t, db)
			exec(t, tx, `SELECT FROM outbox.jobs WHERE id = ANY ($1) FOR UPDATE`, ids)
			close(end)
			await(t, db, "A has ended", `SELECT count(*) = $1 FROM outbox.history`, running)
			time.Sleep(100 * time.Millisecond) // looks, several
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			awaitSucceeded(t, db, running+2)
		})
	}
}

// A key with two slots was passed by when the first became free. It is looked at for the second slot before the next
// look for the first was due: one look gives both away, because afterwards the key no longer counts as passed by.
//
//	lock B and C; A ends: passed by, again in a second
//	unlock;       A' ends: promote B, and C
func TestAPromotionOwesWhatItPassedBy(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	options := outbox.Options{Key: outbox.KeyRules{Name: "k", MaxActive: 2}}
	enqueueProbes(t, db, 2, options)
	ends := []chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{})}
	defer close(ends[2])
	wake := make(chan struct{}, 1)
	start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		<-ends[min(job.Args.N, 2)]
		return nil
	}), quiet(wake))
	await(t, db, "A and A' run", `SELECT count(*) = 2 FROM outbox.jobs WHERE status = 'running'`)
	ids := []outbox.ID{enqueue(t, db, probe{2}, options), enqueue(t, db, probe{3}, options)}
	wake <- struct{}{}
	await(t, db, "B and C are blocked", `SELECT count(*) = 2 FROM outbox.jobs WHERE status = 'blocked'`)

	tx := begin(t, db)
	exec(t, tx, `SELECT FROM outbox.jobs WHERE id = ANY ($1) FOR UPDATE`, ids)
	close(ends[0])
	await(t, db, "A has ended", `SELECT count(*) = 1 FROM outbox.history`)
	time.Sleep(1400 * time.Millisecond) // eight looks; the ninth is more than a second away
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(ends[1])
	await(t, db, "B and C run", `SELECT count(*) = 2 FROM outbox.jobs WHERE status = 'running' AND id = ANY ($1)`, ids)
}

// The jobs of a key have limits of their own. B, one at a time, waits for A, and C waits behind B although it may run
// as one of two. When A ends, both can run: there is no reaper, and the poll finds nothing due.
func TestAJobWithALowerLimitLetsGoOfThoseBehindIt(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": {}, "another tenant": outbox.NewID()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			one := outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k"}}
			two := outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k", MaxActive: 2}}
			enqueue(t, db, probe{0}, two)
			ends := []chan struct{}{make(chan struct{}), make(chan struct{})}
			defer close(ends[1])
			wake := make(chan struct{}, 1)
			start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
				<-ends[min(job.Args.N, 1)]
				return nil
			}), quiet(wake))
			await(t, db, "A runs", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'running'`)
			ids := []outbox.ID{enqueue(t, db, probe{1}, one), enqueue(t, db, probe{2}, two)}
			wake <- struct{}{}
			await(t, db, "B and C are blocked", `SELECT count(*) = 2 FROM outbox.jobs WHERE status = 'blocked'`)
			close(ends[0])
			await(t, db, "B and C run", `SELECT count(*) = 2 FROM outbox.jobs WHERE status = 'running' AND id = ANY ($1)`, ids)
		})
	}
}

// A job with a lower limit than those that come later is not overtaken by them without end: it runs next.
func TestAJobWithALowerLimitIsNotOvertaken(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": {}, "another tenant": outbox.NewID()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			one := outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k"}}
			three := outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k", MaxActive: 3}}
			enqueue(t, db, probe{0}, three)
			ends := []chan struct{}{make(chan struct{}), make(chan struct{})}
			defer close(ends[1])
			wake := make(chan struct{}, 1)
			start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
				<-ends[min(job.Args.N, 1)]
				return nil
			}), quiet(wake))
			await(t, db, "A runs", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'running'`)
			b := enqueue(t, db, probe{1}, one)
			wake <- struct{}{}
			await(t, db, "B is blocked", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'blocked'`)
			later := []outbox.ID{enqueue(t, db, probe{2}, three), enqueue(t, db, probe{3}, three)}
			wake <- struct{}{}
			await(t, db, "the later ones are blocked, too", `SELECT count(*) = 3 FROM outbox.jobs WHERE status = 'blocked'`)
			close(ends[0])
			await(t, db, "B runs, and the later ones beside it", `SELECT count(*) = 3 FROM outbox.jobs WHERE status = 'running' AND id = ANY ($1)`, append(later, b))
		})
	}
}

// However many jobs have left a key at once, all that can run are promoted, and a job that is locked is not forgotten
// where those behind it cannot run.
func TestAPromotionOfJobsWithLimitsOfTheirOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	blocked := func(key string, limits ...int) (ids []outbox.ID) {
		for _, limit := range limits {
			ids = append(ids, enqueue(t, db, probe{}, outbox.Options{Key: outbox.KeyRules{Name: key, MaxActive: limit}}))
		}
		exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', $2)`, outbox.RootTenant, key)
		exec(t, db, `UPDATE outbox.jobs SET status = 'blocked' WHERE id = ANY ($1)`, ids)
		return ids
	}
	promote := func(key string, n int) (promoted, passed int) {
		err := db.QueryRow(t.Context(), `SELECT count(id), count(*) - count(id) FROM outbox.promote_keys(ARRAY[$1::uuid], ARRAY['default'], ARRAY[$2], ARRAY[$3::integer])`,
			outbox.RootTenant, key, n).Scan(&promoted, &passed)
		if err != nil {
			t.Fatal(err)
		}
		return promoted, passed
	}
	for n := 1; n <= 3; n++ {
		key := fmt.Sprint("k", n)
		blocked(key, 1, 3, 3, 3)
		if promoted, passed := promote(key, n); promoted != 3 || passed != 0 {
			t.Errorf("%d jobs have left the key: %d promoted, %d passed by, want 3 and 0", n, promoted, passed)
		}
	}
	ids := blocked("locked", 2, 2, 1)
	exec(t, db, `UPDATE outbox.jobs SET status = 'pending' WHERE id = $1`, ids[0])
	exec(t, db, `UPDATE outbox.jobs SET status = 'running', slot = 0, epoch = 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, ids[0])
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, ids[1]); err != nil {
		t.Fatal(err)
	}
	if promoted, passed := promote("locked", 1); promoted != 0 || passed != 1 {
		t.Errorf("the next job is locked: %d promoted, %d passed by, want 0 and 1", promoted, passed)
	}
}

// A stop whose grace period is over leaves keys to the reaper, including those that were due for another look.
func TestAStopDoesNotWaitForALockedKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	options := outbox.Options{Key: outbox.KeyRules{Name: "k"}}
	enqueueProbes(t, db, 1, options)
	end := make(chan struct{})
	wake := make(chan struct{}, 1)
	config := quiet(wake)
	config.GracePeriod = time.Millisecond
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { <-end; return nil }), config)
	await(t, db, "A runs", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'running'`)
	id := enqueue(t, db, probe{1}, options)
	wake <- struct{}{}
	await(t, db, "B is blocked", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'blocked'`)

	tx := begin(t, db)
	exec(t, tx, `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, id)
	close(end)
	await(t, db, "A has ended", `SELECT count(*) = 1 FROM outbox.history`)
	time.Sleep(50 * time.Millisecond) // B is passed by
	exec(t, tx, `SELECT FROM outbox.keys FOR UPDATE`)
	time.Sleep(500 * time.Millisecond) // a look is under way, and waits for the key
	d.cancel()
	stopped := time.Now()
	d.wait(t)
	if took := time.Since(stopped); took > 30*time.Second {
		t.Errorf("the stop took %s, want as long as one look at most", took)
	}
}

// There are more jobs than a claim looks at, and it passes by all of them: each is locked, or all belong to a key whose
// row is locked. The due jobs behind them run all the same.
func TestALockHidesNoKeyBehindIt(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]struct{ key, sql string }{
		"jobs":  {`'k' || n`, `SELECT FROM outbox.jobs FOR UPDATE`},
		"a key": {`'k'`, `SELECT FROM outbox.keys FOR UPDATE`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			tenants := []outbox.ID{outbox.RootTenant, outbox.NewID()}
			exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'k'), ($2, 'default', 'k')`, tenants[0], tenants[1])
			for _, tenant := range tenants {
				exec(t, db, `
					INSERT INTO outbox.jobs (id, tenant_id, queue, kind, payload, content_type, key, run_at)
					SELECT gen_random_uuid(), $1, 'default', 'probe', '{"N": 1}', 'application/json', `+lock.key+`, now() - interval '1 minute'
					FROM generate_series(1, 2100) AS n`, tenant)
			}
			tx := begin(t, db)
			exec(t, tx, lock.sql)
			for _, tenant := range tenants {
				enqueue(t, db, probe{}, outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "behind"}})
			}
			start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
			await(t, db, "what is behind has run", `SELECT count(*) = 2 FROM outbox.history WHERE key = 'behind'`)
		})
	}
}

// The last line of defence: a slot holds one running job, whichever statement claims.
func TestTheDatabaseRefusesAJobTooManyOfAKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 3, outbox.Options{Key: outbox.KeyRules{Name: "k", MaxActive: 2}})
	run := func(slot int) error {
		_, err := db.Exec(t.Context(), `
			UPDATE outbox.jobs
			SET status = 'running', slot = $1, epoch = 1, attempt = 1, started_at = now(), lease_owner = 'w', lease_expires_at = now()
			WHERE id = (SELECT id FROM outbox.jobs WHERE status = 'pending' LIMIT 1)`, slot)
		return err
	}
	for slot, want := range []string{"", "", "jobs_key_rules"} { // slots 0 and 1; there is no third
		if err := run(slot); (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("a job in slot %d: %v, want %q", slot, err, want)
		}
	}
	if err := run(1); err == nil || !strings.Contains(err.Error(), "jobs_slot_idx") {
		t.Errorf("a second job in slot 1: %v, want a violation of jobs_slot_idx", err)
	}
}

// Whatever plans the planner makes for its statements, a claim takes what it was asked for and blocks what does not
// fit.
func TestKeyedClaimsAreRightUnderEveryPlan(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var requests []outbox.Request
	for n := range 3000 {
		requests = append(requests, outbox.Request{Args: probe{n}, Options: outbox.Options{Key: outbox.KeyRules{Name: fmt.Sprint("k", n/3), MaxActive: 2}}})
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for i, settings := range plannerSettings() {
		for _, set := range append(settings, "jit = off") {
			exec(t, conn, "SET "+set)
		}
		exec(t, conn, "DISCARD PLANS")
		// Ten keys of three jobs each: two run, one is blocked.
		var claimed, blocked, looked int
		err := conn.QueryRow(t.Context(), `
			SELECT count((job).id), max(blocked), max(looked)
			FROM outbox.claim_keyed('w', '1 hour', '{00000000-0000-0000-0000-000000000001}', '{100}', '{30}', '{1}', '{1}',
			    '{0}', '{-infinity}', '{00000000-0000-0000-0000-000000000000}', 'default', '{probe}', NULL, 100)`).
			Scan(&claimed, &blocked, &looked)
		if err != nil || claimed != 20 || blocked != 10 || looked != 30 {
			t.Fatalf("%v: claimed %d, blocked %d of %d, %v; want 20, 10, 30", settings, claimed, blocked, looked, err)
		}
		if n := ask[int](t, conn, `SELECT count(*) FROM outbox.jobs WHERE status = 'running'`); n != 18*i+20 {
			t.Fatalf("%v: running jobs = %d, want %d", settings, n, 18*i+20)
		}
		// Both of a key end: the one that is left is promoted.
		key := fmt.Sprint("k", 10*i)
		exec(t, conn, `DELETE FROM outbox.jobs WHERE key = $1 AND status = 'running'`, key)
		if n := ask[int](t, conn, `SELECT count(*) FROM outbox.promote_keys(ARRAY[$1::uuid], '{default}', ARRAY[$2::text], '{5}')`, pgID(outbox.RootTenant), key); n != 1 {
			t.Fatalf("%v: promoted %d, want 1", settings, n)
		}
		exec(t, conn, `DELETE FROM outbox.jobs WHERE key = $1`, key)
		exec(t, conn, "RESET ALL")
	}
}

// A backlog of either sort does not keep the other from running, even with one worker that takes one job at a time.
func TestJobsWithAndWithoutKeysShareTheRoom(t *testing.T) {
	t.Parallel()
	for name, backlogHasKeys := range map[string]bool{"behind jobs with keys": true, "behind jobs without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			var requests []outbox.Request
			for n := range 300 {
				r := outbox.Request{Args: probe{n}}
				if (n < 290) == backlogHasKeys { // the last ten are of the other sort
					r.Options.Key.Name = fmt.Sprint("k", n)
				}
				requests = append(requests, r)
			}
			if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
				t.Fatal(err)
			}
			s := newTurnstile()
			start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
				s.enter("all", job.Args.N)
				// Slow at first: nothing is claimed ahead.
				time.Sleep(50 * time.Millisecond / time.Duration(1+job.Args.N/10))
				return nil
			}), dispatcher.Config{Queues: map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 1}}})
			awaitSucceeded(t, db, len(requests))
			if at := slices.Index(s.starts["all"], 290); at > 100 {
				t.Errorf("the first of the few started as number %d of 300, want it among the first", at)
			}
		})
	}
}

// The database refuses to move a key on: a trigger refuses the next job, or the dead head must park the key at a time
// beyond the largest possible one, which outbox.enqueue refuses and INSERT does not. The other keys, of root and of
// another tenant, in a line and not, wait neither for it nor for a reaper.
func TestAKeyThatIsRefusedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	another := outbox.NewID()
	for name, bad := range map[string]outbox.Options{
		"a job":                           {Key: outbox.KeyRules{}},
		"a job, another tenant":           {Tenant: another},
		"a job of a line":                 {Key: outbox.KeyRules{Ordered: true}},
		"a job of a line, another tenant": {Tenant: another, Key: outbox.KeyRules{Ordered: true}},
		"a dead head":                     {Key: outbox.KeyRules{Ordered: true, OnDeath: outbox.ParkKey, ParkAfter: time.Hour}},
		"a dead head, another tenant":     {Tenant: another, Key: outbox.KeyRules{Ordered: true, OnDeath: outbox.ParkKey, ParkAfter: time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			bad.Key.Name = "bad"
			enqueueProbes(t, db, 2, bad)
			enqueueProbes(t, db, 2, outbox.Options{Key: outbox.KeyRules{Name: "good"}})
			enqueueProbes(t, db, 2, outbox.Options{Tenant: another, Key: outbox.KeyRules{Name: "good line", Ordered: true}})
			ends := map[string]chan struct{}{"bad": make(chan struct{}), "good": make(chan struct{}), "good line": make(chan struct{})}
			start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
				if <-ends[job.Key]; job.Key == "bad" && bad.Key.OnDeath != "" {
					return dispatcher.Discard(errors.New("no"))
				}
				return nil
			}), quiet(nil))
			await(t, db, "the others are blocked", `SELECT count(*) = 3 FROM outbox.jobs WHERE status = 'blocked'`)
			if bad.Key.OnDeath != "" {
				exec(t, db, `UPDATE outbox.jobs SET park_after = '300000 years' WHERE key = 'bad'`)
			} else {
				exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'poisoned' USING ERRCODE = 'check_violation'; END $$`)
				exec(t, db, `CREATE TRIGGER refuse BEFORE UPDATE ON outbox.jobs FOR EACH ROW WHEN (OLD.key = 'bad' AND NEW.status = 'pending') EXECUTE FUNCTION refuse()`)
			}
			close(ends["bad"])
			await(t, db, "the bad one has ended", `SELECT count(*) = 0 FROM outbox.jobs WHERE key = 'bad' AND status = 'running'`)
			time.Sleep(50 * time.Millisecond) // the look at it
			close(ends["good"])
			close(ends["good line"])
			await(t, db, "the others succeed", `SELECT count(*) = 4 FROM outbox.history WHERE key LIKE 'good%'`)
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE key = 'bad' AND status = 'blocked'`); n != 1 {
				t.Errorf("%d jobs of the bad key are blocked, want 1", n)
			}
		})
	}
}
