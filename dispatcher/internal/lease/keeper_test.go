package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/health"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	ttl    = 15 * time.Second
	notice = 700 * time.Millisecond
)

// counter adds up.
type counter struct {
	prometheus.Counter
	n float64
}

func (c *counter) Add(n float64) { c.n += n }

// database answers as the test says, and counts.
type database struct {
	extend func(context.Context, sqlgen.ExtendLeasesParams) ([]sqlgen.ExtendLeasesRow, error) // nil extends all

	mu        sync.Mutex
	extended  []time.Time // when
	looked    int         // for cancellations
	cancelled []pgtype.UUID
}

func (d *database) ExtendLeases(ctx context.Context, p sqlgen.ExtendLeasesParams) ([]sqlgen.ExtendLeasesRow, error) {
	d.mu.Lock()
	if len(p.Ids) > 0 {
		d.extended = append(d.extended, time.Now())
	}
	d.mu.Unlock()
	if d.extend == nil {
		return nil, nil // those that are not listed are extended
	}
	return d.extend(ctx, p)
}

// extensions returns how many statements have extended leases, and when the last did.
func (d *database) extensions() (n int, last time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n = len(d.extended); n > 0 {
		last = d.extended[n-1]
	}
	return n, last
}

// looks returns how often somebody has looked for cancellations.
func (d *database) looks() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.looked
}

func (d *database) ListCancelRequests(_ context.Context, p sqlgen.ListCancelRequestsParams) (rows []sqlgen.ListCancelRequestsRow, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.looked++
	for i, id := range p.Ids {
		if slices.Contains(d.cancelled, id) {
			rows = append(rows, sqlgen.ListCancelRequestsRow{ID: id, Epoch: p.Epochs[i], StartedAt: p.Starts[i]})
		}
	}
	return rows, nil
}

func newKeeper(d *database) *Keeper {
	return NewKeeper(Config{
		TTL: ttl, DB: d, Extending: d, Timeout: 5 * time.Second, Most: 4, Notice: notice, Cancelled: outcome.ErrCancelled, Health: health.New(slog.New(slog.DiscardHandler)),
		Late: new(counter),
	})
}

// claim holds n leases of jobs that are claimed now.
func claim(k *Keeper, n int) []*Lease {
	leases := make([]*Lease, n)
	for i := range leases {
		job := &outbox.Claimed{ID: outbox.NewID(), Epoch: 1}
		leases[i] = &Lease{Job: job, Claimed: time.Now()}
	}
	k.Add(slices.Values(leases))
	return leases
}

// run begins a handler that returns only when its context ends, which is returned.
func run(t *testing.T, l *Lease, timeout time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	t.Cleanup(func() { cancel(nil) })
	if !l.Begin(cancel, time.Now(), time.Now().Add(timeout+ttl)) {
		t.Fatal("the handler may not begin")
	}
	return ctx
}

// keep runs the keeper's loops until the test ends.
func keep(t *testing.T, k *Keeper) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context){k.Keep, k.Watch, k.WatchCancellations} {
		loops.Go(func() { loop(ctx) })
	}
	t.Cleanup(func() { end(); loops.Wait() })
}

// A lease is extended when a third of it is used, and not more often; one of a job that is short is not extended.
func TestLeasesAreExtendedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := new(database)
		k := newKeeper(db)
		keep(t, k)
		l := claim(k, 1)[0]
		ctx := run(t, l, time.Hour)
		short := claim(k, 1)
		time.Sleep(ttl / 4)
		k.Remove(slices.Values(short))
		if n, _ := db.extensions(); n > 0 {
			t.Errorf("extended after %s: %d times", ttl/4, n)
		}
		time.Sleep(time.Minute - ttl/4)
		if n, _ := db.extensions(); ctx.Err() != nil || n < 10 || n > 12 {
			t.Errorf("in a minute a lease of %s was extended %d times, want 10 to 12; its handler: %v", ttl, n, context.Cause(ctx))
		}
		if k.Count() != 1 || !slices.Equal(k.IDs(), []pgtype.UUID{pgvalue.UUID(l.Job.ID)}) {
			t.Errorf("%d leases are held, of %v", k.Count(), k.IDs())
		}
	})
}

// Without an answer, or with an extension that hangs, handlers end before the database lets others start their jobs;
// one that has not begun does not begin.
func TestHandlersEndBeforeTheirLeases(t *testing.T) {
	for name, answer := range map[string]func(context.Context) error{
		"refused": func(context.Context) error { return errors.New("unreachable") },
		"hangs":   func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var away atomic.Bool
				db := &database{extend: func(ctx context.Context, _ sqlgen.ExtendLeasesParams) ([]sqlgen.ExtendLeasesRow, error) {
					if away.Load() {
						return nil, answer(ctx)
					}
					return nil, nil
				}}
				k := newKeeper(db)
				keep(t, k)
				leases := claim(k, 2)
				ctx := run(t, leases[0], time.Hour)
				time.Sleep(time.Minute + time.Millisecond)
				away.Store(true)
				_, last := db.extensions()
				select {
				case <-ctx.Done():
				case <-time.After(time.Hour):
				}
				if held := time.Since(last); held < ttl*8/10 || held >= ttl {
					t.Errorf("the handler ended %s after its lease of %s was extended", held, ttl)
				}
				if cause := context.Cause(ctx); !errors.Is(cause, outbox.ErrLeaseLost) {
					t.Errorf("it ended with %v", cause)
				}
				if leases[1].Begin(nil, time.Now(), time.Now()) {
					t.Error("the other begins")
				}
			})
		})
	}
}

// The lease of a handler that ignores the end of its context lapses some time later; that of an outcome which waits for
// the database does not.
func TestLeasesAreExtendedAsLongAsTheyAreNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper(new(database))
		keep(t, k)
		leases := claim(k, 2)
		for _, l := range leases {
			run(t, l, time.Minute)
		}
		time.Sleep(30 * time.Second)
		leases[1].HandlerReturned()
		time.Sleep(30 * time.Second)
		for i, l := range leases {
			if l.Ended() != nil {
				t.Errorf("lease %d: %v within the handler's time", i, l.Ended())
			}
		}
		time.Sleep(time.Hour)
		if !errors.Is(leases[0].Ended(), outbox.ErrLeaseLost) || leases[1].Ended() != nil {
			t.Errorf("the handler that goes on: %v; the outcome that waits: %v", leases[0].Ended(), leases[1].Ended())
		}
	})
}

// A row that is locked is extended beside it. If that was late, a reaper may be taking the job: the next tick looks
// again.
func TestALateExtensionOfALockedRowIsLookedAtAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &database{extend: func(_ context.Context, p sqlgen.ExtendLeasesParams) (rows []sqlgen.ExtendLeasesRow, err error) {
			for i, id := range p.Ids {
				rows = append(rows, sqlgen.ExtendLeasesRow{ID: id, Epoch: p.Epochs[i]})
			}
			return rows, nil
		}}
		k := newKeeper(db)
		leases := claim(k, 1)
		time.Sleep(ttl)
		for want := range 2 { // late, and then in time
			now := time.Now()
			if err := k.extend(t.Context(), k.due(now)); err != nil {
				t.Fatal(err)
			}
			if again := len(k.due(now.Add(ttl / 15))); again != 1-want {
				t.Errorf("extension %d: the next tick looks at %d leases", want+1, again)
			}
		}
		if leases[0].Ended() != nil || k.Late.(*counter).n != 0 {
			t.Errorf("ended: %v; %v extensions of rows were late", leases[0].Ended(), k.Late.(*counter).n)
		}
		db.extend = nil
		time.Sleep(2 * ttl)
		if err := k.extend(t.Context(), k.due(time.Now())); err != nil || k.Late.(*counter).n != 1 {
			t.Errorf("%v extensions of rows were late, want 1: %v", k.Late.(*counter).n, err)
		}
	})
}

// A user's trigger that refuses one job's row costs that job its lease, and no other job that runs at the same time.
func TestARefusedExtensionCostsOneLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := new(database)
		k := newKeeper(db)
		k.Most = 100 // in one statement
		leases := claim(k, 18)
		refused := pgvalue.UUID(leases[5].Job.ID)
		db.extend = func(_ context.Context, p sqlgen.ExtendLeasesParams) ([]sqlgen.ExtendLeasesRow, error) {
			if slices.Contains(p.Ids, refused) {
				return nil, &pgconn.PgError{Code: "P0001", Message: "the user's trigger says no"}
			}
			return nil, nil
		}
		keep(t, k)
		time.Sleep(time.Minute)
		for i, l := range leases {
			if lost := l.Ended() != nil; lost != (i == 5) {
				t.Errorf("the lease of job %d is lost: %t", i, lost)
			}
		}
	})
}

// A job that is gone because its handler has completed it does not end that handler; a job that is gone for another
// reason, or belongs to another worker, does.
func TestAHandlerOutlivesItsCompletedJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &database{extend: func(_ context.Context, p sqlgen.ExtendLeasesParams) (rows []sqlgen.ExtendLeasesRow, err error) {
			for i, id := range p.Ids {
				rows = append(rows, sqlgen.ExtendLeasesRow{ID: id, Epoch: p.Epochs[i], Lost: true})
			}
			return rows, nil
		}}
		k := newKeeper(db)
		keep(t, k)
		leases := claim(k, 8)
		for n, l := range leases {
			run(t, l, time.Hour)
			engine.InternalOf(l.Job).Completed.Store(n < 4)
		}
		for _, passed := range []time.Duration{ttl / 2, time.Minute} { // at the extension, before any lapses
			time.Sleep(passed)
			for n, l := range leases {
				if lost := errors.Is(l.Ended(), outbox.ErrLeaseLost); lost == (n < 4) {
					t.Errorf("%s on: job %d, completed: %t; its handler is stopped: %t", passed, n, n < 4, lost)
				}
			}
		}
	})
}

// A job whose lease is over does not start, even if nothing has noticed that yet.
func TestAJobWhoseLeaseIsOverDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := claim(newKeeper(new(database)), 2)
		for i, wait := range []time.Duration{ttl / 2, ttl / 2} {
			time.Sleep(wait)
			if begins := leases[i].Begin(nil, time.Now(), time.Now().Add(time.Hour)); begins != (i == 0) {
				t.Errorf("after %s of %s: a handler begins: %t", time.Duration(i+1)*wait, ttl, begins)
			}
		}
	})
}

// While handlers are short nobody looks for cancellations, however many notifications arrive.
func TestShortHandlersCostNoLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := new(database)
		k := newKeeper(db)
		keep(t, k)
		for range 100 {
			leases := claim(k, 1)
			run(t, leases[0], time.Hour)
			k.Poke()
			time.Sleep(3 * cancelTick)
			k.Remove(slices.Values(leases))
		}
		if n := db.looks(); n > 0 {
			t.Errorf("%d looks for cancellations", n)
		}
	})
}

// A handler learns that its job was cancelled within three ticks of a notification, within Notice and a tick without
// one; a job that waits for a worker is asked about, too. Notifications cause at most a look every two ticks.
func TestCancelledHandlersEnd(t *testing.T) {
	for _, c := range []struct {
		notified, waits bool
		within          time.Duration
	}{{true, false, 3 * cancelTick}, {false, false, notice + cancelTick}, {true, true, 3 * cancelTick}, {false, true, notice + cancelTick}} {
		t.Run(fmt.Sprintf("notified: %t, waits for a worker: %t", c.notified, c.waits), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := new(database)
				k := newKeeper(db)
				keep(t, k)
				leases := claim(k, 3)
				if !c.waits {
					for _, l := range leases {
						run(t, l, time.Hour)
					}
				}
				time.Sleep(5*time.Second + cancelTick/2)
				db.mu.Lock()
				db.cancelled = []pgtype.UUID{pgvalue.UUID(leases[1].Job.ID)}
				db.mu.Unlock()
				if c.notified {
					k.Poke()
				}
				time.Sleep(c.within)
				synctest.Wait()
				for i, l := range leases {
					if cancelled := errors.Is(l.Ended(), outcome.ErrCancelled); cancelled != (i == 1) {
						t.Errorf("job %d is cancelled: %t, after %s", i, cancelled, c.within)
					}
				}
				before := db.looks()
				for range 1000 {
					k.Poke()
					time.Sleep(10 * time.Millisecond)
				}
				if n := db.looks() - before; n > int(10*time.Second/(2*cancelTick)) || n < int(10*time.Second/(3*cancelTick)) {
					t.Errorf("a thousand notifications in 10 s caused %d looks", n)
				}
			})
		})
	}
}

// A shutdown ends all handlers, and a lease that is lost after it is not extended any more.
func TestAShutdownEndsAllHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := new(database)
		k := newKeeper(db)
		leases := claim(k, 2)
		ctx := run(t, leases[0], time.Hour)
		k.EndAll(outcome.ErrShutdown)
		if !errors.Is(context.Cause(ctx), outcome.ErrShutdown) || leases[1].Begin(nil, time.Now(), time.Now().Add(time.Hour)) {
			t.Errorf("the handler that runs: %v; the other begins: %t", context.Cause(ctx), leases[1].Ended() == nil)
		}
		leases[0].End(outbox.ErrLeaseLost)
		if !errors.Is(context.Cause(ctx), outcome.ErrShutdown) || !errors.Is(leases[0].Ended(), outbox.ErrLeaseLost) {
			t.Errorf("the cause is %v, and the lease %v", context.Cause(ctx), leases[0].Ended())
		}
		if due := k.due(time.Now().Add(ttl)); !slices.Equal(due, leases[1:]) {
			t.Errorf("%d leases are due for an extension, want that of the outcome that waits", len(due))
		}
	})
}
