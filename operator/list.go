package operator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
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

	Worker     string    // that holds the lease, or closed the job; "" is any
	ErrorCode  string    // of the latest failed attempt; "" is any
	MinAttempt int       // only jobs that have come to this attempt; 0 is any
	Parent     outbox.ID // whose end stored the job; zero is any. [Operator.Children] is faster
	IDPrefix   string    // of hex digits and hyphens that the job's id begins with; "" is any
	// Contains is in the first 64 KiB of the job's payload, byte for byte, or in its headers; "" is any. A payload that
	// is sealed is searched as it is stored. Up to 200 bytes.
	Contains string

	// Only jobs that closed in this time; zero is without a bound. With one, open jobs are left out.
	FinishedAfter, FinishedBefore time.Time
	// Only jobs that were created in this time; zero is without a bound. Jobs whose
	// producer's clock was more than an hour off may be left out.
	CreatedAfter, CreatedBefore time.Time
}

// maxContains bounds [Filter.Contains].
const maxContains = 200

// MaxSkip bounds [Filter.Skip]: what is skipped is read.
const MaxSkip = 10_000

// clockError is how wrong a producer's clock, which its ids come from, may be.
const clockError = time.Hour

func (f Filter) validate() error {
	for _, s := range f.Statuses {
		if _, err := ParseStatus(string(s)); err != nil {
			return &outbox.InvalidError{Field: "Filter.Statuses", Reason: "has a mistake: " + err.Error()}
		}
	}
	if f.Limit < 0 {
		return invalid.Field("Filter.Limit", "is %d, want 1 to %d, or 0 for %d", f.Limit, MaxLimit, DefaultLimit)
	}
	if f.MinAttempt < 0 || f.MinAttempt > math.MaxInt32 {
		return invalid.Field("Filter.MinAttempt", "is %d, want 1 to %d, or 0 for any", f.MinAttempt, math.MaxInt32)
	}
	if _, _, err := idRange(f.IDPrefix); err != nil {
		return err
	}
	if f.Skip < 0 || f.Skip > MaxSkip {
		return invalid.Field("Filter.Skip", "is %d, want 0 to %d", f.Skip, MaxSkip)
	}
	if len(f.Contains) > maxContains {
		return invalid.Field("Filter.Contains", "has %d bytes, want up to %d", len(f.Contains), maxContains)
	}
	return validTexts(map[string]string{
		"Filter.Contains": f.Contains, "Filter.Kind": f.Kind, "Filter.Queue": f.Queue, "Filter.Key": f.Key, "Filter.Fingerprint": f.Fingerprint,
		"Filter.Worker": f.Worker, "Filter.ErrorCode": f.ErrorCode,
	})
}

// idRange is from the lowest to the highest id that begins with a prefix.
func idRange(prefix string) (lowest, highest outbox.ID, err error) {
	const pattern = "00000000-0000-0000-0000-000000000000"
	fill := func(digit string) (outbox.ID, error) {
		if len(prefix) > len(pattern) {
			return outbox.ID{}, errors.New("too long")
		}
		return outbox.ParseID(prefix + strings.ReplaceAll(pattern[len(prefix):], "0", digit))
	}
	lowest, err = fill("0")
	if err == nil {
		highest, err = fill("f")
	}
	if err != nil {
		err = invalid.Field("Filter.IDPrefix", "is %q, want the beginning of an id such as %s", prefix, pattern)
	}
	return lowest, highest, err
}

// params are those of the query.
func (f Filter) params() sqlgen.ListJobsParams {
	p := sqlgen.ListJobsParams{
		Kind: f.Kind, Queue: f.Queue, Key: f.Key, Fingerprint: f.Fingerprint, Tenant: pgvalue.UUIDOrNull(f.Tenant), Before: newest, After: pgvalue.UUID(outbox.ID{}),
		CreatedAfter: timeOrAny(f.CreatedAfter), CreatedBefore: timeOrAny(f.CreatedBefore),
		Worker: f.Worker, ErrorCode: f.ErrorCode, MinAttempt: int32(f.MinAttempt), Parent: pgvalue.UUIDOrNull(f.Parent),
		FinishedAfter: timeOrAny(f.FinishedAfter), FinishedBefore: timeOrAny(f.FinishedBefore),
		Contains: f.Contains, MaxRows: int32(min(cmp.Or(f.Limit, DefaultLimit), MaxLimit)), Skip: int32(f.Skip),
	}
	p.Reach = p.Skip + p.MaxRows
	if !f.CreatedBefore.IsZero() {
		p.Before = idAt(f.CreatedBefore.Add(clockError))
	}
	if !f.FinishedBefore.IsZero() && (f.CreatedBefore.IsZero() || f.FinishedBefore.Before(f.CreatedBefore)) {
		p.Before = idAt(f.FinishedBefore.Add(clockError)) // it was created before it finished
	}
	if !f.CreatedAfter.IsZero() {
		p.After = idAt(f.CreatedAfter.Add(-clockError))
	}
	if f.IDPrefix != "" {
		lowest, highest, _ := idRange(f.IDPrefix) // as validate has seen
		if below := beneath(pgvalue.UUID(lowest)); !lowest.IsZero() && bytes.Compare(below.Bytes[:], p.After.Bytes[:]) > 0 {
			p.After = below
		}
		if over := above(pgvalue.UUID(highest)); over.Bytes != ([16]byte{}) && bytes.Compare(over.Bytes[:], p.Before.Bytes[:]) < 0 {
			p.Before = over
		}
	}
	if !f.Before.IsZero() && bytes.Compare(f.Before[:], p.Before.Bytes[:]) < 0 {
		p.Before = pgvalue.UUID(f.Before)
	}
	if bytes.Compare(f.After[:], p.After.Bytes[:]) > 0 {
		p.After = pgvalue.UUID(f.After)
	}
	statuses := f.Statuses
	if len(statuses) == 0 {
		statuses = engine.Statuses[outbox.Status]()
	}
	for _, s := range statuses {
		p.Statuses = append(p.Statuses, string(s))
	}
	return p
}

// idAt is below every id that a right clock made at t or later, and above those
// that it made before.
func idAt(t time.Time) pgtype.UUID {
	var id outbox.ID
	ms := max(t.UnixMilli(), 0)
	binary.BigEndian.PutUint64(id[:8], uint64(ms)<<16)
	return pgvalue.UUID(id)
}

// timeOrAny is NULL for the zero time.
func timeOrAny(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

// newest is above every id.
var newest = pgtype.UUID{Bytes: [16]byte(slices.Repeat([]byte{0xff}, 16)), Valid: true}

// sparse says that ListJobs may have to read much for a page: what it asks for has no
// index.
func (f Filter) sparse() bool {
	return f.Contains != "" || f.Fingerprint == "" &&
		(f.Worker != "" || f.ErrorCode != "" || f.MinAttempt > 0 || !f.Parent.IsZero() || !f.FinishedAfter.IsZero() || !f.FinishedBefore.IsZero() || f.Kind != "" || f.Queue != "" || f.Key != "" || len(f.Statuses) > 0 || !f.CreatedAfter.IsZero() || !f.CreatedBefore.IsZero() ||
			f.Tenant == outbox.RootTenant) // the indexes by tenants are without it
}

// Page is a part of a list, newest first.
type Page struct {
	Jobs []Job
	Next outbox.ID // [Filter.Before] of the next page; zero: this is the last one
	Skip int       // and its [Filter.Skip]: what was still to be left out when the time of this one was over
}

// What a page may cost: rounds are made until they have taken so long.
const (
	pageTime  = 30 * time.Millisecond
	firstRows = 1000 // that the first round reads
	firstText = 100  // and if their payloads are read,
	mostText  = 400  // which one round may do of so many: they may be large, and the time is looked at in between
	mostRows  = 1000 // jobs that one statement returns: so many are in memory only to be left out
)

// Page lists jobs like [Operator.Jobs], in a bounded time however many jobs there are
// and however few are meant: a page may be shorter than the limit, even empty, while
// there are more. What is left out with Skip is read all the same, and counts as much.
func (o *Operator) Page(ctx context.Context, f Filter) (Page, error) {
	limit := min(cmp.Or(f.Limit, DefaultLimit), MaxLimit)
	if err := f.validate(); err != nil || !f.sparse() {
		jobs, err := o.Jobs(ctx, f)
		if err != nil || len(jobs) < limit {
			return Page{Jobs: jobs}, err
		}
		return Page{Jobs: jobs, Next: jobs[limit-1].ID}, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	var page Page
	rows := int32(firstRows)
	if f.Contains != "" {
		rows = firstText
	}
	err := o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		page, err = readPage(ctx, db, f.params(), rows, pageTime)
		return err
	})
	if err != nil {
		return Page{}, fmt.Errorf("list jobs: %w", err)
	}
	return page, nil
}

// readPage makes rounds. One reads (After, Before), which is found out before by another
// statement: whatever happens in between, each id is read once, by one statement.
func readPage(ctx context.Context, db *sqlgen.Queries, params sqlgen.ListJobsParams, rows int32, most time.Duration) (page Page, err error) {
	limit, bottom, begun := int(params.MaxRows), params.After, time.Now()
	page.Skip, params.Skip = int(params.Skip), 0 // a statement would not say how many it has left out
	ofTenant := params.Tenant
	if ofTenant == pgvalue.UUID(outbox.RootTenant) {
		ofTenant = pgtype.UUID{} // without an index of its jobs, those of all are read
	}
	for ; ; rows *= 2 {
		if params.Contains != "" {
			rows = min(rows, mostText)
		}
		reach, err := db.FindReach(ctx, sqlgen.FindReachParams{
			Statuses: params.Statuses, Before: params.Before, After: bottom, Tenant: ofTenant, MaxRows: rows,
		})
		if err != nil {
			return page, err
		}
		if params.After = bottom; reach.Valid {
			params.After = reach
		}
		if err := page.read(ctx, db, params, limit); err != nil {
			return page, err
		}
		params.Before = above(reach)
		switch {
		case len(page.Jobs) == limit:
			page.Next = page.Jobs[limit-1].ID
			return page, nil
		case !reach.Valid:
			page.Skip = 0 // there are not so many
			return page, nil
		case time.Since(begun) > most:
			page.Next = params.Before.Bytes
			return page, nil
		}
	}
}

// read adds what one round finds, but for what is still to be left out.
func (p *Page) read(ctx context.Context, db *sqlgen.Queries, params sqlgen.ListJobsParams, limit int) error {
	for {
		left := p.Skip + limit - len(p.Jobs)
		params.MaxRows = int32(min(left, mostRows))
		params.Reach = params.MaxRows
		jobs, err := listJobs(ctx, db, params)
		if err != nil {
			return err
		}
		skipped := min(p.Skip, len(jobs))
		p.Skip -= skipped
		p.Jobs = append(p.Jobs, jobs[skipped:]...)
		if len(jobs) == left || len(jobs) < int(params.MaxRows) {
			return nil
		}
		params.Before = pgvalue.UUID(jobs[len(jobs)-1].ID)
	}
}

// beneath is the id before.
func beneath(id pgtype.UUID) pgtype.UUID {
	for i := len(id.Bytes) - 1; i >= 0; i-- {
		if id.Bytes[i]--; id.Bytes[i] != 0xff {
			break
		}
	}
	return id
}

// above is the next id.
func above(id pgtype.UUID) pgtype.UUID {
	for i := len(id.Bytes) - 1; i >= 0; i-- {
		if id.Bytes[i]++; id.Bytes[i] != 0 {
			break
		}
	}
	return id
}

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
	var jobs []Job
	err := o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		jobs, err = listJobs(ctx, db, f.params())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	return jobs, nil
}

// All yields every job that f means, newest first, and an error at last if there is one.
// It reads a page at a time, each in a bounded time, whatever f's Limit is; it neither
// repeats nor leaves out a job that was there from the first page to the last.
func (o *Operator) All(ctx context.Context, f Filter) iter.Seq2[Job, error] {
	return func(yield func(Job, error) bool) {
		for f.Limit = MaxLimit; ; {
			page, err := o.Page(ctx, f)
			if err != nil {
				yield(Job{}, err)
				return
			}
			for _, job := range page.Jobs {
				if !yield(job, nil) {
					return
				}
			}
			if page.Next.IsZero() {
				return
			}
			f.Before, f.Skip = page.Next, page.Skip
		}
	}
}

func listJobs(ctx context.Context, db *sqlgen.Queries, params sqlgen.ListJobsParams) ([]Job, error) {
	rows, err := db.ListJobs(ctx, params)
	if err != nil {
		return nil, err
	}
	jobs := make([]Job, len(rows))
	for i, row := range rows {
		jobs[i] = fromRow(row)
	}
	return jobs, nil
}
