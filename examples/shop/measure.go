package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// figures are how the jobs are at one moment.
type figures struct {
	waiting int            // pending or retrying
	running map[string]int // by worker
	done    int
	dead    int           // for a person: dead or failed
	retries int           // attempts that failed or whose worker died
	p50     time.Duration // from the enqueue until a worker had the job
	p99     time.Duration
}

// pickupWindow is how far back the live pickup latency looks.
const pickupWindow = 5 * time.Second

// measure asks the database. The pickup latency is of the jobs that were finished
// within the window: from the insert to the claim, both by the database's clock,
// the rest of the business transaction included; tries after the first are left
// out, because those wait on purpose.
func measure(ctx context.Context, db *pgxpool.Pool, window time.Duration) (figures, error) {
	f := figures{running: map[string]int{}}
	rows, err := db.Query(
		ctx, `SELECT status, split_part(coalesce(lease_owner, ''), '-', 1), count(*) FROM outbox.jobs GROUP BY 1, 2`)
	if err != nil {
		return f, fmt.Errorf("count open jobs: %w", err)
	}
	var status, owner string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&status, &owner, &n}, func() error {
		switch status {
		case "running":
			f.running[owner] += n
		case "dead", "failed":
			f.dead += n
		default:
			f.waiting += n
		}
		return nil
	})
	if err != nil {
		return f, fmt.Errorf("count open jobs: %w", err)
	}

	var p50, p99 float64 // seconds
	err = db.QueryRow(ctx, `
		SELECT done, retries, coalesce(pickup[1], 0), coalesce(pickup[2], 0)
		FROM (
			SELECT count(*) AS done, (SELECT count(*) FROM outbox.attempts) AS retries,
			       percentile_cont(ARRAY[0.50, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - created_at))
			           FILTER (WHERE epoch = 1 AND finished_at > now() - $1::interval) AS pickup
			FROM outbox.history
		) AS closed`, window).Scan(&f.done, &f.retries, &p50, &p99)
	if err != nil {
		return f, fmt.Errorf("measure closed jobs: %w", err)
	}
	f.p50, f.p99 = time.Duration(p50*float64(time.Second)), time.Duration(p99*float64(time.Second))
	return f, nil
}

// open returns how many jobs are not finished and need no person.
func (f figures) open() int {
	n := f.waiting
	for _, running := range f.running {
		n += running
	}
	return n
}

// whoRuns says how many jobs each worker runs; what a killed one ran counts as
// running until its lease is over.
func (f figures) whoRuns(killed string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(f.running)) {
		part := fmt.Sprintf("%s %d", name, f.running[name])
		if name == killed {
			part += " (killed)"
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, " · ")
}
