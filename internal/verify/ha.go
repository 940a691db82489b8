package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// patroniCluster runs row A13.
func patroniCluster(ctx context.Context, r *Run) (err error) {
	p, err := r.startPatroni(ctx)
	defer func() { err = errors.Join(err, p.stop()) }()
	if err != nil {
		return err
	}
	if err := r.moveTo(ctx, p); err != nil {
		return err
	}
	defer func() { r.DB.Close() }()
	relay, err := r.relay("relay", "VERIFY_SINKS=s=ledger", "OUTBOX_LEASE_TTL="+r.Lease.String())
	if err != nil {
		return err
	}
	events := &publishing{clients: 2, keys: 20, open: 4 * time.Millisecond, rest: 100 * time.Millisecond, insists: true}
	if err := r.publish(ctx, events); err != nil {
		return err
	}
	times := r.Size(1, 10)
	var resumed []time.Duration
	f := flow{
		jobs: r.Size(800, 20_000), producers: 2, workers: 2, concurrency: 16, producerEnv: insisting("80ms"),
		patience: time.Duration(r.Size(3, 20)) * time.Minute,
	}
	// Production must go on until a job is done after the last fault. So it has no least, which would be reached when
	// that fault begins.
	f.faults = func(ctx context.Context, _ *crew) (err error) {
		resumed, err = r.failOverByPatroni(ctx, p, times)
		return err
	}
	f.healed = func(context.Context) error { return events.stop() }
	if _, err := f.run(ctx, r); err != nil {
		return errors.Join(err, events.stop())
	}
	r.atLeast(times, switchedOver)
	r.atLeast(times, leaderKilled)
	r.allAcked(f.jobs)
	worst := slices.Max(append(resumed, 0)).Seconds()
	r.Figure("resumed_max_s", worst)
	r.Expect("seconds from a leader's first write to the first completed job, worst", worst, "<=", 10)
	if err := r.awaitPublished(ctx, "s", patience); err != nil {
		return err
	}
	if err := r.stop(ctx, relay); err != nil {
		return err
	}
	_, err = r.checkRelayed(ctx, events.acked)
	return err
}

// moveTo makes the run and its processes work on the cluster. The run itself finds the leader by the addresses of both
// members. So do its processes or, if the seed is odd, they connect through HAProxy.
func (r *Run) moveTo(ctx context.Context, p *patroni) error {
	leader, _, err := p.leader(ctx)
	if err != nil {
		return err
	}
	direct, proxied, err := p.urls()
	if err != nil {
		return err
	}
	if err := r.openDatabase(ctx, "postgres://postgres@127.0.0.1:"+leader.port+
		"/postgres?sslmode=disable"); err != nil {
		return err
	}
	r.DB.Close()
	r.URL = direct
	if r.DB, err = r.connect(ctx); err != nil {
		return err
	}
	if r.Seed%2 == 1 {
		r.URL = proxied
	}
	r.Count("clients connect through HAProxy", int(r.Seed%2))
	return nil
}

// failOverByPatroni injects both faults the given number of times, at moments that the seed decides. It returns for
// each fault the time from when there was a leader until the first job was done.
func (r *Run) failOverByPatroni(ctx context.Context, p *patroni, times int) (resumed []time.Duration, err error) {
	dice := fault.Random(r.Seed, "patroni")
	away := map[string]time.Duration{}
	for range times {
		for _, act := range []struct {
			kind string
			do   func(context.Context) (time.Duration, error)
		}{{switchedOver, p.switchOver}, {leaderKilled, p.kill}} {
			if backoff.Sleep(ctx, time.Duration(500+dice.IntN(2000))*time.Millisecond) != nil {
				return resumed, nil
			}
			ctx := context.WithoutCancel(ctx)
			if err := p.awaitStandby(ctx); err != nil { // without one Patroni could not promote a member
				return nil, err
			}
			took, err := act.do(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", act.kind, err)
			}
			away[act.kind] = max(away[act.kind], took)
			after, err := r.firstDone(ctx, time.Now())
			if err != nil {
				return nil, err
			}
			resumed = append(resumed, after)
		}
	}
	r.Figure("switchover_max_s", away[switchedOver].Seconds())
	r.Figure("leader_kill_max_s", away[leaderKilled].Seconds())
	if r.Tier == TierS { // beside other rows, the machine is too busy to judge Patroni's speed
		r.Expect("seconds from the kill of a leader to the next leader, worst", away[leaderKilled].Seconds(), "<=",
			(patroniTTL + 10*time.Second).Seconds())
	}
	return resumed, nil
}
