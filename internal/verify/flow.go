package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// flow is the workload of most rows: producers place orders, each with a job in the same transaction, while a crew of
// workers runs the jobs.
type flow struct {
	jobs        int    // of all producers together
	names       string // prefix of the producers' names, "" for p; two flows of one run need different ones
	producers   int
	workers     int
	concurrency int           // of a worker
	patience    time.Duration // for production, and again for the drain; 0 chooses one long enough for slow machines
	producerEnv []string
	workerEnv   []string

	// faults injects the row's faults; it is called when the first jobs are done. Production goes on until it returns
	// or, if least is set, until there were as many faults of each kind as least says: a fast machine must not finish
	// before enough faults were injected. Then its context ends.
	faults func(context.Context, *crew) error
	least  map[string]int
	// healed, unless nil, is called before the drain.
	healed func(context.Context) error
}

// run produces under faults, heals, drains, stops, and checks. It returns the number of executions that neither
// completed a job nor returned an error, and sets f.jobs to the number of jobs placed.
func (f *flow) run(ctx context.Context, r *Run) (wasted int, err error) {
	if f.patience == 0 {
		f.patience = 2*time.Minute + time.Duration(f.jobs*r.Size(2, 10))*time.Millisecond
	}
	crew, err := r.Crew(f.workers, append([]string{fmt.Sprint("VERIFY_CONCURRENCY=", f.concurrency)},
		f.workerEnv...)...)
	if err != nil {
		return 0, err
	}
	p := &production{flow: f, run: r, crew: crew}
	if err := p.start(f.jobs); err != nil {
		return 0, err
	}
	if err := r.Await(ctx, patience, "the first jobs to be done", func(ctx context.Context) (bool, error) {
		n, err := r.closed(ctx)
		return n > 0, err
	}); err != nil {
		return 0, err
	}
	if err := p.underFaults(ctx); err != nil {
		return 0, err
	}
	f.jobs = p.placing
	if f.healed != nil {
		if err := f.healed(ctx); err != nil {
			return 0, err
		}
	}
	if err := r.Drain(ctx, f.jobs, f.patience); err != nil {
		return 0, err
	}
	if err := r.stop(ctx, crew.workers...); err != nil {
		return 0, err
	}
	for kind, n := range f.least {
		r.atLeast(n, kind)
	}
	wasted, err = r.Check(ctx)
	r.Expect("streamed jobs compared with their events", float64(r.record.Counts["streamed jobs"]), ">=", 1)
	return wasted, err
}

// production holds the producers of a flow while they place orders.
type production struct {
	*flow
	run       *Run
	crew      *crew
	placing   int // orders of all producers so far
	producers []*child.Process
}

// start starts a set of producers that place the given number of orders together.
func (p *production) start(orders int) error {
	first := len(p.producers)
	for i := range p.flow.producers {
		share := orders / p.flow.producers
		if i == 0 {
			share += orders % p.flow.producers
		}
		producer, err := p.run.Producer(fmt.Sprint(cmp.Or(p.names, "p"), first+i),
			append([]string{fmt.Sprint("VERIFY_JOBS=", share)}, p.producerEnv...)...)
		if err != nil {
			return err
		}
		p.producers = append(p.producers, producer)
	}
	p.placing += orders
	return nil
}

// underFaults injects faults until the producers have placed all orders. If there were too few faults by then, it
// starts more producers.
func (p *production) underFaults(ctx context.Context) error {
	injecting, heal := context.WithCancel(ctx)
	defer heal()
	injected := make(chan struct{})
	var failed error // valid when injected is closed
	go func() {
		defer close(injected)
		if p.faults != nil {
			failed = p.faults(injecting, p.crew)
		}
	}()
	began := time.Now()
	err := p.placeAll(ctx)
	for err == nil && !p.enough(injected) && time.Since(began) < p.patience {
		if err = p.start(max(p.jobs/8, p.flow.producers)); err == nil {
			err = p.placeAll(ctx)
		}
	}
	heal()
	<-injected
	p.run.Figure("production_s", time.Since(began).Seconds())
	if failed != nil {
		return failed
	}
	return err
}

// placeAll waits until every producer has ended.
func (p *production) placeAll(ctx context.Context) error {
	err := p.run.Await(ctx, p.patience, "the producers to place all orders", func(ctx context.Context) (bool, error) {
		if n, err := p.run.closed(ctx); err == nil {
			p.run.Progress("faults", n, p.placing)
		}
		return !slices.ContainsFunc(p.producers, (*child.Process).Alive), nil
	})
	for _, producer := range p.producers {
		if err == nil && producer.ExitCode() != 0 {
			err = fmt.Errorf("%s ended with status %d", producer.Name, producer.ExitCode())
		}
	}
	return err
}

// enough reports whether there were enough faults for production to end.
func (p *production) enough(injected <-chan struct{}) bool {
	select {
	case <-injected:
		return true
	default:
	}
	for kind, n := range p.least {
		if p.run.Faults.Count(kind) < n {
			return false
		}
	}
	return len(p.least) > 0
}

// closed returns the number of closed jobs.
func (r *Run) closed(ctx context.Context) (n int, err error) {
	err = r.DB.QueryRow(ctx, `SELECT count(*) FROM outbox.history`).Scan(&n)
	return n, err
}

// Drain waits until no session of a producer is active in the server (a pooler keeps idle ones) and no job is open
// except dead letters.
func (r *Run) Drain(ctx context.Context, total int, patience time.Duration) error {
	began := time.Now()
	err := r.Await(ctx, patience, "all jobs to be done", func(ctx context.Context) (bool, error) {
		var producing, open, closed int
		err := r.DB.QueryRow(ctx, `SELECT
			(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'verify-producer' AND state <> 'idle'),
			(SELECT count(*) FROM outbox.jobs WHERE status NOT IN ('failed', 'dead')),
			(SELECT count(*) FROM outbox.history)`).Scan(&producing, &open, &closed)
		r.Progress("drain", closed, total)
		return producing == 0 && open == 0, err
	})
	r.Figure("drain_s", time.Since(began).Seconds())
	return err
}

// atLeast checks that at least n faults of the kind were injected: without them the run proves nothing.
func (r *Run) atLeast(n int, kind string) {
	r.Expect(fmt.Sprintf("faults injected: %s", kind), float64(r.Faults.Count(kind)), ">=", float64(n))
}

// aLongTime is how far ahead faults are planned: longer than any run lasts.
const aLongTime = 2 * time.Hour

// beat returns a function that injects faults at regular intervals until its context ends.
func (r *Run) beat(how acts, beats ...fault.Beat) func(context.Context) error {
	return func(ctx context.Context) error {
		return r.Inject(ctx, fault.Schedule(r.Seed, aLongTime, beats...), how)
	}
}
