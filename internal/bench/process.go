package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Child starts this program again with other arguments, and returns a function that kills it with -9.
func Child(ctx context.Context, args ...string) (kill func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	child := exec.CommandContext(ctx, self, args...)
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	return func() error {
		if err := child.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		_ = child.Wait() // it returns the status of a killed process
		return nil
	}, nil
}

// Hold handles a job in a worker that Child has started: it appends a line to ledger, and runs until it is cut off.
func Hold(ctx context.Context, ledger *os.File) error {
	if _, err := fmt.Fprintln(ledger, time.Now().Format(time.RFC3339Nano)); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// recovery kills a worker with running jobs, and measures when another worker runs each of them again.
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
	if err := r.insert(ctx, n); err != nil {
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
	// Kill at a moment within the lease, as a crash would.
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

// idle counts the statements that a process without jobs sends, over all its connections.
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
