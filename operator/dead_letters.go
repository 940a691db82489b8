package operator

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// DeadLetter is a job that waits for a person.
type DeadLetter struct {
	Job                   // without payload, headers, result and attempts
	FailedAt    time.Time // when it became one
	Fingerprint string    // the same for dead letters with the same error; "" without a worker's error
}

// DeadLetterFilter selects dead letters. Its zero value selects all of them.
type DeadLetterFilter struct {
	Kind        string        // "" means any
	Queue       string        // "" means any
	Status      outbox.Status // Failed or Dead; "" means both
	ErrorCode   string        // "" means any
	Fingerprint string        // "" means any
	Key         string        // "" means any
	Tenant      outbox.ID     // zero means any

	CreatedSince, CreatedUntil time.Time // enqueued at or after, and before; zero means any time
	FailedSince, FailedUntil   time.Time // became a dead letter at or after, and before; zero means any time

	// After makes [Operator.ReplayDeadLetters] and [Operator.DismissDeadLetters] continue behind the job at which they
	// were interrupted, [BulkProgress.Last]. Zero begins with the oldest.
	After outbox.ID
}

func (f DeadLetterFilter) validate() error {
	var err error
	if f.Status != "" && f.Status != outbox.Failed && f.Status != outbox.Dead {
		err = invalid.Field("DeadLetterFilter.Status", "is %q, want failed, dead, or nothing for both", f.Status)
	}
	return errors.Join(err, validTexts(map[string]string{
		"DeadLetterFilter.Kind": f.Kind, "DeadLetterFilter.Queue": f.Queue, "DeadLetterFilter.ErrorCode": f.ErrorCode,
		"DeadLetterFilter.Fingerprint": f.Fingerprint, "DeadLetterFilter.Key": f.Key,
	}))
}

// validTexts refuses texts that Postgres cannot compare with anything.
func validTexts(fields map[string]string) error {
	var errs []error
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if s := fields[field]; !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			errs = append(errs, invalid.Field(field, "is not valid UTF-8, or has a NUL"))
		}
	}
	return errors.Join(errs...)
}

func (f DeadLetterFilter) params() sqlgen.FindDeadLettersParams {
	p := sqlgen.FindDeadLettersParams{
		After: pgvalue.UUID(outbox.ID{}), Before: newest,
		Fingerprint: f.Fingerprint, Kind: f.Kind, Queue: f.Queue, Status: string(f.Status), ErrorCode: f.ErrorCode,
		Key:      f.Key,
		TenantID: pgvalue.UUIDOrNull(f.Tenant), CreatedSince: from(f.CreatedSince), CreatedUntil: until(f.CreatedUntil),
		FailedSince: from(f.FailedSince), FailedUntil: until(f.FailedUntil),
	}
	// The index of dead letters is ordered by id, which contains the time of enqueueing.
	if !f.CreatedSince.IsZero() {
		p.After = idAt(f.CreatedSince.Add(-clockError))
	}
	if !f.CreatedUntil.IsZero() {
		p.Before = idAt(f.CreatedUntil.Add(clockError))
	}
	if bytes.Compare(f.After[:], p.After.Bytes[:]) > 0 {
		p.After = pgvalue.UUID(f.After)
	}
	return p
}

// tooMany adds advice to the error of running out of time for all the dead letters.
func tooMany(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: there are very many; ask for those that were enqueued within a shorter time", err)
	}
	return err
}

// DeadLetters lists up to limit dead letters (0 means 50; at most 200), newest first by when they were enqueued. For
// the next page, pass the last one's ID as before; zero begins with the newest. It uses as many statements as it needs:
// if few of millions match, only the caller's ctx ends it. See [Operator.DeadLetterPage].
func (o *Operator) DeadLetters(ctx context.Context, f DeadLetterFilter, before outbox.ID,
	limit int,
) (letters []DeadLetter, err error) {
	for limit = cmp.Or(limit, DefaultLimit); ; {
		page, err := o.DeadLetterPage(ctx, f, before, limit-len(letters))
		if err != nil {
			return nil, err
		}
		letters, before = append(letters, page.DeadLetters...), page.Next
		if len(letters) == limit || before.IsZero() {
			return letters, nil
		}
	}
}

// DeadLetterGroup is a group of dead letters that failed alike: of one kind, with one error code, and with messages
// that differ only in numbers, ids, addresses and quoted values.
type DeadLetterGroup struct {
	Fingerprint    string
	Kind           string
	ErrorCode      string
	Message        string // of an example
	Example        outbox.ID
	Jobs           int64
	Oldest, Newest time.Time // when the first and the last of them became dead letters
	Grows          bool      // the last one did so recently; false from DeadLetterGroups
}

// DeadLetterGroups counts the dead letters that failed alike, and returns up to limit groups, the largest first (0
// means 50; at most 200). It reads all dead letters: 200 000 take about a second, and after ten seconds it gives up.
// CreatedSince and CreatedUntil limit how many it reads.
func (o *Operator) DeadLetterGroups(ctx context.Context, f DeadLetterFilter, limit int) ([]DeadLetterGroup, error) {
	return o.GrowingDeadLetterGroups(ctx, f, 0, limit)
}

// GrowingDeadLetterGroups returns groups as [Operator.DeadLetterGroups] does, but first those whose last dead letter is
// no older than within, however small they are.
func (o *Operator) GrowingDeadLetterGroups(ctx context.Context, f DeadLetterFilter, within time.Duration,
	limit int,
) ([]DeadLetterGroup, error) {
	rows, err := o.groupDeadLetters(ctx, f, within, limit)
	if err != nil {
		return nil, err
	}
	groups := make([]DeadLetterGroup, len(rows))
	for i, row := range rows {
		groups[i] = DeadLetterGroup{
			Fingerprint: row.Fingerprint, Kind: row.Kind, ErrorCode: row.ErrorCode, Message: row.Message,
			Example: row.Example.Bytes,
			Jobs:    row.Jobs, Oldest: row.Oldest.Time, Newest: row.Newest.Time, Grows: row.Grows,
		}
	}
	return groups, nil
}

// lettersAtOnce is how many dead letters one statement reads to count them, and a page of an act to find those to act
// on.
const lettersAtOnce = 50_000

// findReachAbove returns the id below which a statement reads so many dead letters; NULL if it reads all that are left.
// Tied to a tenant, it counts those of the others too, and returns the end of a millisecond: see findReach.
func findReachAbove(ctx context.Context, db *sqlgen.Queries, after, before pgtype.UUID, rows int) (pgtype.UUID, error) {
	reach, err := ofAll(ctx, db, func() (pgtype.UUID, error) {
		return db.FindReachAbove(ctx, sqlgen.FindReachAboveParams{After: after, Before: before, MaxRows: int32(rows)})
	})
	if err != nil || !reach.Valid || tenantIn(ctx).IsZero() {
		return reach, err
	}
	copy(reach.Bytes[6:], newest.Bytes[:])
	if bytes.Compare(reach.Bytes[:], before.Bytes[:]) >= 0 {
		return pgtype.UUID{}, nil
	}
	return reach, nil
}

// CountDeadLetters counts the dead letters that match f: those that ReplayDeadLetters and DismissDeadLetters would act
// on now. It uses as many statements as it needs: with millions, only the caller's ctx ends it.
func (o *Operator) CountDeadLetters(ctx context.Context, f DeadLetterFilter) (n int64, err error) {
	if err := f.validate(); err != nil {
		return 0, err
	}
	p := f.params()
	for {
		some, reach, err := o.countDeadLetters(ctx, p)
		if err != nil {
			return 0, fmt.Errorf("count dead letters: %w", tooMany(err))
		}
		n += some
		if !reach.Valid {
			return n, nil
		}
		p.After = beneath(reach)
	}
}

// LetterPart is how many dead letters are of one kind, queue, tenant and error code.
type LetterPart struct {
	Kind, Queue, ErrorCode string
	Tenant                 outbox.ID
	Jobs                   int64
	PastDeadline           int64 // those of them that can only be dismissed
}

// splitOf is how many dead letters a split reads, and splitParts how many parts it returns.
const (
	splitOf    = 10_000
	splitParts = 200
)

// SplitDeadLetters returns what the newest 10 000 dead letters that match f are of, the largest 200 parts first.
func (o *Operator) SplitDeadLetters(ctx context.Context, f DeadLetterFilter) (parts []LetterPart, err error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	p := f.params()
	err = o.byIndex(ctx, func(db *sqlgen.Queries) error {
		rows, err := db.SplitDeadLetters(ctx, sqlgen.SplitDeadLettersParams{
			After: p.After, Before: p.Before, MaxSeen: splitOf, MaxRows: splitParts,
			Fingerprint: p.Fingerprint, Kind: p.Kind, Queue: p.Queue, Status: p.Status, ErrorCode: p.ErrorCode,
			Key: p.Key, TenantID: p.TenantID,
			CreatedSince: p.CreatedSince, CreatedUntil: p.CreatedUntil, FailedSince: p.FailedSince,
			FailedUntil: p.FailedUntil,
		})
		for _, r := range rows {
			parts = append(parts, LetterPart{r.Kind, r.Queue, r.ErrorCode, r.TenantID.Bytes, r.Jobs, r.Late})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("split dead letters: %w", tooMany(err))
	}
	return parts, nil
}

// countDeadLetters counts those below an id up to which one statement reads; NULL if that is all.
func (o *Operator) countDeadLetters(ctx context.Context,
	p sqlgen.FindDeadLettersParams,
) (n int64, reach pgtype.UUID, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err = o.byIndex(ctx, func(db *sqlgen.Queries) error {
		if reach, err = findReachAbove(ctx, db, p.After, p.Before, lettersAtOnce); err != nil {
			return err
		}
		if reach.Valid {
			p.Before = reach
		}
		n, err = db.CountDeadLetters(ctx, sqlgen.CountDeadLettersParams{
			After: p.After, Before: p.Before,
			Fingerprint: p.Fingerprint, Kind: p.Kind, Queue: p.Queue, Status: p.Status, ErrorCode: p.ErrorCode,
			Key: p.Key, TenantID: p.TenantID,
			CreatedSince: p.CreatedSince, CreatedUntil: p.CreatedUntil, FailedSince: p.FailedSince,
			FailedUntil: p.FailedUntil,
		})
		return err
	})
	return n, reach, err
}

func (o *Operator) groupDeadLetters(ctx context.Context, f DeadLetterFilter, within time.Duration,
	limit int,
) ([]sqlgen.GroupDeadLettersRow, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	most, err := pageLimit("limit", limit)
	if err != nil {
		return nil, err
	}
	p := f.params()
	ctx, cancel := bounded(ctx)
	defer cancel()
	var rows []sqlgen.GroupDeadLettersRow
	err = o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		rows, err = db.GroupDeadLetters(ctx, sqlgen.GroupDeadLettersParams{
			After: p.After, Before: p.Before, MaxRows: most,
			Growing:     pgvalue.Interval(within),
			Fingerprint: p.Fingerprint, Kind: p.Kind, Queue: p.Queue, Status: p.Status, ErrorCode: p.ErrorCode,
			Key: p.Key, TenantID: p.TenantID,
			CreatedSince: p.CreatedSince, CreatedUntil: p.CreatedUntil, FailedSince: p.FailedSince,
			FailedUntil: p.FailedUntil,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("group dead letters: %w", tooMany(err))
	}
	return rows, nil
}
