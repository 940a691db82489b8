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

// Filter selects jobs. Its zero value selects the newest of all.
type Filter struct {
	Kind   string    // "" means any
	Queue  string    // "" means any
	Key    string    // "" means any
	Tenant outbox.ID // zero means any
	// Fingerprint selects dead letters that failed alike: see [DeadLetterGroup]. "" means any; with a fingerprint, only
	// dead letters are listed.
	Fingerprint string
	Statuses    []outbox.Status // empty means any
	Limit       int             // 0 means 50; at most 200
	Before      outbox.ID       // only jobs older than this one; zero begins with the newest
	After       outbox.ID       // only jobs newer than this one; zero goes to the oldest
	Skip        int             // leave out this many of the newest, at most 10 000; Before is cheaper

	Worker     string    // that holds the lease, or closed the job; "" means any
	ErrorCode  string    // of the latest failed attempt; "" means any
	MinAttempt int       // only jobs that have reached this attempt; 0 means any
	Parent     outbox.ID // the job whose end stored it; zero means any. [Operator.Children] is faster
	IDPrefix   string    // hex digits and hyphens with which the job's id begins; "" means any
	// Contains is text in the first 64 KiB of the job's payload, byte for byte, or in its headers; "" means any. A
	// sealed payload is searched in its sealed form. Up to 200 bytes.
	Contains string

	// These select jobs that closed in this time; zero means no bound. With a bound, open jobs are left out.
	FinishedSince, FinishedUntil time.Time
	// These select jobs that were created in this time; zero means no bound. Jobs whose producer's clock was more than
	// an hour off may be left out.
	CreatedSince, CreatedUntil time.Time
}

// maxContains limits [Filter.Contains].
const maxContains = 200

// MaxSkip limits [Filter.Skip], because skipped jobs are read, too.
const MaxSkip = 10_000

// clockError is how wrong a producer's clock, from which its ids come, may be.
const clockError = time.Hour

func (f Filter) validate() error {
	_, limit := pageLimit("Filter.Limit", f.Limit)
	_, _, prefix := idRange(f.IDPrefix)
	errs := []error{limit, prefix}
	for _, s := range f.Statuses {
		if _, err := ParseStatus(string(s)); err != nil {
			errs = append(errs, invalid.Field("Filter.Statuses", "has a mistake: %v", err))
		}
	}
	if f.MinAttempt < 0 || f.MinAttempt > math.MaxInt32 {
		errs = append(errs, invalid.Field("Filter.MinAttempt", "is %d, want 1 to %d, or 0 for any", f.MinAttempt,
			math.MaxInt32))
	}
	if f.Skip < 0 || f.Skip > MaxSkip {
		errs = append(errs, invalid.Field("Filter.Skip", "is %d, want 0 to %d", f.Skip, MaxSkip))
	}
	if len(f.Contains) > maxContains {
		errs = append(errs, invalid.Field("Filter.Contains", "has %d bytes, want up to %d", len(f.Contains),
			maxContains))
	}
	return errors.Join(append(errs, validTexts(map[string]string{
		"Filter.Contains": f.Contains, "Filter.Kind": f.Kind, "Filter.Queue": f.Queue, "Filter.Key": f.Key,
		"Filter.Fingerprint": f.Fingerprint, "Filter.Worker": f.Worker, "Filter.ErrorCode": f.ErrorCode,
	}))...)
}

// idRange returns the lowest and the highest id that begins with a prefix.
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

// params returns the parameters of the query.
func (f Filter) params() sqlgen.ListJobsParams {
	rows, _ := pageLimit("Filter.Limit", f.Limit) // validate has checked it
	p := sqlgen.ListJobsParams{
		Kind: f.Kind, Queue: f.Queue, Key: f.Key, Fingerprint: f.Fingerprint, Tenant: pgvalue.UUIDOrNull(f.Tenant),
		Before: newest, After: pgvalue.UUID(outbox.ID{}),
		CreatedSince: timeOrAny(f.CreatedSince), CreatedUntil: timeOrAny(f.CreatedUntil),
		Worker: f.Worker, ErrorCode: f.ErrorCode, MinAttempt: int32(f.MinAttempt), Parent: pgvalue.UUIDOrNull(f.Parent),
		FinishedSince: timeOrAny(f.FinishedSince), FinishedUntil: timeOrAny(f.FinishedUntil),
		Contains: f.Contains, MaxRows: rows, Skip: int32(f.Skip),
	}
	p.Reach = p.Skip + p.MaxRows
	if !f.CreatedUntil.IsZero() {
		p.Before = idAt(f.CreatedUntil.Add(clockError))
	}
	if !f.FinishedUntil.IsZero() && (f.CreatedUntil.IsZero() || f.FinishedUntil.Before(f.CreatedUntil)) {
		p.Before = idAt(f.FinishedUntil.Add(clockError)) // it was created before it finished
	}
	if !f.CreatedSince.IsZero() {
		p.After = idAt(f.CreatedSince.Add(-clockError))
	}
	if f.IDPrefix != "" {
		lowest, highest, _ := idRange(f.IDPrefix) // validate has checked it
		if below := beneath(pgvalue.UUID(lowest)); !lowest.IsZero() &&
			bytes.Compare(below.Bytes[:], p.After.Bytes[:]) > 0 {
			p.After = below
		}
		if over := above(pgvalue.UUID(highest)); over.Bytes != ([16]byte{}) &&
			bytes.Compare(over.Bytes[:], p.Before.Bytes[:]) < 0 {
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

// idAt returns an id that is below every id made at t or later by a correct clock, and above those made before.
func idAt(t time.Time) pgtype.UUID {
	var id outbox.ID
	ms := max(t.UnixMilli(), 0)
	binary.BigEndian.PutUint64(id[:8], uint64(ms)<<16)
	return pgvalue.UUID(id)
}

// timeOrAny returns NULL for the zero time.
func timeOrAny(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

// newest is above every id.
var newest = pgtype.UUID{Bytes: [16]byte(slices.Repeat([]byte{0xff}, 16)), Valid: true}

// sparse reports whether ListJobs may have to read much for a page, because no index supports the filter.
func (f Filter) sparse() bool {
	return f.Contains != "" || !f.Tenant.IsZero() || f.Fingerprint == "" &&
		(f.Worker != "" || f.ErrorCode != "" || f.MinAttempt > 0 || !f.Parent.IsZero() || !f.FinishedSince.IsZero() ||
			!f.FinishedUntil.IsZero() || f.Kind != "" || f.Queue != "" || f.Key != "" || len(f.Statuses) > 0 ||
			!f.CreatedSince.IsZero() || !f.CreatedUntil.IsZero())
}

// JobPage is a part of a list, newest first.
type JobPage struct {
	Jobs []Job
	Next outbox.ID // [Filter.Before] of the next page; zero if this is the last one
	Skip int       // its [Filter.Skip]: what was left to skip when the time of this page was over
}

// These limit what a page may cost: rounds are made until they have taken so long.
const (
	pageTime  = 30 * time.Millisecond
	firstRows = 1000 // rows that the first round reads
	firstText = 100  // the same if their payloads are read
	mostText  = 400  // most for such a round: payloads may be large, and the time is checked only between rounds
	mostRows  = 1000 // jobs that one statement returns, because skipped ones are held in memory too
)

// Page lists jobs like [Operator.Jobs], but in bounded time however many jobs there are and however few match: a page
// may be shorter than the limit, even empty, while there are more. Jobs left out with Skip are read all the same, and
// count as much.
func (o *Operator) Page(ctx context.Context, f Filter) (JobPage, error) {
	limit := cmp.Or(f.Limit, DefaultLimit)
	f.Tenant = cmp.Or(f.Tenant, tenantIn(ctx))
	if err := f.validate(); err != nil || !f.sparse() {
		jobs, err := o.Jobs(ctx, f)
		if err != nil || len(jobs) < limit {
			return JobPage{Jobs: jobs}, err
		}
		return JobPage{Jobs: jobs, Next: jobs[limit-1].ID}, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	var page JobPage
	rows := int32(firstRows)
	if f.Contains != "" {
		rows = firstText
	}
	err := o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		page, err = readPage(ctx, db, f.params(), rows, pageTime)
		return err
	})
	if err != nil {
		return JobPage{}, fmt.Errorf("list jobs: %w", err)
	}
	return page, nil
}

// ofAll runs find, which counts rows, while the transaction sees those of all tenants. What find returns bounds a
// statement that has to pass over the rows of others. In a context of no tenant, ofAll leaves the transaction as it is.
func ofAll[Bound any](ctx context.Context, db *sqlgen.Queries, find func() (Bound, error)) (bound Bound, err error) {
	if tenantIn(ctx).IsZero() {
		return find()
	}
	was, err := db.BindTenant(ctx, engine.AllTenants) // in a caller's transaction not necessarily the context's tenant
	if err != nil {
		return bound, err
	}
	if bound, err = find(); err != nil {
		return bound, err
	}
	_, err = db.BindTenant(ctx, was)
	return bound, err
}

// findReach returns the lowest id that a round reads; NULL if it reads all that is left. Tied to a tenant, it counts
// the rows of the others too, because a list has to pass over them, and returns the beginning of a millisecond, which
// says nothing about the others but how many there are.
func findReach(ctx context.Context, db *sqlgen.Queries, params sqlgen.FindReachParams) (pgtype.UUID, error) {
	reach, err := ofAll(ctx, db, func() (pgtype.UUID, error) { return db.FindReach(ctx, params) })
	if err != nil || tenantIn(ctx).IsZero() {
		return reach, err
	}
	clear(reach.Bytes[6:])
	if bytes.Compare(reach.Bytes[:], params.After.Bytes[:]) <= 0 {
		return pgtype.UUID{}, nil
	}
	return reach, nil
}

// readPage makes rounds. Each round reads the ids from a lowest one on and below Before, bounds that another statement
// determines first: whatever happens in between, each id is read once, by one statement.
func readPage(ctx context.Context, db *sqlgen.Queries, params sqlgen.ListJobsParams, rows int32,
	most time.Duration,
) (page JobPage, err error) {
	limit, bottom, begun := int(params.MaxRows), params.After, time.Now()
	page.Skip, params.Skip = int(params.Skip), 0 // a statement would not report how many it has skipped
	ofTenant := params.Tenant
	if ofTenant == pgvalue.UUID(outbox.RootTenant) {
		ofTenant = pgtype.UUID{} // the indexes by tenant omit it: jobs of all tenants are read
	}
	for ; ; rows *= 2 {
		if params.Contains != "" {
			rows = min(rows, mostText)
		}
		reach, err := findReach(ctx, db, sqlgen.FindReachParams{
			Statuses: params.Statuses, Before: params.Before, After: bottom, Tenant: ofTenant, MaxRows: rows,
		})
		if err != nil {
			return page, err
		}
		if params.After = bottom; reach.Valid {
			params.After = beneath(reach)
		}
		if err := page.read(ctx, db, params, limit); err != nil {
			return page, err
		}
		params.Before = reach
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

// read adds what one round finds, except jobs that are still to be skipped.
func (p *JobPage) read(ctx context.Context, db *sqlgen.Queries, params sqlgen.ListJobsParams, limit int) error {
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

// beneath returns the previous id.
func beneath(id pgtype.UUID) pgtype.UUID {
	for i := len(id.Bytes) - 1; i >= 0; i-- {
		if id.Bytes[i]--; id.Bytes[i] != 0xff {
			break
		}
	}
	return id
}

// above returns the next id.
func above(id pgtype.UUID) pgtype.UUID {
	for i := len(id.Bytes) - 1; i >= 0; i-- {
		if id.Bytes[i]++; id.Bytes[i] != 0 {
			break
		}
	}
	return id
}

// Jobs lists jobs, open and closed, newest first, without payloads, results and attempts. For the next page, set Before
// to the last job's id; pages neither overlap nor miss a job that existed from the first to the last. A filter that is
// not acceptable gets an [*outbox.InvalidError].
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

// All yields every job that matches f, newest first, and finally an error if there is one. It reads one page at a time,
// each in bounded time, whatever f's Limit is; it neither repeats nor misses a job that existed from the first page to
// the last.
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
