package dispatcher

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/promote"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// claimRequest describes the jobs that a claiming statement should lease.
type claimRequest struct {
	keyed   bool // jobs with a key; otherwise those without one
	shares  []scheduler.Share
	front   bool               // start from the front, not from each cursor
	frontAt scheduler.Position // see scheduler.Front
	kinds   []string
	room    int  // jobs, at most
	probe   bool // see scheduler.Plan
	limits  bool // the caller has checked the queue's limits, and room is what they leave

	// The following fields are set only if keyed.
	lookaheads []int32       // how many jobs of each share the claim looks at
	offered    []pgtype.UUID // offered jobs that it looks at besides
}

// claimBatch holds the jobs that one claiming statement has leased.
type claimBatch struct {
	claimed []*attempt
	size    int   // bytes of their payloads
	tally   tally // of a claim of jobs with a key
	err     error // how the statement ended

	// The claim loop sets the following fields.
	request claimRequest
	offers  scheduler.Offers // the offers that it looked at; nil after an error
	extent  scheduler.Extent
	ended   time.Time
}

// tally holds what the rows without a job report about a keyed claim.
type tally struct {
	scheduler.Tally
	halted []promote.Key // keys with jobs that the claim blocked
}

// tallyColumns counts the columns of a keyed claim that follow those of a job.
const tallyColumns = 6

func (t *tally) read(rows pgx.Rows, queue string) error {
	var tenant pgtype.UUID
	var key *string
	columns := append(make([]any, claimColumns), &tenant, &key, &t.Looked, &t.Passed, &t.Blocked, &t.Promoted)
	err := rows.Scan(columns...) // the last row has the numbers
	if err == nil && key != nil {
		t.halted = append(t.halted, promote.Key{Tenant: tenant.Bytes, Queue: queue, Name: *key})
	}
	return err
}

// claims sends the claiming statements of a queue, and makes attempts from the rows that they lease.
type claims struct {
	*common
	queue    string
	capacity *capacity
	recorder *report.Recorder
	handlers outbox.Beginner // handlers begin their transactions on it: Claimed.Tx

	// streams is set if the last claim of jobs without a key leased streamed ones. The next claim then stores their
	// events itself; otherwise a trigger does, more slowly. Only the claim loop uses it.
	streams bool
}

// querier is one connection or a pool.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// claim returns the most urgent jobs first.
func (c *claims) claim(ctx context.Context, db querier, r claimRequest) *claimBatch {
	p, sent := newShareParams(r), time.Now()
	var rows pgx.Rows // with the error of Query
	switch {
	case r.keyed:
		rows, _ = db.Query(ctx, sqlgen.ClaimKeyedJobs, c.worker, pgvalue.Interval(c.leaseTTL), p.tenants, p.quotas,
			r.lookaheads,
			p.firsts, p.lasts, p.priorities, p.fromRunAt, p.fromID, r.kinds, r.offered, int32(r.room), c.queue,
			r.limits)
	case c.streams:
		rows, _ = db.Query(ctx, sqlgen.ClaimStreamedJobs, p.tenants, p.quotas, p.firsts, p.lasts, p.priorities,
			p.fromRunAt, p.fromID, p.only,
			c.queue, r.kinds, r.limits, int32(r.room), c.worker, pgvalue.Interval(c.leaseTTL))
	default:
		rows, _ = db.Query(ctx, sqlgen.ClaimJobs, c.worker, pgvalue.Interval(c.leaseTTL),
			p.tenants, p.quotas, p.firsts, p.lasts, p.priorities, p.fromRunAt, p.fromID, p.only, c.queue,
			r.kinds, r.limits, int32(r.room))
	}
	b := c.read(rows, r, sent)
	if !r.keyed && len(b.claimed) > 0 {
		c.streams = slices.ContainsFunc(b.claimed, func(a *attempt) bool { return a.streamed })
	}
	slices.SortFunc(b.claimed, byUrgency) // UPDATE … RETURNING promises no order
	return b
}

// shareParams holds shares in the form that a statement takes: of each cursor the ids of jobs that a search has found,
// and the range from its position.
type shareParams struct {
	tenants               []pgtype.UUID
	quotas, firsts, lasts []int32
	priorities            []int16
	fromRunAt             []pgtype.Timestamptz
	fromID, only          []pgtype.UUID
}

func newShareParams(r claimRequest) (p shareParams) {
	for _, share := range r.shares {
		p.tenants, p.quotas = append(p.tenants, pgvalue.UUID(share.Tenant.ID)), append(p.quotas, int32(share.Quota))
		p.firsts = append(p.firsts, int32(len(p.priorities)+1))
		for _, c := range share.Cursors {
			at := c.From(r.front, r.frontAt)
			for _, found := range c.Found(at) {
				p.add(c.Priority, found, pgvalue.UUID(found.ID))
			}
			p.add(c.Priority, at, pgtype.UUID{})
		}
		p.lasts = append(p.lasts, int32(len(p.priorities)))
	}
	return p
}

func (p *shareParams) add(priority int16, from scheduler.Position, only pgtype.UUID) {
	p.priorities = append(p.priorities, priority)
	p.fromRunAt, p.fromID = append(p.fromRunAt, pgvalue.From(from.RunAt)), append(p.fromID, pgvalue.UUID(from.ID))
	p.only = append(p.only, only)
}

func pgFlows(flows []scheduler.Flow) ([]pgtype.UUID, []int16) {
	tenants, priorities := make([]pgtype.UUID, len(flows)), make([]int16, len(flows))
	for i, f := range flows {
		tenants[i], priorities[i] = pgvalue.UUID(f.Tenant), f.Priority
	}
	return tenants, priorities
}

// read reads the jobs of a claim. When jobs have become far larger than the last ones, read drops the payloads of those
// past the bound, whichever they are, and marks them as returned. It keeps the first job, however large, because
// otherwise no process would ever run it.
func (c *claims) read(rows pgx.Rows, r claimRequest, sent time.Time) *claimBatch {
	defer rows.Close()
	b := &claimBatch{claimed: make([]*attempt, 0, r.room)}
	row := newClaimRow(r.keyed)
	for rows.Next() {
		if r.keyed && rows.RawValues()[0] == nil {
			if b.err = b.tally.read(rows, c.queue); b.err != nil {
				return b
			}
			continue
		}
		var a *attempt
		if a, b.err = c.readAttempt(rows, row, sent); b.err != nil {
			return b
		}
		b.claimed = append(b.claimed, a)
		if b.size += len(a.job.Payload); b.size > 2*c.claimBytes && len(b.claimed) > 1 {
			a.job.Payload, a.returned = nil, true
		}
	}
	b.err = rows.Err()
	return b
}

// claimRow receives the columns that an attempt keeps in another form. All rows of a claim share one: a claimRow for
// each row took half of the memory of a job.
type claimRow struct {
	kind, contentType pgtype.DriverBytes // the driver's memory, valid until the next row
	key               *string
	timeout           pgtype.Interval
	backoff           pgtype.FlatArray[pgtype.Interval] // accepts any array; a scan error would stop all claims
	deadline          pgtype.Timestamptz
	watched           pgtype.Bool
	streamed          pgtype.Int4
	rowAt             pgtype.TID
	columns           []any // in the order of the statement's columns
}

// claimColumns counts the columns that into sets.
const claimColumns = 20

// newClaimRow returns a claimRow for rows of ClaimJobs or, if keyed, of ClaimKeyedJobs, which have the columns of the
// tally in place of the last one.
func newClaimRow(keyed bool) *claimRow {
	r := new(claimRow)
	if keyed {
		r.columns = make([]any, claimColumns+tallyColumns) // nil ignores those of the tally
	} else {
		r.columns = append(make([]any, claimColumns), &r.rowAt)
	}
	return r
}

// into returns the destinations for a row, with those of the job's columns in job.
func (r *claimRow) into(job *outbox.Claimed) []any {
	copy(r.columns, []any{ // an ID as bytes: its Scan is for texts, too, and costs half a microsecond a job
		(*[16]byte)(&job.ID), (*[16]byte)(&job.Tenant), &r.kind, &job.Priority, &job.Attempt, &job.MaxAttempts,
		&job.LostLeases,
		&job.Epoch, &r.key, &job.Payload, &r.contentType, &job.RawHeaders, &r.timeout, &r.backoff,
		&job.RunAt, &job.CreatedAt, &job.StartedAt, &r.deadline, &r.watched, &r.streamed,
	})
	return r.columns
}

// readAttempt makes an attempt from a row of a claim. It scans into the final place and copies no names that are known:
// it runs for every job.
func (c *claims) readAttempt(rows pgx.Rows, row *claimRow, sent time.Time) (*attempt, error) {
	both := &struct { // one allocation
		attempt attempt
		job     outbox.Claimed
	}{}
	a, job := &both.attempt, &both.job
	if err := rows.Scan(row.into(job)...); err != nil {
		return nil, err
	}
	a.route = c.routes[string(row.kind)]
	if a.route == nil {
		return nil, fmt.Errorf("kind %q has no handler and was not asked for", row.kind)
	}
	job.Kind, job.Queue, job.Worker = a.route.kind, c.queue, c.worker
	if job.ContentType = engine.ContentJSON; string(row.contentType) != engine.ContentJSON {
		job.ContentType = string(row.contentType)
	}
	job.DB = c.handlers
	kept := engine.InternalOf(job)
	kept.Watched = row.watched.Bool
	if row.key != nil {
		job.Key = *row.key
	}
	if row.timeout.Valid {
		// An INSERT may store any. Much longer ones, added to a time, would lie in the past.
		job.Timeout = min(pgvalue.Duration(row.timeout), engine.MaxDuration)
	}
	job.Backoff = pgvalue.Durations(row.backoff)
	if hook := a.route.success; hook != nil {
		kept.FollowUps.Hook = func() engine.Row { return hookRow(job, hook.kind, hook.withResult) }
	}
	a.job, a.lease.Job, a.lease.Claimed, a.capacity, a.rowAt = job, job, sent, c.capacity, row.rowAt
	a.streamed, a.traced = row.streamed.Valid, c.handlerContext
	if row.deadline.Valid {
		// Both are readings of the database's clock, and the claim was sent before the second. So our deadline is early
		// by the time that the claim was on its way, and never late.
		job.Deadline = row.deadline.Time
		a.deadline = sent.Add(job.Deadline.Sub(job.StartedAt))
	}
	a.reports.Begin(a, job, c.recorder)
	return a, nil
}

// byUrgency compares attempts in the order in which their jobs are due to start.
func byUrgency(a, b *attempt) int {
	return cmp.Or(cmp.Compare(b.job.Priority, a.job.Priority), a.job.RunAt.Compare(b.job.RunAt),
		bytes.Compare(a.job.ID[:], b.job.ID[:]))
}
