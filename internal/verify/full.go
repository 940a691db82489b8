package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// fullDisks runs row A9.
func fullDisks(ctx context.Context, r *Run) error {
	if err := r.moveWAL(ctx); err != nil {
		return err
	}
	r.DB.Reset()
	if _, err := r.DB.Exec(ctx, `CREATE TABLE verify.filler (x text)`); err != nil {
		return err
	}
	// Each of a dozen chores logs a line when its failures begin, and seldom after that.
	lasts := time.Duration(r.Size(12, 60)) * time.Second
	f := flow{
		jobs: r.Size(3_000, 50_000), producers: 2, workers: 2, concurrency: 16,
		producerEnv: insisting(r.pace("5ms", "2ms")),
	}
	f.faults = func(ctx context.Context, c *crew) error {
		ctx = context.WithoutCancel(ctx) // so that a full disk is always freed
		if err := r.outOfSpace(ctx, c, "data disk full", lasts, r.data, r.provokeData); err != nil {
			return err
		}
		return r.outOfSpace(ctx, c, "pg_wal disk full", lasts, r.wal, r.provokePanic)
	}
	if _, err := f.run(ctx, r); err != nil {
		return err
	}
	r.atLeast(1, "data disk full")
	r.atLeast(1, "pg_wal disk full")
	r.allAcked(f.jobs)
	return nil
}

// outOfSpace fills a disk, provokes a failure of the server, frees the disk after a while, and checks how the processes
// behaved.
func (r *Run) outOfSpace(ctx context.Context, c *crew, kind string, lasts time.Duration, d *disk,
	provoke func(context.Context) error,
) error {
	r.Progress(kind, 0, 0)
	began := time.Now()
	healed := r.Faults.Begin(kind, "")
	if err := d.fill(); err != nil {
		return fmt.Errorf("fill the disk: %w", err)
	}
	err := provoke(ctx)
	if err == nil {
		err = backoff.Sleep(ctx, lasts)
	}
	if err := errors.Join(err, d.free()); err != nil {
		return err
	}
	if err := r.Server.StartAgain(ctx); err != nil { // it ends when it has no room to recover
		return err
	}
	r.DB.Reset()
	healed()
	freed := time.Now()
	resumed, err := r.firstCompletion(ctx, freed)
	if err != nil {
		return err
	}
	r.Figure(strings.ReplaceAll(kind, " ", "_")+"_resumed_s", resumed.Seconds())
	r.Expect("seconds from free space to the first completed job, "+kind, resumed.Seconds(), "<=", 5)
	for _, w := range c.workers {
		r.Expect("worker "+w.Name+" still running, "+kind, count(w.Alive()), "=", 1)
		lines, err := troubleLines(w, began, freed)
		if err != nil {
			return err
		}
		r.Expect(fmt.Sprintf("log lines per second of worker %s, %s", w.Name, kind),
			float64(lines)/freed.Sub(began).Seconds(), "<=", 1)
	}
	return nil
}

// firstCompletion waits for the first job that is completed after a time, and returns how long after it that was.
func (r *Run) firstCompletion(ctx context.Context, after time.Time) (took time.Duration, err error) {
	err = r.Await(ctx, time.Minute, "the first job to be done again", func(ctx context.Context) (bool, error) {
		var first *time.Time
		err := r.DB.QueryRow(ctx, `SELECT min(at) FROM verify.moves WHERE became = 'succeeded' AND at >= $1`,
			after).Scan(&first)
		if first != nil {
			took = first.Sub(after)
		}
		return first != nil, err
	})
	return took, err
}

// provokeData waits until the server has no room to store a row.
func (r *Run) provokeData(ctx context.Context) error {
	return r.Await(ctx, time.Minute, "the disk of the data to be full", func(ctx context.Context) (bool, error) {
		_, err := r.DB.Exec(ctx, `INSERT INTO verify.filler SELECT repeat('x', 1000) FROM generate_series(1, 100)`)
		if isFull(err) {
			return true, nil
		}
		return false, err
	})
}

// provokePanic uses up the room that is left for the WAL. The server panics when it needs the next segment.
func (r *Run) provokePanic(ctx context.Context) error {
	return r.Await(ctx, time.Minute, "the server to panic", func(ctx context.Context) (bool, error) {
		_, err := r.DB.Exec(ctx, `SELECT pg_logical_emit_message(false, 'verify', repeat('x', 4000000))`)
		return err != nil && !isFull(err), nil
	})
}

func isFull(err error) bool {
	return err != nil && strings.Contains(err.Error(), "53100")
}

// troubleLines returns how many lines a process logged within a period, without those about a single job.
func troubleLines(p *child.Process, from, until time.Time) (int, error) {
	lines, err := logged(p, func(l logLine) bool { return l.Job == "" && l.At.After(from) && l.At.Before(until) })
	return len(lines), err
}
