package dispatcher

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

type tiny struct{}

func (tiny) Kind() string { return "tiny" }

// A settlement whose leases were lost while it waited holds the rows that it has examined, and waits for more of them.
// The worker that has the jobs now settles them in the order in which they ended. Neither becomes the victim of a
// deadlock.
func TestASettlementWaitsInTheOrderOfIDs(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]error{
		"succeeded":   nil,
		"failed":      errors.New("boom"),
		"unavailable": Unavailable(errors.New("away"), time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settleAmongLostLeases(t, result)
		})
	}
}

func settleAmongLostLeases(t *testing.T, result error) {
	db := pgtest.New(t)
	log := new(bytes.Buffer)
	d := atRest(t, db, log)
	ids := make([]outbox.ID, 4)
	for i := range ids {
		var err error
		if ids[i], err = outbox.Enqueue(t.Context(), db, tiny{}, outbox.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(ids, func(a, b outbox.ID) int { return bytes.Compare(a[:], b[:]) })
	take(t, db, "old", 1, ids...)
	first, between := lock(t, db, ids[0]), lock(t, db, ids[2])

	lost := make(chan error, 1) // the settlement of "old", which begins when all is its own
	go func() {
		p := sqlgen.SettleUnfinishedParams{Worker: "old"}
		for _, id := range ids {
			p.Ids, p.Epochs, p.Statuses = append(p.Ids, pgvalue.UUID(id)), append(p.Epochs, 1), append(p.Statuses, "retrying")
			p.Delays = append(p.Delays, pgtype.Interval{Valid: true})
			p.ErrorCodes, p.ErrorMessages = append(p.ErrorCodes, "boom"), append(p.ErrorMessages, "boom")
			p.Stacks, p.Fingerprints = append(p.Stacks, ""), append(p.Fingerprints, "")
		}
		_, err := sqlgen.New(db).SettleUnfinished(context.WithoutCancel(t.Context()), p)
		lost <- err
	}()
	waiting(t, db, 1, first)
	take(t, db, "new", 3, ids[1], ids[3])
	commit(t, first) // it looks at the second job, which is not its own any more, and waits for the third
	waiting(t, db, 1, between)

	settled := make(chan struct{})
	go func() {
		var batch []*attempt
		for _, id := range []outbox.ID{ids[3], ids[1]} { // as they ended
			job := &outbox.Claimed{}
			job.ID, job.Kind, job.Epoch, job.Attempt, job.MaxAttempts = id, "tiny", 3, 1, 10
			a := &attempt{job: job, route: d.common.routes["tiny"], capacity: d.queues[engine.DefaultQueue].capacity, err: result}
			a.outcome, _ = a.route.config.policy().Decide(job, result, nil)
			batch = append(batch, a)
		}
		d.settler.settle(batch)
		close(settled)
	}()
	waiting(t, db, 2, between)
	commit(t, between)
	if err := <-lost; err != nil {
		t.Errorf("the settlement whose leases were lost: %v", err)
	}
	<-settled
	var leased int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs WHERE lease_owner IS NOT NULL`).Scan(&leased); err != nil || leased > 0 {
		t.Errorf("%d jobs are still leased (%v), want all settled", leased, err)
	}
	if warned := log.String(); strings.Contains(warned, "settle failed") {
		t.Errorf("the settlement of the worker that has the jobs now:\n%s", warned)
	}
}

// A transaction of a user's cancels two running jobs, the later id first, while they are settled in the order of their
// ids:
//
//	settler      locks the first, waits for the second           …gives up: it lost the deadlock, or has waited for 2 s
//	user         has the second                 waits for the first                               …goes on
//
// Whenever the user's transaction asks for the first, it is not the one that fails.
func TestASettlementMakesNoUserTheVictimOfADeadlock(t *testing.T) {
	t.Parallel()
	another := outbox.NewID()
	for after, opts := range map[time.Duration]outbox.Options{
		0:                       {},
		500 * time.Millisecond:  {Tenant: another},
		1050 * time.Millisecond: {Key: outbox.KeyRules{Name: "k"}}, // once the settler has looked for deadlocks
		1500 * time.Millisecond: {Tenant: another, Key: outbox.KeyRules{Name: "k"}},
	} {
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			d := atRest(t, db, new(bytes.Buffer))
			var batch []*attempt
			for range 2 {
				id, err := outbox.Enqueue(t.Context(), db, tiny{}, opts)
				if err != nil {
					t.Fatal(err)
				}
				job := &outbox.Claimed{}
				job.ID, job.Kind, job.Epoch, job.Attempt, job.MaxAttempts = id, "tiny", 1, 1, 10
				a := &attempt{job: job, route: d.common.routes["tiny"], capacity: d.queues[engine.DefaultQueue].capacity, err: errors.New("boom")}
				a.outcome, _ = a.route.config.policy().Decide(job, a.err, nil)
				batch = append(batch, a)
			}
			slices.SortFunc(batch, byID)
			first, second := batch[0].job.ID, batch[1].job.ID
			take(t, db, "worker", 1, first, second)
			user := lock(t, db, second)
			settled := make(chan struct{})
			go func() {
				d.settler.settle(batch)
				d.settler.later.Wait()
				close(settled)
			}()
			waiting(t, db, 1, user)
			time.Sleep(after)
			if _, err := user.Exec(t.Context(), `UPDATE outbox.jobs SET cancel_requested_at = now() WHERE id = ANY ($1) AND status = 'running'`, []outbox.ID{first, second}); err != nil {
				t.Errorf("the user's transaction: %v", err)
			}
			commit(t, user)
			<-settled
			var left int
			if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs WHERE lease_owner IS NOT NULL`).Scan(&left); err != nil || left > 0 {
				t.Errorf("%d jobs are still leased (%v), want each settled or cancelled", left, err)
			}
		})
	}
}

// atRest returns a dispatcher that has all parts of a settlement and starts nothing.
func atRest(t *testing.T, db *pgxpool.Pool, log io.Writer) *Dispatcher {
	t.Helper()
	mux := new(Mux)
	Handle(mux, func(context.Context, *outbox.Job[tiny]) error { return nil })
	d, err := New(db, mux, Config{Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		t.Fatal(err)
	}
	d.compose(t.Context(), control(t, db), nil)
	return d
}

// control returns a pool of the dispatcher's own.
func control(t *testing.T, db *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	pool, err := openControlPool(t.Context(), db, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// take gives the jobs to a worker, as a claim would.
func take(t *testing.T, db *pgxpool.Pool, worker string, epoch int64, ids ...outbox.ID) {
	t.Helper()
	for _, id := range ids {
		if _, err := db.Exec(t.Context(), `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = $2, started_at = now(), lease_owner = $3,
			lease_expires_at = now() + interval '1 hour' WHERE id = $1`, id, epoch, worker); err != nil {
			t.Fatal(err)
		}
	}
}

// lock locks the job's row, as a handler's own transaction does, until it is committed.
func lock(t *testing.T, db *pgxpool.Pool, id outbox.ID) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, id)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// waiting waits until this many sessions wait for another one, and one of them for the row of the given session, if
// there is one.
func waiting(t *testing.T, db *pgxpool.Pool, sessions int, on pgx.Tx) {
	t.Helper()
	for range pgtest.Looks(time.Minute) {
		var waits int
		var held bool
		if err := db.QueryRow(t.Context(), `
			SELECT count(*), coalesce(bool_or($1 = ANY (pg_blocking_pids(pid))), false)
			FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0`, on.Conn().PgConn().PID()).Scan(&waits, &held); err != nil {
			t.Fatal(err)
		}
		if waits == sessions && held {
			return
		}
	}
	t.Fatalf("not %d sessions wait", sessions)
}
