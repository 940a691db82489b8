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

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// claim leases what the plan asks for and gives it to the workers; the claim of a queue with
// limits makes another plan, for what they leave room for. It returns how many jobs it got.
func (q *queue) claim(ctx context.Context, p claimPlan, again func(places) claimPlan) (int, error) {
	if q.limits.stopped = false; q.limits.on.Load() {
		n, err := q.claimLimited(ctx, again)
		if err != nil || q.limits.on.Load() {
			return n, err
		}
	}
	return q.claimFrom(ctx, within{q.pool, false}, p, func(b *claimBatch) error { return q.take(ctx, b) })
}

// claimFrom leases what the plan asks for and hands it on, as one batch or two.
func (q *queue) claimFrom(ctx context.Context, db within, p claimPlan, hand func(*claimBatch) error) (n int, err error) {
	if len(p.keyed) > 0 {
		if n, err = q.claimKeyed(ctx, db, p, hand); err != nil {
			return n, err
		}
	}
	if len(p.plain) > 0 {
		var plain int
		plain, err = q.claimPlain(ctx, db, p, hand)
		n += plain
	}
	return n, err
}

// within is where a claim is sent to.
type within struct {
	querier
	limits bool // the sender has looked at the queue's limits, and room is what they leave
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// claimBatch is what one claiming statement has leased.
type claimBatch struct {
	claimed []*attempt
	room    int       // how many were asked for
	size    int       // bytes of their payloads
	halted  []keyName // keys of which something was blocked
	learn   func()    // notes how far the claim came, once its jobs are really ours; nil for a probe
	err     error     // how the statement ended
}

// shareParams are shares as a statement takes them.
type shareParams struct {
	tenants               []pgtype.UUID
	quotas, firsts, lasts []int32
	priorities            []int16
	fromRunAt             []pgtype.Timestamptz
	fromID                []pgtype.UUID
}

func newShareParams(shares []share, front bool) (p shareParams) {
	for _, share := range shares {
		p.tenants, p.quotas = append(p.tenants, pgID(share.tenant.id)), append(p.quotas, int32(share.quota))
		p.firsts = append(p.firsts, int32(len(p.priorities)+1))
		for _, c := range share.cursors {
			from := pgtype.Timestamptz{Time: c.at.runAt, Valid: true}
			if front || c.at.runAt.IsZero() {
				from = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
			}
			p.priorities, p.fromRunAt, p.fromID = append(p.priorities, c.priority), append(p.fromRunAt, from), append(p.fromID, pgID(c.at.id))
		}
		p.lasts = append(p.lasts, int32(len(p.priorities)))
	}
	return p
}

// claimPlain leases jobs without a key.
func (q *queue) claimPlain(ctx context.Context, db within, plan claimPlan, hand func(*claimBatch) error) (int, error) {
	cs, room, started := &q.sched.plain, plan.room(plan.plain), time.Now()
	front := plan.probe || cs.front.allows(started)
	p := newShareParams(plan.plain, front)

	// A claim that is cut off may have committed: its jobs would wait for their
	// leases to lapse. So a stop lets the statement finish.
	bound, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	rows, _ := db.Query(bound, sqlgen.ClaimJobs, q.worker, interval(q.leaseTTL), // its error is also that of Err
		p.tenants, p.quotas, p.firsts, p.lasts, p.priorities, p.fromRunAt, p.fromID, q.name, q.claimable(), db.limits, int32(room))
	b := q.readClaim(rows, room, started, nil)
	ended := time.Now()
	if b.err != nil {
		q.sched.failed(cs, front, ended.Sub(started))
		return 0, hand(b)
	}
	slices.SortFunc(b.claimed, byUrgency) // UPDATE … RETURNING promises no order
	if plan.probe {
		return len(b.claimed), hand(b)
	}
	cs.cost(front, ended, ended.Sub(started), len(b.claimed))
	b.learn = func() {
		q.sched.claimed(cs, plan.plain, b.claimed, extent{front: front}, ended)
		takeTurns(b.claimed)
	}
	return len(b.claimed), hand(b)
}

// take gives the workers what a claim has leased.
func (q *queue) take(ctx context.Context, b *claimBatch) error {
	if len(b.claimed) > 0 {
		q.noteSize(int64(b.size / len(b.claimed))) // of a claim that broke off, too
	}
	if b.err != nil {
		q.uncertain = time.Now().Add(uncertainFor)
		return fmt.Errorf("claim %d jobs: %w", b.room, b.err)
	}
	if b.learn != nil {
		b.learn()
	}
	q.promoter.blocked(b.halted)
	if len(b.claimed) > b.room {
		return fmt.Errorf("claim %d jobs: got %d; refusing to go on with a plan that breaks the limit", b.room, len(b.claimed))
	}
	q.health.OK()
	q.metrics.claimBatch.Observe(float64(len(b.claimed)))

	q.leases.add(b.claimed)
	q.inHand.Add(int64(len(b.claimed)))
	surplus, together, now := 0, 0, time.Now()
	if len(b.claimed) > 0 {
		q.standing.noteOpen(b.claimed[0].claimed, now)
	}
	for _, a := range b.claimed {
		a.arrived = now
		a.route.counts.claimed.Inc()
		switch {
		case a.unused:
			surplus++
			q.inHand.Add(-1)
			q.settler.returnUnstarted(a)
		case a.route.many != nil:
			together++
			q.inHand.Add(-1) // its batch will take a slot
			q.gather(a)
		default:
			q.deliver(a)
		}
	}
	if q.gathers {
		q.noteClaim(len(b.claimed), together)
	}
	if surplus > 0 {
		q.log.LogAttrs(ctx, slog.LevelInfo, "jobs given back: they are larger than the ones before",
			slog.String("queue", q.name), slog.Int("jobs", surplus), slog.Int("bytes", b.size))
	}
	return nil
}

// deliver gives a job to the workers, past the buffer if its tenant holds few.
func (q *queue) deliver(a *attempt) {
	a.tenant = q.sched.tenant(a.job.Tenant, a.arrived)
	if held := a.tenant.inHand.Add(1); held <= sparse && !a.tenant.more && q.sched.several() {
		q.express <- a
		return
	}
	q.buffer <- a // never blocks: it is larger than room can be
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
	if err != nil && !pgsession.IsUnreachable(err) { // that is said of the claim
		q.health.Complain(ctx, "jobs of a claim that was cut off not given back", err, slog.String("queue", q.name))
	}
	if n > 0 {
		q.poke()
		q.peers.notify()
		q.log.LogAttrs(ctx, slog.LevelInfo, "jobs of a claim that was cut off given back", slog.String("queue", q.name), slog.Int64("jobs", n))
	}
	return err
}

// survey asks when the next job of each known flow becomes due, and which tenants and
// priorities there are besides. It reports whether there is something to claim.
func (q *queue) survey(ctx context.Context) (found bool, err error) {
	s, started := q.sched, time.Now()
	search := s.searches(started)
	p := sqlgen.SurveyQueueParams{Queue: q.name, Since: s.since, MaxNew: maxNewFlows}
	p.TenantIds, p.Priorities = s.plain.known()
	p.KeyedTenantIds, p.KeyedPriorities = s.keyed.known()
	if search {
		plain, keyed := s.plain.gaps(s.served), s.keyed.gaps(s.served)
		p.GapFrom, p.GapTo, p.KeyedGapFrom, p.KeyedGapTo = pgIDs(plain.from), pgIDs(plain.to), pgIDs(keyed.from), pgIDs(keyed.to)
		p.LevelTenantIds, p.LevelFrom, p.LevelTo = pgIDs(plain.of), plain.lowest, plain.highest
		p.KeyedLevelTenantIds, p.KeyedLevelFrom, p.KeyedLevelTo = pgIDs(keyed.of), keyed.lowest, keyed.highest
	}
	bound, cancel := bounded(ctx)
	rows, err := q.db.SurveyQueue(bound, p)
	cancel()
	ended := time.Now()
	if err != nil {
		s.surveyFailed(search, ended.Sub(started))
		return false, fmt.Errorf("survey queue %s: %w", q.name, err)
	}
	at := pgtype.Timestamptz{}
	told := make([]surveyRow, 0, len(rows))
	for _, row := range rows {
		at = row.SurveyedAt
		r := surveyRow{keyed: row.Keyed, flow: flow{row.TenantID.Bytes, row.Priority}}
		switch {
		case math.IsNaN(row.DueInSeconds): // no job: the queue is paused or limited
			if !q.limits.on.Swap(true) {
				s.woken() // claims tell which
				found = true
			}
			continue
		case math.IsInf(row.DueInSeconds, 1): // no job: the time of the survey
			continue
		case math.IsInf(row.DueInSeconds, -1):
			r.unknown = true
		default: // the year 9999 is no time.Duration
			r.due = time.Duration(min(row.DueInSeconds, farOff.Seconds()) * float64(time.Second))
		}
		told = append(told, r)
	}
	return s.noteSurvey(told, at, search, started, ended) || found, nil
}

const (
	// maxNewFlows bounds what a survey finds: there is another one after the next claim.
	maxNewFlows = 256
	// farOff is more than any poll interval: what is due later need not be told apart.
	farOff = 24 * time.Hour
)

func byUrgency(a, b *attempt) int {
	return cmp.Or(cmp.Compare(b.job.Priority, a.job.Priority), a.job.RunAt.Compare(b.job.RunAt), bytes.Compare(a.job.ID[:], b.job.ID[:]))
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

func pgID(id outbox.ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

func pgIDs(ids []outbox.ID) []pgtype.UUID {
	all := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		all[i] = pgID(id)
	}
	return all
}
