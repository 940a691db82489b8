package verify

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgdev"
)

const failedOver = "failover to the standby"

// failover runs row A7: the server has a standby, and every commit waits for it. The row kills the server and promotes
// the standby; the DSN of all clients lists both.
func failover(ctx context.Context, r *Run) (err error) {
	standby, err := r.Server.Standby(ctx, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, standby.Stop()) }()
	if err := r.connectToEither(ctx, standby); err != nil {
		return err
	}
	defer r.DB.Close()

	failovers := r.Size(2, 20)
	var took []time.Duration
	f := flow{
		jobs: r.Size(4_500, 200_000), producers: 4, workers: 3, concurrency: 16,
		producerEnv: insisting(r.pace("20ms", "5ms")),
	}
	f.faults = func(ctx context.Context, _ *crew) error {
		for len(took) < failovers && backoff.Sleep(ctx, 1500*time.Millisecond) == nil {
			if len(took) > 0 { // a new standby takes the place of the dead server
				if standby, err = r.Server.Standby(context.WithoutCancel(ctx), port(standby)); err != nil {
					return err
				}
			}
			resumed, err := r.failOver(context.WithoutCancel(ctx), &standby)
			if err != nil {
				return err
			}
			took = append(took, resumed)
		}
		return nil
	}
	if _, err := f.run(ctx, r); err != nil {
		return err
	}
	r.atLeast(failovers, failedOver)
	if len(took) > 0 {
		worst := slices.Max(took).Seconds()
		r.Figure("resumed_max_s", worst)
		r.Expect("seconds from the promotion to the first completed job, worst", worst, "<=", 10)
	}
	r.allAcked(f.jobs)
	return nil
}

// connectToEither lets the run and its processes connect to whichever of the two servers takes writes.
func (r *Run) connectToEither(ctx context.Context, standby *pgdev.Server) error {
	dsn, err := url.Parse(r.URL)
	if err != nil {
		return err
	}
	dsn.Host += fmt.Sprintf(",127.0.0.1:%d", port(standby))
	query := dsn.Query()
	query.Set("target_session_attrs", "read-write")
	dsn.RawQuery = query.Encode()
	r.URL = dsn.String()
	r.DB.Close()
	r.DB, err = r.connect(ctx)
	return err
}

func port(s *pgdev.Server) int {
	dsn, _ := url.Parse(s.URL()) // ours
	n, _ := strconv.Atoi(dsn.Port())
	return n
}

// failOver fails over to the standby, and returns the time from the promotion to the first completed job.
func (r *Run) failOver(ctx context.Context, standby **pgdev.Server) (time.Duration, error) {
	accepts, err := r.promote(ctx, standby)
	if err != nil {
		return 0, err
	}
	return r.firstDone(ctx, accepts)
}

// promote kills the server, promotes the standby, and swaps the two, so that *standby is the dead server. It returns
// when the new server began to take writes.
func (r *Run) promote(ctx context.Context, standby **pgdev.Server) (accepts time.Time, err error) {
	healed := r.Faults.Begin(failedOver, "")
	if err := r.Server.Kill9(); err != nil {
		return accepts, err
	}
	if err := (*standby).Promote(ctx); err != nil {
		return accepts, err
	}
	healed()
	accepts = time.Now()
	r.Server, *standby = *standby, r.Server
	return accepts, (*standby).Stop()
}
