package verify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/verify/checker"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/outbox"
)

// keyed is a stored job with a key.
type keyed struct {
	ID    outbox.ID
	Key   string
	Limit int // of the key
	Seq   int64
}

// keyedFlow runs jobs with keys under kills and restarts, and returns them. Jobs that fail are tried again after retry.
func (r *Run) keyedFlow(ctx context.Context, jobs int, retry time.Duration, producerEnv ...string) ([]keyed, error) {
	const workers = 3
	r.Lease = 3 * time.Second // a lost job blocks its key until its lease lapses
	f := flow{
		jobs: jobs, producers: 4, workers: workers, concurrency: 16,
		patience: time.Minute + time.Duration(jobs)*10*time.Millisecond,
		producerEnv: append([]string{"VERIFY_INSIST=on", "VERIFY_CLIENTS=4", "VERIFY_MS=200", "VERIFY_PACE=180ms"},
			producerEnv...),
		workerEnv: []string{"VERIFY_RETRY=" + retry.String()},
	}
	f.least = map[string]int{"kill -9 worker": 3, "restart Postgres -m immediate": 1}
	restart := time.Duration(r.Size(3, 30)) * time.Second
	f.faults = func(ctx context.Context, c *crew) error {
		return r.beat(acts{
			"kill":    func(ctx context.Context, p fault.Planned) error { return c.replace(ctx, p.Target) },
			"restart": r.restartPostgres,
		}, fault.Beat{Kind: "kill", Every: time.Second, Targets: workers},
			fault.Beat{Kind: "restart", Every: restart})(ctx)
	}
	if _, err := f.run(ctx, r); err != nil {
		return nil, err
	}
	r.allAcked(f.jobs)
	keys, err := r.keyedJobs(ctx)
	r.Expect("jobs with keys", float64(len(keys)), "=", float64(f.jobs))
	return keys, err
}

func (r *Run) keyedJobs(ctx context.Context) ([]keyed, error) {
	rows, _ := r.DB.Query(ctx, `SELECT id, key, coalesce((task ->> 'limit')::int, 1), coalesce((task ->> 'seq')::bigint, 0)
		FROM (SELECT id, key, convert_from(payload, 'UTF8')::jsonb AS task FROM outbox.history) AS closed WHERE key IS NOT NULL`)
	jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[keyed])
	if err != nil {
		return nil, fmt.Errorf("read the jobs with keys: %w", err)
	}
	return jobs, nil
}

// limitedKeys runs row K1.
func limitedKeys(ctx context.Context, r *Run) error {
	jobs := r.Size(500, 20_000)
	limited, err := r.keyedFlow(ctx, jobs, 200*time.Millisecond, "VERIFY_KEYS=30",
		"VERIFY_MIX=effect,once,effect,sleep")
	if err != nil {
		return err
	}
	return r.checkLimits(ctx, limited)
}

// checkLimits checks at every instant how many jobs of a key were running, by the recorded moves, and how many were
// being executed, by the ledgers.
func (r *Run) checkLimits(ctx context.Context, jobs []keyed) error {
	running, settled, err := r.leases(ctx)
	if err != nil {
		return err
	}
	b, err := r.read()
	if err != nil {
		return err
	}
	held, executed := map[string][]checker.Span{}, map[string][]checker.Span{}
	limit := map[string]int{}
	for _, job := range jobs {
		limit[job.Key] = job.Limit
		held[job.Key] = append(held[job.Key], running[job.ID.String()]...)
		for _, x := range b.executions[job.ID] {
			// Once the job was settled, the execution is over, even if its handler has not returned. It is not over
			// when the lease is taken away from the handler.
			if at, ok := settled[leaseOf(job.ID.String(), x.Epoch)]; ok && at.Before(x.End) {
				x.End = at
			}
			executed[job.Key] = append(executed[job.Key],
				checker.Span{From: x.Start, Until: x.End, What: fmt.Sprintf("%s at epoch %d by %s", job.ID, x.Epoch,
					x.Process)})
		}
	}
	var tooManyRunning, tooManyExecuted []string
	full := 0
	for key, most := range limit {
		n, at := checker.AtOnce(held[key])
		if n > most {
			tooManyRunning = append(tooManyRunning, fmt.Sprintf("%s, limit %d: %v", key, most, at))
		}
		if n == most {
			full++
		}
		if n, at := checker.AtOnce(executed[key]); n > most {
			tooManyExecuted = append(tooManyExecuted, fmt.Sprintf("%s, limit %d: %v", key, most, at))
		}
	}
	slices.Sort(tooManyRunning)
	slices.Sort(tooManyExecuted)
	r.None("keys with more running jobs than their limit, by the recorded history", tooManyRunning)
	r.None("keys with more executions at once than their limit, by the ledgers", tooManyExecuted)
	r.Expect("keys that reached their limit", float64(full), ">=", float64(len(limit)/2))
	return nil
}

// leases returns the periods in which jobs were running, by job, and, by "job epoch", when the owner itself ended the
// lease. Both come from the recorded moves: a claim is recorded after the moves that made room for it have committed,
// and before it commits.
func (r *Run) leases(ctx context.Context) (running map[string][]checker.Span, settled map[string]time.Time, err error) {
	running, settled = map[string][]checker.Span{}, map[string]time.Time{}
	var last, claimed checker.Move
	for m, err := range r.moves(ctx) {
		if err != nil {
			return nil, nil, err
		}
		switch {
		case m.From != outbox.Running && m.To == outbox.Running:
			claimed = m
		case m.From == outbox.Running && m.To != outbox.Running:
			running[m.Job] = append(running[m.Job],
				checker.Span{From: claimed.At, Until: m.At, What: fmt.Sprintf("%s at epoch %d of %s", m.Job,
					claimed.Epoch, claimed.Owner)})
			if m.LostLeases == last.LostLeases {
				settled[leaseOf(m.Job, claimed.Epoch)] = m.At
			}
		}
		last = m
	}
	return running, settled, nil
}
