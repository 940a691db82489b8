package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

type invoice struct {
	Number int
	Lines  []string
}

// again retries failed attempts at once.
var again = dispatcher.KindConfig{Backoff: dispatcher.Waits(0)}

// effect returns what most transactions of these tests do.
func effect(job *outbox.Job[probe]) func(context.Context, pgx.Tx) (invoice, error) {
	return func(ctx context.Context, tx pgx.Tx) (invoice, error) {
		_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, job.ID)
		return invoice{7, []string{"tea"}}, err
	}
}

func TestAStepRunsOnceAndIsRemembered(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ledger(t, db)
	id := enqueue(t, db, probe{}, outbox.Options{})
	var fetched, written, charged, attempts atomic.Int32
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		n := attempts.Add(1)
		first, err := dispatcher.Step(ctx, job.Claimed, "fetch", func(context.Context) (invoice, error) {
			fetched.Add(1)
			return invoice{7, []string{"\x00", "é"}}, nil
		})
		if err != nil || first.Number != 7 || !slices.Equal(first.Lines, []string{"\x00", "é"}) {
			t.Errorf("attempt %d: fetch = %+v, %v", n, first, err)
		}
		if n == 1 {
			return errBoom
		}
		second, err := dispatcher.StepTx(ctx, job.Claimed, db, "charge", func(ctx context.Context, tx pgx.Tx) (invoice, error) {
			charged.Add(1)
			return effect(job)(ctx, tx)
		})
		if err != nil || second.Number != 7 {
			t.Errorf("attempt %d: charge = %+v, %v", n, second, err)
		}
		if n < 4 {
			return errBoom
		}
		_, err = dispatcher.Step(ctx, job.Claimed, "write", func(context.Context) (struct{}, error) {
			written.Add(1)
			return struct{}{}, nil
		})
		return err
	}, again), quiet(nil))
	awaitSucceeded(t, db, 1)
	if fetched.Load() != 1 || charged.Load() != 1 || written.Load() != 1 || attempts.Load() != 4 {
		t.Errorf("fetched %d, charged %d, written %d times in %d attempts; want once each in 4", fetched.Load(), charged.Load(), written.Load(), attempts.Load())
	}
	wantEffects(t, db, 1)
	got := ask[string](t, db, `SELECT string_agg(concat_ws(' ', name, epoch, convert_from(result, 'UTF8'), took >= '0'), '; ' ORDER BY name) FROM outbox.job_steps WHERE job_id = $1`, id)
	if want := `charge 3 {"Number":7,"Lines":["tea"]} t; fetch 1 {"Number":7,"Lines":["\u0000","é"]} t; write 7 {} t`; got != want {
		t.Errorf("remembered %s, want %s", got, want)
	}
}

// A step whose fn fails leaves nothing behind and may be tried again at once, also within the attempt.
func TestAFailedStepMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ledger(t, db)
	enqueue(t, db, probe{}, outbox.Options{})
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		for i := range 3 {
			n, err := dispatcher.Step(ctx, job.Claimed, "call", func(context.Context) (int, error) {
				if i == 0 {
					return 0, errBoom
				}
				return i, nil
			})
			if want := []error{errBoom, nil}; i < 2 && (!errors.Is(err, want[i]) || n != i) {
				t.Errorf("call %d = %d, %v", i, n, err)
			}
			if _, ok := errors.AsType[*outbox.InvalidError](err); i == 2 && !ok {
				t.Errorf("the second success of one name = %d, %v; want an InvalidError", n, err)
			}
		}
		_, err := dispatcher.StepTx(ctx, job.Claimed, db, "charge", func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, _ = effect(job)(ctx, tx)
			return 0, errBoom
		})
		if !errors.Is(err, errBoom) || !strings.Contains(err.Error(), "step charge: ") {
			t.Errorf("charge = %v, want the step's name and its error", err)
		}
		_, err = dispatcher.StepTx(ctx, job.Claimed, db, "charge", effect(job))
		return err
	}), quiet(nil))
	awaitSucceeded(t, db, 1)
	wantEffects(t, db, 1)
}

// forgetful commits, and reports that it did not.
type forgetful struct{ *pgxpool.Pool }

type forgetfulTx struct{ pgx.Tx }

func (f forgetful) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := f.Pool.Begin(ctx)
	return forgetfulTx{tx}, err
}

func (tx forgetfulTx) Commit(ctx context.Context) error {
	return errors.Join(tx.Tx.Commit(ctx), errors.New("connection reset by peer"))
}

func TestACommitWhoseAnswerIsLostIsNotMadeTwice(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ledger(t, db)
	enqueue(t, db, probe{}, outbox.Options{})
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		if _, err := dispatcher.StepTx(ctx, job.Claimed, forgetful{db}, "charge", effect(job)); err == nil {
			t.Error("the commit has no error: the test proves nothing")
		}
		got, err := dispatcher.StepTx(ctx, job.Claimed, db, "charge", effect(job))
		if got.Number != 7 {
			t.Errorf("charge = %+v, %v", got, err)
		}
		return err
	}), quiet(nil))
	awaitSucceeded(t, db, 1)
	wantEffects(t, db, 1)
}

// A worker is in the middle of a step when its job is taken over. The replacement makes the step; afterwards the
// worker's changes are rolled back, or not stored.
func TestAZombiesStepIsNotRemembered(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ledger(t, db)
	steps := map[string]func(context.Context, *outbox.Job[probe], func()) error{
		"in a transaction": func(ctx context.Context, job *outbox.Job[probe], wait func()) error {
			_, err := dispatcher.StepTx(ctx, job.Claimed, db, "s", func(ctx context.Context, tx pgx.Tx) (string, error) {
				_, err := effect(job)(ctx, tx)
				wait()
				return job.Worker, err
			})
			return err
		},
		"by itself": func(ctx context.Context, job *outbox.Job[probe], wait func()) error {
			_, err := dispatcher.Step(ctx, job.Claimed, "s", func(context.Context) (string, error) {
				wait()
				return job.Worker, nil
			})
			return err
		},
	}
	for name, step := range steps {
		exec(t, db, `DELETE FROM outbox.history; DELETE FROM effects; DELETE FROM outbox.job_steps`)
		t.Run(name, func(t *testing.T) {
			id := enqueue(t, db, probe{}, outbox.Options{})
			inStep, taken, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			config := quiet(nil)
			config.LeaseTTL = time.Hour
			zombie := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
				err := step(ctx, job, func() { close(inStep); <-taken })
				result <- err
				return err
			}), config)
			receive(t, inStep, "the step")
			tx := begin(t, db)
			exec(t, tx, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 second'`)
			if _, err := expireLapsed(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			made, finish := make(chan struct{}), make(chan struct{})
			replacement := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
				defer func() { close(made); <-finish }() // still open when the zombie comes back
				return step(ctx, job, func() {})
			}), quiet(nil))
			receive(t, made, "the replacement's step")
			close(taken)
			if err := receive(t, result, "the zombie"); !errors.Is(err, outbox.ErrLeaseLost) {
				t.Errorf("the zombie's step = %v, want %v", err, outbox.ErrLeaseLost)
			}
			close(finish)
			awaitSucceeded(t, db, 1)
			zombie.stop(t)
			if got, want := ask[string](t, db, `SELECT string_agg(convert_from(result, 'UTF8'), ' ') FROM outbox.job_steps WHERE job_id = $1`, id), fmt.Sprintf("%q", replacement.Worker()); got != want {
				t.Errorf("remembered %s, want %s", got, want)
			}
			if name == "in a transaction" {
				wantEffects(t, db, 1)
			}
		})
	}
}

// Before it commits, a step's transaction waits for a report that is under way; a report that would have to wait for
// the step passes by.
func TestStepsAndReportsOfOneJobDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 20, outbox.Options{})
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		var all sync.WaitGroup
		errs := make([]error, 10)
		for i := range errs {
			all.Go(func() {
				_ = job.Progress(ctx, int64(i), 0, "busy")
				if errs[i] = outbox.SaveCheckpoint(ctx, job.Claimed, i); errs[i] != nil {
					return
				}
				_, errs[i] = dispatcher.StepTx(ctx, job.Claimed, db, fmt.Sprint("step-", i), func(ctx context.Context, tx pgx.Tx) (int, error) {
					_ = job.Progress(ctx, int64(i), 0, "in the step")
					_, err := tx.Exec(ctx, `SELECT pg_sleep(0.001)`)
					return i, err
				})
			})
		}
		all.Wait()
		return errors.Join(errs...)
	}), quiet(nil))
	awaitSucceeded(t, db, 20)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.job_steps`); n != 200 {
		t.Errorf("steps = %d, want 200", n)
	}
	if complaints := d.log.complaints(); complaints != "" {
		t.Errorf("complaints:\n%s", complaints)
	}
}

func TestStepsThatAreNotAcceptable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tests := map[string]struct {
		step func(context.Context, *outbox.Job[probe]) error
		want string
	}{
		"a result that is too large": {
			func(ctx context.Context, job *outbox.Job[probe]) error {
				_, err := dispatcher.Step(ctx, job.Claimed, "big", func(context.Context) (string, error) { return strings.Repeat("x", engine.MaxStepBytes), nil })
				return err
			}, "step_not_storable: step big: its result is 262146 bytes as JSON, want at most 262144; store large data elsewhere and return a reference",
		},
		"a result that JSON has no form for": {
			func(ctx context.Context, job *outbox.Job[probe]) error {
				_, err := dispatcher.StepTx(ctx, job.Claimed, db, "odd", func(context.Context, pgx.Tx) (func(), error) { return nil, nil })
				return err
			}, "step_not_storable: step odd: encode its result: json: unsupported type: func()",
		},
		"a result that the program has another type for": {
			func(ctx context.Context, job *outbox.Job[probe]) error {
				if job.Attempt == 1 {
					_, err := dispatcher.Step(ctx, job.Claimed, "changed", func(context.Context) (string, error) { return "ada", nil })
					return errors.Join(err, errBoom)
				}
				_, err := dispatcher.Step(ctx, job.Claimed, "changed", func(context.Context) (invoice, error) { return invoice{}, nil })
				return err
			}, "undecodable_step: step changed: its result of an earlier attempt does not decode into dispatcher_test.invoice: json: cannot unmarshal string into Go value of type dispatcher_test.invoice",
		},
	}
	for name, tt := range tests {
		id := enqueue(t, db, probe{}, outbox.Options{})
		t.Run(name, func(t *testing.T) {
			d := start(t, db, handle(tt.step, again), quiet(nil))
			await(t, db, "the job fails for good", `SELECT status = 'failed' FROM outbox.jobs WHERE id = $1`, id)
			d.stop(t)
			if got := ask[string](t, db, `SELECT last_error_code || ': ' || last_error_message FROM outbox.jobs WHERE id = $1`, id); got != tt.want {
				t.Errorf("error = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestStepsAreNamedLikeQueues(t *testing.T) {
	t.Parallel()
	job := &outbox.Claimed{}
	for _, name := range []string{"a", "charge:7/x", "", " ", "a b", "-a", "é", "a\x00", "a\n", strings.Repeat("a", 128), strings.Repeat("a", 129)} {
		ran := false
		_, err := dispatcher.Step(t.Context(), job, name, func(context.Context) (int, error) { ran = true; return 0, nil })
		_, wanted := outbox.Enqueue(t.Context(), (*pgxpool.Pool)(nil), probe{}, outbox.Options{Queue: name, Priority: 1 << 20})
		refused := name == "" || strings.Contains(wanted.Error(), "Options.Queue")
		if _, invalid := errors.AsType[*outbox.InvalidError](err); invalid != refused || ran == refused {
			t.Errorf("step %q: %v, ran = %v; want refused = %v", name, err, ran, refused)
		}
	}
}

// A handler can be tested without a dispatcher and without a database.
func TestAJobMadeByHandRemembersNothing(t *testing.T) {
	t.Parallel()
	job := &outbox.Job[probe]{Claimed: &outbox.Claimed{}}
	for range 2 {
		got, err := dispatcher.Step(t.Context(), job.Claimed, "s", func(context.Context) (int, error) { return 5, nil })
		if got != 5 || err != nil {
			t.Errorf("step = %d, %v", got, err)
		}
	}
	_, found, err := outbox.LoadCheckpoint[int](t.Context(), job.Claimed)
	if err := errors.Join(job.Progress(t.Context(), 1, 2, ""), job.Log(t.Context(), 0, ""), outbox.SaveCheckpoint(t.Context(), job.Claimed, 1), err); err != nil || found {
		t.Errorf("%v, %v", found, err)
	}
}

// At most a thousand, so that a loop that makes up names cannot fill the database.
func TestAnAttemptHasNoMoreThanAThousandSteps(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueue(t, db, probe{}, outbox.Options{})
	got := make(chan error, 1)
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				if _, err := dispatcher.Step(ctx, job.Claimed, fmt.Sprint("s", i), func(context.Context) (int, error) { return i, nil }); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		_, err := dispatcher.Step(ctx, job.Claimed, "one-more", func(context.Context) (int, error) { return 0, nil })
		got <- err
		return nil
	}), quiet(nil))
	err := receive(t, got, "the handler")
	if _, invalid := errors.AsType[*outbox.InvalidError](err); !invalid {
		t.Errorf("step 1001: %v, want an InvalidError", err)
	}
	awaitSucceeded(t, db, 1)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.job_steps`); n != 1000 {
		t.Errorf("steps = %d, want 1000", n)
	}
}
