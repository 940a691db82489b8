package verify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// flow is the workload of most rows: producers place orders, each with a job in
// the same transaction, while a crew of workers carries them out.
type flow struct {
	jobs        int // of all producers together
	producers   int
	workers     int
	concurrency int           // of a worker
	patience    time.Duration // for production, and again for the drain; 0 is two minutes and 2 ms a job
	producerEnv []string
	workerEnv   []string

	// faults is injected from when the first jobs are done until all are produced.
	// It has the crew.
	faults func(context.Context, *crew) error
	// healed is called before the drain; nil has nothing to do.
	healed func(context.Context) error
}

// run produces under faults, heals, drains, stops, and checks. It returns how many
// executions did no good and gave no error.
func (f flow) run(ctx context.Context, r *Run) (wasted int, err error) {
	if f.patience == 0 {
		f.patience = 2*time.Minute + time.Duration(f.jobs)*2*time.Millisecond
	}
	crew, err := r.Crew(f.workers, append([]string{fmt.Sprint("VERIFY_CONCURRENCY=", f.concurrency)}, f.workerEnv...)...)
	if err != nil {
		return 0, err
	}
	producers, err := f.startProducers(r)
	if err != nil {
		return 0, err
	}
	if err := r.Await(ctx, 30*time.Second, "the first jobs to be done", func(ctx context.Context) (bool, error) {
		n, err := r.closed(ctx)
		return n > 0, err
	}); err != nil {
		return 0, err
	}
	if err := f.produce(ctx, r, crew, producers); err != nil {
		return 0, err
	}
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
	return r.Check(ctx)
}

func (f flow) startProducers(r *Run) (producers []*child.Process, err error) {
	for i := range f.producers {
		jobs := f.jobs / f.producers
		if i == 0 {
			jobs += f.jobs % f.producers
		}
		p, err := r.Producer(fmt.Sprintf("p%d", i), append([]string{fmt.Sprint("VERIFY_JOBS=", jobs)}, f.producerEnv...)...)
		if err != nil {
			return nil, err
		}
		producers = append(producers, p)
	}
	return producers, nil
}

// produce injects the faults until the producers have placed everything.
func (f flow) produce(ctx context.Context, r *Run, crew *crew, producers []*child.Process) error {
	injecting, heal := context.WithCancel(ctx)
	defer heal()
	injected := make(chan error, 1)
	go func() {
		if f.faults == nil {
			injected <- nil
			return
		}
		injected <- f.faults(injecting, crew)
	}()
	began := time.Now()
	err := r.Await(ctx, f.patience, "the producers to place all orders", func(ctx context.Context) (bool, error) {
		n, err := r.closed(ctx)
		if err == nil {
			r.Progress("faults", n, f.jobs)
		}
		return !slices.ContainsFunc(producers, (*child.Process).Alive), nil
	})
	heal()
	if failed := <-injected; failed != nil {
		return failed
	}
	for _, p := range producers {
		if err == nil && p.ExitCode() != 0 {
			err = fmt.Errorf("%s ended with status %d", p.Name, p.ExitCode())
		}
	}
	r.Figure("production_s", time.Since(began).Seconds())
	return err
}

// closed is how many jobs are done.
func (r *Run) closed(ctx context.Context) (n int, err error) {
	err = r.DB.QueryRow(ctx, `SELECT count(*) FROM outbox.history`).Scan(&n)
	return n, err
}

// Drain waits until no session of a producer is at work in the server (a pooler
// keeps idle ones) and no job is open but dead letters.
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

// atLeast expects that the faults were injected at all: without them the run
// proves nothing.
func (r *Run) atLeast(n int, kind string) {
	r.Expect(fmt.Sprintf("faults injected: %s", kind), float64(r.Faults.Count(kind)), ">=", float64(n))
}

// aLongTime is how far faults are planned: further than any run lasts.
const aLongTime = 2 * time.Hour

// beat carries out beats for as long as the flow produces.
func (r *Run) beat(how acts, beats ...fault.Beat) func(context.Context) error {
	return func(ctx context.Context) error {
		return r.Inject(ctx, fault.Schedule(r.Seed, aLongTime, beats...), how)
	}
}
