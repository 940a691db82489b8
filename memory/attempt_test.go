package memory

import (
	"context"
	"errors"
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
	if r.Queue, err = New(&mux, Config{Workers: 1, Keep: 1000 * time.Hour, Registerer: r.reg}); err != nil {
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
		r := start(t, Config{Workers: 1, Keep: 10 * time.Hour})
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
		r := start(t, Config{Workers: 1})
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

// A stop does not wait for an outage to end.
func TestAStopDropsWhatMetAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Workers: 1, Keep: 10 * time.Hour})
		id := r.submit(do(func(context.Context) error { return dispatcher.Unavailable(errAway, time.Hour) }), Options{})
		r.want(id, outbox.Retrying, 0, "error")
		if err := r.end(); err != nil {
			t.Error(err)
		}
		r.want(id, outbox.Cancelled, 0, "shutdown")
	})
}
