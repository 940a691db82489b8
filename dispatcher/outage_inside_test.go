package dispatcher

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// fragile is the dependency of a test's jobs: it may be unavailable.
type fragile struct {
	away  atomic.Bool
	calls atomic.Int64
}

func (f *fragile) call() error {
	f.calls.Add(1)
	if f.away.Load() {
		return Unavailable(errors.New("away"), 0)
	}
	return nil
}

func (f *fragile) handle(context.Context, *outbox.Job[tiny]) error { return f.call() }

// unavailable returns the metric of the kind tiny.
func (r rig) unavailable(t *testing.T) float64 {
	t.Helper()
	m := new(dto.Metric)
	if err := r.loop.metrics.unavailable.WithLabelValues(tiny{}.Kind(), engine.DefaultQueue).Write(m); err != nil {
		t.Fatal(err)
	}
	return m.GetGauge().GetValue()
}

// wantDone expects that so many jobs have succeeded.
func (r rig) wantDone(t *testing.T, n int) {
	t.Helper()
	if got := len(r.done); got != n {
		t.Errorf("%d jobs have succeeded, want %d", got, n)
	}
}

// For every tenant and key: the first few jobs find out for the others, and all run when the outage is over.
func TestAnOutageIsFoundOutByAFew(t *testing.T) {
	const jobs = 1000
	for name, of := range map[string]struct {
		tenant outbox.ID
		key    string
	}{
		"root's": {numbered(0), ""}, "root's, with keys": {numbered(0), "k"}, "a tenant's": {numbered(1), ""}, "a tenant's, with keys": {numbered(1), "k"},
	} {
		t.Run(name, func(t *testing.T) {
			var f fragile
			f.away.Store(true)
			inMemory(t, 64, f.handle, Config{}, func(r rig) {
				r.addKeyed(of.tenant, jobs, 0, of.key)
				r.capacity.Poke()
				r.sleep(3 * time.Second)
				if calls := f.calls.Load(); calls > 100 || calls < 7 {
					t.Errorf("%d jobs were tried, want the first ones and the probes", calls)
				}
				o := r.dispatcher.Outages()
				if len(o) != 1 || o[0].Queue != engine.DefaultQueue || o[0].Kind != "tiny" || time.Since(o[0].Since) < 2*time.Second || r.unavailable(t) != 1 {
					t.Errorf("outages = %v, want that of the kind", o)
				}
				f.away.Store(false)
				r.sleep(time.Minute)
				r.wantDone(t, jobs)
				if o := r.dispatcher.Outages(); len(o) != 0 || r.unavailable(t) != 0 {
					t.Errorf("kinds are unavailable, want none: %v", o)
				}
			})
		})
	}
}

// The time of a probe comes while there is no room, and no flow is known to have jobs. The room that workers make then
// is for the probe.
func TestAProbeThatFoundNoRoomIsMadeUpFor(t *testing.T) {
	var f fragile
	f.away.Store(true)
	mux := new(Mux)
	Handle(mux, f.handle)
	Handle(mux, func(context.Context, *outbox.Job[small]) error { return nil })
	inMemoryOf(t, 4, mux, Config{}, func(r rig) {
		for n := range 2 {
			r.addOf(small{}.Kind(), numbered(n), 100, 0, "")
			r.add(numbered(n), 20, 0)
		}
		r.capacity.Poke()
		r.sleep(time.Second)
		full := int64(r.capacity.concurrency + r.capacity.prefetch())
		r.capacity.inHand.Add(full) // of long jobs
		calls := f.calls.Load()
		f.away.Store(false)
		r.sleep(2 * time.Minute)
		if f.calls.Load() != calls {
			t.Fatal("a probe was made without room for it")
		}
		for range full {
			r.capacity.finished(notCalled)
		}
		r.sleep(time.Minute)
		r.wantDone(t, 240)
	})
}

// A dead target of some jobs does not stop other jobs.
func TestATargetIsAwayForItsOwnJobs(t *testing.T) {
	const dead = 1 // the priority of its jobs
	var tries atomic.Int64
	inMemory(t, 16, func(_ context.Context, job *outbox.Job[tiny]) error {
		if job.Priority == dead {
			tries.Add(1)
			return TargetUnavailable(errors.New("away"), time.Hour)
		}
		return nil
	}, Config{}, func(r rig) {
		for range 200 {
			r.addAt(dead, outbox.RootTenant, "")
			r.addAt(0, outbox.RootTenant, "")
		}
		r.capacity.Poke()
		r.sleep(10 * time.Second)
		if n := len(r.done); n != 200 {
			t.Errorf("in vain: all of the other targets run; %d of 200 have", n)
		}
		if o := r.dispatcher.Outages(); len(o) > 0 || tries.Load() != 200 {
			t.Errorf("%d jobs of the dead target were tried, want 200; outages = %v", tries.Load(), o)
		}
	})
}

// Jobs that are handled together are found unavailable together.
func TestAnOutageOfBatches(t *testing.T) {
	const jobs = 600
	var f fragile
	f.away.Store(true)
	mux := new(Mux)
	HandleMany(mux, func(_ context.Context, jobs []*outbox.Job[tiny]) []error {
		err, outcomes := f.call(), make([]error, len(jobs))
		for i := range outcomes {
			outcomes[i] = err
		}
		return outcomes
	}, BatchConfig{Max: 20})
	inMemoryOf(t, 64, mux, Config{}, func(r rig) {
		r.add(outbox.RootTenant, jobs, 0)
		r.capacity.Poke()
		r.sleep(2 * time.Second)
		if calls := f.calls.Load(); calls > 40 {
			t.Errorf("%d batches were tried", calls)
		}
		f.away.Store(false)
		r.sleep(time.Minute)
		r.wantDone(t, jobs)
	})
}

// Jobs that were claimed ahead when the host became unavailable are given back, not tried.
func TestWhatIsClaimedAheadGoesBackInAnOutage(t *testing.T) {
	const jobs, good = 5000, 1000
	var f fragile
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error {
		time.Sleep(100 * time.Microsecond) // so that hundreds are claimed ahead
		err := f.call()
		if f.calls.Load() == good {
			f.away.Store(true)
		}
		return err
	}, Config{}, func(r rig) {
		r.add(outbox.RootTenant, jobs, 0)
		r.capacity.Poke()
		r.sleep(300 * time.Millisecond)
		if len(r.dispatcher.Outages()) == 0 {
			t.Error("waited in vain: the outage is found out")
		}
		if tried := f.calls.Load() - good; tried > 50 {
			t.Errorf("%d jobs were tried after the host had gone", tried)
		}
		if n := r.capacity.inHand.Load(); n > 1 {
			t.Errorf("%d jobs are in hand, want that they go back", n)
		}
		f.away.Store(false)
		r.sleep(time.Minute)
		r.wantDone(t, jobs)
	})
}

// A job that waits in an outage has all of its attempts, also after a stop; and the commit of a producer in the same
// program does not claim its job meanwhile, but claims one of another kind.
func TestWhatWaitsInAnOutage(t *testing.T) {
	const jobs = 500
	var f fragile
	f.away.Store(true)
	mux := new(Mux)
	Handle(mux, f.handle)
	mux.HandleRaw(small{}.Kind(), ignore)
	var store *memoryStore
	inMemoryOf(t, 64, mux, Config{}, func(r rig) {
		store = r.memoryStore
		r.add(outbox.RootTenant, jobs, 0)
		r.capacity.Poke()
		r.sleep(2100 * time.Millisecond)
		if n := r.capacity.inHand.Load(); n != 0 {
			t.Fatalf("%d jobs are in hand, want none between two probes", n)
		}
		if reservation := r.dispatcher.reserve(tiny{}.Kind(), engine.DefaultQueue, outbox.NewID()); reservation != nil {
			reservation.Failed(false)
			t.Error("a commit would claim a job of a kind that is unavailable")
		}
		if reservation := r.dispatcher.reserve(small{}.Kind(), engine.DefaultQueue, outbox.NewID()); reservation != nil {
			reservation.Failed(false)
		} else {
			t.Error("a commit would not claim a job of a kind that is available")
		}
	})
	if n := len(store.jobs); n != jobs {
		t.Errorf("%d of %d jobs wait after the stop", n, jobs)
	}
	for _, job := range store.jobs {
		if job.Attempt != 0 {
			t.Fatalf("a job has spent %d attempts", job.Attempt)
		}
	}
}

// A job that is promoted here, and whose kind is unavailable here, may run in another process at once: that process has
// a circuit of its own.
func TestAPromotedJobWhoseKindIsUnavailableIsOfferedToOthers(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, numbered(7)} {
		mux := new(Mux)
		mux.HandleRaw(tiny{}.Kind(), ignore)
		mux.HandleRaw(small{}.Kind(), ignore)
		d, err := New(nil, mux, Config{})
		if err != nil {
			t.Fatal(err)
		}
		d.compose(t.Context(), nil, nil)
		d.common.phase.Store(claiming)
		q := d.queues[engine.DefaultQueue]
		for away := q.circuits.Of(tiny{}.Kind()); !away.Away(false, 0); { // until it is open
			continue
		}
		promoted := func(kind string) []sqlgen.PromoteKeysRow {
			return []sqlgen.PromoteKeysRow{{ID: pgvalue.UUID(outbox.NewID()), TenantID: pgvalue.UUID(tenant), Queue: engine.DefaultQueue, Key: "k", Kind: kind}}
		}
		if elsewhere := d.offer(promoted(tiny{}.Kind())); !elsewhere || q.keyed.Offered() != 0 {
			t.Errorf("a job of a kind that is unavailable here: offered to others %t, here %d times; want others only", elsewhere, q.keyed.Offered())
		}
		if elsewhere := d.offer(promoted(small{}.Kind())); elsewhere || q.keyed.Offered() != 1 {
			t.Errorf("a job of another kind: offered to others %t, here %d times; want here only", elsewhere, q.keyed.Offered())
		}
	}
}
