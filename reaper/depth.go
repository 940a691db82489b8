package reaper

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	maxKinds   = 100 // with a gauge of their own
	depthShare = 50  // a sample may take this part of the time
)

// sampleDepth counts what waits. It reads the whole table, so the more there is
// the longer it waits for the next time.
func (r *Reaper) sampleDepth(ctx context.Context) (time.Duration, error) {
	var rows []sqlgen.SampleDepthRow
	var took time.Duration
	err := r.onChores(ctx, depthTimeout, func(ctx context.Context, _ *pgxpool.Conn, q *sqlgen.Queries) (err error) {
		sent := time.Now()
		rows, err = q.SampleDepth(ctx, maxKinds)
		took = time.Since(sent)
		return err
	})
	wait := max(jittered(r.config.DepthInterval), depthShare*took)
	if err != nil {
		if isTimeout(err) { // to try again soon would spend what was to be saved
			r.pause(ctx, wait)
		}
		return 0, fmt.Errorf("sample the depth: %w", err)
	}
	r.depth.set(rows)
	return wait, nil
}

// depthGauges remembers which kinds have a gauge.
type depthGauges struct {
	metrics *metrics
	shown   map[string]bool // false: its last jobs went before the latest sample
}

// set shows a sample. A kind that has vanished is shown as 0 once, so that a graph
// of it goes down, and then no more.
func (g *depthGauges) set(rows []sqlgen.SampleDepthRow) {
	shown := make(map[string]bool, len(rows))
	var deadLetters, blocked int64
	var oldest, oldestBlocked float64
	for _, row := range rows {
		shown[row.JobType] = true
		g.metrics.depth.WithLabelValues(row.JobType).Set(float64(row.Waiting))
		deadLetters += row.DeadLetters
		blocked += row.Blocked
		oldestBlocked = max(oldestBlocked, row.OldestBlockedAgeSeconds)
		oldest = max(oldest, row.OldestDueAgeSeconds)
	}
	for kind, there := range g.shown {
		switch {
		case shown[kind]:
		case there:
			shown[kind] = false
			g.metrics.depth.WithLabelValues(kind).Set(0)
		default:
			g.metrics.depth.DeleteLabelValues(kind)
		}
	}
	g.shown = shown
	g.metrics.deadLetters.Set(float64(deadLetters))
	g.metrics.oldestDue.Set(oldest)
	g.metrics.blocked.Set(float64(blocked))
	g.metrics.oldestBlocked.Set(oldestBlocked)
}
