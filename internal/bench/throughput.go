package bench

import (
	"cmp"
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// burndown enqueues a backlog and works it off.
func burndown(ctx context.Context, r *rig) ([]Figure, error) {
	n := cmp.Or(r.Jobs, 100_000)
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	var before string
	if err := r.pool.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&before); err != nil {
		return nil, err
	}
	started := time.Now()
	if err := r.insert(ctx, n, outbox.Options{}); err != nil {
		return nil, err
	}
	enqueued := perSecond(int64(n), started)

	forgetPeak() // the requests were the producer's memory, not the worker's
	started = time.Now()
	w, err := r.work(ctx, r.pool, nil)
	if err != nil {
		return nil, err
	}
	if err := r.settled(ctx, w, int64(n)); err != nil {
		return nil, err
	}
	rate := perSecond(int64(n), started)
	rss := peakMiB()
	if err := w.stop(); err != nil {
		return nil, err
	}
	if err := r.noneDue(ctx); err != nil {
		return nil, err
	}
	var wal float64
	err = r.pool.QueryRow(ctx, `SELECT (pg_current_wal_lsn() - $1::pg_lsn)::float8`, before).Scan(&wal)
	return []Figure{
		{"bulk_enqueue_per_s", enqueued},
		{"jobs_per_s", rate},
		{"wal_bytes_per_job", wal / float64(n)},
		{"rss_mib", rss},
	}, err
}

// steady enqueues and dispatches at once; the producer waits while 20 000 jobs are open.
func steady(ctx context.Context, r *rig) ([]Figure, error) {
	const mostOpen, batch = 20_000, 1000
	duration := cmp.Or(r.Duration, 10*time.Second)
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	w, err := r.work(ctx, r.pool, nil)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	var enqueued int64
	for time.Since(started) < duration {
		if enqueued-w.done.Load() > mostOpen-batch {
			time.Sleep(time.Millisecond)
			continue
		}
		if err := r.insert(ctx, batch, outbox.Options{}); err != nil {
			return nil, err
		}
		enqueued += batch
	}
	if err := r.settled(ctx, w, enqueued); err != nil {
		return nil, err
	}
	rate := perSecond(enqueued, started)
	if err := w.stop(); err != nil {
		return nil, err
	}
	return []Figure{{"jobs_per_s", rate}}, r.noneDue(ctx)
}

// forgetPeak makes peakMiB count from now on.
func forgetPeak() {
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // not on every system: then the peak is that of the whole run
}

// peakMiB is the most resident memory that this process has had, 0 where the
// system does not tell.
func peakMiB() float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kib / 1024
		}
	}
	return 0
}
