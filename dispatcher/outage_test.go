package dispatcher_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// host is the dependency of a test's jobs.
type host struct {
	away  atomic.Bool
	calls atomic.Int64
}

func (h *host) call() error {
	h.calls.Add(1)
	if h.away.Load() {
		return dispatcher.Unavailable(errAway, 0)
	}
	return nil
}

func (h *host) handle(context.Context, *outbox.Job[probe]) error { return h.call() }

// awayFrom starts a dispatcher whose handler's host is unavailable, and waits until the dispatcher has found out.
func awayFrom(t *testing.T, db *pgxpool.Pool, h *host, mux *dispatcher.Mux, config dispatcher.Config) *running {
	t.Helper()
	h.away.Store(true)
	d := start(t, db, mux, config)
	awaitOutage(t, d)
	return d
}

func awaitOutage(t *testing.T, d *running) {
	t.Helper()
	awaitThat(t, "the outage is found out", func() bool { return strings.Contains(d.log.String(), "kind unavailable") })
}

func TestFailuresThatAreAlikeAreSummedUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 200, outbox.Options{})
	d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		if job.Args.N < 3 {
			return dispatcher.RetryAfter(time.Hour, errBoom)
		}
		return dispatcher.Discard(fmt.Errorf("no account %d", job.Args.N))
	}), dispatcher.Config{})
	await(t, db, "all have failed", `SELECT count(*) = 197 FROM outbox.jobs WHERE status = 'failed'`)
	await(t, db, "or are to be tried again", `SELECT count(*) = 3 FROM outbox.jobs WHERE status = 'retrying'`)
	d.stop(t)
	log := d.log.String()
	if n := strings.Count(log, "event=job_failed"); n != 13 {
		t.Errorf("%d lines for jobs that have failed, want 3 and 10", n)
	}
	if !strings.Contains(log, "event=jobs_failed jobs=187 kind=probe") {
		t.Errorf("no line sums up the others: %s", d.log.complaints())
	}
}

// An ordered key stays in order, though its first jobs are claimed, given back and tried again.
func TestOrderHoldsInAnOutage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const keys, each = 40, 10
	for n := range each {
		for k := range keys {
			enqueue(t, db, probe{n}, outbox.Options{Key: outbox.KeyRules{Name: fmt.Sprint("k", k), Ordered: true}})
		}
	}
	var h host
	var mu sync.Mutex
	ran := map[string][]int{}
	d := awayFrom(t, db, &h, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		err := h.call()
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			ran[job.Key] = append(ran[job.Key], job.Args.N)
		}
		return err
	}), dispatcher.Config{})
	for range 3 {
		h.away.Store(false)
		awaitThat(t, "some more run", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(ran) > 0
		})
		h.away.Store(true)
		time.Sleep(200 * time.Millisecond)
	}
	h.away.Store(false)
	awaitSucceeded(t, db, keys*each)
	d.stop(t)
	for key, order := range ran {
		if !slices.IsSorted(order) || len(order) != each {
			t.Errorf("the jobs of %s ran in the order %v", key, order)
		}
	}
}

// Jobs of a limited queue run one by one.
func TestAnOutageOfALimitedQueue(t *testing.T) {
	t.Parallel()
	const jobs = 200
	db := pgtest.New(t)
	limit(t, db, 10, 0, 0)
	enqueueProbes(t, db, jobs, outbox.Options{})
	var h host
	awayFrom(t, db, &h, handle(h.handle), dispatcher.Config{})
	time.Sleep(2 * time.Second)
	if calls := h.calls.Load(); calls > 50 {
		t.Errorf("%d jobs were tried", calls)
	}
	h.away.Store(false)
	awaitSucceeded(t, db, jobs)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE attempt > 1`); n > 0 {
		t.Errorf("%d jobs have spent an attempt", n)
	}
}
