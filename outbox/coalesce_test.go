package outbox

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// P changes something and its request is coalesced into J, which waits already. If J ran
// before P commits, it would work on what was there before, and nobody would look again:
//
//	P   change S; coalesced into J                      commit
//	D                               claim: nothing to do        claim J, wakes up for it
func TestTheJobThatStandsForARequestWaitsForItsCommit(t *testing.T) {
	t.Parallel()
	for _, standing := range []string{"pending", "blocked"} {
		t.Run(standing, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			opts := Options{Key: KeyRules{Name: "k", MaxQueued: 1, WhenFull: CoalesceFull}}
			first, err := Submit(t.Context(), db, greet{"ada"}, opts)
			if err != nil {
				t.Fatal(err)
			}
			if standing == "blocked" {
				exec(t, db, `UPDATE outbox.jobs SET status = 'blocked' WHERE id = $1`, first.ID)
			}
			exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'k')`, RootTenant)
			listener, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Release()
			exec(t, listener, `LISTEN outbox_jobs`)

			tx := begin(t, db, pgx.ReadCommitted)
			if done, err := Submit(t.Context(), tx, greet{"ada"}, opts); err != nil || done.Stored || done.ID != first.ID {
				t.Fatalf("submitted %+v, %v; want coalesced into %s", done, err, first.ID)
			}
			// As claims and promotions lock.
			const lock = `SELECT count(*) FROM (SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE SKIP LOCKED) AS locked`
			if n := ask[int](t, db, lock, first.ID); n != 0 {
				t.Error("it could be claimed before the commit")
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := ask[int](t, db, lock, first.ID); n != 1 {
				t.Error("it cannot be claimed after the commit")
			}
			if standing == "blocked" { // the worker that freed its slot meanwhile could not promote it
				if got := ask[string](t, db, `SELECT status::text FROM outbox.jobs WHERE id = $1`, first.ID); got != "pending" {
					t.Errorf("it is %s, want pending", got)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := listener.Conn().WaitForNotification(ctx); err != nil {
				t.Errorf("nobody is woken for it: %v", err)
			}
		})
	}
}

// A job that a claim is about to take does not do: it may have read what was there before. Its row is not left locked,
// or its settlement would wait for the producer's COMMIT.
func TestAJobThatStartsMeanwhileDoesNotDo(t *testing.T) {
	t.Parallel()
	for _, full := range []DepthPolicy{CoalesceFull, ReplaceOldest} {
		t.Run(string(full), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			opts := Options{Key: KeyRules{Name: "k", MaxQueued: 1, WhenFull: full}}
			first, err := Submit(t.Context(), db, greet{"ada"}, opts)
			if err != nil {
				t.Fatal(err)
			}
			claim := begin(t, db, pgx.ReadCommitted)
			exec(t, claim, `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = 1, lease_owner = 'w',
				lease_expires_at = now() + interval '1 minute', started_at = now() WHERE id = $1`, first.ID)
			producer := begin(t, db, pgx.ReadCommitted)
			type answer struct {
				Submitted
				err error
			}
			answers := make(chan answer, 1)
			go func() {
				done, err := Submit(t.Context(), producer, greet{"ada"}, opts)
				answers <- answer{done, err}
			}()
			pgtest.AwaitLocks(t, db, 1)
			if err := claim.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if a := <-answers; a.err != nil || !a.Stored || !a.Replaced.IsZero() {
				t.Errorf("submitted %+v, want a job of its own", a)
			}
			if n := ask[int](t, db, `SELECT count(*) FROM (SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE SKIP LOCKED) AS free`,
				first.ID); n != 1 {
				t.Error("the producer's transaction keeps the running job's row locked")
			}
		})
	}
}

// What stands for a request does what was asked for, and will run.
func TestNoOtherKindStandsForARequest(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	opts := Options{Key: KeyRules{Name: "k", MaxQueued: 1, WhenFull: CoalesceFull}}
	if _, err := Submit(t.Context(), db, Raw{KindName: "other", Payload: []byte("{}")}, opts); err != nil {
		t.Fatal(err)
	}
	if done, err := Submit(t.Context(), db, greet{"ada"}, opts); err != nil || done.Stored || !done.ID.IsZero() {
		t.Errorf("submitted %+v, %v; want rejected: nothing of this kind waits", done, err)
	}
	exec(t, db, `UPDATE outbox.jobs SET deadline = now() - interval '1 second'`)
	if done, err := Submit(t.Context(), db, greet{"ada"}, opts); err != nil || !done.Stored {
		t.Errorf("submitted %+v, %v; want accepted: what waits is past its deadline", done, err)
	}
}

// A transaction that frees a key over and over moves it on for sixteen at a time, and leaves no row behind.
func TestAKeyIsMovedOnForSeveralAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `CREATE TABLE moved (key text);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.moved VALUES (NEW.key); RETURN NEW; END';
		CREATE TRIGGER note BEFORE UPDATE ON outbox.jobs FOR EACH ROW WHEN (OLD.status = 'blocked' AND NEW.status = 'pending') EXECUTE FUNCTION note()`)
	exec(t, db, `SELECT outbox.enqueue('test', key => 'k', ordered => true) FROM generate_series(1, 40)`)
	exec(t, db, `UPDATE outbox.jobs SET status = 'blocked'`)
	exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'k')`, RootTenant)
	tx := begin(t, db, pgx.ReadCommitted)
	if n := ask[int](t, tx, `SELECT count(outbox.cancel(id)) FROM (SELECT id FROM outbox.jobs ORDER BY line_position LIMIT 32) AS first`); n != 32 {
		t.Fatalf("%d were cancelled", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := ask[string](t, db, `SELECT (SELECT count(*) FROM moved)||' '||(SELECT count(*) FROM outbox.freed_keys)||' '||
		(SELECT string_agg(status::text, ',' ORDER BY line_position) FROM (SELECT * FROM outbox.jobs ORDER BY line_position LIMIT 2) AS jobs)`)
	if got != "1 0 pending,blocked" {
		t.Errorf("promotions, rows that are left, and the first two jobs: %s; want 1 0 pending,blocked", got)
	}
}

// While a snapshot is held, every row that moved a key on since is still there. To cancel a job does not visit them.
func TestACancellationDoesNotReadWhatOthersFreed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	held := begin(t, db, pgx.RepeatableRead)
	ask[int](t, held, `SELECT 1`)
	exec(t, db, `ALTER TABLE outbox.freed_keys DISABLE TRIGGER freed_keys_move_on`)
	exec(t, db, `INSERT INTO outbox.freed_keys (tenant_id, queue, key) SELECT $1, 'default', 'other' FROM generate_series(1, 50000)`, RootTenant)
	exec(t, db, `DELETE FROM outbox.freed_keys`)
	exec(t, db, `ALTER TABLE outbox.freed_keys ENABLE TRIGGER freed_keys_move_on`)
	exec(t, db, `SELECT outbox.enqueue('test', key => key) FROM unnest('{first,k}'::text[]) AS key`)
	tx := begin(t, db, pgx.ReadCommitted)
	// The session has read the catalog by then.
	exec(t, tx, `SELECT outbox.cancel(id) FROM outbox.jobs WHERE key = 'first'`)
	exec(t, tx, `SET CONSTRAINTS ALL IMMEDIATE`)
	exec(t, tx, `SET CONSTRAINTS ALL DEFERRED`)
	plan := ask[[]byte](t, tx, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT outbox.cancel(id) FROM outbox.jobs WHERE key = 'k'`)
	var explained []struct {
		Plan struct {
			Hit int `json:"Shared Hit Blocks"`
		}
	}
	if err := json.Unmarshal(plan, &explained); err != nil {
		t.Fatal(err)
	}
	if hit := explained[0].Plan.Hit; hit == 0 || hit > 200 {
		t.Errorf("a cancellation reads %d buffers, want few", hit)
	}
	exec(t, tx, `SET CONSTRAINTS ALL IMMEDIATE`)
}

// The job behind one that a transaction calls off is moved on when that commits.
func TestTheJobBehindOneThatWasCancelledIsMovedOn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var ids []ID
	for range 3 {
		id, err := Enqueue(t.Context(), db, greet{"ada"}, Options{Key: KeyRules{Name: "k", Ordered: true}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	exec(t, db, `UPDATE outbox.jobs SET status = 'blocked' WHERE id <> $1`, ids[0])
	exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'k')`, RootTenant)
	tx := begin(t, db, pgx.ReadCommitted)
	for _, id := range ids[:2] {
		if got := ask[string](t, tx, `SELECT outbox.cancel($1)::text`, id); got != "cancelled" {
			t.Fatalf("cancel = %s", got)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ask[string](t, db, `SELECT status::text FROM outbox.jobs WHERE id = $1`, ids[2]); got != "pending" {
		t.Errorf("the job behind is %s, want pending", got)
	}
}
