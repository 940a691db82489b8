package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// ear is a worker whose listener connects through a proxy of its own.
type ear struct {
	*child.Process
	proxy *fault.Proxy
}

func (r *Run) newEar(name string, env ...string) (*ear, error) {
	proxy, dsn, err := fault.NewProxy(r.URL)
	if err != nil {
		return nil, err
	}
	p, err := r.Worker(name, append([]string{"OUTBOX_LISTEN_URL=" + dsn}, env...)...)
	return &ear{p, proxy}, err
}

func (r *Run) newEars(n int, env ...string) (ears []*ear, workers []*child.Process, err error) {
	for i := range n {
		e, err := r.newEar(fmt.Sprintf("w%d", i), env...)
		if err != nil {
			return nil, nil, err
		}
		ears, workers = append(ears, e), append(workers, e.Process)
	}
	return ears, workers, nil
}

// deafness is how long one loss of notifications lasted.
type deafness struct {
	found time.Duration // until the worker detected it
	back  time.Duration // from then until it listened again
}

// await waits until the worker has detected that its listener is deaf, and listens again.
func (e *ear) await(ctx context.Context, r *Run, done time.Time) (d deafness, err error) {
	var deaf, hears []logLine
	err = r.Await(ctx, 90*time.Second, e.Name+" to detect that its listener is deaf, and to listen again",
		func(context.Context) (_ bool, err error) {
			if deaf, err = sayings(e.Process, listenerDeaf, done); err != nil || len(deaf) == 0 {
				return false, err
			}
			hears, err = sayings(e.Process, listenerHears, deaf[0].At)
			return len(hears) > 0, err
		})
	if err != nil {
		return d, err
	}
	return deafness{found: deaf[0].At.Sub(done), back: hears[0].At.Sub(deaf[0].At)}, nil
}

// deafen calls do for every ear, each at a random moment within spread, and waits until all listen again.
func (r *Run) deafen(ctx context.Context, ears []*ear, kind string, spread time.Duration, random *rand.Rand,
	do func(*ear) error,
) ([]deafness, error) {
	found, errs := make([]deafness, len(ears)), make([]error, len(ears))
	var deafened sync.WaitGroup
	for i, e := range ears {
		at := time.Duration(random.Float64() * float64(spread))
		deafened.Go(func() {
			if errs[i] = backoff.Sleep(ctx, at); errs[i] != nil {
				return
			}
			healed := r.Faults.Begin(kind, e.Name)
			defer healed()
			done := time.Now()
			if errs[i] = do(e); errs[i] == nil {
				found[i], errs[i] = e.await(ctx, r, done)
			}
		})
	}
	deafened.Wait()
	return found, errors.Join(errs...)
}

// foundOut checks that the workers detected their deafness, and listened again, in time.
func (r *Run) foundOut(all []deafness, found, back time.Duration) {
	var worst deafness
	for _, d := range all {
		worst.found, worst.back = max(worst.found, d.found), max(worst.back, d.back)
	}
	slices.SortFunc(all, func(a, b deafness) int { return int(a.found - b.found) })
	if len(all) > 0 {
		r.Figure("found_out_median_s", all[len(all)/2].found.Seconds())
	}
	r.Expect("seconds until a worker detected that its listener was deaf, worst", worst.found.Seconds(), "<=",
		found.Seconds())
	r.Expect("seconds from the detection until it listened again, worst", worst.back.Seconds(), "<=", back.Seconds())
}

// aJobEvery100ms returns the producer's settings for rows that need little load.
func aJobEvery100ms(more ...string) []string {
	return append([]string{"VERIFY_CLIENTS=1", "VERIFY_PACE=100ms", "VERIFY_MIX=effect,nothing,once"}, more...)
}

// halfOpen runs row C2. A listener queries the server every 2.5 s; the faults are spread over that time.
func halfOpen(ctx context.Context, r *Run) error {
	const ears, kind = 4, "half-open listener connection"
	rounds, random := r.Size(2, 13), fault.Random(r.Seed, "half-open")
	listening, workers, err := r.newEars(ears)
	if err != nil {
		return err
	}
	if err := r.awaitStatus(ctx, "ready", workers...); err != nil {
		return err
	}
	var all []deafness
	stalled := r.stalls(ctx)
	err = r.trickle(ctx, workers, aJobEvery100ms(), func(ctx context.Context) error {
		for i := range rounds {
			r.Progress("faults", i, rounds)
			found, err := r.deafen(ctx, listening, kind, 2500*time.Millisecond, random, func(e *ear) error {
				e.proxy.Freeze()
				return nil
			})
			if err != nil {
				return err
			}
			all = append(all, found...)
			for _, e := range listening {
				e.proxy.Thaw()
			}
		}
		return nil
	})
	stall := stalled()
	if err != nil {
		return err
	}
	r.atLeast(rounds*ears, kind)
	r.foundOut(all, 8*time.Second, time.Second+stall)
	return r.startsWithin(poll + pollSlack + stall)
}

// registeredButDeaf runs row C4.
func registeredButDeaf(ctx context.Context, r *Run) error {
	const ears, kind = 3, "UNLISTEN in the listener's session"
	rounds, random := r.Size(1, 10), fault.Random(r.Seed, "unlisten")
	listening, workers, err := r.newEars(ears, "OUTBOX_POLL_INTERVAL=5m")
	if err != nil {
		return err
	}
	began := time.Now()
	pooled, err := r.newEar("pooled", "OUTBOX_POLL_INTERVAL=5m")
	if err != nil {
		return err
	}
	pooled.proxy.Swallow.Store(true) // well before the process can be up
	healed := r.Faults.Begin("pooler that discards LISTEN", pooled.Name)
	defer healed()
	if err := r.awaitStatus(ctx, "ready", workers...); err != nil {
		return err
	}
	var all []deafness
	stalled := r.stalls(ctx)
	err = r.trickle(ctx, append(workers, pooled.Process), aJobEvery100ms("VERIFY_NOTIFY=off"),
		func(ctx context.Context) error {
			for i := range rounds {
				r.Progress("faults", i, rounds)
				found, err := r.deafen(ctx, listening, kind, 5*time.Second, random, func(e *ear) error {
					return e.proxy.Inject("UNLISTEN *")
				})
				if err != nil {
					return err
				}
				all = append(all, found...)
			}
			lost, err := metric(ctx, "outbox_listener_canary_failures_total", workers...)
			r.Expect("self-test notifications that workers counted as lost", lost, ">=", float64(rounds*ears))
			return errors.Join(err, r.staysDeaf(ctx, pooled, began))
		})
	stall := stalled()
	if err != nil {
		return err
	}
	r.atLeast(rounds*ears, kind)
	r.foundOut(all, 65*time.Second, time.Second+stall)
	return r.startsWithin(deafPoll + pollSlack + stall)
}

// staysDeaf checks that a worker has detected that its listener was deaf from the start, and reports so.
func (r *Run) staysDeaf(ctx context.Context, e *ear, began time.Time) error {
	deaf, err := sayings(e.Process, listenerDeaf, began)
	if err != nil {
		return err
	}
	if len(deaf) == 0 {
		r.Expect("the worker behind the pooler detected that it is deaf", 0, "=", 1)
		return nil
	}
	r.Expect("seconds until the worker behind the pooler detected that it is deaf", deaf[0].At.Sub(began).Seconds(),
		"<=", 65)
	if err := r.awaitStatus(ctx, "degraded", e.Process); err != nil {
		return err
	}
	ready, err := readyz(ctx, e.Process)
	if err != nil {
		return err
	}
	connected, err := metric(ctx, "outbox_listener_connected", e.Process)
	r.Expect("workers behind the pooler whose /readyz says not listening",
		count(ready.Components["listener"].State == "not listening"), "=", 1)
	r.Expect("workers behind the pooler whose metrics say connected", connected, "=", 0)
	return err
}

func count(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}
