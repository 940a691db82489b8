package bench

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Sleep is the job of the child processes: it runs until it is cut off.
type Sleep struct {
	N int `json:"n"`
}

// Kind is "bench.sleep".
func (Sleep) Kind() string { return "bench.sleep" }

// recovery kills a worker that holds running jobs and times when another runs
// each of them again.
func recovery(ctx context.Context, r *rig) ([]Figure, error) {
	if r.Worker == nil {
		return nil, errors.New("needs a way to start child processes")
	}
	n := cmp.Or(r.Jobs, 50)
	dir, err := os.MkdirTemp("", "posthaste-bench")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	requests := make([]outbox.Request, n)
	for i := range requests {
		requests[i].Args = Sleep{i}
	}
	if _, err := outbox.EnqueueMany(ctx, r.pool, requests); err != nil {
		return nil, err
	}
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	killFirst, err := r.Worker(ctx, r.url, first)
	if err != nil {
		return nil, err
	}
	if _, err := awaitLines(ctx, first, n); err != nil {
		return nil, errors.Join(err, killFirst())
	}
	killSecond, err := r.Worker(ctx, r.url, second)
	if err != nil {
		return nil, errors.Join(err, killFirst())
	}
	// Somewhere inside the lease's life, as a crash would be.
	time.Sleep(3 * time.Second)
	killed := time.Now()
	if err := killFirst(); err != nil {
		return nil, err
	}
	starts, err := awaitLines(ctx, second, n)
	if err := errors.Join(err, killSecond()); err != nil {
		return nil, err
	}
	took := make([]time.Duration, len(starts))
	for i, at := range starts {
		took[i] = at.Sub(killed)
	}
	p := percentiles(took)
	return []Figure{{"p50_s", p[0].Value / 1000}, {"max_s", p[3].Value / 1000}}, nil
}

// awaitLines waits until the ledger has n lines and returns their times.
func awaitLines(ctx context.Context, ledger string, n int) ([]time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		content, _ := os.ReadFile(ledger)
		var times []time.Time
		for line := range strings.Lines(string(content)) {
			if at, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(line)); err == nil {
				times = append(times, at)
			}
		}
		if len(times) >= n {
			return times, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// idle counts the statements that a process with nothing to do sends, all of its
// connections together.
func idle(ctx context.Context, r *rig) ([]Figure, error) {
	if r.Worker == nil {
		return nil, errors.New("needs a way to start child processes")
	}
	duration := cmp.Or(r.Duration, 2*time.Minute)
	dir, err := os.MkdirTemp("", "posthaste-bench")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wire, through, err := newWire(ctx, r.url)
	if err != nil {
		return nil, err
	}
	kill, err := r.Worker(ctx, through, filepath.Join(dir, "ledger"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = kill() }()
	time.Sleep(5 * time.Second) // startup is not idle
	before := wire.statements.Load()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(duration):
	}
	return []Figure{{"queries_per_minute", float64(wire.statements.Load()-before) / duration.Minutes()}}, nil
}
