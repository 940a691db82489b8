package memory

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

// startKind starts a rig whose jobs are of a kind with a config.
func startKind(t *testing.T, kind dispatcher.KindConfig) *rig {
	t.Helper()
	var mux Mux
	Handle(&mux, func(ctx context.Context, job *outbox.Job[stream]) error { return job.Args.Do(ctx) }, kind)
	r := &rig{t: t, done: make(chan struct{}), reg: prometheus.NewRegistry()}
	var err error
	if r.Queue, err = New(&mux, Config{Concurrency: 1, Keep: 1000 * time.Hour, Registerer: r.reg}); err != nil {
		t.Fatal(err)
	}
	r.run()
	return r
}

var errAway = errors.New("connection refused")

// A job of one attempt is tried for as long as the outage lasts, after the time that
// the handler asks for, and then has its attempt still.
func TestAnOutageSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Concurrency: 1, Keep: 10 * time.Hour})
		var calls []time.Time
		id := r.submit(do(func(context.Context) error {
			if calls = append(calls, time.Now()); len(calls) < 10 {
				return dispatcher.Unavailable(errAway, time.Minute)
			}
			return nil
		}), Options{})
		r.want(id, outbox.Retrying, 0, "error")
		time.Sleep(time.Hour) // virtual
		r.want(id, outbox.Succeeded, 1, "")
		for i := range calls[1:] {
			if wait := calls[i+1].Sub(calls[i]); wait != time.Minute {
				t.Errorf("try %d came after %s, want a minute", i+2, wait)
			}
		}
		if len(calls) != 10 {
			t.Errorf("tried %d times, want 10", len(calls))
		}
	})
}

// From the first outage in a row on the kind has so much patience; then each is a
// failure like any other. What is no outage ends the row.
func TestAnOutageHasALimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit   time.Duration
		other   int // the try that finds something else: an error that spends an attempt
		status  outbox.Status
		calls   int
		attempt int
	}{
		"reached":                 {limit: 10 * time.Minute, status: outbox.Dead, calls: 12, attempt: 2},
		"24 hours by itself":      {limit: 0, status: outbox.Retrying, calls: 10*60 + 1, attempt: 0},
		"none":                    {limit: -1, status: outbox.Dead, calls: 2, attempt: 2},
		"another outcome between": {limit: 10 * time.Minute, other: 8, status: outbox.Dead, calls: 8 + 11, attempt: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := startKind(t, dispatcher.KindConfig{OutageLimit: c.limit, Backoff: dispatcher.Waits(time.Minute)})
				calls := 0
				id := r.submit(do(func(context.Context) error {
					if calls++; calls == c.other {
						return errAway
					}
					return dispatcher.Unavailable(errAway, time.Minute)
				}), Options{MaxAttempts: 2})
				time.Sleep(10*time.Hour + time.Second) // virtual
				synctest.Wait()
				r.want(id, c.status, c.attempt, "error")
				if calls != c.calls {
					t.Errorf("tried %d times, want %d", calls, c.calls)
				}
			})
		})
	}
}

// A wait that the handler leaves open is as long as the outage has lasted.
func TestAnUnaskedWaitGrowsWithTheOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Concurrency: 1})
		var calls []time.Time
		r.submit(do(func(context.Context) error {
			calls = append(calls, time.Now())
			return dispatcher.Unavailable(errAway, 0)
		}), Options{})
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		for i := range calls[1:] {
			lasted := min(max(calls[i].Sub(calls[0]), time.Second), 5*time.Minute)
			if wait := calls[i+1].Sub(calls[i]); wait < lasted*3/4 || wait > lasted*5/4 {
				t.Errorf("after %s of outage it waited %s, want that give or take a quarter", calls[i].Sub(calls[0]), wait)
			}
		}
		if len(calls) < 15 || len(calls) > 40 {
			t.Errorf("tried %d times in an hour", len(calls))
		}
	})
}

// Code that ends its goroutine decides neither how long the job waits nor why its context has ended.
func TestAnExitIsAnOutcomeLikeAnyOther(t *testing.T) {
	t.Parallel()
	once := func(calls int) error { // ends its goroutine the first time
		if calls == 1 {
			runtime.Goexit()
		}
		return nil
	}
	for name, c := range map[string]struct {
		do     func(ctx context.Context, calls int) error
		opts   Options
		policy dispatcher.BackoffPolicy
		after  time.Duration // when the job has ended
		status outbox.Status
		code   string
	}{
		"a handler, with a backoff of the job": {
			do:    func(_ context.Context, calls int) error { return once(calls) },
			opts:  Options{MaxAttempts: 2, Backoff: outbox.Backoff{time.Second}},
			after: 2 * time.Second, status: outbox.Succeeded,
		},
		"a handler, with a backoff of the kind": {
			do:   func(_ context.Context, calls int) error { return once(calls) },
			opts: Options{MaxAttempts: 2}, policy: dispatcher.Waits(2 * time.Second),
			after: 3 * time.Second, status: outbox.Succeeded,
		},
		"a handler whose time is over": {
			do:    func(ctx context.Context, _ int) error { <-ctx.Done(); runtime.Goexit(); return nil },
			opts:  Options{Timeout: time.Second},
			after: 2 * time.Second, status: outbox.Dead, code: "job_timeout",
		},
		"the policy": {
			do:     func(context.Context, int) error { return errAway },
			opts:   Options{MaxAttempts: 2},
			policy: func(*outbox.Claimed, error) time.Duration { runtime.Goexit(); return 0 },
			after:  2 * time.Minute, status: outbox.Dead, code: "goexit",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := start(t, Config{Concurrency: 1, Backoff: c.policy})
				calls := 0
				id := r.submit(do(func(ctx context.Context) error { calls++; return c.do(ctx, calls) }), c.opts)
				time.Sleep(c.after)
				r.want(id, c.status, max(c.opts.MaxAttempts, 1), c.code)
				r.want(r.submit(do(nothing), Options{}), outbox.Succeeded, 1, "") // the worker is there
			})
		})
	}
}

// A stop does not wait for an outage to end.
func TestAStopDropsWhatMetAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Concurrency: 1, Keep: 10 * time.Hour})
		id := r.submit(do(func(context.Context) error { return dispatcher.Unavailable(errAway, time.Hour) }), Options{})
		r.want(id, outbox.Retrying, 0, "error")
		if err := r.end(); err != nil {
			t.Error(err)
		}
		r.want(id, outbox.Cancelled, 0, "shutdown")
	})
}
