package operator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// claimKeyed leases what can run of the jobs with keys of a queue.
func claimKeyed(t *testing.T, db *pgxpool.Pool, queue string) map[outbox.ID]int64 {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT (job).id, (job).epoch FROM outbox.claim_keyed('worker-1', '1 hour', '{00000000-0000-0000-0000-000000000001}', '{100}', '{100}', '{1}', '{1}',
			'{0}', '{-infinity}', '{00000000-0000-0000-0000-000000000000}', $1, '{mail}', NULL, 100)
		WHERE (job).id IS NOT NULL`, queue)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	claimed := map[outbox.ID]int64{}
	for rows.Next() {
		var id outbox.ID
		var epoch int64
		if err := rows.Scan(&id, &epoch); err != nil {
			t.Fatal(err)
		}
		claimed[id] = epoch
	}
	return claimed
}

// A dead head parks its key; unblocked, its jobs run in their old order.
func TestAParkedKeyIsListedAndUnblocked(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := operator.New(db)
	opts := outbox.Options{Key: outbox.KeyRules{Name: "order 7", Ordered: true, OnDeath: outbox.ParkKey}}
	first := enqueue(t, db, "mail", opts)
	second := enqueue(t, db, "mail", opts)
	enqueue(t, db, "mail", outbox.Options{Key: outbox.KeyRules{Name: "nothing is wrong with it"}})
	enqueue(t, db, "mail", outbox.Options{})
	claimed := claimKeyed(t, db, engine.DefaultQueue)
	if len(claimed) != 2 || !settle(t, db, first, claimed[first], outbox.Dead) {
		t.Fatalf("claimed %v, want %s and another one, which can be settled", claimed, first)
	}
	if _, err := db.Exec(t.Context(), `SELECT outbox.promote_keys(ARRAY[$1::uuid], '{default}', '{order 7}', '{1}')`, outbox.RootTenant); err != nil {
		t.Fatal(err)
	}

	keys, err := o.Keys(t.Context(), operator.KeyFilter{Parked: true})
	if err != nil || len(keys) != 1 {
		t.Fatalf("parked keys = %+v, %v; want one", keys, err)
	}
	want := operator.Key{
		KeyName: operator.KeyName{Tenant: outbox.RootTenant, Queue: "default", Key: "order 7"},
		Blocked: 1, DeadLetters: 1, BlockedSince: job(t, o, second).RunAt, ParkedSince: keys[0].ParkedSince, ParkedFor: first,
	}
	if diff := cmp.Diff(want, keys[0]); diff != "" || time.Since(keys[0].ParkedSince) > time.Hour {
		t.Errorf("key (-want +got):\n%s", diff)
	}
	shown, err := o.Key(t.Context(), operator.KeyName{Key: "order 7"})
	if diff := cmp.Diff(want, shown); err != nil || diff != "" {
		t.Errorf("%v; one key (-want +got):\n%s", err, diff)
	}

	if err := o.Retry(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if got := claimKeyed(t, db, engine.DefaultQueue); len(got) != 0 {
		t.Errorf("claimed %v of a parked key, want none", got)
	}
	if !woken(t, db, func() {
		if n, err := o.Unblock(t.Context(), operator.KeyName{Key: "order 7"}); err != nil || n != 0 {
			t.Errorf("unblocked with %d retried, %v; want 0: it had been retried", n, err)
		}
	}) {
		t.Error("the dispatchers were not woken")
	}
	for _, id := range []outbox.ID{first, second} {
		got := claimKeyed(t, db, engine.DefaultQueue)
		if _, next := got[id]; len(got) != 1 || !next {
			t.Fatalf("claimed %v, want %s", got, id)
		}
		if !settle(t, db, id, got[id], outbox.Succeeded) {
			t.Fatal("not settled")
		}
		if _, err := db.Exec(t.Context(), `SELECT outbox.promote_keys(ARRAY[$1::uuid], '{default}', '{order 7}', '{1}')`, outbox.RootTenant); err != nil {
			t.Fatal(err)
		}
	}
}

// However the list of keys is cut into pages, it is the same list.
func TestKeysAreListedByPages(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	// Some blocked at one time, in two queues and of two tenants, and two that are parked
	// and have nothing blocked.
	exec(t, db, `
		INSERT INTO outbox.jobs (id, tenant_id, queue, kind, payload, key, status, run_at)
		SELECT outbox.uuid_v7(), ('00000000-0000-0000-0000-00000000000' || (1 + i % 2))::uuid, CASE WHEN i % 3 = 0 THEN 'post' ELSE 'default' END,
		    'mail', '', chr(97 + i / 2), 'blocked', timestamptz '2026-01-01 00:00:00.000001Z' + i % 4 * interval '1 microsecond'
		FROM generate_series(0, 12) AS i;
		INSERT INTO outbox.keys (tenant_id, queue, key, parked_at)
		SELECT '00000000-0000-0000-0000-000000000001', 'default', k, now() FROM unnest('{Z,ü}'::text[]) AS k`)
	all, err := o.Keys(t.Context(), operator.KeyFilter{})
	if err != nil || len(all) != 15 || !all[13].BlockedSince.IsZero() {
		t.Fatalf("%d keys, %v; want 15, the parked ones last: %+v", len(all), err, all)
	}
	for _, limit := range []int{1, 2, 4, 15} {
		var got []operator.Key
		for f := (operator.KeyFilter{Limit: limit}); len(got) <= 15; {
			page, err := o.Keys(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, page...)
			if len(page) < limit {
				break
			}
			f.After = page[limit-1].Place()
		}
		if diff := cmp.Diff(all, got); diff != "" {
			t.Errorf("pages of %d (-list +pages):\n%s", limit, diff)
		}
	}
}

// A dismissed head lets the next job run.
func TestDismissingADeadHeadMovesItsKeyOn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := operator.New(db)
	first := enqueue(t, db, "mail", outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true}})
	second := enqueue(t, db, "mail", outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true}})
	if !settle(t, db, first, claimKeyed(t, db, engine.DefaultQueue)[first], outbox.Dead) {
		t.Fatal("not settled")
	}
	if !woken(t, db, func() {
		if err := o.Dismiss(t.Context(), first); err != nil {
			t.Fatal(err)
		}
	}) {
		t.Error("the dispatchers were not woken")
	}
	if got := job(t, o, second).Status; got != outbox.Pending {
		t.Errorf("the next one is %s, want pending", got)
	}
}

// Unblocking retries every dead letter that holds the key up, and no other.
func TestUnblockRetriesWhatHoldsTheKeyUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := operator.New(db)
	head := enqueue(t, db, "mail", outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true}})
	passed := enqueue(t, db, "mail", outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true, OnDeath: outbox.SkipDead}})
	beside := enqueue(t, db, "mail", outbox.Options{Key: outbox.KeyRules{Name: "k"}})
	if _, err := db.Exec(t.Context(), `UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, started_at = now(), lease_owner = 'w', lease_expires_at = now();
		UPDATE outbox.jobs SET status = 'dead', epoch = 2, lease_owner = NULL, lease_expires_at = NULL`); err != nil {
		t.Fatal(err)
	}
	if n, err := o.Unblock(t.Context(), operator.KeyName{Key: "k"}); err != nil || n != 1 {
		t.Errorf("unblocked with %d retried, %v; want 1", n, err)
	}
	for id, want := range map[outbox.ID]outbox.Status{head: outbox.Pending, passed: outbox.Dead, beside: outbox.Dead} {
		if got := job(t, o, id).Status; got != want {
			t.Errorf("job %s is %s, want %s", id, got, want)
		}
	}
}

func TestKeysThatNobodyKnows(t *testing.T) {
	t.Parallel()
	o := operator.New(pgtest.New(t))
	if _, err := o.Key(t.Context(), operator.KeyName{Key: "k"}); !errors.Is(err, operator.ErrKeyNotFound) {
		t.Errorf("Key: %v, want ErrKeyNotFound", err)
	}
	if _, err := o.Unblock(context.WithoutCancel(t.Context()), operator.KeyName{Key: "k"}); !errors.Is(err, operator.ErrKeyNotFound) {
		t.Errorf("Unblock: %v, want ErrKeyNotFound", err)
	}
	if _, err := o.Keys(t.Context(), operator.KeyFilter{Limit: -1}); err == nil {
		t.Error("a negative limit is accepted")
	}
}

// A key is known as soon as an open job bears it, whatever that is, and not first when a
// claim has looked at it.
func TestUnblockOfAKeyThatNothingHoldsUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := operator.New(db)
	for name, options := range map[string]outbox.Options{
		"plain": {}, "line": {Key: outbox.KeyRules{Ordered: true}}, "held": {Hold: true}, "held line": {Key: outbox.KeyRules{Ordered: true}, Hold: true}, "running": {}, "dead": {}, "passed": {Key: outbox.KeyRules{Ordered: true, OnDeath: outbox.SkipDead}},
	} {
		options.Key.Name = name
		id := enqueue(t, db, "mail", options)
		if name == "running" || name == "dead" || name == "passed" {
			exec(t, db, `UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, started_at = now(), lease_owner = 'w', lease_expires_at = now() + interval '1 hour' WHERE id = $1`, id)
		}
		if name == "dead" || name == "passed" {
			exec(t, db, `UPDATE outbox.jobs SET status = 'dead', epoch = 2, lease_owner = NULL, lease_expires_at = NULL WHERE id = $1`, id)
		}
		if _, err := o.Key(t.Context(), operator.KeyName{Key: name}); err != nil {
			t.Errorf("Key %s: %v", name, err)
		}
		before := job(t, o, id)
		if blocks, err := o.BlockingLetters(t.Context(), operator.KeyName{Key: name}); len(blocks) != 0 || err != nil {
			t.Errorf("what blocks %s: %v, %v; want nothing", name, blocks, err)
		}
		if n, err := o.Unblock(t.Context(), operator.KeyName{Key: name}); n != 0 || err != nil {
			t.Errorf("Unblock %s = %d, %v; want none, and no error", name, n, err)
		}
		if after := job(t, o, id); after.Status != before.Status || after.Epoch != before.Epoch {
			t.Errorf("%s: the job was %s and is %s", name, before.Status, after.Status)
		}
	}
	if _, err := o.Unblock(t.Context(), operator.KeyName{Queue: "other", Key: "plain"}); !errors.Is(err, operator.ErrKeyNotFound) {
		t.Errorf("the key of another queue: %v, want ErrKeyNotFound", err)
	}
}

// storeLapsed stores two jobs of a key that ran at once on one worker, whose leases have lapsed, and one that waits
// behind them. Their handlers are not to be run again before a person has looked.
func storeLapsed(t *testing.T, db *pgxpool.Pool, tenant outbox.ID) (ids []outbox.ID) {
	t.Helper()
	for slot := range 3 {
		id := enqueue(t, db, "mail", outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k", MaxActive: 2, OnLapse: outbox.BlockLapsed}})
		if ids = append(ids, id); slot < 2 {
			exec(t, db, `UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, slot = $2, started_at = now(), lease_owner = 'w', lease_expires_at = now() - interval '1 s' WHERE id = $1`, id, slot)
		} else {
			exec(t, db, `UPDATE outbox.jobs SET status = 'blocked' WHERE id = $1`, id)
		}
	}
	return ids
}

// expireLapsed does what a reaper does: once, for up to so many lapsed leases.
func expireLapsed(t *testing.T, db *pgxpool.Pool, most int32) {
	t.Helper()
	lapsed, err := sqlgen.New(db).ExpireLeases(t.Context(), sqlgen.ExpireLeasesParams{
		FromLease:   pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
		BeforeLease: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true},
		Overlap:     pgtype.Interval{Valid: true}, MaxJobs: most,
	})
	if err != nil || !lapsed[0].ID.Valid {
		t.Errorf("expired %v, %v; want what has lapsed", lapsed, err)
	}
}

// awaitLock waits until a session waits for a lock.
func awaitLock(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	for began, waits := time.Now(), false; !waits; time.Sleep(time.Millisecond) {
		err := db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
		if err != nil || time.Since(began) > time.Minute {
			t.Fatalf("nobody waits for a lock: %v", err)
		}
	}
}

// One worker dies of several jobs of a key: the key names one of them, and all of them are taken up.
func TestUnblockRetriesAllThatLapsed(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": outbox.NewID()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			o := operator.New(db)
			ids := storeLapsed(t, db, tenant)
			elsewhere := storeLapsed(t, db, outbox.NewID())
			expireLapsed(t, db, 100)
			blocks, err := o.BlockingLetters(t.Context(), operator.KeyName{Tenant: tenant, Key: "k"})
			if err != nil || len(blocks) != 2 || blocks[0].ID != ids[0] || blocks[1].ID != ids[1] || blocks[0].Epoch != job(t, o, ids[0]).Epoch {
				t.Errorf("what blocks the key is %v, %v; want %v", blocks, err, ids[:2])
			}
			if n, err := o.Unblock(t.Context(), operator.KeyName{Tenant: tenant, Key: "k"}); err != nil || n != 2 {
				t.Errorf("unblocked with %d retried, %v; want 2", n, err)
			}
			for n, id := range ids {
				if got := job(t, o, id).Status; got != outbox.Pending {
					t.Errorf("job %d is %s, want pending", n, got)
				}
			}
			for n, want := range []outbox.Status{outbox.Dead, outbox.Dead, outbox.Blocked} {
				if got := job(t, o, elsewhere[n]).Status; got != want {
					t.Errorf("job %d of the key of another tenant is %s, want %s", n, got, want)
				}
			}
		})
	}
}

// The lease of the second job lapses after an unblock has looked for dead letters, and before it takes the key up:
//
//	unblock   look: the first is dead …   waits on the gate    lock the key, look again: the second, too
//	reaper                              the second is dead
//
// The gate is the row of the first job. That of the second is waited for, too, if it is dead at the first look.
func TestUnblockRetriesWhatLapsesMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tenant outbox.ID
		gate   int // the job
	}{
		"root": {outbox.RootTenant, 0}, "another tenant": {outbox.NewID(), 0}, "root, locked": {outbox.RootTenant, 1}, "another tenant, locked": {outbox.NewID(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			o := operator.New(db)
			ids := storeLapsed(t, db, c.tenant)
			exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 minute' WHERE id = $1`, ids[0])
			expireLapsed(t, db, int32(1+c.gate))
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, ids[c.gate]); err != nil {
				t.Fatal(err)
			}
			type answer struct {
				n   int
				err error
			}
			unblocked := make(chan answer, 1)
			go func() {
				n, err := o.Unblock(context.WithoutCancel(t.Context()), operator.KeyName{Tenant: c.tenant, Key: "k"})
				unblocked <- answer{n, err}
			}()
			awaitLock(t, db)
			if c.gate == 0 {
				expireLapsed(t, db, 1)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := <-unblocked; got.err != nil || got.n != 2 {
				t.Errorf("unblocked with %d retried, %v; want 2", got.n, got.err)
			}
			for _, id := range ids[:2] {
				if got := job(t, o, id).Status; got != outbox.Pending {
					t.Errorf("a job that lapsed is %s, want pending", got)
				}
			}
		})
	}
}

// A job is called off, or makes room, although the database refuses to promote the one behind it: the reaper's sweep
// promotes that one later, and says what is wrong.
func TestAPromotionThatIsRefusedHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": outbox.NewID()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			o := operator.New(db)
			exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'poisoned'; END $$`)
			exec(t, db, `CREATE TRIGGER refuse BEFORE UPDATE ON outbox.jobs FOR EACH ROW WHEN (OLD.kind = 'bad') EXECUTE FUNCTION refuse()`)
			// freed stores a job of a key that can run, and one that waits for it.
			freed := func(key string, ordered bool) (first outbox.ID) {
				rules := outbox.KeyRules{Name: key, Ordered: ordered}
				first = enqueue(t, db, "mail", outbox.Options{Tenant: tenant, Key: rules})
				second := outbox.NewID()
				exec(t, db, `INSERT INTO outbox.jobs (id, tenant_id, key, kind, payload, status, ordered, line_position)
					VALUES ($1, $2, $3, 'bad', '{}', 'blocked', nullif($4::boolean, false), CASE WHEN $4 THEN 1000 END)`, second, tenant, key, ordered)
				exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', $2)`, tenant, key)
				return first
			}
			for _, key := range []string{"plain", "line"} {
				if done, err := o.Cancel(t.Context(), freed(key, key == "line")); err != nil || done != operator.Cancelled {
					t.Errorf("cancel, %s: %v, %v; want it called off", key, done, err)
				}
			}
			old := freed("room", false)
			_, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: "mail", Payload: []byte(`{}`)}, outbox.Options{
				Tenant: tenant, Key: outbox.KeyRules{Name: "room", MaxQueued: 1, WhenFull: outbox.ReplaceOldest},
			})
			if err != nil {
				t.Errorf("a job that replaces the oldest: %v", err)
			}
			if got := job(t, o, old).Status; got == outbox.Pending {
				t.Error("the oldest job is not replaced")
			}
			exec(t, db, `DROP TRIGGER refuse ON outbox.jobs`)
			exec(t, db, `SELECT outbox.promote_keys(ARRAY[$1::uuid, $1, $1], '{default,default,default}', '{plain,line,room}', '{9,9,9}')`, tenant)
			var pending int
			if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs WHERE kind = 'bad' AND status = 'pending'`).Scan(&pending); err != nil || pending != 3 {
				t.Errorf("the sweep promotes %d, %v; want all three", pending, err)
			}
		})
	}
}

// An edit that changes nothing but a priority lets the jobs start that may start after it.
func TestAnEditOfAPriorityMovesTheKeyOn(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": outbox.NewID()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, db := newRig(t)
			store := func(kind string, max int) outbox.ID {
				return enqueue(t, db, kind, outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k", MaxActive: max}})
			}
			running, alone, several := store("mail", 5), store("mail", 1), store("other", 5)
			exec(t, db, `UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, slot = 0, started_at = now(), lease_owner = 'w', lease_expires_at = now() + interval '1 hour' WHERE id = $1`, running)
			exec(t, db, `UPDATE outbox.jobs SET status = 'blocked' WHERE id IN ($1, $2)`, alone, several)
			exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'k')`, tenant)
			op := edit(t, o, operator.OpenFilter{Tenant: tenant, Kind: "other"}, operator.JobEdit{Priority: new(1)})
			if op = run(t, o, o, op.ID, finished); op.Done != 1 {
				t.Fatalf("%+v, want one done", op)
			}
			if got := job(t, o, several).Status; got != outbox.Pending {
				t.Errorf("the job that is first now is %s, want pending", got)
			}
			if got := job(t, o, alone).Status; got != outbox.Blocked {
				t.Errorf("the job that must run alone is %s, want blocked", got)
			}
		})
	}
}

// Each job that an unblock retries has an act of its own, which names the person.
func TestUnblockRecordsEachJobThatItRetries(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": outbox.NewID()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			o := operator.New(db)
			ids := storeLapsed(t, db, tenant)
			expireLapsed(t, db, 100)
			by := o.As(operator.Actor{Name: "ada", RequestID: "req-1"}).Because("looked at")
			if n, err := by.Unblock(t.Context(), operator.KeyName{Tenant: tenant, Key: "k"}); err != nil || n != 2 {
				t.Fatalf("unblocked with %d retried, %v; want 2", n, err)
			}
			for n, id := range ids {
				found := audit(t, o, operator.AuditFilter{JobID: id, Tenant: tenant})
				if n == 2 { // which had only waited
					if len(found) != 0 {
						t.Errorf("acts on the job that waited: %+v", found)
					}
					continue
				}
				if len(found) != 1 {
					t.Fatalf("job %d has %d acts, want one", n, len(found))
				}
				e := found[0]
				if e.Act != "job.replay" || e.Actor != "ada" || e.RequestID != "req-1" || e.Reason != "looked at" || e.Queue != "default" ||
					field(t, e.Before, "status") != "dead" || field(t, e.Before, "error_code") != "lease_lost" || field(t, e.After, "status") != "pending" {
					t.Errorf("job %d: %+v, before %s, after %s", n, e, e.Before, e.After)
				}
			}
			if got := audit(t, o, operator.AuditFilter{Act: "key.unblock"}); len(got) != 1 || field(t, got[0].After, "retried") != "2" {
				t.Errorf("the act on the key: %+v", got)
			}
		})
	}
}

// A yes is to the dead letters that were shown: if others block the key, nothing is done.
func TestUnblockIfOthersBlockIt(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": outbox.NewID()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			o := operator.New(db)
			key := operator.KeyName{Tenant: tenant, Key: "k"}
			ids := storeLapsed(t, db, tenant)
			shown := func() string {
				t.Helper()
				blocks, err := o.Blocks(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				return blocks
			}
			none := shown()
			exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 minute' WHERE id = $1`, ids[0])
			expireLapsed(t, db, 1)
			one := shown()
			refused := func(blocks string) {
				t.Helper()
				if n, err := o.UnblockIf(t.Context(), key, blocks); !errors.Is(err, operator.ErrBlocksChanged) || n != 0 {
					t.Errorf("unblocked with %d retried, %v; want ErrBlocksChanged", n, err)
				}
			}
			refused(none)
			expireLapsed(t, db, 1)
			refused(one)
			two := shown()
			if err := o.Retry(t.Context(), ids[0]); err != nil {
				t.Fatal(err)
			}
			refused(two)
			if got := audit(t, o, operator.AuditFilter{Act: "key.unblock"}); len(got) != 0 || job(t, o, ids[1]).Status != outbox.Dead {
				t.Errorf("what was refused has done %+v, and the second job is %s", got, job(t, o, ids[1]).Status)
			}
			if n, err := o.UnblockIf(t.Context(), key, shown()); err != nil || n != 1 || job(t, o, ids[1]).Status != outbox.Pending {
				t.Errorf("unblocked with %d retried, %v; the second job is %s", n, err, job(t, o, ids[1]).Status)
			}
			// In a caller's transaction a refusal leaves the rest of it as it was.
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			if _, err := o.WithTx(tx).UnblockIf(t.Context(), key, two); !errors.Is(err, operator.ErrBlocksChanged) {
				t.Errorf("in a transaction: %v", err)
			}
			if _, err := o.WithTx(tx).UnblockIf(t.Context(), key, shown()); err != nil {
				t.Errorf("in a transaction, with what blocks it: %v", err)
			}
		})
	}
}

// The lease of the second job lapses after the comparison, before the act takes the key up:
//
//	unblock   compare: the first …   waits on its row        retries both, looks again, rolls back
//	reaper                          the second is dead
func TestUnblockIfAnotherLapsesMeanwhile(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": outbox.NewID()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			o := operator.New(db)
			key := operator.KeyName{Tenant: tenant, Key: "k"}
			ids := storeLapsed(t, db, tenant)
			exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 minute' WHERE id = $1`, ids[0])
			expireLapsed(t, db, 1)
			blocks, err := o.Blocks(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, ids[0]); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := o.UnblockIf(context.WithoutCancel(t.Context()), key, blocks)
				done <- err
			}()
			awaitLock(t, db)
			expireLapsed(t, db, 100)
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, operator.ErrBlocksChanged) {
				t.Errorf("unblocked, %v; want ErrBlocksChanged", err)
			}
			if k, err := o.Key(t.Context(), key); err != nil || k.ParkedSince.IsZero() || k.DeadLetters != 2 {
				t.Errorf("the key is %+v, %v; want it parked, with both dead letters", k, err)
			}
		})
	}
}

// passedLetter stores a dead letter that the others of key k pass over, and parks the key.
func passedLetter(t *testing.T, db *pgxpool.Pool, tenant outbox.ID) (id outbox.ID) {
	t.Helper()
	id = enqueue(t, db, "mail", outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k", Ordered: true, OnDeath: outbox.SkipDead}})
	exec(t, db, `UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, started_at = now(), lease_owner = 'w', lease_expires_at = now() + interval '1 hour' WHERE id = $1`, id)
	exec(t, db, `UPDATE outbox.jobs SET status = 'dead', epoch = 2, lease_owner = NULL, lease_expires_at = NULL, failed_at = now() WHERE id = $1`, id)
	exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) VALUES ($1, 'default', 'k', now()) ON CONFLICT (tenant_id, queue, key) DO UPDATE SET parked_at = excluded.parked_at`, tenant)
	return id
}

// Dead letters that a line passes over are counted among the newest of all keys: to find them all would be to read all
// dead letters, for each page of keys. The one for which the key is parked is counted in any case.
func TestPassedLettersAreCountedAmongTheNewest(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	passed := passedLetter(t, db, outbox.RootTenant)
	check := func(of string, want int64) {
		t.Helper()
		k, err := o.Key(t.Context(), operator.KeyName{Key: "k"})
		if err != nil || k.DeadLetters != want {
			t.Errorf("%s: %d dead letters, %v; want %d", of, k.DeadLetters, err, want)
		}
		list, err := o.Keys(t.Context(), operator.KeyFilter{})
		if err != nil || len(list) != 1 || list[0].DeadLetters != want {
			t.Errorf("%s: the list has %+v, %v; want %d dead letters", of, list, err, want)
		}
	}
	park := func() { exec(t, db, `UPDATE outbox.keys SET parked_for = $1`, passed) }
	check("alone", 1)
	storeDead(t, db, 9999)
	check("beside 9999 newer ones", 1)
	storeDead(t, db, 1)
	check("beside 10 000 newer ones", 0)
	park()
	check("beside 10 000 newer ones, with the key parked for it", 1)
	exec(t, db, `DELETE FROM outbox.jobs WHERE id <> $1`, passed)
	check("alone, with the key parked for it", 1)
}

// A statement of a tenant's login passes over no more dead letters of others, which row security hides from it, than a
// page of keys or of an act may read.
func TestALoginOfATenantPassesOverSomeOfTheOthersLetters(t *testing.T) {
	t.Parallel()
	_, db := newRig(t)
	own := outbox.NewID()
	ctx := operator.WithTenant(t.Context(), own)
	passedLetter(t, db, own)
	storeDead(t, db, 2*operator.LettersAtOnce+100)
	exec(t, db, `ANALYZE outbox.jobs`)
	var plans []string
	o := operator.New(pgtest.Login(t, db, "outbox_api")).Planned(&plans)
	bounded := func(what string, most int) {
		t.Helper()
		for _, plan := range plans {
			if read := rowsRead(t, plan); read > most+2000 { // a bound is the beginning, or the end, of a millisecond
				t.Errorf("%s reads %d rows, want %d at most:\n%s", what, read, most, plan)
			}
		}
		if plans = nil; t.Failed() {
			t.FailNow()
		}
	}
	keys := func(want int64) {
		t.Helper()
		if list, err := o.Keys(ctx, operator.KeyFilter{}); err != nil || len(list) != 1 || list[0].DeadLetters != want {
			t.Errorf("keys: %+v, %v; want one with %d dead letters", list, err, want)
		}
		bounded("a page of keys", 10_000)
	}
	keys(0)
	passedLetter(t, db, own)
	keys(1)

	if n, err := o.CountDeadLetters(ctx, operator.DeadLetterFilter{}); err != nil || n != 2 {
		t.Errorf("counted %d, %v; want the tenant's 2", n, err)
	}
	bounded("a count", operator.LettersAtOnce)
	var done int64
	var last outbox.ID
	for p, err := range o.DismissDeadLetters(ctx, operator.DeadLetterFilter{After: outbox.ID{15: 1}}) {
		if err != nil {
			t.Fatal(err)
		}
		if p.Done == 1 && p.Last != (outbox.ID{}) && p.Last != last && [8]byte(p.Last[8:]) != [8]byte{255, 255, 255, 255, 255, 255, 255, 254} {
			t.Errorf("it has looked up to %s, which may be the id of somebody's job", p.Last)
		}
		done, last = p.Done, p.Last
	}
	if done != 2 {
		t.Errorf("%d were dismissed, want the tenant's 2", done)
	}
	bounded("an act", operator.LettersAtOnce)
}
