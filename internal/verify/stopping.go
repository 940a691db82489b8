package verify

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
)

// Ways to stop a worker under load.
const (
	orderly = iota // SIGTERM
	cut            // and another SIGTERM before it has drained
	killed         // and SIGKILL before it has drained, as a supervisor sends when the grace period is over
	stopWays
)

var stopNames = [stopWays]string{
	orderly: "SIGTERM", cut: "SIGTERM twice",
	killed: "SIGTERM, then SIGKILL at the deadline",
}

var stopFigures = [stopWays]string{orderly: "sigterm", cut: "sigterm_twice", killed: "sigkill"}

const (
	// stopGrace is longer than most jobs take, and shorter than a job that lingers.
	stopGrace = 3 * time.Second
	// cutWithin is how long a worker may take to cut its jobs off, on a busy machine.
	cutWithin = 3 * time.Second
)

// stopper stops workers of a crew, one after the other, in each way in turn.
type stopper struct {
	run   *Run
	crew  *crew
	took  [stopWays][]time.Duration
	bad   []string // stops that were too slow, or ended with another exit status
	owned []string // leases that a worker still held after a graceful stop
}

// stopsUnderLoad runs row D7.
func stopsUnderLoad(ctx context.Context, r *Run) error {
	const workers = 3
	stops := stopWays * r.Size(3, 200)
	f := flow{
		jobs: r.Size(1_500, 60_000), patience: time.Duration(r.Size(10, 180)) * time.Minute, producers: 2,
		workers: workers, concurrency: 32,
		producerEnv: []string{"VERIFY_INSIST=on", "VERIFY_CLIENTS=2", "VERIFY_MIX=linger,once" +
			strings.Repeat(",effect,once,sleep", 6), "VERIFY_MS=1500", "VERIFY_PACE=40ms"},
		workerEnv: []string{"OUTBOX_GRACE_PERIOD=" + stopGrace.String()},
	}
	s := &stopper{run: r}
	f.faults = func(ctx context.Context, c *crew) error {
		s.crew = c
		dice := fault.Random(r.Seed, "stop")
		for i := range stops {
			if backoff.Sleep(ctx, time.Duration(50+dice.IntN(200))*time.Millisecond) != nil {
				return nil
			}
			if err := s.stop(context.WithoutCancel(ctx), dice.IntN(workers), i%stopWays); err != nil {
				return err
			}
		}
		return nil
	}
	if _, err := f.run(ctx, r); err != nil {
		return err
	}
	for way, name := range stopNames {
		r.atLeast(stops/stopWays, name)
		var longest time.Duration
		for _, t := range s.took[way] {
			longest = max(longest, t)
		}
		r.Figure("longest_stop_"+stopFigures[way]+"_s", longest.Seconds())
	}
	r.None("stops that took too long or ended with the wrong exit status", s.bad)
	r.None("leases still held after a graceful stop", s.owned)
	spent, err := r.Texts(
		ctx, `SELECT id || ': attempt ' || attempt || ', leases lost: ' || lost_leases FROM outbox.history WHERE attempt <> 1 + lost_leases`)
	if err != nil {
		return err
	}
	r.None("jobs that a graceful stop cost an attempt", spent)
	var back int
	if err := r.DB.QueryRow(ctx, `SELECT count(*) FROM verify.moves WHERE was = 'running' AND became = 'pending'`).Scan(
		&back); err != nil {
		return err
	}
	r.Expect("jobs given back by graceful stops", float64(back), ">=", float64(stops/stopWays))
	r.allAcked(f.jobs)
	return r.expectLapsesInTime(ctx)
}

// stop stops a worker and starts another.
func (s *stopper) stop(ctx context.Context, i, way int) error {
	p := s.crew.workers[i]
	if err := s.run.awaitLongJob(ctx, p); err != nil {
		return err
	}
	began, patience := time.Now(), stopGrace+cutWithin
	healed := s.run.Faults.Begin(stopNames[way], p.Name)
	if err := p.Terminate(); err != nil {
		return err
	}
	switch way {
	case cut:
		time.Sleep(400 * time.Millisecond) // any sooner, it could merge with the first signal
		if err := p.Signal(syscall.SIGTERM); err != nil && p.Alive() {
			return err
		}
		began, patience = time.Now(), cutWithin
	case killed:
		time.Sleep(400 * time.Millisecond)
		if err := p.Kill9(); err != nil {
			return err
		}
	}
	select {
	case <-p.Ended():
	case <-time.After(stopPatience):
		return fmt.Errorf("%s still runs %s after %s", p.Name, stopPatience, stopNames[way])
	}
	healed()
	s.took[way] = append(s.took[way], time.Since(began))
	if time.Since(began) > patience {
		s.bad = append(s.bad, fmt.Sprintf("%s: %s took %s", p.Name, stopNames[way], time.Since(began)))
	}
	if err := s.judge(ctx, p, way); err != nil {
		return err
	}
	next, err := s.crew.hire()
	s.crew.workers[i] = next
	return err
}

// judge checks a stopped worker's exit status, and collects the leases that it still holds after a graceful stop.
func (s *stopper) judge(ctx context.Context, p *child.Process, way int) error {
	code := p.ExitCode()
	if want := [stopWays]int{orderly: 0, cut: 1, killed: -1}[way]; code != want {
		s.bad = append(s.bad, fmt.Sprintf("%s: exit status %d after: %s; want %d", p.Name, code, stopNames[way], want))
	}
	if way != orderly {
		return nil
	}
	owned, err := s.run.Texts(
		ctx, `SELECT id || ' of ' || lease_owner FROM outbox.jobs WHERE starts_with(lease_owner, $1)`, p.Name+"-")
	s.owned = append(s.owned, owned...)
	return err
}

// awaitLongJob waits until a worker has just started a job that outlasts every kind of stop, and runs one that outlasts
// the grace period.
func (r *Run) awaitLongJob(ctx context.Context, p *child.Process) error {
	return r.Await(ctx, patience, p.Name+" to begin a long job", func(ctx context.Context) (begun bool, err error) {
		err = r.DB.QueryRow(ctx, `SELECT count(*) >= 8 AND bool_or(started_at > clock_timestamp() - interval '200 ms'
				AND (convert_from(payload, 'UTF8')::jsonb ->> 'ms')::integer > 1000)
				AND bool_or(epoch = 1 AND started_at > clock_timestamp() - $2::interval AND convert_from(payload, 'UTF8')::jsonb ->> 'do' = 'linger')
			FROM outbox.jobs WHERE starts_with(lease_owner, $1)`, p.Name+"-", probe.Lingering-stopGrace-time.Second).Scan(&begun)
		return begun, err
	})
}

// expectLapsesInTime checks that the leases which no worker gave back were expired within three seconds of their end.
func (r *Run) expectLapsesInTime(ctx context.Context) error {
	var lapsed int
	var worst float64
	err := r.DB.QueryRow(ctx, `
		SELECT count(*), coalesce(max(late), 0)
		FROM (SELECT lost_leases > lag(lost_leases) OVER job AS lapsed, extract(epoch FROM at - lag(expires) OVER job)::float8 AS late
		      FROM verify.moves WINDOW job AS (PARTITION BY job ORDER BY seq)) AS moves
		WHERE lapsed`).Scan(&lapsed, &worst)
	if err != nil {
		return err
	}
	r.Figure("lapse_late_max_s", worst)
	r.Expect("expired leases of workers that were stopped by force", float64(lapsed), ">=", 8)
	r.Expect("seconds from a lease's end until a reaper expired it, worst", worst, "<=", 3)
	return nil
}
