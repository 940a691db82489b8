package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/reaper"
)

// fightRows is how many jobs all participants act on.
const fightRows = 2000

// deadlocks runs row B10: everything that locks jobs acts at once on the same few rows.
func deadlocks(ctx context.Context, r *Run) error {
	workers, err := r.Crew(2, "VERIFY_CONCURRENCY=200", "VERIFY_POOL=16", "VERIFY_RETRY=1ms")
	if err != nil {
		return err
	}
	f := &fight{Run: r}
	fighting, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	all.Go(func() { f.refill(fighting) })
	for i := range 4 {
		all.Go(func() { f.operate(fighting, fault.Random(r.Seed, fmt.Sprint("operator ", i))) })
	}
	for range 2 {
		all.Go(func() { f.reap(fighting) })
	}
	all.Go(func() { f.lapse(fighting) })
	err = f.lasts(fighting, time.Duration(r.Size(13, 300))*time.Second)
	stop()
	all.Wait()
	if err != nil {
		return err
	}
	if err := r.Drain(ctx, 0, 2*time.Minute); err != nil {
		return err
	}
	if err := r.stop(ctx, workers.workers...); err != nil {
		return err
	}
	if _, err := r.checkMoves(ctx); err != nil {
		return err
	}
	return f.check(ctx)
}

// lasts waits for least. On a slow machine it waits longer, up to a minute or least, until every participant has acted
// often enough for check.
func (f *fight) lasts(ctx context.Context, least time.Duration) error {
	f.Progress("lock jobs", 0, 0)
	if err := backoff.Sleep(ctx, least); err != nil {
		return err
	}
	for deadline := time.Now().Add(max(least, time.Minute)); time.Now().Before(deadline); {
		few := false
		did, err := f.did(ctx)
		for _, act := range did {
			few = few || act.n < act.least
		}
		if err != nil || !few {
			return err
		}
		if err := backoff.Sleep(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// act is something that is done in a fight, how often it was done, and how often it has to be.
type act struct {
	what     string
	n, least int
}

// did returns how often each act was done.
func (f *fight) did(ctx context.Context) (all []act, err error) {
	enough := f.Size(100, 2000)
	for what, sql := range map[string]string{
		"attempts settled":           `SELECT count(*) FROM verify.moves WHERE was = 'running' AND became IN ('retrying', 'dead', 'failed', 'succeeded')`,
		"closed jobs trimmed":        `SELECT (SELECT count(*) FROM verify.moves WHERE became IN ('succeeded', 'dismissed')) - (SELECT count(*) FROM outbox.history)`,
		"leases expired by a reaper": `SELECT count(*) FROM (SELECT lost_leases - lag(lost_leases) OVER (PARTITION BY job ORDER BY seq) AS more FROM verify.moves WHERE was = 'running' OR became = 'running') AS moves WHERE more > 0`,
	} {
		n, err := f.Number(ctx, sql)
		if err != nil {
			return nil, err
		}
		all = append(all, act{what, n, enough})
	}
	for what, n := range map[string]*atomic.Int64{
		"retries by operators":    &f.retried,
		"dismissals by operators": &f.dismissed, "leases that the row ended early": &f.lapsed,
	} {
		all = append(all, act{what, int(n.Load()), enough})
	}
	return append(all, act{"reapers run", int(f.reapers.Load()), f.Size(20, 500)}), nil
}

// fight holds the participants that act on the rows besides the workers, and what they did.
type fight struct {
	*Run
	retried, dismissed, lapsed, reapers atomic.Int64

	mu     sync.Mutex
	failed []string // errors that a user would see
}

// saw notes an error that a user must not see. A refusal because the job has another status, or is gone, is no such
// error.
func (f *fight) saw(what string, err error) {
	_, refused := errors.AsType[*operator.StatusError](err)
	if err == nil || refused || errors.Is(err, operator.ErrNotFound) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = append(f.failed, what+": "+err.Error())
}

// refill keeps the number of jobs up. Most jobs fail on every attempt, some complete in their handlers' own
// transactions, and some run for a while.
func (f *fight) refill(ctx context.Context) {
	for ; ctx.Err() == nil; _ = backoff.Sleep(ctx, 50*time.Millisecond) {
		var n int
		if err := f.DB.QueryRow(ctx, `SELECT count(*) FROM outbox.jobs`).Scan(&n); err != nil || n >= fightRows {
			f.saw("count", err)
			continue
		}
		_, err := f.Enqueue(ctx, tasks(fightRows-n, func(i int) probe.Task {
			switch i % 20 {
			case 0:
				return probe.Task{Do: "effect"}
			case 1, 2, 3:
				return probe.Task{Do: "sleep", Ms: 50 * (i % 20)}
			}
			return probe.Task{Do: "fail"}
		}), outbox.Options{MaxAttempts: 2})
		f.saw("enqueue", err)
	}
}

// operate retries all dead letters, in an order of its own while other operators do the same, and dismisses one in ten.
func (f *fight) operate(ctx context.Context, random *rand.Rand) {
	o := operator.New(f.DB)
	for ; ctx.Err() == nil; _ = backoff.Sleep(ctx, 10*time.Millisecond) {
		dead, err := f.Texts(ctx, `SELECT id::text FROM outbox.jobs WHERE status IN ('failed', 'dead')`)
		f.saw("list", err)
		random.Shuffle(len(dead), func(i, j int) { dead[i], dead[j] = dead[j], dead[i] })
		for _, text := range dead {
			id, err := outbox.ParseID(text)
			if err != nil || ctx.Err() != nil {
				f.saw("parse", err)
				break
			}
			act, did := o.Retry, &f.retried
			if random.IntN(10) == 0 {
				act, did = o.Dismiss, &f.dismissed
			}
			if err = act(ctx, id); err == nil {
				did.Add(1)
			}
			f.saw("act", err)
		}
	}
}

// reap runs one reaper after the other: each begins with a pass over the leases and with trimming everything that is
// closed.
func (f *fight) reap(ctx context.Context) {
	none := map[outbox.Status]time.Duration{}
	for _, status := range engine.Statuses[outbox.Status]() {
		if status.Closed() {
			none[status] = 0
		}
	}
	for ctx.Err() == nil {
		p, err := reaper.New(f.DB, reaper.Config{KeepByStatus: none})
		if err == nil {
			short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
			err = p.Run(short)
			stop()
			f.reapers.Add(1)
		}
		f.saw("reap", err)
	}
}

// lapse ends the leases of running jobs early, so that reapers take jobs that are being settled.
func (f *fight) lapse(ctx context.Context) {
	for ; ctx.Err() == nil; _ = backoff.Sleep(ctx, 20*time.Millisecond) {
		tag, err := f.DB.Exec(ctx, `WITH chosen AS MATERIALIZED (
				SELECT id FROM outbox.jobs WHERE status = 'running' LIMIT 100 FOR UPDATE SKIP LOCKED)
			UPDATE outbox.jobs SET lease_expires_at = clock_timestamp() - interval '1 ms' FROM chosen WHERE jobs.id = chosen.id`)
		f.saw("lapse", err)
		f.lapsed.Add(tag.RowsAffected())
	}
}

// check checks that there was a fight, and no deadlock. It waits first: sessions report deadlocks to the server's
// statistics when they become idle.
func (f *fight) check(ctx context.Context) error {
	if err := backoff.Sleep(ctx, 1500*time.Millisecond); err != nil {
		return err
	}
	found, err := f.Number(ctx, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`)
	if err != nil {
		return err
	}
	f.Expect("deadlocks detected by the server", float64(found), "=", 0)
	f.None("errors returned to operators and producers", f.failed)
	bad, err := f.refusals()
	if err != nil {
		return err
	}
	f.None("SQLSTATE 40P01 or 40001 in the workers' logs", bad)
	did, err := f.did(ctx)
	for _, act := range did {
		f.Expect(act.what, float64(act.n), ">=", float64(act.least))
	}
	return err
}

// refusals returns the log lines of workers that report a transaction which the server chose as a victim.
func (f *fight) refusals() (bad []string, err error) {
	for _, p := range f.all() {
		lines, err := logged(p, func(l logLine) bool { return deadlocked(l.Err) || deadlocked(l.Error) })
		if err != nil {
			return nil, err
		}
		for _, l := range lines {
			bad = append(bad, fmt.Sprintf("%s: %s: %s%s", p.Name, l.Msg, l.Err, l.Error))
		}
	}
	return bad, nil
}

func deadlocked(text string) bool {
	return strings.Contains(text, "SQLSTATE 40P01") || strings.Contains(text, "SQLSTATE 40001")
}
