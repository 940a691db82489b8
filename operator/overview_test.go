package operator_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func overviewOf(t *testing.T, o *operator.Operator) operator.Overview {
	t.Helper()
	v, err := o.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func queueOf(v operator.Overview, name string) operator.Queue {
	for _, q := range v.Queues {
		if q.Name == name {
			return q
		}
	}
	return operator.Queue{}
}

func TestOverviewOfASmallTableIsExact(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	if v := overviewOf(t, o); v.Estimated || len(v.Queues) != 0 || len(v.Recent) != 0 || v.AsOf.IsZero() || v.NoOldest {
		t.Errorf("got %+v of an empty database", v)
	}
	for range 3 {
		reach(t, db, outbox.Succeeded)
	}
	reach(t, db, outbox.Dead)
	reach(t, db, outbox.Running)
	for _, opts := range []outbox.Options{
		{Queue: "a"},
		{Queue: "a", Priority: 7, Delay: time.Hour}, // not due, though it comes first in the index
		{Queue: "b", Priority: 3, Key: outbox.KeyRules{Name: "k"}},
		{Queue: "b", Priority: -3},
		{Queue: "c", Delay: time.Hour},
		{Queue: "d", Tenant: outbox.NewID(), Delay: time.Hour},
		{Queue: "d", Tenant: outbox.NewID()},
		{Queue: "d", Tenant: outbox.NewID()},
	} {
		enqueue(t, db, "mail", opts)
	}
	for _, sql := range []string{
		`UPDATE outbox.jobs SET run_at = now() - interval '1 hour' WHERE queue = 'a' AND priority = 0`,
		`UPDATE outbox.jobs SET run_at = now() - interval '2 hours' WHERE queue = 'b' AND key IS NULL`,
		`UPDATE outbox.jobs SET run_at = now() - interval '3 hours' WHERE queue = 'b' AND key = 'k'`,
		`UPDATE outbox.jobs SET run_at = now() - interval '2 hours' WHERE queue = 'd' AND id = (SELECT max(id::text) FROM outbox.jobs WHERE queue = 'd')::uuid`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.Pause(t.Context(), "idle"); err != nil {
		t.Fatal(err)
	}

	v := overviewOf(t, o)
	if v.Estimated || v.Jobs(outbox.Pending) != 8 || v.Jobs(outbox.Dead) != 1 || v.Jobs(outbox.Running) != 1 {
		t.Errorf("got %+v", v.Queues)
	}
	for name, hours := range map[string]float64{"a": 1, "b": 3, "d": 2} {
		if age := v.AsOf.Sub(queueOf(v, name).OldestDue); age.Hours() < hours || age.Hours() > hours+0.5 {
			t.Errorf("the oldest of %s is due for %s, want %v hours", name, age, hours)
		}
	}
	if q := queueOf(v, "c"); !q.OldestDue.IsZero() || q.Jobs[outbox.Pending] != 1 {
		t.Errorf("got %+v of a queue whose only job is not due", q)
	}
	if queueOf(v, "idle").PausedSince.IsZero() {
		t.Errorf("got %+v, want the paused queue in it", v.Queues)
	}
	if age := v.AsOf.Sub(v.OldestDue()); age.Hours() < 3 {
		t.Errorf("the oldest of all is due for %s, want 3 h", age)
	}
	if len(v.Recent) > 0 { // shortly after midnight UTC some may be yesterday's
		if all, mail := v.Recent[0], v.Recent[1]; all.Kind != "" || mail.Kind != "mail" || all.Jobs != mail.Jobs || all.Jobs > 3 || all.Unsuccessful != 0 || all.RunP99 < all.RunP50 {
			t.Errorf("got %+v", v.Recent)
		}
	}
}

// A large table is counted on a sample, but for what is rare; and a queue whose jobs
// are due is there whatever the sample says.
func TestOverviewOfALargeTable(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	// Wide rows fill many blocks with few jobs. They are not compressed away: each is random.
	if _, err := db.Exec(t.Context(), `
		ALTER TABLE outbox.jobs ALTER COLUMN payload SET STORAGE PLAIN;
		INSERT INTO outbox.jobs (id, queue, kind, payload, content_type)
		SELECT gen_random_uuid(), 'bulk', 'bill', convert_to(repeat('x', 7000), 'UTF8'), 'text/plain' FROM generate_series(1, 2500)`); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		reach(t, db, outbox.Dead)
	}
	reach(t, db, outbox.Running)
	held, _ := reach(t, db, outbox.Running)
	stuck, _ := reach(t, db, outbox.Running)
	exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '11 minutes' WHERE id IN ($1, $2)`, held, stuck)
	exec(t, db, `INSERT INTO outbox.lease_extensions (job_id, epoch, expires_at) SELECT id, epoch, now() + interval '15 s' FROM outbox.jobs WHERE id = $1`, held)
	enqueue(t, db, "mail", outbox.Options{Queue: "rare", Priority: -9})

	v := overviewOf(t, o)
	if !v.Estimated {
		t.Fatal("the table was counted in full")
	}
	// Blocks are drawn one by one: 1024 of about 2500, with a deviation of 25.
	if n := v.Jobs(outbox.Pending); n < 2000 || n > 3000 {
		t.Errorf("pending = %d, want about 2500", n)
	}
	if dead, running := v.Jobs(outbox.Dead), v.Jobs(outbox.Running); dead != 3 || running != 2 {
		t.Errorf("dead = %d, running = %d, want 3, and 2 whose leases have not lapsed long ago", dead, running)
	}
	if queueOf(v, "rare").OldestDue.IsZero() {
		t.Errorf("got %+v, want the queue that has a single job", v.Queues)
	}
}

// However many tenants have due jobs in other queues, with and without keys, a queue's oldest due job is found.
func TestOverviewFindsTheOldestDueJobBehindManyTenants(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	for _, key := range []string{"NULL", "'k'"} {
		exec(t, db, `
			INSERT INTO outbox.jobs (id, tenant_id, queue, kind, payload, key, run_at)
			SELECT gen_random_uuid(), gen_random_uuid(), 'bulk', 'bill', '{}', `+key+`, now() - interval '1 hour' FROM generate_series(1, 1500)`)
	}
	exec(t, db, `ANALYZE outbox.jobs`)
	enqueue(t, db, "mail", outbox.Options{Queue: "plain", Tenant: outbox.NewID()})
	enqueue(t, db, "mail", outbox.Options{Queue: "keyed", Tenant: outbox.NewID(), Key: outbox.KeyRules{Name: "k"}})

	v := overviewOf(t, o)
	for _, queue := range []string{"bulk", "plain", "keyed"} {
		if queueOf(v, queue).OldestDue.IsZero() {
			t.Errorf("queue %s has no oldest due job (search given up: %t)", queue, v.NoOldest)
		}
	}
}

func TestOverviewsCountersMakeRates(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	before := overviewOf(t, o)
	for range 5 {
		reach(t, db, outbox.Succeeded)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		after := overviewOf(t, o)
		got := fmt.Sprint(after.Enqueued-before.Enqueued, after.Closed-before.Closed)
		if got == "5 5" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the counters rose by %s, want 5 5", got)
		}
		// A session of ours tells of its work when it is idle or does something later.
		if _, err := db.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
