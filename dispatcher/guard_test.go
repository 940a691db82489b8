package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A handler's transaction holds the job's row for longer than the lease, and the handler continues after it:
//
//	handler      BEGIN, Guard                                        COMMIT   goes on
//	extensions        locked: beside   locked: beside   …                         the row
//	reapers                      lease in the row lapses   locked        extended beside
//
// The reaper here looks again and again, so that one look comes between the COMMIT and the next extension of the row.
func TestATransactionThatOutlastsTheLeaseKeepsItsJob(t *testing.T) {
	t.Parallel()
	ends := map[string]func(context.Context, *outbox.Job[probe], pgx.Tx) error{
		"Guard": func(ctx context.Context, job *outbox.Job[probe], tx pgx.Tx) error { return job.Guard(ctx, tx) },
		"Complete, rolled back": func(ctx context.Context, job *outbox.Job[probe], tx pgx.Tx) error {
			return job.Complete(ctx, tx)
		},
	}
	tenant := outbox.NewID()
	for what, opts := range map[string]outbox.Options{
		"root":            {MaxAttempts: 2},
		"a tenant":        {MaxAttempts: 2, Tenant: tenant},
		"root, a key":     {MaxAttempts: 2, Key: outbox.KeyRules{Name: "k"}},
		"a tenant, a key": {MaxAttempts: 2, Tenant: tenant, Key: outbox.KeyRules{Name: "k"}},
	} {
		for name, lock := range ends {
			if name != "Guard" && what != "root" { // the lock is the same; whose job and which key, the other end shows
				continue
			}
			t.Run(name+", "+what, func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t)
				config := quiet(nil)
				config.LeaseTTL = 4 * time.Second // extensions are late on a busy machine
				id := enqueue(t, db, probe{}, opts)
				locked, commit, committed, release := make(chan struct{}), make(chan struct{}), make(chan error, 1), make(chan struct{})
				d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
					tx, err := db.Begin(ctx)
					if err != nil {
						return err
					}
					if err := lock(ctx, job, tx); err != nil {
						return err
					}
					close(locked)
					<-commit
					if name == "Guard" {
						committed <- tx.Commit(ctx)
					} else {
						committed <- tx.Rollback(ctx)
					}
					select {
					case <-release:
						if name != "Guard" {
							return dispatcher.Discard(errBoom)
						}
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}), config)
				receive(t, locked, "the row to be locked")
				await(t, db, "the lease of the row lapses", `SELECT clock_timestamp() > lease_expires_at + interval '1 second' FROM outbox.jobs`)
				stop := reapAgainAndAgain(t, db)
				close(commit)
				if err := receive(t, committed, "the end of the transaction"); err != nil {
					t.Fatal(err)
				}
				await(t, db, "the row is extended, or the job taken", `SELECT coalesce(lease_expires_at > clock_timestamp(), true) FROM outbox.jobs`)
				if taken := stop(); taken != 0 {
					t.Errorf("a reaper took the job %d times", taken)
				}
				wantState(t, db, id, "running attempt=1 epoch=1 lost=0 error=")
				close(release)
				if name == "Guard" {
					awaitSucceeded(t, db, 1)
				}
				awaitThat(t, "the outcome is stored", func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'running'`) == 0 })
				d.stop(t)
				if n := d.metric(t, "outbox_dispatcher_leases_lost_total"); n != 0 {
					t.Errorf("leases lost = %v", n)
				}
			})
		}
	}
}

// stricter begins transactions of a higher isolation level than READ COMMITTED.
type stricter struct {
	*pgxpool.Pool
	level pgx.TxIsoLevel
}

func (s stricter) Begin(ctx context.Context) (pgx.Tx, error) {
	return s.BeginTx(ctx, pgx.TxOptions{IsoLevel: s.level})
}

// inSnapshot lists transactions of handlers that need the job's row at their end, after do has run.
var inSnapshot = map[string]func(ctx context.Context, job *outbox.Claimed, db stricter, do func(pgx.Tx) error) error{
	"Complete": endsBy(func(ctx context.Context, job *outbox.Claimed, tx pgx.Tx) error { return job.Complete(ctx, tx) }),
	"Complete with reports": endsBy(func(ctx context.Context, job *outbox.Claimed, tx pgx.Tx) error {
		if err := job.Log(ctx, slog.LevelInfo, "done"); err != nil {
			return err
		}
		return job.Complete(ctx, tx)
	}),
	"Guard": endsBy(func(ctx context.Context, job *outbox.Claimed, tx pgx.Tx) error { return job.Guard(ctx, tx) }),
	"StepTx": func(ctx context.Context, job *outbox.Claimed, db stricter, do func(pgx.Tx) error) error {
		_, err := dispatcher.StepTx(ctx, job, db, "s", func(_ context.Context, tx pgx.Tx) (int, error) { return 1, do(tx) })
		return err
	},
}

// endsBy runs do, and then end, in a transaction.
func endsBy(end func(context.Context, *outbox.Claimed, pgx.Tx) error) func(context.Context, *outbox.Claimed, stricter, func(pgx.Tx) error) error {
	return func(ctx context.Context, job *outbox.Claimed, db stricter, do func(pgx.Tx) error) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if err := do(tx); err != nil {
				return err
			}
			return end(ctx, job, tx)
		})
	}
}

// The lease is extended while a transaction with an older snapshot is open. If the transaction began with Guard, the
// extension does not affect it; otherwise it fails, and the error names Guard.
func TestATransactionWithAnOldSnapshotNeedsGuardFirst(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for name, finish := range inSnapshot {
			for _, guarded := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %s, guarded %t", name, level, guarded), func(t *testing.T) {
					t.Parallel()
					db := pgtest.New(t)
					id := enqueue(t, db, probe{}, outbox.Options{})
					open, extended, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
					config := quiet(nil)
					config.LeaseTTL = 5 * time.Second // extended after a third
					start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
						err := finish(ctx, job.Claimed, stricter{db, level}, func(tx pgx.Tx) (err error) {
							if guarded {
								err = job.Guard(ctx, tx)
							} else {
								_, err = tx.Exec(ctx, `SELECT 1`) // takes the snapshot
							}
							close(open)
							<-extended
							return err
						})
						result <- err
						if err != nil {
							return dispatcher.Discard(err)
						}
						return nil
					}), config)
					receive(t, open, "the transaction")
					before := ask[time.Time](t, db, `SELECT lease_expires_at FROM outbox.jobs WHERE id = $1`, id)
					await(t, db, "an extension", `SELECT EXISTS (SELECT FROM outbox.jobs WHERE id = $1 AND lease_expires_at > $2)
						OR EXISTS (SELECT FROM outbox.lease_extensions WHERE job_id = $1)`, id, before)
					close(extended)
					err := receive(t, result, "the end of the transaction")
					if guarded {
						if err != nil {
							t.Error(err)
						}
						awaitSucceeded(t, db, 1)
						return
					}
					wantsGuardFirst(t, err)
				})
			}
		}
	}
}

// For the reports that Complete stores, a checkpoint stored meanwhile is as new as an extension.
func TestReportsInATransactionWithAnOldSnapshotNeedGuardFirst(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueue(t, db, probe{}, outbox.Options{})
	result := make(chan error, 1)
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		attempt := func() error {
			tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(ctx) }()
			if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
				return err
			}
			if err := outbox.SaveCheckpoint(ctx, job.Claimed, 1); err != nil {
				return err
			}
			if err := job.Progress(ctx, 1, 2, ""); err != nil {
				return err
			}
			return job.Complete(ctx, tx)
		}
		var err error
		for range 50 { // the recorder may store the progress before Complete does
			if err = attempt(); err != nil {
				break
			}
		}
		result <- err
		return dispatcher.Discard(errBoom)
	}), quiet(nil))
	wantsGuardFirst(t, receive(t, result, "Complete"))
}

func wantsGuardFirst(t *testing.T, err error) {
	t.Helper()
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pgErr.Code != "40001" || strings.Count(fmt.Sprint(err), "call Claimed.Guard before anything else") != 1 {
		t.Errorf("error = %v, want a serialization failure that names Guard", err)
	}
}

// The worker dies inside the transaction, or right after its COMMIT: the job is taken over when the last extension has
// run out, and not before.
func TestTheJobOfATransactionWhoseWorkerDiesIsTakenOver(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{}, outbox.Options{})
	l := claim(t, db, "worker")
	exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = clock_timestamp()`)
	tx := begin(t, db)
	if err := l.job().Guard(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	extend := workerWrites["extend"]
	if took, err := extend(t.Context(), db, l); took || err != nil && err.Error() != "the extension was refused, and not called lost" {
		t.Fatalf("the extension of a locked row: %v, %v", took, err)
	}
	if err := tx.Rollback(t.Context()); err != nil { // as the server does when the connection breaks
		t.Fatal(err)
	}
	if lapsed, err := expireLapsed(t.Context(), db); err != nil || lapsed[0].ID.Valid {
		t.Fatalf("a reaper takes the job during its extension: %+v, %v", lapsed, err)
	}
	exec(t, db, `UPDATE outbox.lease_extensions SET expires_at = clock_timestamp()`)
	if lapsed, err := expireLapsed(t.Context(), db); err != nil || lapsed[0].ID != pgID(id) {
		t.Fatalf("a reaper does not take the job after its extension: %+v, %v", lapsed, err)
	}
	wantState(t, db, id, "retrying attempt=1 epoch=2 lost=1 error=lease_lost")
}

// An extension in lease_extensions belongs to one epoch. The extension of a worker that lost its lease does not keep
// its successor's lease from lapsing.
func TestAnExtensionIsOfOneEpoch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{}, outbox.Options{})
	l := claim(t, db, "worker")
	exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = clock_timestamp()`)
	exec(t, db, `INSERT INTO outbox.lease_extensions VALUES ($1, $2 - 1, clock_timestamp() + interval '1 hour')`, l.id, l.epoch)
	if lapsed, err := expireLapsed(t.Context(), db); err != nil || lapsed[0].ID != pgID(id) {
		t.Fatalf("a reaper does not take the job: %+v, %v", lapsed, err)
	}
}

// reapAgainAndAgain looks for lapsed leases without a pause, until stop is called, which returns how many jobs it took.
func reapAgainAndAgain(t *testing.T, db *pgxpool.Pool) (stop func() (taken int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	reaped := make(chan int)
	go func() {
		taken := 0
		for ctx.Err() == nil {
			rows, err := expireLapsed(ctx, db)
			switch {
			case err == nil && rows[0].ID.Valid:
				taken += len(rows)
			case err != nil && !errors.Is(err, context.Canceled):
				t.Error(err)
			}
		}
		reaped <- taken
	}()
	t.Cleanup(cancel)
	return func() int {
		cancel()
		return receive(t, reaped, "the reaper")
	}
}
