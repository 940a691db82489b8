package dispatcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/lease"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A job whose row is where its claim left it is settled there, and every other one wherever it is: the place is a hint,
// and nothing depends on it.
func TestASuccessIsStoredInItsPlaceOrWhereverItIs(t *testing.T) {
	t.Parallel()
	const inPlace, byID = "SettleInPlace", "SettleSucceeded"
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, db *pgxpool.Pool, batch []*attempt)
		want      []string // the statements
		left      int      // jobs that are not settled
	}{
		"all are where they were": {func(*testing.T, *pgxpool.Pool, []*attempt) {}, []string{inPlace}, 0},
		"one has moved": {func(t *testing.T, db *pgxpool.Pool, batch []*attempt) {
			change(t, db, `UPDATE outbox.jobs SET watched = true WHERE id = $1`, batch[1].job.ID)
		}, []string{inPlace, byID}, 0},
		"the place is not known": {func(_ *testing.T, _ *pgxpool.Pool, batch []*attempt) {
			for _, a := range batch {
				a.rowAt = pgtype.TID{}
			}
		}, []string{byID}, 0},
		"they have results": {func(_ *testing.T, _ *pgxpool.Pool, batch []*attempt) {
			for _, a := range batch {
				a.job.Result = fmt.Appendf(nil, "%q", a.job.ID)
			}
		}, []string{byID}, 0},
		"the leases are being extended": {func(_ *testing.T, _ *pgxpool.Pool, batch []*attempt) {
			for _, a := range batch {
				a.lease.Claimed = time.Now().Add(-5 * time.Second) // of 15
			}
		}, []string{byID}, 0},
		"one lease is lost": {func(t *testing.T, db *pgxpool.Pool, batch []*attempt) {
			take(t, db, "another", 2, batch[1].job.ID)
		}, []string{inPlace, byID, "CloseAttempts"}, 1},
		"one is to be cancelled": {func(t *testing.T, db *pgxpool.Pool, batch []*attempt) {
			change(t, db, `UPDATE outbox.jobs SET cancel_requested_at = now() WHERE id = $1`, batch[1].job.ID)
		}, []string{inPlace, byID}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, log := pgtest.New(t), new(bytes.Buffer)
			d := atRest(t, db, log)
			asked := &asked{DBTX: control(t, db)}
			d.settler.statements.db = sqlgen.New(asked)
			batch := succeeded(t, d, db, 3)
			c.meanwhile(t, db, batch)
			d.settler.settle(batch)
			if !slices.Equal(asked.names, c.want) {
				t.Errorf("asked %v, want %v", asked.names, c.want)
			}
			wantSettled(t, db, batch, c.left)
			if lost := strings.Count(log.String(), "lease_lost"); lost != 2*c.left { // message and event
				t.Errorf("leases lost: want %d of\n%s", c.left, log)
			}
		})
	}
}

// Another job may be at the place by now.
func TestWhoeverHasComeToAPlaceIsLeftAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	d := atRest(t, db, io.Discard)
	batch := succeeded(t, d, db, 3)
	stranger := batch[2]
	batch = batch[:2]
	batch[0].rowAt = stranger.rowAt
	d.settler.settle(batch)
	var status string
	if err := db.QueryRow(t.Context(), `SELECT status FROM outbox.jobs WHERE id = $1`, stranger.job.ID).Scan(&status); err != nil || status != "running" {
		t.Errorf("the stranger is %s, %v; want it running", status, err)
	}
	var settled int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.history`).Scan(&settled); err != nil || settled != 2 {
		t.Errorf("settled %d jobs, %v; want 2", settled, err)
	}
}

// A list is settled in the order of the places, and an operator's jobs in the order of their ids: if the two would
// deadlock, the operator's statement wins.
func TestASettlementAsAListGivesWay(t *testing.T) {
	t.Parallel()
	db, log := pgtest.New(t), new(bytes.Buffer)
	d := atRest(t, db, log)
	asked := &asked{DBTX: control(t, db)}
	d.settler.statements.db = sqlgen.New(asked)
	batch := succeeded(t, d, db, 2)
	first, second := batch[0].job.ID, batch[1].job.ID
	if err := db.QueryRow(t.Context(), `UPDATE outbox.jobs SET watched = true WHERE id = $1 RETURNING (jobs).ctid`, first).Scan(&batch[0].rowAt); err != nil {
		t.Fatal(err) // it lies behind the second now
	}
	operator := lock(t, db, first)
	settled := make(chan struct{})
	go func() {
		d.settler.settle(batch)
		close(settled)
	}()
	waiting(t, db, 1, operator) // the second is settled, and not committed
	if _, err := operator.Exec(t.Context(), `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, second); err != nil {
		t.Errorf("the operator waits for the second job: %v", err)
	}
	commit(t, operator)
	<-settled
	if want := []string{"SettleInPlace", "SettleSucceeded"}; !slices.Equal(asked.names, want) {
		t.Errorf("asked %v, want %v", asked.names, want)
	}
	wantSettled(t, db, batch, 0)
	if log.Len() > 0 {
		t.Errorf("said:\n%s", log)
	}
}

// What was stored in its place stays stored if the statement for the others fails.
func TestWhatIsStoredInItsPlaceIsKnownWhenTheRestFails(t *testing.T) {
	t.Parallel()
	db, log := pgtest.New(t), new(bytes.Buffer)
	d := atRest(t, db, log)
	asked := &asked{DBTX: control(t, db), refuse: "SettleSucceeded"}
	d.settler.statements.db = sqlgen.New(asked)
	batch := succeeded(t, d, db, 3)
	change(t, db, `UPDATE outbox.jobs SET watched = true WHERE id = $1`, batch[1].job.ID)
	d.settler.settle(batch)
	if want := []string{"SettleInPlace", "SettleSucceeded", "SettleInPlace", "SettleSucceeded"}; !slices.Equal(asked.names, want) {
		t.Errorf("asked %v, want %v", asked.names, want)
	}
	wantSettled(t, db, batch, 0)
	if strings.Contains(log.String(), "lease") {
		t.Errorf("a lease is said to be lost:\n%s", log)
	}
}

// Another transaction changes a job at the moment when it is settled in its place:
//
//	settle in place   snapshot: the job is there; waits for its row
//	                          another: commits, and the job is elsewhere
//	settle in place   looks at the new version (some servers), or at none
//	settle by id      finds what is left
//
// Whatever the server does, the fence decides.
func TestASettlementInPlaceWaitsForWhoeverChangesTheJob(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		left   int
	}{
		"the lease is kept": {`UPDATE outbox.jobs SET watched = true WHERE id = $1`, 0},
		"the lease is lost": {`UPDATE outbox.jobs SET epoch = epoch + 1 WHERE id = $1`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, log := pgtest.New(t), new(bytes.Buffer)
			d := atRest(t, db, log)
			batch := succeeded(t, d, db, 3)
			other := lock(t, db, batch[1].job.ID)
			if _, err := other.Exec(t.Context(), c.change, batch[1].job.ID); err != nil {
				t.Fatal(err)
			}
			settled := make(chan struct{})
			go func() {
				d.settler.settle(batch)
				close(settled)
			}()
			waiting(t, db, 1, other)
			commit(t, other)
			<-settled
			wantSettled(t, db, batch, c.left)
			if lost := strings.Count(log.String(), "lease_lost"); lost != 2*c.left { // message and event
				t.Errorf("leases lost: want %d of\n%s", c.left, log)
			}
		})
	}
}

// succeeded returns attempts at new jobs whose handlers have returned, in the order of their ids.
func succeeded(t *testing.T, d *Dispatcher, db *pgxpool.Pool, n int) []*attempt {
	t.Helper()
	batch := make([]*attempt, n)
	for i := range batch {
		id, err := outbox.Enqueue(t.Context(), db, tiny{}, outbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		take(t, db, "w", 1, id)
		job := &outbox.Claimed{}
		job.ID, job.Kind, job.Epoch, job.Attempt, job.MaxAttempts = id, "tiny", 1, 1, 10
		batch[i] = &attempt{job: job, lease: lease.Lease{Job: job, Claimed: time.Now()}, route: d.common.routes["tiny"], capacity: d.queues[engine.DefaultQueue].capacity, outcome: outcome.Outcome{Status: outbox.Succeeded}}
		if err := db.QueryRow(t.Context(), `SELECT ctid, started_at FROM outbox.jobs WHERE id = $1`, id).Scan(&batch[i].rowAt, &job.StartedAt); err != nil {
			t.Fatal(err)
		}
	}
	return batch
}

// wantSettled expects all but left jobs in the history, each with its own result.
func wantSettled(t *testing.T, db *pgxpool.Pool, batch []*attempt, left int) {
	t.Helper()
	results := map[outbox.ID]string{}
	rows, err := db.Query(t.Context(), `SELECT id, coalesce(convert_from(result, 'UTF8'), '') FROM outbox.history WHERE status = 'succeeded'`)
	if err != nil {
		t.Fatal(err)
	}
	var id outbox.ID
	var result string
	if _, err := pgx.ForEachRow(rows, []any{&id, &result}, func() error { results[id] = result; return nil }); err != nil {
		t.Fatal(err)
	}
	own := 0
	for _, a := range batch {
		if got, ok := results[a.job.ID]; ok && got == string(a.job.Result) {
			own++
		}
	}
	var open int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&open); err != nil {
		t.Fatal(err)
	}
	if want := len(batch) - left; len(results) != want || own != want || open != left {
		t.Errorf("settled %d jobs, %d with their own results, %d are open; want %d, %d, %d", len(results), own, open, want, want, left)
	}
}

// A stuck attempt loses its lease, this process runs the next attempt at the job, and both are settled together:
//
//	attempt 1 (epoch 1)   stuck …                            returns nil
//	reaper                         the lease has lapsed
//	attempt 2 (epoch 3)                      claimed, runs   returns nil
//
// The database stores the second one only. The first has lost its lease, and says so.
func TestOnlyOneOfTwoAttemptsAtAJobIsStored(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"succeeded": nil, "failed": errors.New("boom"), "unavailable": Unavailable(errors.New("away"), time.Second)} {
		for _, tenant := range []outbox.ID{outbox.RootTenant, numbered(1)} {
			for _, key := range []string{"", "k"} {
				t.Run(fmt.Sprintf("%s %s %s", name, tenant, key), func(t *testing.T) {
					t.Parallel()
					db, log := pgtest.New(t), new(bytes.Buffer)
					d := atRest(t, db, log)
					id, err := outbox.Enqueue(t.Context(), db, tiny{}, outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: key}})
					if err != nil {
						t.Fatal(err)
					}
					take(t, db, "w", 3, id)
					var batch []*attempt
					for _, epoch := range []int64{3, 1} {
						job := &outbox.Claimed{}
						job.ID, job.Tenant, job.Key, job.Kind, job.Epoch, job.Attempt, job.MaxAttempts = id, tenant, key, "tiny", epoch, 1, 10
						a := &attempt{job: job, lease: lease.Lease{Job: job, Claimed: time.Now()}, route: d.common.routes["tiny"], capacity: d.queues[engine.DefaultQueue].capacity, err: end}
						a.outcome, _ = a.route.config.policy().Decide(job, end, nil)
						batch = append(batch, a)
					}
					second, first := batch[0], batch[1]
					d.settler.settle(batch)
					if !second.stored || first.stored {
						t.Errorf("attempt 2 is stored: %t, attempt 1: %t", second.stored, first.stored)
					}
					if n := counted(t, d.common.metrics.leasesLost); n != 1 {
						t.Errorf("%v leases are lost, want that of attempt 1", n)
					}
					if lost := strings.Count(log.String(), "event=lease_lost"); lost != 1 {
						t.Errorf("%d lease is said to be lost, want one:\n%s", lost, log)
					}
				})
			}
		}
	}
}

func change(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if tag, err := db.Exec(t.Context(), sql, args...); err != nil || tag.RowsAffected() == 0 {
		t.Fatalf("%s: %v, %v", sql, tag, err)
	}
}

// asked records the names of the statements, and refuses one of them once.
type asked struct {
	sqlgen.DBTX
	names  []string
	refuse string
}

func (a *asked) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	name := strings.Fields(sql)[2]
	a.names = append(a.names, name)
	if name == a.refuse {
		a.refuse = ""
		return nil, errors.New("the connection was cut")
	}
	return a.DBTX.Query(ctx, sql, args...)
}
