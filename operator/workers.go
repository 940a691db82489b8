package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
)

// Worker is a dispatcher as it last reported itself. It reports every minute; its row is deleted when the dispatcher
// stops, or if it was killed, an hour after it was last seen.
type Worker struct {
	Name      string         // as in the leases
	Version   string         // of its program
	Queues    map[string]int // with how many jobs of each it runs at once
	Kinds     []string       // with a handler
	Listening bool           // whether notifications reach it; otherwise it polls
	Running   int64          // jobs whose leases it holds, or held until less than ten minutes ago
	StartedAt time.Time
	SeenAt    time.Time
	Missing   bool // not seen for longer than two reports take
}

// missingAfter is the time within which a dispatcher reports itself at least twice.
const missingAfter = 150 * time.Second

// Workers returns the known dispatchers, by name.
func (o *Operator) Workers(ctx context.Context) ([]Worker, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListWorkers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	workers := make([]Worker, len(rows))
	for i, row := range rows {
		w := Worker{
			Name: row.Worker, Version: row.Version, Queues: map[string]int{}, Kinds: row.Kinds, Listening: row.Hearing,
			Running:   row.Running,
			StartedAt: row.StartedAt.Time, SeenAt: row.SeenAt.Time,
			Missing: row.SeenSecondsAgo > missingAfter.Seconds(),
		}
		for j, queue := range row.Queues {
			w.Queues[queue] = int(row.Concurrency[j])
		}
		workers[i] = w
	}
	return workers, nil
}

// Unhandled describes due jobs of a kind for which no recently seen dispatcher has a handler in their queue.
type Unhandled struct {
	Queue  string
	Kind   string
	Jobs   int64
	Oldest time.Time // since when the first of them has been due
}

// Unhandled returns what waits for a handler, the longest first, the first 100. It reads every due job.
func (o *Operator) Unhandled(ctx context.Context) ([]Unhandled, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.KindsWithoutHandler(ctx, pgvalue.Interval(missingAfter))
	if err != nil {
		return nil, fmt.Errorf("list kinds without a handler: %w", err)
	}
	waiting := make([]Unhandled, len(rows))
	for i, row := range rows {
		waiting[i] = Unhandled{row.Queue, row.Kind, row.Jobs, row.Oldest.Time}
	}
	return waiting, nil
}
