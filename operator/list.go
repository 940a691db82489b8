package operator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Limits on what [Operator.Jobs] returns at once.
const (
	DefaultLimit = 50
	MaxLimit     = 200
)

// Filter says which jobs to list. Its zero value is the newest of all.
type Filter struct {
	Kind   string    // "" is any
	Queue  string    // "" is any
	Key    string    // "" is any
	Tenant outbox.ID // zero is any
	// Fingerprint is that of dead letters that failed alike: see [DeadLetterGroup]. ""
	// is any; with one, jobs that are no dead letters are left out.
	Fingerprint string
	Statuses    []outbox.Status // empty is any
	Limit       int             // 0 is 50; more than 200 is 200
	Before      outbox.ID       // only older jobs than this one; zero is from the newest on
	After       outbox.ID       // only newer jobs than this one; zero is to the oldest
	Skip        int             // leave out this many of the newest, at most 10 000; Before is cheaper

	// Only jobs that were created in this time; zero is without a bound. Jobs whose
	// producer's clock was more than a day off may be left out.
	CreatedAfter, CreatedBefore time.Time
}

// MaxSkip bounds [Filter.Skip]: what is skipped is read.
const MaxSkip = 10_000

// clockError is how wrong a producer's clock, which its ids come from, may be.
const clockError = 24 * time.Hour

func (f Filter) validate() error {
	for _, s := range f.Statuses {
		if _, err := outbox.ParseStatus(s.String()); err != nil {
			return &outbox.InvalidError{Field: "Filter.Statuses", Reason: "has a mistake: " + err.Error()}
		}
	}
	if f.Limit < 0 {
		return &outbox.InvalidError{Field: "Filter.Limit", Reason: fmt.Sprintf("is %d, want 1 to %d, or 0 for %d", f.Limit, MaxLimit, DefaultLimit)}
	}
	if f.Skip < 0 || f.Skip > MaxSkip {
		return &outbox.InvalidError{Field: "Filter.Skip", Reason: fmt.Sprintf("is %d, want 0 to %d", f.Skip, MaxSkip)}
	}
	return validTexts(map[string]string{
		"Filter.Kind": f.Kind, "Filter.Queue": f.Queue, "Filter.Key": f.Key, "Filter.Fingerprint": f.Fingerprint,
	})
}

// params are those of the query.
func (f Filter) params() sqlgen.ListJobsParams {
	p := sqlgen.ListJobsParams{
		Kind: f.Kind, Queue: f.Queue, Key: f.Key, Fingerprint: f.Fingerprint, Tenant: tenantOrAny(f.Tenant), Before: newest, After: pgID(outbox.ID{}),
		CreatedAfter: timeOrAny(f.CreatedAfter), CreatedBefore: timeOrAny(f.CreatedBefore),
		MaxRows: int32(min(cmp.Or(f.Limit, DefaultLimit), MaxLimit)), Skip: int32(f.Skip),
	}
	p.Reach = p.Skip + p.MaxRows
	if !f.CreatedBefore.IsZero() {
		p.Before = idAt(f.CreatedBefore.Add(clockError))
	}
	if !f.CreatedAfter.IsZero() {
		p.After = idAt(f.CreatedAfter.Add(-clockError))
	}
	if !f.Before.IsZero() && bytes.Compare(f.Before[:], p.Before.Bytes[:]) < 0 {
		p.Before = pgID(f.Before)
	}
	if bytes.Compare(f.After[:], p.After.Bytes[:]) > 0 {
		p.After = pgID(f.After)
	}
	statuses := f.Statuses
	if len(statuses) == 0 {
		statuses = outbox.Statuses()
	}
	for _, s := range statuses {
		p.Statuses = append(p.Statuses, s.String())
	}
	return p
}

// idAt is below every id that a right clock made at t or later, and above those
// that it made before.
func idAt(t time.Time) pgtype.UUID {
	var id outbox.ID
	ms := max(t.UnixMilli(), 0)
	binary.BigEndian.PutUint64(id[:8], uint64(ms)<<16)
	return pgID(id)
}

// timeOrAny is NULL for the zero time.
func timeOrAny(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

// newest is above every id.
var newest = pgtype.UUID{Bytes: [16]byte(slices.Repeat([]byte{0xff}, 16)), Valid: true}

// Jobs lists jobs, open and closed, newest first, without payloads, results and
// attempts. The next page begins with Before as the last job's id; pages neither
// overlap nor leave out a job that was there from the first to the last. A filter
// that is not acceptable gets an [*outbox.InvalidError].
func (o *Operator) Jobs(ctx context.Context, f Filter) ([]Job, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListJobs(ctx, f.params())
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	jobs := make([]Job, len(rows))
	for i, row := range rows {
		jobs[i] = fromRow(sqlgen.FindJobRow{
			ID: row.ID, TenantID: row.TenantID, Queue: row.Queue, Kind: row.Kind, Status: row.Status, Priority: row.Priority,
			Attempt: row.Attempt, MaxAttempts: row.MaxAttempts, LostLeases: row.LostLeases, Epoch: row.Epoch, Key: row.Key,
			RunAt: row.RunAt, CreatedAt: row.CreatedAt, StartedAt: row.StartedAt, FinishedAt: row.FinishedAt,
			LeaseExpiresAt: row.LeaseExpiresAt, Worker: row.Worker, Timeout: row.Timeout, ContentType: row.ContentType,
			ErrorCode: row.ErrorCode, ErrorMessage: row.ErrorMessage, Deadline: row.Deadline, CancelRequestedAt: row.CancelRequestedAt, ParentID: row.ParentID,
		})
		jobs[i].PayloadBytes = int(row.PayloadBytes)
	}
	return jobs, nil
}
