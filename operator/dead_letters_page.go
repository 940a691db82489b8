package operator

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// DeadLetterPage is a part of a list of dead letters, newest first.
type DeadLetterPage struct {
	DeadLetters []DeadLetter
	Next        outbox.ID // before of the next page; zero if this is the last one
}

// DeadLetterPage lists dead letters like [Operator.DeadLetters], but in bounded time however many there are and however
// few match: a page may be shorter than the limit, even empty, while there are more.
func (o *Operator) DeadLetterPage(ctx context.Context, f DeadLetterFilter, before outbox.ID,
	limit int,
) (page DeadLetterPage, err error) {
	if err := f.validate(); err != nil {
		return page, err
	}
	most, err := pageLimit("limit", limit)
	if err != nil {
		return page, err
	}
	f.Tenant = cmp.Or(f.Tenant, tenantIn(ctx))
	ctx, cancel := bounded(ctx)
	defer cancel()
	err = o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		page, err = letterRounds(ctx, db, f.listed(before, most), firstRows, pageTime)
		return err
	})
	if err != nil {
		return DeadLetterPage{}, fmt.Errorf("list dead letters: %w", err)
	}
	return page, nil
}

// listed returns the parameters of a list.
func (f DeadLetterFilter) listed(before outbox.ID, rows int32) sqlgen.ListDeadLettersParams {
	p := f.params()
	if !before.IsZero() && bytes.Compare(before[:], p.Before.Bytes[:]) < 0 {
		p.Before = pgvalue.UUID(before)
	}
	return sqlgen.ListDeadLettersParams{
		After: p.After, Before: p.Before, MaxRows: rows,
		Fingerprint: p.Fingerprint, Kind: p.Kind, Queue: p.Queue, Status: p.Status, ErrorCode: p.ErrorCode, Key: p.Key,
		TenantID:     p.TenantID,
		CreatedSince: p.CreatedSince, CreatedUntil: p.CreatedUntil, FailedSince: p.FailedSince,
		FailedUntil: p.FailedUntil,
	}
}

// letterRounds makes rounds as readPage does. The distance of a round is counted in dead letters of all tenants,
// because none of the indexes by tenant contains dead letters alone.
func letterRounds(ctx context.Context, db *sqlgen.Queries, params sqlgen.ListDeadLettersParams, rows int32,
	most time.Duration,
) (page DeadLetterPage, err error) {
	limit, bottom, begun := int(params.MaxRows), params.After, time.Now()
	for ; ; rows *= 2 {
		reach, err := findReach(ctx, db, sqlgen.FindReachParams{
			Statuses: []string{string(outbox.Failed), string(outbox.Dead)}, Before: params.Before, After: bottom,
			MaxRows: rows,
		})
		if err != nil {
			return page, err
		}
		if params.After = bottom; reach.Valid {
			params.After = beneath(reach)
		}
		params.MaxRows = int32(limit - len(page.DeadLetters))
		found, err := db.ListDeadLetters(ctx, params)
		if err != nil {
			return page, err
		}
		for _, row := range found {
			page.DeadLetters = append(page.DeadLetters,
				DeadLetter{FailedAt: row.FailedAt.Time, Fingerprint: row.Fingerprint, Job: fromRow(row.Shown())})
		}
		params.Before = reach
		switch {
		case len(page.DeadLetters) == limit:
			page.Next = page.DeadLetters[limit-1].ID
			return page, nil
		case !reach.Valid:
			return page, nil
		case time.Since(begun) > most:
			page.Next = reach.Bytes
			return page, nil
		}
	}
}
