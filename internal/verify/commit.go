package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
)

// killsAtCommit runs row A3.
func killsAtCommit(ctx context.Context, r *Run) error {
	const producers = 2
	jobs := r.Size(5_000, 100_000)
	crew, err := r.Crew(2, "VERIFY_CONCURRENCY=16")
	if err != nil {
		return err
	}
	errs := make([]error, producers)
	var placing sync.WaitGroup
	for i := range producers {
		c := &committer{
			run: r, name: fmt.Sprintf("p%d", i), jobs: jobs / producers,
			cuts:  fault.Random(r.Seed, fmt.Sprintf("cut %d", i)),
			kills: fault.Random(r.Seed, fmt.Sprintf("kill %d", i)),
		}
		placing.Go(func() { errs[i] = c.place(ctx) })
	}
	placing.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
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
	r.atLeast(r.Size(8, 100), "kill -9 producer at COMMIT")
	for _, kind := range cutNames {
		r.atLeast(r.Size(5, 100), kind)
	}
	r.allAcked(jobs)
	return nil
}

var cutNames = map[fault.Cut]string{
	fault.Before: "connection cut before COMMIT", fault.Inside: "connection cut inside COMMIT",
	fault.After: "connection cut between COMMIT and its response",
}

// committer runs a producer behind a proxy that breaks some of its commits, and kills it at one of them now and then.
// The next process of the same name continues with the first order that was not acknowledged.
type committer struct {
	run  *Run
	name string
	jobs int

	mu          sync.Mutex // commits are concurrent
	cuts, kills *rand.Rand
	untilKill   int // commits
	process     *child.Process
}

// The proxy breaks one commit in cutOdds; it kills a process at one of the process's first killWithin commits.
const (
	cutOdds    = 25
	killWithin = 600
)

func (c *committer) place(ctx context.Context) error {
	proxy, dsn, err := fault.NewProxy(c.run.processURL())
	if err != nil {
		return err
	}
	defer proxy.Close()
	proxy.AtCommit(c.atCommit)
	for {
		first, done, err := c.next()
		if err != nil || done {
			return err
		}
		if err := c.launch(dsn, first); err != nil {
			return err
		}
		select {
		case <-c.process.Ended():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if code := c.process.ExitCode(); code > 0 {
			return fmt.Errorf("%s ended with status %d", c.name, code)
		}
	}
}

func (c *committer) launch(dsn string, first int) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untilKill = 1 + c.kills.IntN(killWithin)
	c.process, err = c.run.Producer(c.name, "OUTBOX_DATABASE_URL="+dsn, "VERIFY_INSIST=on", "VERIFY_CLIENTS=8",
		"VERIFY_MIX=effect,once", fmt.Sprint("VERIFY_JOBS=", c.jobs), fmt.Sprint("VERIFY_FIRST=", first))
	return err
}

// atCommit decides what happens to one commit. A process that it kills is dead before another byte of the COMMIT
// reaches the server.
func (c *committer) atCommit() fault.Cut {
	c.mu.Lock()
	defer c.mu.Unlock()
	where := fault.Cut(1 + c.cuts.IntN(len(cutNames)))
	if c.untilKill--; c.untilKill == 0 {
		c.run.Faults.Begin("kill -9 producer at COMMIT", c.name)()
		_ = c.process.Kill9() // place looks at its status
		return where
	}
	if c.cuts.IntN(cutOdds) > 0 {
		return fault.Nowhere
	}
	c.run.Faults.Begin(cutNames[where], c.name)()
	return where
}

// next returns the number of the first order that was not acknowledged; done says that there is none.
func (c *committer) next() (first int, done bool, err error) {
	entries, err := ledger.NewTail(c.run.ledgerOf(c.name)).Entries()
	if err != nil {
		return 0, false, err
	}
	acked := make([]bool, c.jobs)
	for _, e := range entries {
		if e.Event == ledger.Acked {
			acked[e.N] = true
		}
	}
	for first = range acked {
		if !acked[first] {
			return first, false, nil
		}
	}
	return 0, true, nil
}
