package verify

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
)

// leastStalled is the least number of responses that must be held back.
const leastStalled = 10

// slowDatabase runs row D4: a round trip to the database takes half a second, and one response in ten is held back for
// long.
func slowDatabase(ctx context.Context, r *Run) error {
	r.Lease = 15 * time.Second // the default: with such round trips, shorter leases cannot be extended in time
	before := time.Duration(r.Size(3, 20)) * time.Second
	slow := time.Duration(r.Size(10, 150)) * time.Second
	stall := time.Duration(r.Size(7, 30)) * time.Second
	proxy, dsn, err := fault.NewProxy(r.processURL())
	if err != nil {
		return err
	}
	defer proxy.Close()
	crew, err := r.Crew(2, "VERIFY_CONCURRENCY=32", "OUTBOX_DATABASE_URL="+dsn, tracing)
	if err != nil {
		return err
	}
	producer, err := r.Producer("p0", "VERIFY_CLIENTS=2", "VERIFY_PACE="+r.pace("15ms", "12ms"),
		"VERIFY_MIX=nothing,effect,once")
	if err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, 2*time.Second); err != nil { // until the processes are warm
		return err
	}
	baseline := span{from: time.Now()}
	if err := backoff.Sleep(ctx, before); err != nil {
		return err
	}
	baseline.until = time.Now()

	stalled, err := r.slowDown(ctx, proxy, slow, stall)
	if err != nil {
		return err
	}
	if err := r.expectFullSpeed(ctx, baseline, time.Now()); err != nil {
		return err
	}
	if err := r.endSteady(ctx, producer, crew); err != nil {
		return err
	}
	r.Expect("server responses stalled", float64(stalled), ">=", leastStalled)
	r.Expect("jobs stored", float64(r.record.Counts["jobs"]), ">=", float64(r.slowJobs()))
	return r.expectBoundedCalls()
}

// slowJobs returns the least number of jobs that must be stored.
func (r *Run) slowJobs() int { return r.Size(1, 20_000) }

// slowDown makes the database slow for a while, and returns how many responses it held back.
func (r *Run) slowDown(ctx context.Context, proxy *fault.Proxy, lasts, stall time.Duration) (stalled int64, err error) {
	defer r.Faults.Begin("500 ms per round trip, one response in ten stalled", "")()
	var n atomic.Int64
	var mu sync.Mutex // connections are concurrent
	dice := fault.Random(r.Seed, "stall")
	proxy.Latency.Store(int64(250 * time.Millisecond)) // there and back
	defer proxy.Latency.Store(0)
	heal := proxy.Stall(func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		if dice.IntN(10) > 0 {
			return 0
		}
		n.Add(1)
		return stall
	})
	defer heal()
	if err = backoff.Sleep(ctx, lasts); err == nil { // on a slow machine it waits longer, until there was enough load
		err = r.Await(ctx, time.Duration(r.Size(1, 20))*time.Minute,
			"responses to be held back, and orders to be placed", func(ctx context.Context) (bool, error) {
				var placed int
				err := r.DB.QueryRow(ctx, `SELECT count(*) FROM orders`).Scan(&placed)
				return n.Load() >= leastStalled && placed >= r.slowJobs(), err
			})
	}
	return n.Load(), err
}

// expectFullSpeed waits until as many jobs complete in a second as before the fault, on average.
func (r *Run) expectFullSpeed(ctx context.Context, baseline span, healed time.Time) error {
	n, err := r.Number(ctx, `SELECT count(*) FROM verify.moves WHERE became = 'succeeded' AND at BETWEEN $1 AND $2`,
		baseline.from, baseline.until)
	if err != nil {
		return err
	}
	full := float64(n) / baseline.until.Sub(baseline.from).Seconds()
	r.Figure("jobs_per_s_before", full)
	err = r.Await(ctx, time.Minute, "full speed", func(ctx context.Context) (bool, error) {
		var n int
		err := r.DB.QueryRow(
			ctx, `SELECT count(*) FROM verify.moves WHERE became = 'succeeded' AND at > clock_timestamp() - interval '1 s' AND at > $1`, healed).Scan(&n)
		return float64(n) >= full, err
	})
	took := time.Since(healed).Seconds()
	r.Figure("full_speed_after_s", took)
	r.Expect("seconds from the end of the fault to full speed", took, "<=", 5)
	return err
}

// expectBoundedCalls checks the ledgers of traced workers: each call had a deadline, and returned soon after it.
func (r *Run) expectBoundedCalls() error {
	var overdue, unbounded []string
	for e, err := range ledger.All(r.ledgers()) {
		if err != nil {
			return err
		}
		switch e.Event {
		case ledger.Overdue:
			overdue = append(overdue, fmt.Sprintf("%s by %s: %s", e.Do, e.Worker, time.Duration(e.N)*time.Microsecond))
		case ledger.Unbounded:
			unbounded = append(unbounded, fmt.Sprintf("%s by %s", e.Do, e.Worker))
		}
	}
	r.None("database calls that returned more than 1 s after their deadline", overdue)
	r.None("database calls without a deadline", unbounded)
	return nil
}
