package dispatcher

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// readClaim reads the jobs of a claim. When jobs have become far larger than the
// last ones were, it does not keep what comes after the bound: those, whichever
// they are, are marked as unused. The first is kept, however large it is, or
// nobody would ever run it. tally is where the last row of a keyed claim goes.
func (q *queue) readClaim(rows pgx.Rows, room int, sent time.Time, tally *tally) *claimBatch {
	defer rows.Close()
	b := &claimBatch{claimed: make([]*attempt, 0, room), room: room}
	row := newClaimRow(tally)
	for rows.Next() {
		if tally != nil && rows.RawValues()[0] == nil {
			if b.err = tally.read(rows, q.name); b.err != nil {
				return b
			}
			continue
		}
		var a *attempt
		if a, b.err = q.readAttempt(rows, row, sent); b.err != nil {
			return b
		}
		b.claimed = append(b.claimed, a)
		if b.size += len(a.job.Payload); b.size > 2*maxClaimBytes && len(b.claimed) > 1 {
			a.job.Payload, a.unused = nil, true
		}
	}
	b.err = rows.Err()
	return b
}

// claimRow is where the columns of a row go that an attempt keeps in another form. One
// is for all rows of a claim: made for each, it was half of the memory that a job took.
type claimRow struct {
	kind, contentType pgtype.DriverBytes // the driver's memory, valid until the next row
	key               *string
	timeout           pgtype.Interval
	backoff           pgtype.FlatArray[pgtype.Interval] // takes whatever somebody stored by hand: one that it refused would stop all claims
	deadline          pgtype.Timestamptz
	watched           pgtype.Bool
	place             pgtype.TID
	columns           []any // in the order of the columns
}

// claimColumns is how many columns into points.
const claimColumns = 19

// newClaimRow is for the rows of ClaimJobs or, with a tally, for those
// of ClaimKeyedJobs, which have its columns in place of the last one.
func newClaimRow(tally *tally) *claimRow {
	r := new(claimRow)
	r.columns = make([]any, claimColumns, claimColumns+1+len(tally.ignored()))
	if tally == nil {
		r.columns = append(r.columns, &r.place)
	}
	r.columns = append(r.columns, tally.ignored()...)
	return r
}

// into points the columns to a job.
func (r *claimRow) into(job *outbox.Claimed) []any {
	copy(r.columns, []any{
		&job.ID, &job.Tenant, &r.kind, &job.Priority, &job.Attempt, &job.MaxAttempts, &job.LostLeases,
		&job.Epoch, &r.key, &job.Payload, &r.contentType, &job.RawHeaders, &r.timeout, &r.backoff,
		&job.RunAt, &job.CreatedAt, &job.StartedAt, &r.deadline, &r.watched,
	})
	return r.columns
}

// readAttempt makes an attempt from a row of a claim. It reads into the final place
// and keeps no copy of names that are known: this runs for every job.
func (q *queue) readAttempt(rows pgx.Rows, row *claimRow, sent time.Time) (*attempt, error) {
	both := &struct { // one piece of memory
		attempt attempt
		job     outbox.Claimed
	}{}
	a, job := &both.attempt, &both.job
	if err := rows.Scan(row.into(job)...); err != nil {
		return nil, err
	}
	a.route = q.routes[string(row.kind)]
	if a.route == nil {
		return nil, fmt.Errorf("kind %q has no handler and was not asked for", row.kind)
	}
	job.Kind, job.Queue, job.Worker = a.route.kind, q.name, q.worker
	if job.ContentType = contentJSON; string(row.contentType) != contentJSON {
		job.ContentType = string(row.contentType)
	}
	job.Watched = row.watched.Bool
	if row.key != nil {
		job.Key = *row.key
	}
	if row.timeout.Valid {
		job.Timeout = duration(row.timeout)
	}
	for _, wait := range row.backoff {
		job.Backoff = append(job.Backoff, duration(wait))
	}
	if hook := a.route.success; hook != nil {
		job.HookSuccess(hook.kind, hook.withResult)
	}
	a.job, a.queue, a.claimed, a.leaseUntil, a.place = job, q, sent, sent.Add(q.leases.trust), row.place
	if row.deadline.Valid {
		// Both are readings of the database's clock. The claim was sent before the
		// second, so we are early by the time that it was on its way, and never late.
		job.Deadline = row.deadline.Time
		a.until = sent.Add(job.Deadline.Sub(job.StartedAt))
	}
	a.reports.Begin(a, job, q.recorder)
	return a, nil
}

const contentJSON = "application/json"

func duration(i pgtype.Interval) time.Duration {
	return time.Duration(i.Microseconds)*time.Microsecond + time.Duration(i.Days)*24*time.Hour + time.Duration(i.Months)*30*24*time.Hour
}
