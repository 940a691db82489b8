package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

const (
	claimingProducers = 6
	// claimingMark begins the names of their dispatchers. No other statement has it in its arguments.
	claimingMark = "claims-at-commit-"
	strikeWithin = 60 // the fault strikes one of the first 60 commits that claim
	afterACut    = 2500 * time.Millisecond
)

const killAtClaim = "kill -9 producer at a COMMIT that claims its job"

var claimCutNames = map[fault.Cut]string{
	fault.Before: "connection cut at the claim", fault.Inside: "connection cut after a COMMIT that claims its job",
	fault.After: "connection cut between a COMMIT that claims its job and its response",
}

// killsAtClaimingCommit runs row A3b.
func killsAtClaimingCommit(ctx context.Context, r *Run) error {
	rounds := r.Size(6, 120)
	r.Lease = 10 * time.Second // long enough to find and give back a job of a commit without a response
	crew, err := r.Crew(2, "VERIFY_CONCURRENCY=16")
	if err != nil {
		return err
	}
	errs := make([]error, claimingProducers)
	stopped := make([][]string, claimingProducers)
	var placing sync.WaitGroup
	for i := range claimingProducers {
		c := &claimingCommitter{
			run: r, name: fmt.Sprintf("p%d", i),
			random: fault.Random(r.Seed, fmt.Sprintf("strike %d", i)),
		}
		placing.Go(func() { stopped[i], errs[i] = c.rounds(ctx, rounds) })
	}
	placing.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	jobs, err := r.Number(ctx, `SELECT count(*) FROM orders`)
	if err != nil {
		return err
	}
	if err := r.Drain(ctx, jobs, 2*time.Minute); err != nil {
		return err
	}
	if err := r.stop(ctx, crew.workers...); err != nil {
		return err
	}
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	r.atLeast(rounds*claimingProducers/2, killAtClaim)
	for _, kind := range claimCutNames {
		r.atLeast(rounds*claimingProducers/6, kind)
	}
	var names []string
	for _, of := range stopped {
		names = append(names, of...)
	}
	return r.checkClaimsAtCommit(ctx, rounds*claimingProducers*5, names)
}

// checkClaimsAtCommit checks that enough jobs were claimed in the transaction that stored them, and that no lease
// lapsed whose process was not killed: such a process must give back a lease that it does not know of.
func (r *Run) checkClaimsAtCommit(ctx context.Context, atLeast int, stopped []string) error {
	claimed, err := r.Number(ctx, `SELECT count(*) FROM verify.moves WHERE was IS NULL AND became = 'running'`)
	if err != nil {
		return err
	}
	r.Expect("jobs claimed in the transaction that stored them", float64(claimed), ">=", float64(atLeast))
	lapsed, err := r.Texts(ctx, `SELECT job || ' of ' || owner FROM (
			SELECT job, lost_leases > lag(lost_leases) OVER moves AS lapsed, lag(owner) OVER moves AS owner
			FROM verify.moves WINDOW moves AS (PARTITION BY job ORDER BY seq)) AS moved
		WHERE lapsed AND regexp_replace(owner, '-[0-9a-f]{8}$', '') = ANY($1)`, stopped)
	if err != nil {
		return err
	}
	r.None("expired leases of processes that were not killed", lapsed)
	return nil
}

// claimingCommitter runs one process after the other behind a proxy. Each places orders, and carries them out, until a
// fault strikes one of its commits that claim: the process is killed, or its connection is cut and the process is
// stopped a while later. Its dispatcher does not connect through the proxy.
type claimingCommitter struct {
	run    *Run
	name   string
	random *rand.Rand
}

// rounds runs n processes one after the other, and returns the dispatchers of those that were not killed.
func (c *claimingCommitter) rounds(ctx context.Context, n int) (stopped []string, err error) {
	proxy, dsn, err := fault.NewProxy(c.run.processURL())
	if err != nil {
		return nil, err
	}
	defer proxy.Close()
	for i := range n {
		name := fmt.Sprintf("%s.%d", c.name, i)
		cut := fault.Cut(1 + i/2%len(claimCutNames))
		if i%2 == 0 {
			err = c.kill(ctx, proxy, dsn, name)
		} else if err = c.cut(ctx, proxy, dsn, name, cut); err == nil {
			stopped = append(stopped, claimingMark+name)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return stopped, nil
}

// kill kills the process at a commit; chance decides where its connection breaks.
func (c *claimingCommitter) kill(ctx context.Context, proxy *fault.Proxy, dsn, name string) error {
	cut := fault.Cut(1 + c.random.IntN(len(claimCutNames)))
	process, err := c.struck(ctx, proxy, dsn, name, killAtClaim, func(p *child.Process) fault.Cut {
		_ = p.Kill9() // ended waits for its end
		return cut
	})
	if err != nil {
		return err
	}
	return c.ended(ctx, process)
}

func (c *claimingCommitter) cut(ctx context.Context, proxy *fault.Proxy, dsn, name string, cut fault.Cut) error {
	process, err := c.struck(ctx, proxy, dsn, name, claimCutNames[cut], func(*child.Process) fault.Cut { return cut })
	if err != nil {
		return err
	}
	select {
	case <-time.After(afterACut):
	case <-process.Ended():
		return fmt.Errorf("it ended by itself, with status %d", process.ExitCode())
	}
	if err := process.Terminate(); err != nil {
		return err
	}
	if err := c.ended(ctx, process); err != nil {
		return err
	}
	if code := process.ExitCode(); code != 0 {
		return fmt.Errorf("it ended with status %d", code)
	}
	return nil
}

// struck starts a process, and returns when a fault has struck one of its commits.
func (c *claimingCommitter) struck(ctx context.Context, proxy *fault.Proxy, dsn, name, kind string,
	strike func(*child.Process) fault.Cut,
) (*child.Process, error) {
	var mu sync.Mutex // commits are concurrent
	var process *child.Process
	left, struck := 1+c.random.IntN(strikeWithin), make(chan struct{})
	proxy.AtBatch(claimingMark+name, func() fault.Cut {
		mu.Lock()
		defer mu.Unlock()
		if left--; left != 0 {
			return fault.Nowhere
		}
		close(struck) // before the strike: a killed process ends at once
		c.run.Faults.Begin(kind, name)()
		return strike(process)
	})
	mu.Lock()
	p, err := c.run.Producer(name, "OUTBOX_DATABASE_URL="+dsn, "VERIFY_DISPATCH="+c.run.URL, "OUTBOX_WORKER="+
		claimingMark+name,
		"OUTBOX_LEASE_TTL="+c.run.Lease.String(), "VERIFY_CONCURRENCY=4", "VERIFY_CLIENTS=2", "VERIFY_MIX=effect,once",
		"VERIFY_PACE=5ms")
	process = p
	mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-struck:
		return p, nil
	case <-p.Ended():
		select {
		case <-struck: // it ended because of the strike
			return p, nil
		default:
		}
		return nil, fmt.Errorf("it ended by itself, with status %d", p.ExitCode())
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(patience):
		return nil, fmt.Errorf("%d more commits were to claim within %s", left, patience)
	}
}

func (c *claimingCommitter) ended(ctx context.Context, p *child.Process) error {
	select {
	case <-p.Ended():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(stopPatience):
		return fmt.Errorf("it still runs after %s", stopPatience)
	}
}
