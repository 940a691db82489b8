package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// forever is a gathering time that no test waits out: batches are full, or a stop ends the gathering.
const forever = time.Minute

type manyHandler = func(context.Context, []*outbox.Job[probe]) []error

// handleMany makes a mux with one handler, for batches of probes.
func handleMany(h manyHandler, batch dispatcher.BatchConfig, config ...dispatcher.KindConfig) *dispatcher.Mux {
	mux := new(dispatcher.Mux)
	dispatcher.HandleMany(mux, h, batch, config...)
	return mux
}

// each gives every job of a batch the same outcome.
func each(jobs []*outbox.Job[probe], err error) []error {
	return slices.Repeat([]error{err}, len(jobs))
}

func TestJobsAreHandledTogether(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 3, 64} {
		t.Run(fmt.Sprint(concurrency, " at once"), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			enqueueProbes(t, db, 250, outbox.Options{})
			sizes := make(chan int, 100)
			mux := handleMany(func(_ context.Context, jobs []*outbox.Job[probe]) []error {
				sizes <- len(jobs)
				return each(jobs, nil)
			}, dispatcher.BatchConfig{Max: 50, Wait: forever})
			config := quiet(nil)
			config.Queues = map[string]dispatcher.QueueConfig{"default": {Concurrency: concurrency}}
			r := start(t, db, mux, config)
			awaitSucceeded(t, db, 250)
			for range 5 {
				if n := <-sizes; n != 50 {
					t.Errorf("a batch of %d jobs, want 50: there are enough to fill each", n)
				}
			}
			awaitThat(t, "all of them to be counted", func() bool { return r.metric(t, "job_completed_total") == 250 })
		})
	}
}

func TestABatchDoesNotWaitForMoreThanItsTime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 3, outbox.Options{})
	start(t, db, handleMany(func(_ context.Context, jobs []*outbox.Job[probe]) []error { return each(jobs, nil) },
		dispatcher.BatchConfig{Wait: 10 * time.Millisecond}), quiet(nil))
	awaitSucceeded(t, db, 3)
}

// One slot, and kinds of both sorts in one queue: neither keeps the other out.
func TestBatchesAndOtherJobsShareAQueue(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for i := range 20 {
		enqueue(t, db, probe{i}, outbox.Options{})
		enqueue(t, db, outbox.Raw{KindName: "plain", Payload: []byte("0")}, outbox.Options{})
	}
	mux := handleMany(func(_ context.Context, jobs []*outbox.Job[probe]) []error { return each(jobs, nil) },
		dispatcher.BatchConfig{Wait: 5 * time.Millisecond})
	var wrapped int
	mux.Use(func(next dispatcher.Handler) dispatcher.Handler {
		return func(ctx context.Context, job *outbox.Claimed) error {
			wrapped++ // one slot: one at a time
			return next(ctx, job)
		}
	})
	mux.HandleRaw("plain", func(ctx context.Context, job *outbox.Claimed) error {
		if dispatcher.JobContext(ctx, job) != ctx {
			return errors.New("a job by itself has a context besides its handler's")
		}
		return nil
	})
	config := quiet(nil)
	config.Queues = map[string]dispatcher.QueueConfig{"default": {Concurrency: 1}}
	r := start(t, db, mux, config)
	awaitSucceeded(t, db, 40)
	r.stop(t)
	if wrapped != 20 {
		t.Errorf("middleware saw %d jobs, want the 20 of the other kind", wrapped)
	}
}

func TestEachJobOfABatchHasItsOwnOutcome(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	outcomes := []error{nil, errors.New("later"), dispatcher.Discard(errors.New("never")), dispatcher.Snooze(time.Hour), dispatcher.RetryAfter(time.Hour, errors.New("in an hour"))}
	var ids []outbox.ID
	for i := range outcomes {
		ids = append(ids, enqueue(t, db, probe{i}, outbox.Options{}))
	}
	bad := enqueue(t, db, outbox.Raw{KindName: "probe", Payload: []byte(`"no probe"`)}, outbox.Options{})
	start(t, db, handleMany(func(_ context.Context, jobs []*outbox.Job[probe]) (answers []error) {
		for _, job := range jobs {
			answers = append(answers, outcomes[job.Args.N])
		}
		return answers
	}, dispatcher.BatchConfig{Max: 6, Wait: forever}), quiet(nil))
	await(t, db, "the batch is settled", `SELECT count(*) = 0 FROM outbox.jobs WHERE status = 'running' OR epoch = 0`)
	for i, want := range []string{
		"succeeded attempt=1 epoch=1 lost=0 error=", "retrying attempt=1 epoch=2 lost=0 error=error", "failed attempt=1 epoch=2 lost=0 error=error",
		"pending attempt=0 epoch=2 lost=0 error=", "retrying attempt=1 epoch=2 lost=0 error=error",
	} {
		wantState(t, db, ids[i], want)
	}
	wantState(t, db, bad, "failed attempt=1 epoch=2 lost=0 error=undecodable_payload")
}

func TestABatchThatGoesWrongFailsEveryJob(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		handle     manyHandler
		code, text string
	}{
		"too few outcomes":  {func(_ context.Context, jobs []*outbox.Job[probe]) []error { return nil }, "outcome_count", "0 outcomes for 4 jobs"},
		"too many outcomes": {func(_ context.Context, jobs []*outbox.Job[probe]) []error { return make([]error, 5) }, "outcome_count", "5 outcomes for 4 jobs"},
		"panic":             {func(context.Context, []*outbox.Job[probe]) []error { panic("a bug") }, "panic", "panic: a bug"},
		"panic(nil)":        {func(context.Context, []*outbox.Job[probe]) []error { panic(nil) }, "panic", "panic: <nil>"},
		"goexit":            {func(context.Context, []*outbox.Job[probe]) []error { runtime.Goexit(); return nil }, "goexit", "ended its goroutine"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			enqueueProbes(t, db, 8, outbox.Options{})
			config := quiet(nil)
			config.Queues = map[string]dispatcher.QueueConfig{"default": {Concurrency: 1}}
			start(t, db, handleMany(tt.handle, dispatcher.BatchConfig{Max: 4, Wait: forever}), config)
			await(t, db, "both batches fail", `SELECT count(*) = 8 FROM outbox.jobs WHERE status = 'retrying' AND last_error_code = $1 AND strpos(last_error_message, $2) > 0`, tt.code, tt.text)
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts WHERE strpos(stack, 'many_test.go') > 0`); name == "panic" && n != 8 {
				t.Errorf("%d attempts have the stack of the panic, want 8", n)
			}
		})
	}
}

// One lease is lost, then the other: the first loss ends only the context of its job, the second that of the batch, and
// the fence refuses the outcomes of both.
func TestALostLeaseConcernsItsJobOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ids := enqueueProbes(t, db, 3, outbox.Options{MaxAttempts: 1})
	take := func(job *outbox.Claimed) { // what an operator or a reaper does
		exec(t, db, `UPDATE outbox.jobs SET status = 'retrying', run_at = now() + interval '1 day', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL WHERE id = $1`, job.ID)
	}
	done := make(chan struct{})
	config := quiet(nil)
	config.LeaseTTL = 4 * time.Second
	start(t, db, handleMany(func(ctx context.Context, jobs []*outbox.Job[probe]) []error {
		defer close(done)
		slices.SortFunc(jobs, func(a, b *outbox.Job[probe]) int { return a.Args.N - b.Args.N })
		var own []context.Context
		for _, job := range jobs {
			own = append(own, dispatcher.JobContext(ctx, job.Claimed))
		}
		take(jobs[0].Claimed)
		receive(t, own[0].Done(), "the job's context ends")
		if ctx.Err() != nil || own[1].Err() != nil || own[2].Err() != nil || !errors.Is(context.Cause(own[0]), outbox.ErrLeaseLost) {
			t.Errorf("after one lease was lost: batch %v, jobs %v, want only the first ended, by %v", ctx.Err(), own, outbox.ErrLeaseLost)
		}
		late := dispatcher.JobContext(ctx, jobs[0].Claimed)
		if !errors.Is(context.Cause(late), outbox.ErrLeaseLost) {
			t.Errorf("a context asked for after the loss has ended by %v", context.Cause(late))
		}
		take(jobs[1].Claimed)
		receive(t, own[1].Done(), "the other job's context ends")
		if ctx.Err() != nil {
			t.Error("the batch's context ended while one job was left")
		}
		return each(jobs, nil)
	}, dispatcher.BatchConfig{Max: 3, Wait: forever}), config)
	receive(t, done, "the handler ends")
	await(t, db, "the third job succeeds", `SELECT EXISTS (SELECT FROM outbox.history WHERE id = $1)`, ids[2])
	for _, id := range ids[:2] {
		wantState(t, db, id, "retrying attempt=1 epoch=2 lost=0 error=")
	}
}

func TestABatchEndsWhenNoJobIsLeft(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 2, outbox.Options{})
	cause := make(chan error, 1)
	config := quiet(nil)
	config.LeaseTTL = 4 * time.Second
	start(t, db, handleMany(func(ctx context.Context, jobs []*outbox.Job[probe]) []error {
		exec(t, db, `UPDATE outbox.jobs SET status = 'retrying', run_at = now() + interval '1 day', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL`)
		receive(t, ctx.Done(), "the batch's context ends")
		cause <- context.Cause(ctx)
		return each(jobs, ctx.Err())
	}, dispatcher.BatchConfig{Max: 2, Wait: forever}), config)
	if err := receive(t, cause, "the cause"); !errors.Is(err, outbox.ErrLeaseLost) {
		t.Errorf("the context ended by %v, want %v", err, outbox.ErrLeaseLost)
	}
}

func TestABatchHasTheTimeoutOfItsKind(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 2, outbox.Options{Timeout: time.Hour})
	start(t, db, handleMany(func(ctx context.Context, jobs []*outbox.Job[probe]) []error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the context has no deadline")
		}
		<-ctx.Done()
		return []error{ctx.Err(), nil} // one was done in time
	}, dispatcher.BatchConfig{Max: 2, Wait: forever}, dispatcher.KindConfig{Timeout: 20 * time.Millisecond}), quiet(nil))
	await(t, db, "one fails, one succeeds", `
		SELECT (SELECT count(*) FROM outbox.jobs WHERE status = 'retrying' AND last_error_code = 'job_timeout') = 1
		   AND (SELECT count(*) FROM outbox.history WHERE status = 'succeeded') = 1`)
}

func TestStopGivesBackWhatIsGathered(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ids := enqueueProbes(t, db, 3, outbox.Options{})
	r := start(t, db, handleMany(func(_ context.Context, jobs []*outbox.Job[probe]) []error {
		t.Error("the handler was called")
		return each(jobs, nil)
	}, dispatcher.BatchConfig{Max: 4, Wait: forever}), quiet(nil))
	await(t, db, "the jobs are claimed", `SELECT count(*) = 3 FROM outbox.jobs WHERE status = 'running'`)
	stopped := time.Now()
	r.stop(t)
	if took := time.Since(stopped); took > forever/2 {
		t.Errorf("the stop took %s: it waited for more jobs", took)
	}
	for _, id := range ids {
		wantState(t, db, id, "pending attempt=0 epoch=2 lost=0 error=")
	}
}

func TestStopCutsABatch(t *testing.T) {
	t.Parallel()
	for name, exits := range map[string]bool{"that returns": false, "that ends its goroutine": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			ids := enqueueProbes(t, db, 2, outbox.Options{})
			started := make(chan struct{})
			config := quiet(nil)
			config.GracePeriod = -1
			r := start(t, db, handleMany(func(ctx context.Context, jobs []*outbox.Job[probe]) []error {
				close(started)
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), dispatcher.ErrShutdown) {
					t.Errorf("the context ended by %v, want %v", context.Cause(ctx), dispatcher.ErrShutdown)
				}
				if exits {
					runtime.Goexit()
				}
				return each(jobs, ctx.Err())
			}, dispatcher.BatchConfig{Max: 2, Wait: forever}), config)
			receive(t, started, "the handler starts")
			r.stop(t)
			for _, id := range ids {
				wantState(t, db, id, "pending attempt=0 epoch=2 lost=0 error=")
			}
		})
	}
}

func TestABatchConfigOutOfBoundsPanics(t *testing.T) {
	t.Parallel()
	none := func(context.Context, []*outbox.Job[probe]) []error { return nil }
	for says, c := range map[string]struct {
		register func(*dispatcher.Mux)
		fields   []string
	}{
		"BatchConfig.Max is 1001, want 1 to 1000, or 0 for 100": {func(m *dispatcher.Mux) {
			dispatcher.HandleMany(m, none, dispatcher.BatchConfig{Max: 1001})
		}, []string{"BatchConfig.Max"}},
		"BatchConfig.Max is -1": {func(m *dispatcher.Mux) { dispatcher.HandleMany(m, none, dispatcher.BatchConfig{Max: -1}) }, []string{"BatchConfig.Max"}},
		"BatchConfig.Wait is 1h0m0s, want up to 1m0s, or 0 for 50ms": {func(m *dispatcher.Mux) {
			dispatcher.HandleMany(m, none, dispatcher.BatchConfig{Wait: time.Hour})
		}, []string{"BatchConfig.Wait"}},
		"BatchConfig.Wait is -1ns": {func(m *dispatcher.Mux) { dispatcher.HandleMany(m, none, dispatcher.BatchConfig{Max: 1001, Wait: -1}) }, []string{"BatchConfig.Max", "BatchConfig.Wait"}},
		`"probe", which has a handler`: {func(m *dispatcher.Mux) {
			dispatcher.HandleMany(m, none, dispatcher.BatchConfig{})
			dispatcher.HandleMany(m, none, dispatcher.BatchConfig{})
		}, []string{"kind"}},
		`kind is "probe", which has a handler already`: {func(m *dispatcher.Mux) {
			dispatcher.Handle(m, func(context.Context, *outbox.Job[probe]) error { return nil })
			dispatcher.HandleMany(m, none, dispatcher.BatchConfig{})
		}, []string{"kind"}},
	} {
		wantPanic(t, c.register, says, c.fields...)
	}
}

// A claim that turns out larger than expected gives the last jobs back without their payloads. A handler of a batch
// inside a test does not see these: they come with a later call, and have spent no attempt.
func TestABatchInlineHasEveryPayload(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		for _, key := range []string{"", "k"} {
			t.Run(fmt.Sprintf("root %t, key %q", tenant == outbox.RootTenant, key), func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t)
				const jobs = 7
				for n := range jobs {
					opts := outbox.Options{Tenant: tenant}
					if key != "" {
						opts.Key.Name = fmt.Sprint(key, n)
					}
					enqueue(t, db, outbox.Raw{KindName: "blob", Payload: []byte(`"` + strings.Repeat("a", 100) + `"`)}, opts)
				}
				mux, seen := new(dispatcher.Mux), 0
				mux.HandleManyRaw("blob", func(_ context.Context, claimed []*outbox.Claimed) []error {
					for _, job := range claimed {
						if seen++; len(job.Payload) != 102 {
							t.Errorf("a job comes with %d bytes of its 102", len(job.Payload))
						}
					}
					return make([]error, len(claimed))
				}, dispatcher.BatchConfig{Max: jobs})
				var config dispatcher.Config
				config.SetClaimBytes(150) // twice as many are kept
				inline, err := dispatcher.NewInline(t.Context(), db, db, mux, config)
				if err != nil {
					t.Fatal(err)
				}
				ended := 0
				for calls := 0; ended < jobs; calls++ {
					ends, err := inline.Work(t.Context(), dispatcher.InlineFlow{Queue: engine.DefaultQueue, Kind: "blob", Tenant: tenant, Keyed: key != ""})
					if err != nil || len(ends) == 0 || calls == jobs {
						t.Fatalf("call %d ends %d jobs, %v", calls, len(ends), err)
					}
					ended += len(ends)
				}
				if first := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE status = 'succeeded' AND attempt = 1`); first != jobs || seen != jobs {
					t.Errorf("%d jobs have succeeded with their first attempt, and the handler saw %d; want %d", first, seen, jobs)
				}
			})
		}
	}
}
