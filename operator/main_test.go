package operator_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

func newRig(t *testing.T) (*operator.Operator, *pgxpool.Pool) {
	t.Helper()
	db := pgtest.New(t)
	return operator.New(db), db
}

func enqueue(t *testing.T, db *pgxpool.Pool, kind string, opts outbox.Options) outbox.ID {
	t.Helper()
	id, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: kind, Payload: []byte(`{"n":1}`)}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// claim leases the due jobs of a queue, and returns the epoch of each.
func claim(t *testing.T, db *pgxpool.Pool, queue string) map[outbox.ID]int64 {
	t.Helper()
	rows, err := sqlgen.New(db).ClaimJobs(t.Context(), sqlgen.ClaimJobsParams{
		TenantIds: []pgtype.UUID{{Bytes: outbox.RootTenant, Valid: true}}, Quotas: []int32{100}, Firsts: []int32{1}, Lasts: []int32{1},
		Priorities: []int16{0}, FromID: []pgtype.UUID{{Valid: true}},
		FromRunAt: []pgtype.Timestamptz{{InfinityModifier: pgtype.NegativeInfinity, Valid: true}},
		Queue:     queue, Kinds: []string{"mail", "bill"}, MaxJobs: 100, Worker: "worker-1",
		LeaseTtl: pgvalue.Interval(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	claimed := map[outbox.ID]int64{}
	for _, row := range rows {
		claimed[row.ID.Bytes] = row.Epoch
	}
	keyed, _ := db.Query(t.Context(), `SELECT (job).id, (job).epoch FROM outbox.claim_keyed('worker-1', interval '1 hour', '{00000000-0000-0000-0000-000000000001}',
		'{100}', '{100}', '{1}', '{1}', '{0}', '{-infinity}', '{00000000-0000-0000-0000-000000000000}', $1, '{mail,bill}', '{}', 100) WHERE (job).id IS NOT NULL`, queue)
	var id outbox.ID
	var epoch int64
	if _, err := pgx.ForEachRow(keyed, []any{&id, &epoch}, func() error {
		claimed[id] = epoch
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	maps.Copy(claimed, claimKeyed(t, db, queue))
	others, _ := db.Query(t.Context(), `UPDATE outbox.jobs SET status = 'running', attempt = attempt + 1, epoch = epoch + 1,
		    lease_owner = 'worker-1', lease_expires_at = now() + interval '1 hour', started_at = now()
		WHERE queue = $1 AND key IS NULL AND tenant_id <> $2 AND status IN ('pending', 'retrying') AND run_at <= now()
		RETURNING id, epoch`, queue, outbox.RootTenant)
	if _, err := pgx.ForEachRow(others, []any{&id, &epoch}, func() error {
		claimed[id] = epoch
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return claimed
}

// settle ends a running job as its worker would, and reports whether that was
// accepted.
func settle(t *testing.T, db *pgxpool.Pool, id outbox.ID, epoch int64, status outbox.Status) bool {
	t.Helper()
	ids, epochs := []pgtype.UUID{{Bytes: id, Valid: true}}, []int64{epoch}
	var stored []pgtype.UUID
	var err error
	if status == outbox.Succeeded {
		stored, err = sqlgen.New(db).SettleSucceeded(t.Context(), sqlgen.SettleSucceededParams{Ids: ids, Epochs: epochs, Results: [][]byte{[]byte("done")}})
	} else {
		stored, err = sqlgen.New(db).SettleUnfinished(t.Context(), sqlgen.SettleUnfinishedParams{
			Ids: ids, Epochs: epochs, Statuses: []string{string(status)}, Delays: []pgtype.Interval{{Microseconds: time.Hour.Microseconds(), Valid: true}},
			ErrorCodes: []string{"smtp"}, ErrorMessages: []string{"mailbox full"}, Stacks: []string{""}, Worker: "worker-1",
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(stored) == 1
}

// reach takes a new job to a status and returns it with the epoch of its last claim.
func reach(t *testing.T, db *pgxpool.Pool, status outbox.Status) (id outbox.ID, epoch int64) {
	t.Helper()
	id = enqueue(t, db, "mail", outbox.Options{})
	if status == outbox.Pending {
		return id, 0
	}
	epoch = claim(t, db, "default")[id]
	if status != outbox.Running && !settle(t, db, id, epoch, status) {
		t.Fatalf("the job could not be settled as %s", status)
	}
	return id, epoch
}

func job(t *testing.T, o *operator.Operator, id outbox.ID) operator.Job {
	t.Helper()
	j, err := o.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// woken runs act and reports whether it notified the dispatchers.
func woken(t *testing.T, db *pgxpool.Pool, act func()) bool {
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
	if _, err := db.Exec(t.Context(), `NOTIFY sentinel`); err != nil { // what was sent before comes before it
		t.Fatal(err)
	}
	n, err := conn.WaitForNotification(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n.Channel == engine.Channel
}
