package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
	"github.com/posthaste-dev/posthaste/schedule"
)

// Config configures a worker. Its zero value works every queue, where a dispatcher with a zero Config works only
// "default", and is otherwise like that.
type Config struct {
	Queues  []string                 // as the keys of dispatcher.Config.Queues; nil works every queue
	Timeout time.Duration            // of an attempt; 0 means the dispatcher's 5 minutes
	Backoff dispatcher.BackoffPolicy // nil means the dispatcher's

	Schedules []schedule.Schedule // to declare
	// Columns lists columns of your own tables that Advance moves back together with the jobs, as "table.column": those
	// that SQL compares with now().
	Columns []string

	Logger *slog.Logger // nil logs nothing
}

// A Worker runs the jobs of a test's transaction with the dispatcher's own statements and decisions. Make one with
// [NewWorker]. Only one goroutine may use it.
type Worker struct {
	t      testing.TB
	db     *DB
	mux    *dispatcher.Mux
	config Config
	inline *dispatcher.Inline
	ahead  time.Duration // by how much Advance has moved the clock
}

// Outcome is the outcome of an attempt at a job.
type Outcome struct {
	ID      outbox.ID
	Kind    string
	Queue   string
	Attempt int           // from 1
	Status  outbox.Status // of the job after the attempt
	Err     error         // the handler's error; nil for a success
	Result  []byte        // of a job that succeeded, as stored; nil for none
	DueIn   time.Duration // how long a job that will run again waits from then on
}

// String returns the outcome in readable form: "receipt.send, attempt 2: retrying in 15s: connection refused".
func (o Outcome) String() string {
	s := fmt.Sprintf("%s, attempt %d: %s", o.Kind, o.Attempt, o.Status)
	if o.DueIn > 0 {
		s += fmt.Sprintf(" in %s", o.DueIn.Round(time.Second))
	}
	if o.Err != nil {
		s += ": " + o.Err.Error()
	}
	return s
}

// NewWorker returns a worker with the handlers and hooks of the mux. A mistake in mux or config fails the test.
func NewWorker(t testing.TB, db *DB, mux *dispatcher.Mux, config Config) *Worker {
	t.Helper()
	w := &Worker{t: t, db: db, mux: mux, config: config}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	var err error
	if w.inline, err = w.start(ctx, nil); err != nil {
		t.Fatalf("make a worker: %v", err)
	}
	if len(config.Schedules) > 0 {
		if err := w.inTx(func(tx pgx.Tx) error {
			return schedule.DeclareIn(ctx, tx, 0, config.Schedules...)
		}); err != nil {
			t.Fatalf("declare schedules: %v", err)
		}
	}
	return w
}

// longLease is the lease of a worker, which does not extend it. The database's clock goes on while a test is stopped in
// a debugger.
const longLease = time.Hour

// start makes the engine of a process.
func (w *Worker) start(ctx context.Context, l *life) (*dispatcher.Inline, error) {
	return dispatcher.NewInline(ctx, engineDB{w.db, l}, w.db, w.mux, dispatcher.Config{
		Worker: "outboxtest", LeaseTTL: longLease, Timeout: w.config.Timeout, Backoff: w.config.Backoff,
		Logger: w.config.Logger,
	})
}

// inTx runs do in a transaction of the test kit itself, for all tenants.
func (w *Worker) inTx(do func(pgx.Tx) error) error {
	ctx := context.Background()
	return pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error {
		if err := setTenant(ctx, tx, allTenants); err != nil {
			return err
		}
		return do(tx)
	})
}

// allTenants is the app.tenant_id of the engine.
const allTenants = "*"

func setTenant(ctx context.Context, tx pgx.Tx, tenant string) error {
	_, err := tx.Exec(ctx, `SELECT set_config('app.tenant_id', $1, true)`, tenant)
	return err
}

// Work runs the most urgent due job and returns its outcome. If its kind is handled in batches, Work runs a batch of
// jobs of one tenant and priority (a dispatcher mixes several) and returns the outcome of the first. If no due job may
// run, the test fails.
func (w *Worker) Work() Outcome {
	w.t.Helper()
	ended := w.workOne()
	if len(ended) == 0 {
		w.t.Fatalf("no job is due that may run:\n%s", w.openJobs())
	}
	return ended[0]
}

// most is how many jobs a Drain or an Advance runs before it concludes that they never end.
const most = 100_000

// Drain runs jobs until no due job may run, including jobs that handlers enqueue, hooks and retries without a wait. It
// returns the outcome of each attempt, in order. Jobs of kinds without a handler stay.
func (w *Worker) Drain() (all []Outcome) {
	w.t.Helper()
	for {
		ended := w.workOne()
		if len(ended) == 0 {
			return all
		}
		if all = append(all, ended...); len(all) > most {
			w.t.Fatalf("after %d jobs there is always another one; the last: %s", most, ended[0])
		}
	}
}

// workOne runs the most urgent job that may run, if there is one.
func (w *Worker) workOne() []Outcome {
	w.t.Helper()
	ctx := context.Background()
	flows, err := w.dueFlows(ctx)
	if err != nil {
		w.t.Fatalf("look for due jobs: %v", err)
	}
	for _, flow := range flows {
		ends, err := w.inline.Work(ctx, flow)
		if err == nil && len(ends) > 0 {
			var outcomes []Outcome
			if outcomes, err = w.outcomes(ctx, ends); err == nil {
				w.passOnFailNow(outcomes)
				return outcomes
			}
		}
		if err != nil {
			w.t.Fatalf("work a job of %s: %v", flow.Kind, err)
		}
	}
	return nil
}

// passOnFailNow ends the test if a handler called FailNow, which ended only the handler's own goroutine.
func (w *Worker) passOnFailNow(outcomes []Outcome) {
	for _, o := range outcomes {
		if coded, ok := errors.AsType[interface {
			error
			Code() string
		}](o.Err); ok && coded.Code() == codes.Goexit && w.t.Failed() {
			w.t.FailNow()
		}
	}
}

// commitOrder makes what happens to jobs at a commit happen now, because a test has no commit.
const commitOrder = `SET CONSTRAINTS outbox.jobs_take_position, outbox.freed_keys_move_on IMMEDIATE;
	SET CONSTRAINTS outbox.jobs_take_position, outbox.freed_keys_move_on DEFERRED`

// dueFlows returns the flows with due jobs, the most urgent first.
func (w *Worker) dueFlows(ctx context.Context) ([]dispatcher.InlineFlow, error) {
	if err := w.db.conn.one(ctx, func(ctx context.Context) error {
		return w.db.conn.control(ctx, commitOrder)
	}); err != nil {
		return nil, err
	}
	rows, err := engineDB{w.db, nil}.Query(ctx, `
		SELECT queue, kind, tenant_id, priority, key IS NOT NULL
		FROM outbox.jobs
		WHERE status IN ('pending', 'retrying')
		  AND run_at <= statement_timestamp()
		  AND (deadline IS NULL OR deadline > statement_timestamp())
		  AND kind = ANY ($1)
		  AND ($2::text[] IS NULL OR queue = ANY ($2))
		GROUP BY queue, kind, tenant_id, priority, key IS NOT NULL
		ORDER BY priority DESC, min(run_at), min(id::text)`, w.mux.Kinds(), w.config.Queues)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (f dispatcher.InlineFlow, err error) {
		err = row.Scan(&f.Queue, &f.Kind, (*[16]byte)(&f.Tenant), &f.Priority, &f.Keyed)
		return f, err
	})
}

// outcomes queries the outcomes of jobs.
func (w *Worker) outcomes(ctx context.Context, ends []dispatcher.InlineEnd) ([]Outcome, error) {
	outcomes := make([]Outcome, len(ends))
	for n, end := range ends {
		job := end.Job
		o := Outcome{ID: job.ID, Kind: job.Kind, Queue: job.Queue, Attempt: job.Attempt, Err: end.Err}
		var seconds float64
		err := engineDB{w.db, nil}.QueryRow(ctx, `
			SELECT status, CASE WHEN status IN ('pending', 'retrying') THEN greatest(extract(epoch FROM run_at - statement_timestamp()), 0) ELSE 0 END, NULL::bytea
			FROM outbox.jobs WHERE id = $1
			UNION ALL
			SELECT status, 0, result FROM outbox.history WHERE id = $1`, job.ID).Scan(&o.Status, &seconds, &o.Result)
		if err != nil {
			return nil, fmt.Errorf("look what became of job %s: %w", job.ID, err)
		}
		o.DueIn = time.Duration(seconds * float64(time.Second))
		outcomes[n] = o
	}
	return outcomes, nil
}

// openJobs lists the unfinished jobs, for a failure message.
func (w *Worker) openJobs() string {
	jobs, err := storedJobs(context.Background(), engineDB{w.db, nil}, "")
	if err != nil {
		return err.Error()
	}
	jobs = slices.DeleteFunc(jobs, func(j storedJob) bool { return j.closed })
	return listed(jobs)
}
