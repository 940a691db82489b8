package engine

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// FollowUps collects the jobs to be stored with an attempt's success. It is safe for concurrent use.
type FollowUps struct {
	// Hook makes the row of the kind's success hook; nil for none. It is set before the handler is called.
	Hook func() Row
	// Refused is the error with which Add refuses every job; nil for a job whose success can be followed. It is set
	// before the handler is called.
	Refused error

	mu    sync.Mutex
	rows  []Row
	bytes int
	ended bool
}

// Reasons why Add takes no more jobs.
var (
	ErrEnded    = errors.New("the attempt is over")
	ErrTooMany  = errors.New("too many follow-ups")
	ErrTooLarge = errors.New("too large follow-ups")
)

// Add adds a job. It returns the total bytes of all of them.
func (f *FollowUps) Add(row Row, completed bool) (bytes int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	bytes = f.bytes + Size(&row)
	switch {
	case f.Refused != nil:
		return bytes, f.Refused
	case f.ended || completed:
		return bytes, ErrEnded
	case len(f.rows) == MaxFollowUps:
		return bytes, ErrTooMany
	case bytes > MaxFollowUpBytes:
		return bytes, ErrTooLarge
	}
	f.rows, f.bytes = append(f.rows, row), bytes
	return bytes, nil
}

// End makes Add refuse more jobs, after the handler has returned. It reports whether there is anything to store with
// the success, and its size if a hook's row has hook bytes.
func (f *FollowUps) End(hook int) (follows bool, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	if f.Hook == nil {
		hook = 0
	}
	return f.any(), f.bytes + hook
}

// Any reports whether there is anything to store with the success.
func (f *FollowUps) Any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.any()
}

func (f *FollowUps) any() bool { return len(f.rows) > 0 || f.Hook != nil }

// Rows returns the jobs to store with the success.
func (f *FollowUps) Rows() []Row {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Hook == nil {
		return f.rows
	}
	return append(f.rows[:len(f.rows):len(f.rows)], f.Hook())
}

// Success is a job to settle as succeeded.
type Success struct {
	ID        pgtype.UUID
	Epoch     int64
	StartedAt pgtype.Timestamptz // see [Fence]; NULL if it is unknown
	Result    []byte
	FollowUps []Row
}

// SettleSucceeded settles jobs as succeeded, each with its result and its follow-ups, and returns the ids of those that
// it settled. The others had lost their leases, and nothing is stored for them. If notify is set, the dispatchers are
// woken for the follow-ups when the transaction commits.
func SettleSucceeded(ctx context.Context, db DB, jobs []Success, notify bool) ([]pgtype.UUID, error) {
	var ids, parents []pgtype.UUID
	var epochs []int64
	var starts []pgtype.Timestamptz
	var results [][]byte
	var follow []Row
	var all []int
	for _, j := range jobs {
		ids, epochs, starts = append(ids, j.ID), append(epochs, j.Epoch), append(starts, j.StartedAt)
		results = append(results, j.Result)
		for _, r := range j.FollowUps {
			parents, follow, all = append(parents, j.ID), append(follow, r), append(all, len(all))
		}
	}
	stored := Arrays(follow, all)
	p := stored.Follow()
	p.Notify, p.Ids, p.Epochs, p.Starts, p.Results, p.ParentIds = notify, ids, epochs, starts, results, parents
	rows, err := sqlgen.New(db).SettleSucceededThen(ctx, p)
	if err != nil {
		return nil, err
	}
	settled := make([]pgtype.UUID, len(rows))
	for i, r := range rows {
		settled[i] = r.ID
	}
	return settled, nil
}
