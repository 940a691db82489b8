package reaper

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// storeKeyed stores a job with the key "k".
func storeKeyed(t testing.TB, db *pgxpool.Pool, kind string, status outbox.Status, set string) outbox.ID {
	t.Helper()
	id := outbox.NewID()
	lease := `NULL, NULL, NULL`
	if status == outbox.Running {
		lease = `now(), 'worker-1', now() + interval '1 hour'`
	}
	exec(t, db, `
		INSERT INTO outbox.jobs (id, key, kind, payload, status, epoch, attempt, started_at, lease_owner, lease_expires_at)
		VALUES ($1, 'k', $2, '{}', $3, 1, 1, `+lease+`)`, mustUUID(id), kind, string(status))
	if set != "" {
		exec(t, db, `UPDATE outbox.jobs SET `+set+` WHERE id = $1`, mustUUID(id))
	}
	exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'k') ON CONFLICT DO NOTHING`, mustUUID(outbox.RootTenant))
	return id
}

func statusOf(t testing.TB, db *pgxpool.Pool, id outbox.ID) outbox.Status {
	t.Helper()
	return outbox.Status(query[string](t, db, `
		SELECT status::text FROM (SELECT id, status FROM outbox.jobs UNION ALL SELECT id, status FROM outbox.history) AS job WHERE id = $1`, mustUUID(id)))
}

func sweep(t testing.TB, r *Reaper) {
	t.Helper()
	r.sweeper.keyed.Store(true)
	if _, err := r.sweeper.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func parked(t testing.TB, db *pgxpool.Pool) bool {
	t.Helper()
	return query[bool](t, db, `SELECT parked_at IS NOT NULL FROM outbox.keys WHERE key = 'k'`)
}

// The process that freed the slot died before it had promoted the next job; or
// somebody took jobs away by hand.
func TestTheSweepMovesStuckKeysOn(t *testing.T) {
	t.Parallel()
	type job struct {
		kind   string
		status outbox.Status
		set    string
	}
	const ordered = `ordered = true, line_position = `
	for name, c := range map[string]struct {
		jobs []job
		want []outbox.Status
	}{
		"a slot is free: one is promoted, the first": {
			[]job{{"a", outbox.Blocked, ""}, {"a", outbox.Blocked, "priority = 1"}, {"a", outbox.Blocked, ""}},
			[]outbox.Status{outbox.Blocked, outbox.Pending, outbox.Blocked},
		},
		"the slot is taken": {
			[]job{{"a", outbox.Running, ""}, {"a", outbox.Blocked, ""}},
			[]outbox.Status{outbox.Running, outbox.Blocked},
		},
		"two of three slots are free": {
			[]job{{"a", outbox.Running, "max_active = 3"}, {"a", outbox.Blocked, "max_active = 3"}, {"a", outbox.Blocked, "max_active = 3"}, {"a", outbox.Blocked, "max_active = 3"}},
			[]outbox.Status{outbox.Running, outbox.Pending, outbox.Pending, outbox.Blocked},
		},
		"a due one of the kind will be claimed and move the key on": {
			[]job{{"a", outbox.Pending, ""}, {"a", outbox.Blocked, ""}},
			[]outbox.Status{outbox.Pending, outbox.Blocked},
		},
		"a due one of another kind may wait for its handler for ever": {
			[]job{{"b", outbox.Pending, ""}, {"a", outbox.Blocked, ""}},
			[]outbox.Status{outbox.Pending, outbox.Pending},
		},
		"one that is due tomorrow takes no slot": {
			[]job{{"a", outbox.Retrying, "run_at = now() + interval '1 day'"}, {"a", outbox.Blocked, ""}},
			[]outbox.Status{outbox.Retrying, outbox.Pending},
		},
		"the head of a line": {
			[]job{{"a", outbox.Blocked, ordered + "2"}, {"a", outbox.Blocked, ordered + "1"}},
			[]outbox.Status{outbox.Blocked, outbox.Pending},
		},
		"a head that waits for its retry": {
			[]job{{"a", outbox.Retrying, ordered + "1, run_at = now() + interval '1 day'"}, {"a", outbox.Blocked, ordered + "2"}},
			[]outbox.Status{outbox.Retrying, outbox.Blocked},
		},
		"a dead head holds up the line": {
			[]job{{"a", outbox.Dead, ordered + "1"}, {"a", outbox.Blocked, ordered + "2"}},
			[]outbox.Status{outbox.Dead, outbox.Blocked},
		},
		"a dead head that is passed over": {
			[]job{{"a", outbox.Failed, ordered + "1, on_death = 'skip'"}, {"a", outbox.Blocked, ordered + "2"}},
			[]outbox.Status{outbox.Failed, outbox.Pending},
		},
		"a held head is not in line": {
			[]job{{"a", outbox.Created, ordered + "1"}, {"a", outbox.Blocked, ordered + "2"}},
			[]outbox.Status{outbox.Created, outbox.Pending},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, db := newRig(t, Config{})
			var ids []outbox.ID
			for _, j := range c.jobs {
				ids = append(ids, storeKeyed(t, db, j.kind, j.status, j.set))
			}
			sweep(t, r)
			promoted := 0.
			for i, id := range ids {
				if got := statusOf(t, db, id); got != c.want[i] {
					t.Errorf("job %d is %s, want %s", i, got, c.want[i])
				}
				if c.want[i] != c.jobs[i].status {
					promoted++
				}
			}
			if got := value(t, r.metrics.promoted); got != promoted {
				t.Errorf("promotions counted = %v, want %v", got, promoted)
			}
		})
	}
}

// A process has promoted a job for which it had room, and died before it claimed it: nobody else was notified. The
// sweep notifies once of a key whose next job has been due for a while and of which nothing runs, because the job may
// also be one that no process handles.
func TestTheSweepNotifiesOfAJobThatNobodyClaims(t *testing.T) {
	t.Parallel()
	const late = `run_at = now() - interval '3 s'`
	for name, c := range map[string]struct {
		status outbox.Status
		set    string
		beside outbox.Status // of another job of the key; "" for none
		want   bool
	}{
		"one that was promoted":      {outbox.Pending, late, "", true},
		"the head of a line":         {outbox.Pending, late + `, ordered = true, line_position = 1`, "", true},
		"one that is due just now":   {outbox.Pending, `run_at = now()`, "", false},
		"one that is due later":      {outbox.Pending, `run_at = now() + interval '1 hour'`, "", false},
		"one beside one that runs":   {outbox.Pending, late, outbox.Running, false},
		"a dead one":                 {outbox.Dead, late, "", false},
		"one that is held in line":   {outbox.Created, late + `, ordered = true, line_position = 1`, "", false},
		"one that waits for a retry": {outbox.Retrying, `run_at = now() + interval '1 hour', ordered = true, line_position = 1`, "", false},
	} {
		for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, db := newRig(t, Config{})
				storeKeyed(t, db, "a", c.status, c.set)
				if c.beside != "" {
					storeKeyed(t, db, "a", c.beside, "")
				}
				exec(t, db, `UPDATE outbox.jobs SET tenant_id = $1`, mustUUID(tenant))
				exec(t, db, `UPDATE outbox.keys SET tenant_id = $1`, mustUUID(tenant))
				if got := notified(t, db, func() { sweep(t, r) }); got != c.want {
					t.Errorf("the sweep has notified: %t, want %t", got, c.want)
				}
				if notified(t, db, func() { sweep(t, r) }) {
					t.Error("the second sweep notifies again")
				}
				exec(t, db, `UPDATE outbox.keys SET parked_at = now()`)
				fresh := newReaper(t, db, Config{})
				if notified(t, db, func() { sweep(t, fresh) }) {
					t.Error("the sweep notifies of a key that is parked")
				}
			})
		}
	}
}

// notified runs act and reports whether it notified the dispatchers.
func notified(t *testing.T, db *pgxpool.Pool, act func()) bool {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), "LISTEN "+engine.Channel+"; LISTEN sentinel"); err != nil {
		t.Fatal(err)
	}
	act()
	exec(t, db, `NOTIFY sentinel`) // what was sent before comes before it
	n, err := conn.WaitForNotification(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n.Channel == engine.Channel
}

// A dead head parks its key, at once or after a time, if its policy says so.
func TestTheSweepParksKeysOfDeadHeads(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	head := storeKeyed(t, db, "a", outbox.Dead, `ordered = true, line_position = 1, on_death = 'park', park_after = '1 hour'`)
	next := storeKeyed(t, db, "a", outbox.Blocked, `ordered = true, line_position = 2`)
	sweep(t, r)
	if parked(t, db) {
		t.Error("the key is parked before its time")
	}
	if left := query[time.Duration](t, db, `SELECT park_at - now() FROM outbox.keys`); left < 59*time.Minute || left > time.Hour {
		t.Errorf("the key is to be parked in %s, want in an hour", left)
	}
	exec(t, db, `UPDATE outbox.keys SET park_at = now() - interval '1 s'`)
	sweep(t, r)
	if !parked(t, db) {
		t.Error("the key is not parked when its time has come")
	}
	if by := query[bool](t, db, `SELECT parked_for = $1 FROM outbox.keys`, mustUUID(head)); !by {
		t.Error("the key does not say for which job it was parked")
	}
	// The head alone is retried.
	exec(t, db, `UPDATE outbox.jobs SET status = 'pending', epoch = epoch + 1 WHERE id = $1`, mustUUID(head))
	sweep(t, r)
	if !parked(t, db) || statusOf(t, db, next) != outbox.Blocked {
		t.Error("a parked key moves on though nobody unblocked it")
	}
}

// A dead head that was dealt with in time leaves no appointment behind.
func TestAHeadThatWasRetriedInTimeDoesNotParkItsKey(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	head := storeKeyed(t, db, "a", outbox.Dead, `ordered = true, line_position = 1, on_death = 'park', park_after = '1 hour'`)
	sweep(t, r)
	exec(t, db, `UPDATE outbox.jobs SET status = 'pending', epoch = epoch + 1 WHERE id = $1`, mustUUID(head))
	sweep(t, r)
	if query[bool](t, db, `SELECT park_at IS NOT NULL OR parked_at IS NOT NULL FROM outbox.keys`) {
		t.Error("the key is still to be parked")
	}
}

// A head that was retried and dies again holds up its line for all of park_after
// again, though nobody looked at the key in between.
func TestAHeadThatDiesAgainHasAllOfItsTime(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeKeyed(t, db, "a", outbox.Dead, `ordered = true, line_position = 1, on_death = 'park', park_after = '1 hour', failed_at = now() - interval '59 minutes'`)
	sweep(t, r)
	if left := query[time.Duration](t, db, `SELECT park_at - now() FROM outbox.keys`); left > time.Minute {
		t.Errorf("the key is to be parked in %s, want within a minute", left)
	}
	exec(t, db, `UPDATE outbox.jobs SET failed_at = now()`) // retried, and dead again
	exec(t, db, `UPDATE outbox.keys SET park_at = now() - interval '1 s'`)
	sweep(t, r)
	if parked(t, db) {
		t.Error("the key is parked for the head's first death")
	}
	if left := query[time.Duration](t, db, `SELECT park_at - now() FROM outbox.keys`); left < 59*time.Minute {
		t.Errorf("the key is to be parked in %s, want in an hour", left)
	}
	exec(t, db, `UPDATE outbox.jobs SET failed_at = now() - interval '61 minutes'`)
	exec(t, db, `UPDATE outbox.keys SET park_at = now() - interval '1 s'`)
	sweep(t, r)
	if !parked(t, db) {
		t.Error("the key is not parked when its time has come")
	}
}

// Rows of keys go when no open job bears the key, but not those that tell that it is parked.
func TestTheSweepForgetsKeysWithoutJobs(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	r.sweeper.keysPage = 2 // several pages
	exec(t, db, `
		INSERT INTO outbox.keys (tenant_id, queue, key, made_at, parked_at)
		SELECT $1, 'q', 'gone-' || i, now() - interval '2 minutes', CASE WHEN i = 3 THEN now() END FROM generate_series(1, 9) AS i`, mustUUID(outbox.RootTenant))
	exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'q', 'just made')`, mustUUID(outbox.RootTenant))
	storeKeyed(t, db, "a", outbox.Pending, "")
	exec(t, db, `UPDATE outbox.keys SET made_at = now() - interval '2 minutes' WHERE key = 'k'`)
	sweep(t, r)
	if got, want := query[string](t, db, `SELECT string_agg(key, ', ' ORDER BY key) FROM outbox.keys`), "gone-3, just made, k"; got != want {
		t.Errorf("keys left = %s; want %s", got, want)
	}
}

// What becomes of a keyed job whose worker died, and of the one behind it.
func TestWhatALapsedLeaseDoesToItsKey(t *testing.T) {
	t.Parallel()
	for policy, c := range map[string]struct {
		first, next outbox.Status
		parked      bool
	}{
		"":           {outbox.Retrying, outbox.Pending, false},
		"fail-stale": {outbox.Stale, outbox.Pending, false},
		"block":      {outbox.Dead, outbox.Blocked, true},
	} {
		t.Run("policy "+policy, func(t *testing.T) {
			t.Parallel()
			r, db := newRig(t, Config{})
			first := storeKeyed(t, db, "a", outbox.Running, `lease_expires_at = now() - interval '1 s', on_lapse = nullif('`+policy+`', '')`)
			next := storeKeyed(t, db, "a", outbox.Blocked, "")
			expirePass(t, r)
			if got := statusOf(t, db, first); got != c.first {
				t.Errorf("the job is %s, want %s", got, c.first)
			}
			if got := statusOf(t, db, next); got != c.next {
				t.Errorf("the next one is %s, want %s", got, c.next)
			}
			if got := parked(t, db); got != c.parked {
				t.Errorf("the key is parked: %t, want %t", got, c.parked)
			}
			if n := query[int](t, db, `SELECT count(*) FROM outbox.attempts WHERE error_code = 'lease_lost'`); n != 1 {
				t.Errorf("recorded attempts = %d, want 1", n)
			}
		})
	}
}

// A transaction that holds a key keeps nobody's leases from lapsing, and is no outage: the job that would park the key
// is left alone until it ends.
func TestALockedKeyKeepsNoLease(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	var blocking []outbox.ID
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		for range 2 {
			id := outbox.NewID()
			exec(t, db, `
				INSERT INTO outbox.jobs (id, tenant_id, key, on_lapse, max_active, kind, payload, status, epoch, attempt, started_at, lease_owner, lease_expires_at)
				VALUES ($1, $2, 'k', 'block', 2, 'a', '{}', 'running', 1, 1, now(), 'worker-1', now() - interval '2 s')`, mustUUID(id), mustUUID(tenant))
			blocking = append(blocking, id)
		}
		exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'k')`, mustUUID(tenant))
	}
	storeRunning(t, db, 2, -time.Second)
	want := func(when string, retrying, dead, parked int) {
		t.Helper()
		got := query[[]int](t, db, `
			SELECT ARRAY[count(*) FILTER (WHERE status = 'retrying'), count(*) FILTER (WHERE status = 'dead'),
				(SELECT count(*) FROM outbox.keys WHERE parked_at IS NOT NULL)]
			FROM outbox.jobs`)
		if !slices.Equal(got, []int{retrying, dead, parked}) {
			t.Errorf("%s: retrying, dead, and keys parked are %v; want %d, %d, %d", when, got, retrying, dead, parked)
		}
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.keys FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	expirePass(t, r)
	want("while somebody has the keys", 2, 0, 0)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	expirePass(t, r)
	want("afterwards", 2, len(blocking), 2)
}

// The job behind one that expires does not wait for the sweep: behind one that ran,
// behind the head of a line, behind one that was promoted and is not claimed yet.
func TestAnExpiredJobMovesItsKeyOn(t *testing.T) {
	t.Parallel()
	const late, line = `deadline = now() - interval '1 s'`, `, ordered = true, line_position = `
	for name, c := range map[string]struct {
		first, next string
		status      outbox.Status
		want        outbox.Status
	}{
		"one that ran":               {late, `priority = 0`, outbox.Running, outbox.Pending},
		"one that was to run next":   {late, `priority = 0`, outbox.Pending, outbox.Pending},
		"a head that waits for long": {late + line + `1, run_at = now() + interval '1 day'`, `priority = 0` + line + `2`, outbox.Retrying, outbox.Pending},
		"the head of a line":         {late + line + `1`, `priority = 0` + line + `2`, outbox.Pending, outbox.Pending},
		"one further back in line":   {late + line + `3`, `priority = 0` + line + `2`, outbox.Blocked, outbox.Pending},
		"one that is late as well":   {late, late, outbox.Running, outbox.Expired},
		"one behind a dead letter":   {late + line + `2`, `status = 'blocked'` + line + `3`, outbox.Blocked, outbox.Blocked},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, db := newRig(t, Config{})
			if c.want == outbox.Blocked {
				storeKeyed(t, db, "a", outbox.Dead, `ordered = true, line_position = 1`)
			}
			first := storeKeyed(t, db, "a", c.status, c.first)
			next := storeKeyed(t, db, "a", outbox.Blocked, c.next)
			deadlinePass(t, r)
			if got := statusOf(t, db, first); got != outbox.Expired {
				t.Errorf("the job is %s, want expired", got)
			}
			if got := statusOf(t, db, next); got != c.want {
				t.Errorf("the one behind is %s, want %s", got, c.want)
			}
		})
	}
}

// Of a hundred thousand jobs that wait for a key, a promotion touches those that it
// promotes: a row that is locked is a row that is written.
func TestAPromotionLocksNoMoreThanItPromotes(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeKeyed(t, db, "a", outbox.Running, "max_active = 3")
	for range 20 {
		storeKeyed(t, db, "a", outbox.Blocked, "max_active = 3")
	}
	// The updates have locked what they changed.
	stored := query[int64](t, db, `SELECT pg_current_xact_id()::text::bigint`)
	hot := []keyName{{mustUUID(outbox.RootTenant), "default", "k"}}
	if n, err := r.sweeper.promoter.promote(t.Context(), hot, false); err != nil || n != 2 {
		t.Errorf("promoted %d, %v; want the two for which there are slots", n, err)
	}
	if n := query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'blocked' AND xmax::text::bigint > $1`, stored); n != 0 {
		t.Errorf("jobs that were locked for nothing = %d, want 0", n)
	}
}
