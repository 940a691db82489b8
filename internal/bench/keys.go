package bench

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// keyed burns down jobs that share keys, each of which runs one job at a time: once with the jobs of a key far apart,
// and once with them side by side.
func keyed(ctx context.Context, r *rig) ([]Figure, error) {
	n, keys := cmp.Or(r.Jobs, 100_000), cmp.Or(r.Keys, 10_000)
	perKey := max(n/keys, 1)
	var figures []Figure
	for _, spread := range []struct {
		name string
		key  func(job int) int
	}{
		{"apart_jobs_per_s", func(job int) int { return job % keys }},
		{"side_by_side_jobs_per_s", func(job int) int { return job / perKey }},
	} {
		o := r.ours(r.pool, r.Notify)
		o.key = func(job int) string { return fmt.Sprint("key-", spread.key(job)) }
		if err := inBatches(n, func(first, n int) error { return o.EnqueueMany(ctx, first, n) }); err != nil {
			return nil, err
		}
		if err := r.calm(ctx); err != nil {
			return nil, err
		}
		started := time.Now()
		w, err := r.work(ctx, o, nil)
		if err != nil {
			return nil, err
		}
		if err := r.settled(ctx, w, int64(n)); err != nil {
			return nil, err
		}
		figures = append(figures, Figure{spread.name, perSecond(int64(n), started)})
		if err := w.stop(); err != nil {
			return nil, err
		}
	}
	var left int
	if err := r.pool.QueryRow(ctx, `SELECT count(*) FROM outbox.jobs`).Scan(&left); err != nil || left > 0 {
		return nil, fmt.Errorf("jobs left open = %d, %w", left, err)
	}
	return figures, nil
}

// hotKey burns down jobs without a key, alone and beside many that wait for one key, which runs one job at a time, 100
// ms each. The two cases alternate, each in a database of its own. hotKey also measures how long it takes to set the
// waiting jobs aside once.
func hotKey(ctx context.Context, r *rig) ([]Figure, error) {
	n := cmp.Or(r.Jobs, 100_000)
	beside, err := newRig(ctx, r.Options)
	if err != nil {
		return nil, err
	}
	defer beside.close()
	hot := beside.ours(beside.pool, r.Notify)
	hot.options = &outbox.Options{Key: outbox.KeyRules{Name: "hot"}}
	const hotJob = -1 // all jobs of the hot key have this number
	if err := inBatches(n, func(_, n int) error { return hot.repeat(ctx, hotJob, n) }); err != nil {
		return nil, err
	}
	handle := func(job int) {
		if job == hotJob {
			time.Sleep(100 * time.Millisecond)
		}
	}
	started := time.Now()
	w, err := beside.work(ctx, hot, handle)
	if err != nil {
		return nil, err
	}
	for due := true; due; {
		err := beside.pool.QueryRow(ctx, `SELECT count(*) > 10 FROM outbox.jobs WHERE status = 'pending'`).Scan(&due)
		if err != nil {
			return nil, err
		}
	}
	aside := time.Since(started)
	if err := w.stop(); err != nil {
		return nil, err
	}
	const due, turns = 200_000, 3 // many, because starting costs the same for any number
	rates := map[*rig][]float64{}
	for range turns {
		for _, database := range []*rig{r, beside} {
			if err := database.insert(ctx, due); err != nil {
				return nil, err
			}
			if err := database.calm(ctx); err != nil {
				return nil, err
			}
			rate, err := database.plainRate(ctx, due, handle)
			if err != nil {
				return nil, err
			}
			rates[database] = append(rates[database], rate)
		}
	}
	without, with := median(rates[r]), median(rates[beside])
	return []Figure{
		{"set_aside_s", aside.Seconds()},
		{"alone_jobs_per_s", without},
		{"beside_jobs_per_s", with},
		{"kept", with / without},
	}, nil
}

// plainRate returns how many of n due jobs without a key are settled per second.
func (r *rig) plainRate(ctx context.Context, n int, handle func(job int)) (float64, error) {
	started := time.Now()
	w, err := r.work(ctx, r.system, handle)
	if err != nil {
		return 0, err
	}
	for open := true; open; {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(time.Millisecond):
		}
		if w.done.Load() < int64(n) {
			continue
		}
		err := r.pool.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM outbox.jobs WHERE key IS NULL AND status IN ('pending', 'retrying'))
			    OR EXISTS (SELECT FROM outbox.jobs WHERE key IS NULL AND status = 'running')`).Scan(&open)
		if err != nil {
			return 0, err
		}
	}
	rate := perSecond(int64(n), started)
	return rate, w.stop()
}

// repeat stores n jobs with the same number.
func (o *ours) repeat(ctx context.Context, job, n int) error {
	requests := make([]outbox.Request, n)
	for i := range requests {
		requests[i] = outbox.Request{Args: Noop{job}, Options: *o.options}
		if o.key != nil {
			requests[i].Options.Key.Name = o.key(i)
		}
	}
	_, err := outbox.EnqueueMany(ctx, o.pool, requests)
	return err
}
