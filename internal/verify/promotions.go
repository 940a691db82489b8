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
	// A process that frees a slot promotes the next job at once: it looks and commits. Of
	// some hundred the slowest took 0.2 s on two cores, and 0.5 s beside ten times as much
	// work as these can do. The sweep, which repairs what was lost, would come after 2 s.
	promoteWithin = time.Second
	// A sweep begins up to 2.5 s after the last one, and looks again 250 ms later at
	// what it has found, before it promotes.
	sweepWithin = 2750 * time.Millisecond
	// A pass over the leases begins up to 2.5 s after the last one.
	reapWithin = 2500 * time.Millisecond
	// A sweep that took long is followed by a pause 19 times as long, and what stalls the
	// machine stalls it: so many times the allowance, which is two stalls, comes on top.
	sweepStalls = 10
)

// inBursts is what producers and workers of both halves of row K6 do: no key is used
// again after its burst, so that no later job of it makes good what was lost.
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

// promotions is row K6.
func promotions(ctx context.Context, r *Run) error {
	stalled, cold := r.stalls(ctx), r.firstPromotions(ctx)
	before := inBursts("p", r.Size(600, 60_000), 4)
	// Nobody takes back what a worker cannot extend in time, on a machine that is too busy
	// with starting them all: these have a whole lease.
	err := r.withoutSweeps(ctx, &before)
	first := cold()
	if err != nil {
		return err
	}
	r.Lease = 2 * time.Second // until it lapses, a killed worker's slots are taken
	parted := time.Now()
	f, d := inBursts("q", r.Size(250, 30_000), r.Size(16, 64)), &deaths{run: r}
	f.least = map[string]int{"kill -9 worker": r.Size(2, 60), allDead: r.Size(1, 15)}
	f.faults = func(ctx context.Context, c *crew) error {
		return r.beat(acts{
			"kill": func(ctx context.Context, p fault.Planned) error { return c.replace(ctx, p.Target) },
			"die":  func(ctx context.Context, _ fault.Planned) error { return d.die(ctx, c) },
		},
			// One worker is spared, whose reaper the others' keys can rely on.
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

// withoutSweeps has workers without a reaper: what they do not promote, nobody does.
func (r *Run) withoutSweeps(ctx context.Context, f *flow) error {
	// A job that fails frees its slot, too. It comes back late, so that it does not make
	// good what was lost then.
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
	// Retries come after 2 s, polls after 1 s: where nothing has moved for ten, nothing will.
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
	// Else the first sweep would have thousands of keys to look at and to forget, and the
	// next ones would come 19 times later than that took.
	_, err = r.DB.Exec(ctx, `DELETE FROM outbox.keys WHERE NOT EXISTS (SELECT FROM outbox.jobs)`)
	return err
}

// checkSlots holds the recorded moves of each key against what promotions promise: of
// the time before parted, when nobody swept, and of that of the faults. What keys
// waited while there was no worker or somebody held them, is not counted.
func (r *Run) checkSlots(ctx context.Context, parted time.Time, away []checker.Span, stall, first time.Duration) error {
	unswept := longest{limit: promoteWithin + stall + first}
	swept := longest{limit: sweepWithin + promoteWithin + sweepStalls*stall}
	// A slot of a dead worker is free when its lease has lapsed and a reaper has seen
	// that; if that one dies before it has promoted the next job, a sweep does. A job
	// that is promoted when nobody listens waits for the poll.
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

// longest is the longest of some spans, and those beyond a limit.
type longest struct {
	limit, took time.Duration
	beyond      []string
}

// note counts of a span what lies in no time of away.
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

// eachKey calls f with the moves of all jobs of a key, in the order of their times,
// and with its limit, key by key.
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
