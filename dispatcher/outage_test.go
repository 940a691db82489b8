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
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// host is what the jobs of a test need.
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

// awayFrom starts a dispatcher whose handler's host is away, and waits until it has found out.
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

// Of every tenant and key: the first few find out for the others, none of which spends an attempt, and all run when
// it is over.
func TestAnOutageIsFoundOutByAFew(t *testing.T) {
	t.Parallel()
	const jobs = 1000
	for name, opts := range map[string]outbox.Options{
		"root's":             {},
		"root's, with keys":  {Key: outbox.KeyRules{Name: "k"}},
		"a tenant's":         of(1),
		"a tenant's, keys":   {Tenant: tenantN(1), Key: outbox.KeyRules{Name: "k"}},
		"at high priorities": {Priority: 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			requests := make([]outbox.Request, jobs)
			for i := range requests {
				requests[i] = outbox.Request{Args: probe{i}, Options: opts}
				if opts.Key.Name != "" {
					requests[i].Options.Key.Name = fmt.Sprint(i % 200)
				}
			}
			if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
				t.Fatal(err)
			}
			var h host
			d := awayFrom(t, db, &h, handle(h.handle), dispatcher.Config{})
			time.Sleep(3 * time.Second) // of outage
			if claims := d.metric(t, "job_claimed_total"); claims > 200 {
				t.Errorf("%v claims of jobs that cannot run", claims)
			}
			if calls := h.calls.Load(); calls > 100 || calls < 7 {
				t.Errorf("%d jobs were tried, want the first ones and the probes", calls)
			}
			if o := d.Outages(); len(o) != 1 || o[0].Queue != engine.DefaultQueue || o[0].Kind != "probe" || time.Since(o[0].Since) < 2*time.Second {
				t.Errorf("outages = %v, want that of the probes", o)
			}
			if n := d.metric(t, "outbox_dispatcher_kind_unavailable"); n != 1 {
				t.Errorf("%v kinds are unavailable, want 1", n)
			}
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE attempt > 0 AND status <> 'running'`); n > 0 {
				t.Errorf("%d jobs have spent an attempt", n)
			}
			h.away.Store(false)
			awaitSucceeded(t, db, jobs)
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE attempt > 1`); n > 0 {
				t.Errorf("%d jobs have spent an attempt", n)
			}
			if n := d.metric(t, "outbox_dispatcher_kind_unavailable"); n != 0 || len(d.Outages()) != 0 {
				t.Errorf("%v kinds are unavailable, want none: %v", n, d.Outages())
			}
		})
	}
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

// other is of a kind that needs nothing.
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

// A dead target of some jobs stops no others.
func TestATargetIsAwayForItsOwnJobs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var tries atomic.Int64
	d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		if job.Args.N == 0 {
			tries.Add(1)
			return dispatcher.TargetUnavailable(errAway, 0)
		}
		return nil
	}), dispatcher.Config{})
	enqueueProbes(t, db, 1, outbox.Options{}) // N is 0
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload) SELECT gen_random_uuid(), 'probe', '{"n": 0}' FROM generate_series(1, 200)`)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload) SELECT gen_random_uuid(), 'probe', '{"n": 1}' FROM generate_series(1, 200)`)
	d.Wake()
	await(t, db, "all of the other targets run", `SELECT count(*) = 200 FROM outbox.history`)
	if strings.Contains(d.log.String(), "kind unavailable") || tries.Load() < 200 {
		t.Errorf("after %d jobs of one dead target the kind is unavailable", tries.Load())
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE attempt > 0 AND status = 'retrying'`); n > 0 {
		t.Errorf("%d jobs of the dead target have spent an attempt", n)
	}
}

// Jobs that are handled together, and those that run one by one in a limited queue.
func TestAnOutageOfBatchesAndOfALimitedQueue(t *testing.T) {
	t.Parallel()
	const jobs = 600
	t.Run("batches", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		enqueueProbes(t, db, jobs, outbox.Options{})
		var h host
		awayFrom(t, db, &h, handleMany(func(_ context.Context, jobs []*outbox.Job[probe]) []error {
			return each(jobs, h.call())
		}, dispatcher.BatchConfig{Max: 20}), dispatcher.Config{})
		time.Sleep(2 * time.Second)
		if calls := h.calls.Load(); calls > 30 {
			t.Errorf("%d batches were tried", calls)
		}
		h.away.Store(false)
		awaitSucceeded(t, db, jobs)
	})
	t.Run("a limited queue", func(t *testing.T) {
		t.Parallel()
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
	})
}

// What was claimed ahead when the host went away is not tried, but given back.
func TestWhatIsClaimedAheadGoesBackInAnOutage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const jobs = 5000
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload) SELECT gen_random_uuid(), 'probe', '{}' FROM generate_series(1, $1)`, jobs)
	var h host
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error {
		time.Sleep(100 * time.Microsecond) // so that hundreds are claimed ahead
		err := h.call()
		if h.calls.Load() == 1000 {
			h.away.Store(true)
		}
		return err
	}), dispatcher.Config{Queues: map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 4}}})
	awaitOutage(t, d)
	await(t, db, "what had not started has gone back", `SELECT count(*) = 0 FROM outbox.jobs WHERE status = 'running'`)
	if tried := h.calls.Load() - 1000; tried > 50 {
		t.Errorf("%d jobs were tried after the host had gone", tried)
	}
	h.away.Store(false)
	awaitSucceeded(t, db, jobs)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE attempt > 1`); n > 0 {
		t.Errorf("%d jobs have spent an attempt", n)
	}
}

// A stop in the middle of an outage gives back what has not started, as any stop does.
func TestAStopInAnOutage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 500, outbox.Options{MaxAttempts: 1})
	var h host
	d := awayFrom(t, db, &h, handle(h.handle), dispatcher.Config{})
	d.stop(t)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE attempt = 0 AND status IN ('pending', 'retrying')`); n != 500 {
		t.Errorf("%d of 500 jobs wait with all of their attempts", n)
	}
}

// What a producer in the same program commits is not claimed for it by its commit, and a job that runs out of time
// waits for nobody.
func TestJobsThatComeInAnOutage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 100, outbox.Options{})
	var h host
	d := awayFrom(t, db, &h, handle(h.handle), dispatcher.Config{})
	awaitThat(t, "nothing is in hand", func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'running'`) == 0 })
	if r := d.Reserve("probe", engine.DefaultQueue, outbox.NewID()); r != nil {
		r.Failed(false)
		t.Error("a commit would claim a job of a kind that is unavailable")
	}
	h.away.Store(false)
	awaitSucceeded(t, db, 100)
}
