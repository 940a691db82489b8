package dispatcher

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// claim leases up to room jobs and puts them into the buffer. It returns how many
// it got.
func (q *queue) claim(ctx context.Context, room int) (int, error) {
	if len(q.claimable()) == 0 {
		return 0, nil
	}
	if q.limits.stopped = false; q.limits.on.Load() {
		n, err := q.claimLimited(ctx, room)
		if err != nil || q.limits.on.Load() {
			return n, err
		}
	}
	return q.claimFrom(ctx, within{q.pool, false}, room, func(h *haul) error { return q.take(ctx, h) })
}

// claimFrom leases up to room jobs and hands them on, as one haul or two.
func (q *queue) claimFrom(ctx context.Context, db within, room int, hand func(*haul) error) (int, error) {
	if !q.shared.on {
		return q.claimRoot(ctx, db, room, hand)
	}
	return q.claimShares(ctx, db, room, hand)
}

// claimRoot leases jobs of the root tenant, and those of any that have a key.
func (q *queue) claimRoot(ctx context.Context, db within, room int, hand func(*haul) error) (int, error) {
	if q.keyed.hasOffers() {
		q.keyed.found()
	}
	if !q.keyed.on {
		return q.claimPlain(ctx, db, room, hand)
	}
	return q.claimBoth(ctx, db, room, hand)
}

// within is where a claim is sent to.
type within struct {
	querier
	limits bool // the sender has looked at the queue's limits, and room is what they leave
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// haul is what one claiming statement has leased.
type haul struct {
	claimed []*attempt
	room    int       // how many were asked for
	size    int       // bytes of their payloads
	halted  []keyName // keys of which something was blocked
	learn   func()    // notes how far the claim came, once its jobs are really ours
	err     error     // how the statement ended
}

// claimPlain leases jobs of the root tenant that have no key.
func (q *queue) claimPlain(ctx context.Context, db within, room int, hand func(*haul) error) (int, error) {
	started := time.Now()
	depth := q.scan.depth(started)
	priorities, fromRunAt, fromID := q.scan.from(depth)

	// A claim that is cut off may have committed: its jobs would wait for their
	// leases to lapse. So a stop lets the statement finish.
	bound, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	rows, _ := db.Query(bound, sqlgen.ClaimJobs, q.worker, interval(q.config.LeaseTTL), // its error is also that of Err
		priorities, fromRunAt, fromID, q.name, q.claimable(), int32(room), db.limits)
	h := q.readClaim(rows, room, started, nil)
	if h.err != nil {
		q.scan.charge(depth, started, time.Now()) // a full scan that never ends must not be all that is tried
	} else {
		ended := time.Now()
		slices.SortFunc(h.claimed, byUrgency) // UPDATE … RETURNING promises no order
		h.learn = func() {
			q.scan.note(depth, started, ended, h.claimed)
			if q.shared.on {
				q.shared.noteRoot(h.claimed, room)
			}
		}
	}
	return len(h.claimed), hand(h)
}

// take puts what a claim has leased into the buffer.
func (q *queue) take(ctx context.Context, h *haul) error {
	claimed, size, room := h.claimed, h.size, h.room
	if len(claimed) > 0 {
		q.noteSize(int64(size / len(claimed))) // of a claim that broke off, too
	}
	if h.err != nil {
		q.uncertain = time.Now().Add(uncertainFor)
		return fmt.Errorf("claim %d jobs: %w", room, h.err)
	}
	h.learn()
	q.promoter.blocked(h.halted)
	if len(claimed) > room {
		return fmt.Errorf("claim %d jobs: got %d; refusing to go on with a plan that breaks the limit", room, len(claimed))
	}
	q.health.set(nil)
	q.metrics.claimBatch.Observe(float64(len(claimed)))

	q.leases.add(claimed)
	q.inHand.Add(int64(len(claimed)))
	surplus, together, now := 0, 0, time.Now()
	if len(claimed) > 0 {
		q.standing.noteOpen(claimed[0].claimed, now)
	}
	for _, a := range claimed {
		a.arrived = now
		a.route.counts.claimed.Inc()
		if a.unused {
			surplus++
			q.inHand.Add(-1)
			q.returnUnstarted(a)
			continue
		}
		if a.route.many != nil {
			together++
			q.inHand.Add(-1) // its batch will take a slot
			q.gather(a)
			continue
		}
		if a.ahead {
			q.kept.inHand.Add(1)
			q.ahead <- a
			continue
		}
		q.buffer <- a // never blocks: it is larger than room can be
	}
	if q.gathers {
		q.noteClaim(len(claimed), together)
	}
	if surplus > 0 {
		q.log.LogAttrs(ctx, slog.LevelInfo, "jobs given back: they are larger than the ones before",
			slog.String("queue", q.name), slog.Int("jobs", surplus), slog.Int("bytes", size))
	}
	return nil
}

// noteSize learns at once that payloads have become larger, and slowly that they
// have become smaller.
func (q *queue) noteSize(mean int64) {
	if known := q.meanSize.Load(); mean < known {
		mean = known + (mean-known)/8
	}
	q.meanSize.Store(mean)
}

// returnOrphans gives back what a failed claim may have leased: the statement can
// have committed before its connection broke. Nothing else would know of these
// jobs until their leases lapse. The queue's own loop calls it, so no claim of
// this queue is under way, and the worker's name is this process's alone. The
// statement may also commit later: the server need not notice soon that nobody
// waits for its answer. So the loop asks again until it has run out of time, and
// once more when it ends; what commits after that waits for its lease to lapse.
func (q *queue) returnOrphans(ctx context.Context) error {
	bound, cancel := bounded(ctx)
	defer cancel()
	n, err := q.db.ReturnOrphans(bound, sqlgen.ReturnOrphansParams{Queue: q.name, Worker: q.worker, Held: q.ask()})
	q.asked()
	if err != nil && !isUnreachable(err) { // that is said of the claim
		q.complain(ctx, "jobs of a claim that was cut off not given back", err, slog.String("queue", q.name))
	}
	if n > 0 {
		q.poke()
		q.tellOthers()
		q.log.LogAttrs(ctx, slog.LevelInfo, "jobs of a claim that was cut off given back", slog.String("queue", q.name), slog.Int64("jobs", n))
	}
	return err
}

// survey tells how long to sleep when nothing due is left: until the next known
// start, a wider scan, or the poll. more says that there may be something to
// claim: a priority that was not known, or a job that has become due since the
// last survey and so perhaps after the last claim had looked.
//
// The gaps between the known priorities may be full of dead entries, so they are
// looked into when a full scan is affordable, and then until they hold nothing
// unknown: a first statement that was slow must not hide the second priority
// until its cost has been waited out.
func (q *queue) survey(ctx context.Context) (sleep time.Duration, more bool, err error) {
	sleep, more, err = q.surveyScan(ctx, &q.scan, q.askLevels)
	if err == nil && q.keyed.on {
		var keyedSleep time.Duration
		var keyedMore bool
		keyedSleep, keyedMore, err = q.surveyKeyed(ctx)
		sleep, more = min(sleep, keyedSleep), more || keyedMore
	}
	if err == nil && q.shared.on {
		sharedSleep, sharedMore := q.surveyShared(time.Now())
		sleep, more = min(sleep, sharedSleep), more || sharedMore
	}
	return sleep, more, err
}

func (q *queue) surveyScan(ctx context.Context, s *scan, ask askLevels) (sleep time.Duration, more bool, err error) {
	started := time.Now()
	gaps := s.depth(started) == full
	if gaps {
		defer func() {
			s.noteSurvey(started, time.Now(), err != nil)
		}()
	}
	for range maxLevels {
		var found bool
		sleep, found, err = q.surveyOnce(ctx, s, ask, gaps)
		if err != nil || !found {
			return sleep, more, err
		}
		more = true
		gaps = gaps && time.Since(started) < longSurvey
	}
	return sleep, more, nil
}

// askLevels is one of the two surveying statements.
type askLevels func(context.Context, sqlgen.SurveyLevelsParams) ([]sqlgen.SurveyLevelsRow, error)

func (q *queue) askLevels(ctx context.Context, params sqlgen.SurveyLevelsParams) ([]sqlgen.SurveyLevelsRow, error) {
	params.Keyed, params.Shared = !q.keyed.on, !q.shared.on
	return q.db.SurveyLevels(ctx, params)
}

// longSurvey is when a survey has found that gaps are dear: what they still hide
// is for the next ones.
const longSurvey = time.Second

func (q *queue) surveyOnce(ctx context.Context, s *scan, ask askLevels, gaps bool) (sleep time.Duration, more bool, err error) {
	params := sqlgen.SurveyLevelsParams{Queue: q.name, Since: s.since}
	params.Priorities, params.Above, params.Below = s.gaps()
	if !gaps {
		params.Above, params.Below = nil, nil
	}
	bound, cancel := bounded(ctx)
	rows, err := ask(bound, params)
	cancel()
	if err != nil {
		return 0, false, fmt.Errorf("survey queue %s: %w", q.name, err)
	}
	s.surveyed = time.Now()

	sleep = q.pollInterval()
	for _, row := range rows {
		s.since = row.SurveyedAt
		switch {
		case math.IsNaN(row.DueInSeconds): // no job: the queue is paused or limited
			more = !q.limits.on.Swap(true) || more
		case math.IsInf(row.DueInSeconds, 1): // no job: the time of the survey
		case math.IsInf(row.DueInSeconds, -1): // no job either: there are some with keys, or of other tenants
			if row.Priority == 0 {
				q.keyed.found()
			} else {
				q.shared.found()
			}
			more = true
		case !slices.Contains(params.Priorities, row.Priority):
			s.level(row.Priority)
			more = true
		case row.DueInSeconds <= 0:
			more = true
		case row.DueInSeconds < sleep.Seconds(): // compared as it is: the year 9999 is no time.Duration
			sleep = time.Duration(row.DueInSeconds * float64(time.Second))
		}
	}
	if wide, ok := s.wideAfter(time.Now()); ok || !gaps {
		sleep = min(sleep, wide)
	}
	return max(sleep, 0), more, nil
}

func byUrgency(a, b *attempt) int {
	return cmp.Or(cmp.Compare(b.job.Priority, a.job.Priority), a.job.RunAt.Compare(b.job.RunAt), bytes.Compare(a.job.ID[:], b.job.ID[:]))
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

func pgID(id outbox.ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }
