package verify

import (
	"context"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// unanswered runs row A12: the transaction in which a handler completes its job loses its connection at the COMMIT, and
// the handler returns the error. Only the database knows whether the job is done: if it is, the worker must report a
// success like any other, and no lost lease.
func unanswered(ctx context.Context, r *Run) error {
	const odds = 4
	jobs := r.Size(1_200, 40_000)
	proxy, dsn, err := fault.NewProxy(r.processURL())
	if err != nil {
		return err
	}
	defer proxy.Close()
	var mu sync.Mutex // commits are concurrent
	cuts := fault.Random(r.Seed, "cut")
	proxy.AtCommit(func() fault.Cut {
		mu.Lock()
		defer mu.Unlock()
		where := fault.Cut(1 + cuts.IntN(len(cutNames)))
		if cuts.IntN(odds) > 0 {
			return fault.Nowhere
		}
		r.Faults.Begin(cutNames[where], "w0")()
		return where
	})
	worker, err := r.Worker("w0", "OUTBOX_DATABASE_URL="+dsn, "OUTBOX_LISTEN_URL="+r.URL, "VERIFY_CONCURRENCY=16",
		"VERIFY_POOL=16")
	if err != nil {
		return err
	}
	list := tasks(jobs, func(int) probe.Task { return probe.Task{Do: "effect", Ms: 20} })
	for i, o := range []outbox.Options{
		{},
		{Tenant: outbox.NewID()},
		{Key: outbox.KeyRules{Name: "k", MaxActive: 8}},
		{Key: outbox.KeyRules{Name: "k", MaxActive: 8}, Tenant: outbox.NewID()},
	} {
		if _, err := r.Enqueue(ctx, list[i*jobs/4:(i+1)*jobs/4], o); err != nil {
			return err
		}
	}
	if err := r.Drain(ctx, jobs, 2*time.Minute); err != nil {
		return err
	}
	if err := r.stop(ctx, worker); err != nil {
		return err
	}
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	for _, kind := range cutNames {
		r.atLeast(jobs/odds/len(cutNames)/2, kind)
	}
	for msg, want := range map[string]int{"job_completed": jobs, "lease_lost": 0} {
		lines, err := logged(worker, saying(msg))
		if err != nil {
			return err
		}
		r.Expect("log lines that say "+msg, float64(len(lines)), "=", float64(want))
	}
	return nil
}
