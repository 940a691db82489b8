package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// clocks runs row B4.
func clocks(ctx context.Context, r *Run) error {
	var all []*fault.Clock
	defer func() {
		for _, c := range all {
			_ = c.Close() // it fails if the process has ended
		}
	}()
	begin := func(name, command string, env ...string) (*child.Process, error) {
		p, clock, err := r.withClock(name, command, append(env, "OUTBOX_WORKER="+name))
		if err == nil {
			all = append(all, clock)
		}
		return p, err
	}
	env := r.workerEnv("", []string{"VERIFY_CONCURRENCY=400", "VERIFY_POOL=16"})
	ahead, err := begin("ahead", "verify-worker", env...)
	if err != nil {
		return notPossible("cannot give a process its own clock: " + err.Error())
	}
	behind, err2 := begin("behind", "verify-worker", env...)
	jumping, err3 := begin("jumping", "verify-worker", env...)
	jobs := r.Size(3_000, 20_000)
	producer, err4 := begin("producer", "verify-producer", fmt.Sprint("VERIFY_JOBS=", jobs), "VERIFY_CLIENTS=4",
		"VERIFY_PACE=8ms", "VERIFY_MIX=effect,once,sleep", fmt.Sprint("VERIFY_MS=", 2500))
	if err := errors.Join(err2, err3, err4); err != nil {
		return err
	}
	producer.MayEnd()
	jumps, stop := context.WithCancel(ctx)
	jumped := make(chan error, 1)
	go func() { jumped <- r.jump(jumps, jumping.Name, all[2]) }()
	err = r.underSkew(ctx, jobs, ahead, producer)
	stop()
	if err := errors.Join(err, <-jumped); err != nil {
		return err
	}
	if err := r.stop(ctx, behind, jumping); err != nil {
		return err
	}
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	return r.checkClocks(ctx)
}

const clockOff = time.Hour

// withClock starts a process whose wall clock is off: an hour behind for the process "behind", an hour ahead for the
// others.
func (r *Run) withClock(name, command string, env []string) (p *child.Process, clock *fault.Clock, err error) {
	off := clockOff
	if name == "behind" {
		off = -off
	}
	r.Faults.Begin("clock off by "+off.String(), name)
	p, err = r.start(name, command, env, func(pid int) (err error) {
		if clock, err = fault.TakeClock(pid); err == nil {
			err = clock.Set(off)
		}
		return err
	})
	return p, clock, err
}

// jump moves a clock by two hours, back and forth.
func (r *Run) jump(ctx context.Context, name string, clock *fault.Clock) error {
	for off := -clockOff; backoff.Sleep(ctx, 500*time.Millisecond) == nil; off = -off {
		r.Faults.Begin("clock jumps", name)()
		if err := clock.Set(off); err != nil {
			return err
		}
	}
	return nil
}

// underSkew stores jobs for later, kills the worker whose clock is ahead while it is working, and waits until
// everything is done.
func (r *Run) underSkew(ctx context.Context, jobs int, ahead, producer *child.Process) error {
	later := r.Size(150, 500)
	for s := range 4 {
		_, err := r.Enqueue(ctx, tasks(later, func(int) probe.Task { return probe.Task{Do: "once"} }),
			outbox.Options{Delay: time.Duration(s+1) * time.Second})
		if err != nil {
			return err
		}
	}
	err := r.Await(ctx, time.Duration(r.Size(1, 10))*time.Minute, "a third of the jobs to be done",
		func(ctx context.Context) (bool, error) {
			n, err := r.closed(ctx)
			return n > jobs/3, err
		})
	if err != nil {
		return err
	}
	r.Faults.Begin("kill -9 worker", ahead.Name)()
	if err := ahead.Kill9(); err != nil {
		return err
	}
	select {
	case <-producer.Ended():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return r.Drain(ctx, jobs+4*later, time.Minute+time.Duration(jobs)*5*time.Millisecond)
}

// checkClocks checks by the ledgers that the clocks were off, and by the database's clock that nothing happened too
// early or too late.
func (r *Run) checkClocks(ctx context.Context) error {
	if err := r.checkSkew(); err != nil {
		return err
	}
	early, err := r.Texts(ctx, `SELECT id || ' ' || run_at - started_at FROM outbox.history WHERE started_at < run_at`)
	if err != nil {
		return err
	}
	r.None("jobs started before they were due", early)
	lost, err := r.Texts(
		ctx, `SELECT job_id || ' by ' || worker FROM outbox.attempts WHERE error_code = 'lease_lost' AND worker NOT LIKE 'ahead-%'`)
	if err != nil {
		return err
	}
	r.None("leases that expired while their worker was alive", lost)
	var killed time.Time
	for _, f := range r.Faults.All() {
		if f.Kind == "kill -9 worker" {
			killed = f.From
		}
	}
	var again int
	var p99, last float64
	err = r.DB.QueryRow(ctx, `SELECT count(*) FILTER (WHERE lost_leases > 0),
			percentile_disc(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - run_at)::float8) FILTER (WHERE lost_leases = 0),
			coalesce(max(extract(epoch FROM started_at - $1)::float8) FILTER (WHERE lost_leases > 0), 0)
		FROM outbox.history`, killed).Scan(&again, &p99, &last)
	if err != nil {
		return err
	}
	r.Figure("start_delay_p99_s", p99)
	r.Figure("rerun_max_s", last)
	r.Expect("seconds from due to start, p99", p99, "<=", 2)
	r.Expect("jobs of the killed worker that were run again", float64(again), ">=", 5)
	// A wrong clock may stop a handler, or send a job back, for no reason.
	vain := r.record.Counts["claims"] - r.record.Counts["jobs"] - again
	r.Expect("claims beyond one per job, without those of the killed worker's jobs", float64(vain), "<=",
		float64(r.record.Counts["jobs"]/100))
	r.Expect("seconds from the kill until its jobs were run again, worst", last, "<=",
		(r.Lease + 3*time.Second).Seconds())
	r.atLeast(r.Size(10, 50), "clock jumps")
	return nil
}

// checkSkew checks that every process's clock was off whenever it wrote a line to its ledger.
func (r *Run) checkSkew() error {
	lines, least := 0, 2*clockOff
	for e, err := range ledger.All(r.ledgers()) {
		if err != nil {
			return err
		}
		if e.Worker == "harness" {
			continue
		}
		lines++
		if e.Clock.IsZero() {
			e.Clock = e.At
		}
		least = min(least, e.Clock.Sub(e.At).Abs())
	}
	r.Count("ledger lines written while the clock was wrong", lines)
	r.Expect("seconds by which the processes' clocks were wrong, least", least.Seconds(), ">=",
		(clockOff - 10*time.Second).Seconds())
	return nil
}
