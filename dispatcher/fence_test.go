package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// lease holds what a worker knows of its claim.
type lease struct {
	id        outbox.ID
	epoch     int64
	startedAt time.Time
}

func (l lease) starts() []pgtype.Timestamptz {
	return []pgtype.Timestamptz{pgvalue.TimeOrNull(l.startedAt)}
}

func (l lease) job() *outbox.Claimed {
	return &outbox.Claimed{ID: l.id, Epoch: l.epoch, StartedAt: l.startedAt}
}

// placeOf returns the place of a job's row; it is not valid if the job is not open.
func placeOf(ctx context.Context, db *pgxpool.Pool, l lease) (place pgtype.TID, err error) {
	err = db.QueryRow(ctx, `SELECT ctid FROM outbox.jobs WHERE id = $1`, l.id).Scan(&place)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return place, err
}

// workerWrites lists every write that a worker makes. Each returns whether it took effect.
var workerWrites = map[string]func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error){
	"succeed": settleAs(""),
	// The worst case: the newest version of the job is at the place where the claim left it.
	"succeed in place": func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error) {
		place, err := placeOf(ctx, db, l)
		if err != nil {
			return false, err
		}
		settled, err := sqlgen.New(db).SettleInPlace(ctx, sqlgen.SettleInPlaceParams{
			Places: []pgtype.TID{place}, Ids: []pgtype.UUID{pgID(l.id)}, Epochs: []int64{l.epoch}, Starts: l.starts(),
		})
		return len(settled) > 0, err
	},
	"succeed with events": func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error) {
		settled, err := sqlgen.New(db).SettleStreamed(ctx, sqlgen.SettleStreamedParams{
			Ids: []pgtype.UUID{pgID(l.id)}, Epochs: []int64{l.epoch}, Starts: l.starts(), Results: [][]byte{nil},
		})
		return len(settled) > 0, err
	},
	"succeed and follow": func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error) {
		settled, err := engine.SettleSucceeded(ctx, db, []engine.Success{success(withFollowUps(l))}, false)
		return len(settled) > 0, err
	},
	"Complete and follow": func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error) {
		return inTx(ctx, db, func(tx pgx.Tx) error { return withFollowUps(l).Complete(ctx, tx) })
	},
	"fail":                settleAs(outbox.Retrying),
	"fail the last":       settleAs(outbox.Dead),
	"discard":             settleAs(outbox.Failed),
	"snooze or give back": settleAs(outbox.Pending),
	"say unavailable": func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error) {
		settled, err := sqlgen.New(db).SettleUnavailable(ctx, unavailableParams(l, outbox.Retrying, time.Hour))
		return len(settled) > 0, err
	},
	"extend": func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error) {
		rows, err := sqlgen.New(db).ExtendLeases(ctx, sqlgen.ExtendLeasesParams{
			Ids: []pgtype.UUID{pgID(l.id)}, Epochs: []int64{l.epoch}, Starts: l.starts(), LeaseTtl: interval(5 * time.Hour),
		})
		if len(rows) > 0 && !rows[0].Lost {
			return false, errors.New("the extension was refused, and not called lost")
		}
		return len(rows) == 0, err
	},
	"Guard": func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error) {
		return inTx(ctx, db, func(tx pgx.Tx) error {
			if err := l.job().Guard(ctx, tx); err != nil {
				return err
			}
			// A write on the way: progress.
			_, err := tx.Exec(ctx, `UPDATE outbox.jobs SET headers = '{"progress": "50 %"}' WHERE id = $1`, l.id)
			return err
		})
	},
	"report": func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error) {
		row, err := report(ctx, db, l, 1, 50)
		if !row.Recorded && !row.Lost {
			return false, errors.New("the report was refused, and not called lost")
		}
		return row.Recorded, err
	},
	"remember a step": func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error) {
		stored, err := sqlgen.New(db).RecordStep(ctx, sqlgen.RecordStepParams{
			ID: pgID(l.id), Epoch: l.epoch, StartedAt: l.starts()[0], Name: "late", Took: interval(0), Result: []byte("1"),
		})
		return len(stored) > 0 && stored[0], err
	},
	"Complete": func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error) {
		return inTx(ctx, db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, l.id); err != nil {
				return err
			}
			return l.job().Complete(ctx, tx)
		})
	},
}

// withFollowUps returns a claimed job whose success has two follow-ups.
func withFollowUps(l lease) *outbox.Claimed {
	job := l.job()
	job.Queue = engine.DefaultQueue
	if _, err := job.Then(next{1}, outbox.Options{}); err != nil {
		panic(err)
	}
	hook := engine.Row{
		ID: pgID(outbox.NewID()), TenantID: pgID(outbox.RootTenant), Queue: job.Queue, Kind: "probe:on_success", MaxAttempts: 1, Payload: []byte(`{}`),
		ContentType: engine.ContentJSON,
	}
	engine.InternalOf(job).FollowUps.Hook = func() engine.Row { return hook }
	return job
}

func success(job *outbox.Claimed) engine.Success {
	return engine.Success{ID: pgID(job.ID), Epoch: job.Epoch, StartedAt: pgvalue.TimeOrNull(job.StartedAt), Result: job.Result, FollowUps: engine.InternalOf(job).FollowUps.Rows()}
}

func settleAs(status outbox.Status) func(context.Context, *pgxpool.Pool, lease) (bool, error) {
	return func(ctx context.Context, db *pgxpool.Pool, l lease) (bool, error) {
		var settled []pgtype.UUID
		var err error
		if status == "" {
			settled, err = sqlgen.New(db).SettleSucceeded(ctx, sqlgen.SettleSucceededParams{
				Ids: []pgtype.UUID{pgID(l.id)}, Epochs: []int64{l.epoch}, Starts: l.starts(), Results: [][]byte{nil},
			})
		} else {
			code := "late"
			if status == outbox.Pending {
				code = ""
			}
			settled, err = sqlgen.New(db).SettleUnfinished(ctx, sqlgen.SettleUnfinishedParams{
				Ids: []pgtype.UUID{pgID(l.id)}, Epochs: []int64{l.epoch}, Starts: l.starts(), Statuses: []string{string(status)}, Delays: []pgtype.Interval{interval(0)},
				ErrorCodes: []string{code}, ErrorMessages: []string{code}, Stacks: []string{""},
			})
		}
		return len(settled) > 0, err
	}
}

// inTx reports a transaction that ErrLeaseLost rolled back as without effect.
func inTx(ctx context.Context, db *pgxpool.Pool, fn func(pgx.Tx) error) (bool, error) {
	err := pgx.BeginFunc(ctx, db, fn)
	if errors.Is(err, outbox.ErrLeaseLost) {
		return false, nil
	}
	return err == nil, err
}

// takeovers lists what may have happened to a job while its worker was not looking.
var takeovers = map[string]func(t *testing.T, db *pgxpool.Pool, l lease){
	"reaped": func(t *testing.T, db *pgxpool.Pool, l lease) { reap(t, db, l) },
	"claimed by another": func(t *testing.T, db *pgxpool.Pool, l lease) {
		reap(t, db, l)
		claim(t, db, "another worker")
	},
	"claimed by another that has reported more": func(t *testing.T, db *pgxpool.Pool, l lease) {
		reap(t, db, l)
		if row, err := report(t.Context(), db, claim(t, db, "another worker"), 7, 70); !row.Recorded || err != nil {
			t.Fatalf("report: %+v, %v", row, err)
		}
	},
	"claimed by a worker of the same name": func(t *testing.T, db *pgxpool.Pool, l lease) {
		reap(t, db, l)
		claim(t, db, "worker")
	},
	"given back and claimed as the same attempt": func(t *testing.T, db *pgxpool.Pool, l lease) {
		if ok, err := settleAs(outbox.Pending)(t.Context(), db, l); !ok || err != nil {
			t.Fatalf("give back: %v, %v", ok, err)
		}
		claim(t, db, "worker")
	},
	"retried by an operator and claimed as the same attempt": func(t *testing.T, db *pgxpool.Pool, l lease) {
		exec(t, db, `UPDATE outbox.jobs SET max_attempts = 1 WHERE id = $1`, l.id)
		reap(t, db, l) // dead
		exec(t, db, `UPDATE outbox.jobs SET status = 'pending', attempt = 0, epoch = epoch + 1 WHERE id = $1 AND status = 'dead'`, l.id)
		if again := claim(t, db, "worker"); ask[int](t, db, `SELECT attempt FROM outbox.jobs WHERE id = $1`, again.id) != 1 {
			t.Fatal("the attempts differ: the test proves nothing")
		}
	},
	"expired at its deadline": func(t *testing.T, db *pgxpool.Pool, l lease) {
		exec(t, db, `UPDATE outbox.jobs SET deadline = now() WHERE id = $1`, l.id)
		if n, err := expireLate(t.Context(), db); n != 1 || err != nil {
			t.Fatalf("expired %d jobs, %v; want 1", n, err)
		}
	},
	"cancelled while it waited to be retried": func(t *testing.T, db *pgxpool.Pool, l lease) {
		reap(t, db, l)
		cancelJob(t, db, l.id, "cancelled")
	},
	"cancelled, and its lease lapsed": func(t *testing.T, db *pgxpool.Pool, l lease) {
		cancelJob(t, db, l.id, "running")
		reap(t, db, l)
	},
	"succeeded elsewhere": func(t *testing.T, db *pgxpool.Pool, l lease) {
		reap(t, db, l)
		if ok, err := settleAs("")(t.Context(), db, claim(t, db, "another worker")); !ok || err != nil {
			t.Fatalf("succeed: %v, %v", ok, err)
		}
	},
}

// claim leases the only due job, of whatever tenant and with a key or without, as the claiming statements do.
func claim(t *testing.T, db *pgxpool.Pool, worker string) (l lease) {
	t.Helper()
	if err := db.QueryRow(t.Context(), `
		UPDATE outbox.jobs SET status = 'running', lease_owner = $1, attempt = attempt + 1, epoch = epoch + 1,
			started_at = statement_timestamp(), lease_expires_at = statement_timestamp() + interval '1 hour'
		WHERE status IN ('pending', 'retrying') AND run_at <= statement_timestamp() RETURNING id, epoch, started_at`, worker).Scan(&l.id, &l.epoch, &l.startedAt); err != nil {
		t.Fatalf("claim a job: %v", err)
	}
	return l
}

// reap makes the lease lapse, and takes the job away.
func reap(t *testing.T, db *pgxpool.Pool, l lease) {
	t.Helper()
	exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 second' WHERE id = $1`, l.id)
	if lapsed, err := expireLapsed(t.Context(), db); err != nil || lapsed[0].ID != pgID(l.id) {
		t.Fatalf("expired %+v, %v; want the job", lapsed, err)
	}
}

// everything returns everything that is stored about jobs.
func everything(t *testing.T, db outbox.DB) string {
	t.Helper()
	return ask[string](t, db, `
		SELECT concat_ws(E'\n', (SELECT string_agg(j::text, E'\n') FROM outbox.jobs AS j), (SELECT string_agg(h::text, E'\n') FROM outbox.history AS h),
			(SELECT string_agg(a::text, E'\n') FROM outbox.attempts AS a), (SELECT string_agg(e::text, E'\n') FROM effects AS e),
			(SELECT string_agg(p::text, E'\n') FROM outbox.progress AS p), (SELECT string_agg(l::text, E'\n') FROM outbox.job_logs AS l),
			(SELECT string_agg(s::text, E'\n') FROM outbox.job_steps AS s))`)
}

// A worker that lost its lease, and does not know it yet, changes nothing.
func TestFence(t *testing.T) {
	inEachFlow(t, fence)
}

func fence(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
	exec(t, db, `DROP TABLE IF EXISTS effects`) // of the flow before
	ledger(t, db)
	for write, try := range workerWrites {
		for what, takeOver := range takeovers {
			t.Run(write+" after "+what, func(t *testing.T) {
				exec(t, db, `DELETE FROM outbox.jobs`)
				exec(t, db, `DELETE FROM outbox.history`)
				enqueue(t, db, probe{}, flow)
				stale := claim(t, db, "worker")
				takeOver(t, db, stale)
				before := everything(t, db)
				if took, err := try(t.Context(), db, stale); took || err != nil {
					t.Errorf("took effect = %v, error = %v; want no effect and no error", took, err)
				}
				if after := everything(t, db); after != before {
					t.Errorf("stored before:\n%s\nafter:\n%s", before, after)
				}
			})
		}
		t.Run(write+" while the lease is ours", func(t *testing.T) { // else the test proves nothing
			exec(t, db, `DELETE FROM outbox.jobs`)
			exec(t, db, `DELETE FROM outbox.history`)
			enqueue(t, db, probe{}, flow)
			live := claim(t, db, "worker")
			before := everything(t, db)
			if took, err := try(t.Context(), db, live); !took || err != nil {
				t.Errorf("took effect = %v, error = %v; want an effect", took, err)
			}
			if everything(t, db) == before {
				t.Error("nothing changed")
			}
		})
	}
}

// The same through the dispatcher: a handler that slept through the loss of its lease returns with each outcome, while
// the job runs elsewhere.
func TestZombieHandlersChangeNothing(t *testing.T) {
	t.Parallel()
	for name, takeOver := range map[string]func(t *testing.T, tx pgx.Tx, worker string, n int){
		"expired and claimed again": func(t *testing.T, tx pgx.Tx, worker string, n int) {
			exec(t, tx, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 second'`)
			if lapsed, err := expireLapsed(t.Context(), tx); err != nil || len(lapsed) != n {
				t.Fatalf("expired %d, %v; want %d", len(lapsed), err, n)
			}
			if again, err := sqlgen.New(tx).ClaimJobs(t.Context(), claimParams(worker, n)); err != nil || len(again) != n {
				t.Fatalf("claimed %d, %v; want %d", len(again), err, n)
			}
			exec(t, tx, `UPDATE outbox.jobs SET attempt = 1`) // as after an operator's retry
		},
		"claimed again after a failover": func(t *testing.T, tx pgx.Tx, worker string, n int) {
			for _, id := range ask[[]outbox.ID](t, tx, `SELECT array_agg(id) FROM outbox.jobs`) {
				claimAgain(t, tx, lease{id: id, epoch: 1}, worker)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zombieHandlers(t, takeOver)
		})
	}
}

func zombieHandlers(t *testing.T, takeOver func(t *testing.T, tx pgx.Tx, worker string, n int)) {
	db := pgtest.New(t)
	ledger(t, db)
	endings := []func(ctx context.Context, job *outbox.Job[probe]) error{
		func(context.Context, *outbox.Job[probe]) error { return nil },
		func(context.Context, *outbox.Job[probe]) error { return errBoom },
		func(context.Context, *outbox.Job[probe]) error { return dispatcher.Discard(errBoom) },
		func(context.Context, *outbox.Job[probe]) error { return dispatcher.RetryAfter(0, errBoom) },
		func(context.Context, *outbox.Job[probe]) error { return dispatcher.Snooze(0) },
		func(context.Context, *outbox.Job[probe]) error { panic("late") },
		func(_ context.Context, job *outbox.Job[probe]) error {
			ctx := context.Background()
			_, err := workerWrites["Complete"](ctx, db, lease{job.ID, job.Epoch, job.StartedAt})
			return err
		},
		func(ctx context.Context, job *outbox.Job[probe]) error {
			err := pgx.BeginFunc(context.WithoutCancel(ctx), db, func(tx pgx.Tx) error { return job.Guard(context.WithoutCancel(ctx), tx) })
			if !errors.Is(err, outbox.ErrLeaseLost) {
				t.Errorf("Guard returns %v, want ErrLeaseLost", err)
			}
			return err
		},
		func(ctx context.Context, job *outbox.Job[probe]) error {
			err := pgx.BeginFunc(context.WithoutCancel(ctx), db, func(tx pgx.Tx) error { return job.Complete(context.WithoutCancel(ctx), tx) })
			if !errors.Is(err, outbox.ErrLeaseLost) || engine.InternalOf(job).Completed.Load() {
				t.Errorf("Complete returns %v, Completed() = %v; want ErrLeaseLost, false", err, engine.InternalOf(job).Completed.Load())
			}
			return nil // swallows it
		},
		func(ctx context.Context, job *outbox.Job[probe]) error { // waits for the test
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, outbox.ErrLeaseLost) {
				t.Errorf("cause = %v, want ErrLeaseLost", cause)
			}
			return ctx.Err()
		},
	}
	n := len(endings)
	enqueueProbes(t, db, n, outbox.Options{})
	wakeUp := make(chan struct{})
	config := quiet(nil)
	config.LeaseTTL = 5 * time.Second
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		<-wakeUp
		return endings[job.Args.N](ctx, job)
	}), config)
	await(t, db, "all run", `SELECT count(*) = $1 FROM outbox.jobs WHERE status = 'running'`, n)

	// In one transaction, so that the dispatcher cannot claim them itself.
	tx := begin(t, db)
	takeOver(t, tx, d.Worker(), n)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := everything(t, db)
	close(wakeUp)
	awaitThat(t, "every outcome is refused", func() bool { return d.metric(t, "outbox_dispatcher_leases_lost_total") == float64(n) })
	d.stop(t)
	if after := everything(t, db); after != before {
		t.Errorf("stored before:\n%s\nafter:\n%s", before, after)
	}
	if c := d.metric(t, "job_completed_total"); c != 0 {
		t.Errorf("jobs counted as completed = %v, want 0", c)
	}
}

// A worker fails a job while another transaction is about to end its lease: the worker's settlement has found the row
// and waits for it. When the other commits, nothing may remain of the refused outcome, not even in the record of
// attempts.
func TestARefusedFailureIsNotRecorded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueue(t, db, probe{}, outbox.Options{})
	l := claim(t, db, "worker")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // after a commit it says so
	if _, err := tx.Exec(t.Context(), `
		UPDATE outbox.jobs SET status = 'pending', epoch = epoch + 1, attempt = attempt - 1, lease_owner = NULL, lease_expires_at = NULL
		WHERE id = $1`, l.id); err != nil {
		t.Fatal(err)
	}
	settled := make(chan bool, 1)
	go func() {
		ok, err := settleAs(outbox.Retrying)(context.Background(), db, l)
		if err != nil {
			t.Error(err)
		}
		settled <- ok
	}()
	await(t, db, "the settlement waits for the row", `
		SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%SettleUnfinished%')`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if receive(t, settled, "the settlement") {
		t.Error("the outcome of a lost lease was stored")
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts`); n != 0 {
		t.Errorf("recorded attempts = %d, want 0: the lease was lost", n)
	}
}
