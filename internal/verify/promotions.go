package verify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/checker"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	// A process that frees a slot promotes the next job at once. Of some hundred promotions the slowest took 0.2 s on
	// two cores, and 0.5 s under ten times the load that two cores can handle. The sweep, which repairs lost
	// promotions, would come after 2 s.
	promoteWithin = time.Second
	// A sweep begins up to 2.5 s after the last one. It looks again 250 ms later at the keys that it has found, before
	// it promotes.
	sweepWithin = 2750 * time.Millisecond
	// A pass over the leases begins up to 2.5 s after the last one.
	reapWithin = 2500 * time.Millisecond
	// A pause follows each sweep, 19 times as long as the sweep, which a stalled machine prolongs: limits add
	// sweepStalls times the allowance, which is twice the longest stall.
	sweepStalls = 10
)

// inBursts returns the flow of both halves of row K6. No key is used again after its burst, so that no later job of the
// key can repair a lost promotion.
func inBursts(names string, jobs, burst int) flow {
	return flow{
		names: names, jobs: jobs, producers: 3, workers: 3, concurrency: 16,
		patience: time.Minute + time.Duration(jobs)*20*time.Millisecond,
		producerEnv: []string{
			"VERIFY_INSIST=on", "VERIFY_CLIENTS=4", fmt.Sprint("VERIFY_BURST=", burst), "VERIFY_MS=20",
			"VERIFY_PACE=15ms", "VERIFY_MIX=effect,once,effect,sleep",
		},
	}
}

// promotions runs row K6.
func promotions(ctx context.Context, r *Run) error {
	stalled, cold := r.stalls(ctx), r.firstPromotions(ctx)
	before := inBursts("p", r.Size(600, 60_000), 4)
	// These workers have the default lease of the run: there is no reaper to take a job back if a worker cannot extend
	// its lease in time, on a machine that is busy starting them all.
	err := r.withoutSweeps(ctx, &before)
	first := cold()
	if err != nil {
		return err
	}
	r.Lease = 2 * time.Second // a killed worker's slots are taken until it lapses
	parted := time.Now()
	f, d := inBursts("q", r.Size(250, 30_000), r.Size(16, 64)), &deaths{run: r}
	f.least = map[string]int{"kill -9 worker": r.Size(2, 60), allDead: r.Size(1, 15)}
	f.faults = func(ctx context.Context, c *crew) error {
		return r.beat(acts{
			"kill": func(ctx context.Context, p fault.Planned) error { return c.replace(ctx, p.Target) },
			"die":  func(ctx context.Context, _ fault.Planned) error { return d.die(ctx, c) },
		},
			// One worker is spared, so that there is always a reaper.
			fault.Beat{Kind: "kill", Every: 500 * time.Millisecond, Targets: f.workers - 1},
			fault.Beat{Kind: "die", Every: time.Duration(r.Size(1, 5)) * time.Second})(ctx)
	}
	_, err = f.run(ctx, r)
	stall := stalled()
	if err != nil {
		return err
	}
	r.allAcked(before.jobs + f.jobs)
	slowest := slices.Max(append(d.took, 0))
	r.Expect("seconds from new workers until the sweep promoted the next jobs of the dead workers' keys, worst",
		slowest.Seconds(), "<=",
		(sweepWithin + promoteWithin + sweepStalls*stall).Seconds())
	return r.checkSlots(ctx, parted, d.away, stall, first)
}

// withoutSweeps runs the flow with workers that have no reaper: a job that they do not promote stays blocked.
func (r *Run) withoutSweeps(ctx context.Context, f *flow) error {
	// A job that fails also frees its slot. It is retried late, so that its retry does not repair a promotion that was
	// lost then.
	f.producerEnv = append(f.producerEnv, "VERIFY_FAILS=25")
	crew, err := r.Crew(f.workers, fmt.Sprint("VERIFY_CONCURRENCY=", f.concurrency), "OUTBOX_REAP=off",
		"VERIFY_RETRY=2s")
	if err != nil {
		return err
	}
	p := &production{flow: f, run: r, crew: crew}
	if err := p.start(f.jobs); err != nil {
		return err
	}
	if err := p.placeAll(ctx); err != nil {
		return err
	}
	// Retries come after 2 s, polls after 1 s: if nothing has moved for 10 s, nothing will.
	err = r.Await(ctx, f.patience, "all jobs to be done, or to stand still",
		func(ctx context.Context) (ended bool, err error) {
			n, err := r.closed(ctx)
			r.Progress("without sweeps", n, f.jobs)
			if err == nil {
				err = r.DB.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM outbox.jobs)
				OR (SELECT max(at) < clock_timestamp() - interval '10 s' FROM verify.moves)`).Scan(&ended)
			}
			return ended, err
		})
	if err != nil {
		return err
	}
	left, err := r.Texts(
		ctx, `SELECT key || ': ' || string_agg(status::text, ', ') FROM outbox.jobs GROUP BY key ORDER BY key`)
	if err != nil {
		return err
	}
	r.None("keys left with unfinished jobs, without a sweep", left)
	if err := r.stop(ctx, crew.workers...); err != nil {
		return err
	}
	// Otherwise the first sweep would have thousands of keys to read and delete, and a pause 19 times as long would
	// follow it.
	_, err = r.DB.Exec(ctx, `DELETE FROM outbox.keys WHERE NOT EXISTS (SELECT FROM outbox.jobs)`)
	return err
}

// checkSlots checks the recorded moves of each key: before parted, when no process swept, and after it, during the
// faults. It does not count the time in which a key waited because there was no worker, or because the row itself had
// locked the keys.
func (r *Run) checkSlots(ctx context.Context, parted time.Time, away []checker.Span, stall, first time.Duration) error {
	unswept := longest{limit: promoteWithin + stall + first}
	swept := longest{limit: sweepWithin + promoteWithin + sweepStalls*stall}
	// A slot of a dead worker is free when its lease has lapsed and a reaper has expired it. If that process dies
	// before it has promoted the next job, a sweep promotes it. A job that is promoted while no worker listens waits
	// for the poll.
	claimed := longest{limit: r.Lease + reapWithin + sweepWithin + poll + promoteWithin + sweepStalls*stall}
	promoted := 0
	err := r.eachKey(ctx, func(key string, limit int, moves []checker.Move) {
		s := checker.ReadSlots(limit, moves)
		calm := moves[0].At.Before(parted) // a key is used in one half only
		if calm {
			promoted += s.Promoted
		}
		for _, span := range s.Free {
			if calm {
				unswept.note(key, span, nil)
			} else {
				swept.note(key, span, away)
			}
		}
		for _, span := range s.Unclaimed {
			if !calm {
				claimed.note(key, span, away)
			}
		}
	})
	if err != nil {
		return err
	}
	r.Expect("jobs promoted without a sweep", float64(promoted), ">=", float64(r.Size(600, 60_000)/5))
	unswept.expect(r, "seconds that a key had a free slot and a blocked job, without a sweep, worst")
	swept.expect(r, "seconds that a key had a free slot and a blocked job, during the kills, worst")
	claimed.expect(r, "seconds without a claim for a key with waiting jobs, during the kills, worst")
	return nil
}

// longest holds the longest of the noted spans, and those beyond a limit.
type longest struct {
	limit, took time.Duration
	beyond      []string
}

// note notes the part of a span that lies outside the times in away.
func (l *longest) note(key string, s checker.Span, away []checker.Span) {
	took := s.Until.Sub(s.From)
	for _, a := range away {
		from, until := s.From, s.Until
		if a.From.After(from) {
			from = a.From
		}
		if a.Until.Before(until) {
			until = a.Until
		}
		took -= max(until.Sub(from), 0)
	}
	l.took = max(l.took, took)
	if s.What = key; took > l.limit {
		l.beyond = append(l.beyond, s.String())
	}
}

func (l *longest) expect(r *Run, what string) {
	r.Expect(what, l.took.Seconds(), "<=", l.limit.Seconds(), l.beyond...)
}

// eachKey calls f once for each key, with the key's limit and the moves of all its jobs in the order of their times.
func (r *Run) eachKey(ctx context.Context, f func(key string, limit int, moves []checker.Move)) error {
	rows, err := r.DB.Query(ctx, `
		SELECT jobs.key, coalesce((jobs.task ->> 'limit')::int, 1), jobs.id::text, coalesce(moves.was, ''), moves.became, moves.at
		FROM (SELECT id, key, convert_from(payload, 'UTF8')::jsonb AS task FROM outbox.history WHERE key IS NOT NULL) AS jobs
		JOIN verify.moves ON moves.job = jobs.id
		ORDER BY jobs.key, moves.at, moves.seq`)
	if err != nil {
		return fmt.Errorf("read the moves of each key: %w", err)
	}
	defer rows.Close()
	var last string
	var most int
	var moves []checker.Move
	for rows.Next() {
		var key, was, became string
		var limit int
		var m checker.Move
		if err := rows.Scan(&key, &limit, &m.Job, &was, &became, &m.At); err != nil {
			return fmt.Errorf("read the moves of each key: %w", err)
		}
		if key != last && len(moves) > 0 {
			f(last, most, moves)
			moves = moves[:0]
		}
		m.From, m.To = outbox.Status(was), outbox.Status(became)
		last, most, moves = key, limit, append(moves, m)
	}
	if len(moves) > 0 {
		f(last, most, moves)
	}
	return rows.Err()
}
