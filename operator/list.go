package operator

import (
	"cmp"
	"context"
	"fmt"
	"slices"

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
	Kind     string          // "" is any
	Queue    string          // "" is any
	Statuses []outbox.Status // empty is any
	Limit    int             // 0 is 50; more than 200 is 200
	Before   outbox.ID       // only older jobs than this one; zero is from the newest on
}

func (f Filter) validate() error {
	for _, s := range f.Statuses {
		if _, err := outbox.ParseStatus(s.String()); err != nil {
			return &outbox.InvalidError{Field: "Filter.Statuses", Reason: "has a mistake: " + err.Error()}
		}
	}
	if f.Limit < 0 {
		return &outbox.InvalidError{Field: "Filter.Limit", Reason: fmt.Sprintf("is %d, want 1 to %d, or 0 for %d", f.Limit, MaxLimit, DefaultLimit)}
	}
	return nil
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
	params := sqlgen.ListJobsParams{
		Kind: f.Kind, Queue: f.Queue, Before: newest,
		MaxRows: int32(min(cmp.Or(f.Limit, DefaultLimit), MaxLimit)),
	}
	if !f.Before.IsZero() {
		params.Before = pgID(f.Before)
	}
	statuses := f.Statuses
	if len(statuses) == 0 {
		statuses = outbox.Statuses()
	}
	for _, s := range statuses {
		params.Statuses = append(params.Statuses, s.String())
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListJobs(ctx, params)
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
			ErrorCode: row.ErrorCode, ErrorMessage: row.ErrorMessage,
		})
		jobs[i].PayloadBytes = int(row.PayloadBytes)
	}
	return jobs, nil
}
