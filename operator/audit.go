package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Actor is the acting person or service, as recorded in the audit. Text that does not fit, or that Postgres cannot
// store, is cut off or replaced: an act does not fail because of its actor's name.
type Actor struct {
	Name      string // a person, a token's name; "" is recorded as unknown. Up to 200 bytes
	RequestID string // of the request that the act belongs to; "" if none. Up to 200 bytes
}

const (
	unknownActor   = "unknown"
	maxActorBytes  = 200
	maxReasonBytes = 2 << 10
)

// As returns an operator whose acts are recorded as the actor's.
func (o *Operator) As(actor Actor) *Operator {
	named := *o
	named.by.actor = cmp.Or(pgvalue.Text(actor.Name, maxActorBytes), unknownActor)
	named.by.requestID = pgvalue.Text(actor.RequestID, maxActorBytes)
	return &named
}

// Because returns an operator whose acts are recorded with the reason, of which
// up to 2 KiB are kept.
func (o *Operator) Because(reason string) *Operator {
	explained := *o
	explained.by.reason = pgvalue.Text(reason, maxReasonBytes)
	return &explained
}

// by is the origin that every act records.
type by struct{ actor, requestID, reason string }

// RecordRead records in the audit, as act payload.read, that the actor has read a job's payload, headers, checkpoint or
// result; where names the way, such as "payload" for a download. Call it before showing them.
func (o *Operator) RecordRead(ctx context.Context, j Job, where string) error {
	return o.RecordReads(ctx, []Job{j}, where)
}

// RecordReads records like [Operator.RecordRead] that the actor has read several jobs, all of them or none.
func (o *Operator) RecordReads(ctx context.Context, jobs []Job, where string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	reads := sqlgen.InsertReadsParams{
		Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason, Target: where,
	}
	for _, j := range jobs {
		reads.TenantIds = append(reads.TenantIds, pgvalue.UUID(j.Tenant))
		reads.JobIds = append(reads.JobIds, pgvalue.UUID(j.ID))
		reads.Queues = append(reads.Queues, j.Queue)
	}
	if err := o.db.InsertReads(ctx, reads); err != nil {
		return fmt.Errorf("record who reads %d jobs: %w", len(jobs), err)
	}
	return nil
}

// AuditEntry is an act with its actor.
type AuditEntry struct {
	ID        int64 // rises from act to act
	At        time.Time
	Actor     string
	Act       string          // noun.verb: "job.replay", "queue.pause"
	Tenant    outbox.ID       // zero if it concerns no single tenant
	JobID     outbox.ID       // zero if it was not done to a job
	Queue     string          // of the job, or the queue itself
	Target    string          // any other object of the act
	Before    json.RawMessage // the previous state of what it changed; nil for nothing
	After     json.RawMessage // the new state
	Reason    string
	RequestID string

	// PayloadBytes is the size of a replaced payload: in Before with [AuditFilter.WithPayloads] and after
	// [Operator.AddPayloads], else omitted.
	PayloadBytes int
}

// WithoutPayload returns the entry for a reader who may not see payloads. It omits replaced payloads, the values of
// headers, and hashes, because a short text can be guessed from its hash.
func (e AuditEntry) WithoutPayload() AuditEntry {
	e.Before, e.After = withoutPayload(e.Before), withoutPayload(e.After)
	return e
}

func withoutPayload(object json.RawMessage) json.RawMessage {
	var members, headers map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil || members == nil {
		return object
	}
	maps.DeleteFunc(members, func(name string, _ json.RawMessage) bool {
		return name == "payload_base64" || strings.HasSuffix(name, "_sha256")
	})
	if json.Unmarshal(members["headers"], &headers) == nil { // of an old entry; newer ones have a list
		members["headers"], _ = json.Marshal(slices.Sorted(maps.Keys(headers)))
	}
	rest, _ := json.Marshal(members) // cannot fail: it was just decoded
	return rest
}

// AuditFilter selects acts. Its zero value selects the newest of all.
type AuditFilter struct {
	Actor     string    // "" means any
	Act       string    // "" means any
	Queue     string    // "" means any
	Target    string    // "" means any
	RequestID string    // "" means any
	JobID     outbox.ID // zero means any
	Tenant    outbox.ID // zero means any
	Since     time.Time // zero means from the first act on
	Until     time.Time // before this instant; zero means to the last act
	Limit     int       // 0 means 50; at most 200
	Before    int64     // only entries older than the one with this ID; 0 begins with the newest

	WithPayloads bool // include replaced payloads, of up to 64 KiB each
}

func (f AuditFilter) validate() error {
	_, err := pageLimit("AuditFilter.Limit", f.Limit)
	if f.Before < 0 {
		err = errors.Join(err, invalid.Field("AuditFilter.Before", "is %d, want an entry's id, or 0", f.Before))
	}
	return errors.Join(err, validTexts(map[string]string{
		"AuditFilter.Actor": f.Actor, "AuditFilter.Act": f.Act, "AuditFilter.Queue": f.Queue,
		"AuditFilter.Target": f.Target, "AuditFilter.RequestID": f.RequestID,
	}))
}

// sparse reports whether a page may require much reading, because no index supports the filter.
func (f AuditFilter) sparse() bool {
	return f.JobID.IsZero() && (f.Actor != "" || f.Act != "" || f.Queue != "" || f.Target != "" ||
		f.RequestID != "" || !f.Since.IsZero() || !f.Until.IsZero())
}

func (f AuditFilter) params() sqlgen.ListAuditParams {
	rows, _ := pageLimit("AuditFilter.Limit", f.Limit) // validate has checked it
	return sqlgen.ListAuditParams{
		BeforeID: cmp.Or(f.Before, math.MaxInt64), Since: from(f.Since), Until: until(f.Until),
		Actor: f.Actor, Act: f.Act, Queue: f.Queue, Target: f.Target, RequestID: f.RequestID,
		JobID: pgvalue.UUIDOrNull(f.JobID), TenantID: pgvalue.UUIDOrNull(f.Tenant),
		WithPayloads: f.WithPayloads, MaxRows: rows,
	}
}

// Audit lists the acts of operators, newest first. For the next page, set Before to the last entry's ID. It reads until
// it has found as many as are wanted, or until ctx ends.
func (o *Operator) Audit(ctx context.Context, f AuditFilter) (entries []AuditEntry, err error) {
	limit := cmp.Or(f.Limit, DefaultLimit)
	for {
		page, err := o.AuditPage(ctx, f)
		if err != nil {
			return nil, err
		}
		entries = append(entries, page.Entries...)
		if f.Limit, f.Before = limit-len(entries), page.Next; f.Limit == 0 || f.Before == 0 {
			return entries, nil
		}
	}
}

// AddPayloads adds the replaced payloads to entries that were listed without, of a tenant, or the zero tenant for any.
// It reads no other entries, so a caller that has recorded the reads of a page shows just those. An entry that has been
// deleted since stays without.
func (o *Operator) AddPayloads(ctx context.Context, entries []AuditEntry, tenant outbox.ID) error {
	var ids []int64
	for _, e := range entries {
		if e.PayloadBytes > 0 {
			ids = append(ids, e.ID)
		}
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.FindReplacedPayloads(ctx, ids, pgvalue.UUIDOrNull(tenant))
	if err != nil {
		return fmt.Errorf("find replaced payloads: %w", err)
	}
	before := make(map[int64][]byte, len(rows))
	for _, row := range rows {
		before[row.ID] = row.Before
	}
	for i, e := range entries {
		if whole, ok := before[e.ID]; ok {
			entries[i].Before = whole
		}
	}
	return nil
}

// QueueActs returns up to limit acts on a queue and on its keys, newest first, but not those on its jobs. The zero
// tenant means those of any. It reads only these acts, however many others there are.
func (o *Operator) QueueActs(
	ctx context.Context, queue string, tenant outbox.ID, limit int,
) (entries []AuditEntry, err error) {
	most, err := pageLimit("limit", limit)
	if err := errors.Join(err, validTexts(map[string]string{"queue": queue})); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListQueueActs(ctx, sqlgen.ListQueueActsParams{
		Queue: queue, TenantID: pgvalue.UUIDOrNull(tenant), MaxRows: most,
	})
	if err != nil {
		return nil, fmt.Errorf("list acts on queue %s: %w", queue, err)
	}
	for _, row := range rows {
		entries = append(entries, auditEntry(sqlgen.ListAuditRow(row)))
	}
	return entries, nil
}

// AuditPage is a part of the audit, newest first.
type AuditPage struct {
	Entries []AuditEntry
	Next    int64 // [AuditFilter.Before] of the next page; 0 if this is the last one
}

// auditLate is how much older than an act those with a higher id may be: the time of an act is the beginning of its
// statement, and ids are assigned when acts are stored.
const auditLate = time.Hour

// AuditPage lists acts like [Operator.Audit], but in bounded time however many there are and however few match: a page
// may be shorter than the limit, even empty, while there are more.
func (o *Operator) AuditPage(ctx context.Context, f AuditFilter) (page AuditPage, err error) {
	if err := f.validate(); err != nil {
		return page, err
	}
	rows := int32(0)
	if f.sparse() {
		rows = firstRows
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	read := func(db *sqlgen.Queries) (err error) {
		page, err = readAudit(ctx, db, f, rows, pageTime)
		return err
	}
	if f.JobID.IsZero() {
		err = o.byIndex(ctx, read) // by audit_tenant_idx, whose end is the page
	} else {
		err = read(o.db) // few acts match
	}
	if err != nil {
		return AuditPage{}, fmt.Errorf("list the audit: %w", err)
	}
	return page, nil
}

// readAudit makes rounds, as readPage does: the first reads the given number of rows, and rounds go on until they have
// taken most. With 0 rows it makes a single round that reads as much as it needs.
func readAudit(ctx context.Context, db *sqlgen.Queries, f AuditFilter, rows int32,
	most time.Duration,
) (page AuditPage, err error) {
	params, begun := f.params(), time.Now()
	for limit := int(params.MaxRows); ; rows *= 2 {
		var reach []sqlgen.FindAuditReachRow
		if rows > 0 {
			reach, err = db.FindAuditReach(ctx, sqlgen.FindAuditReachParams{
				BeforeID: params.BeforeID, TenantID: params.TenantID, MaxRows: rows,
			})
			if err != nil {
				return page, err
			}
		}
		if params.AfterID = 0; len(reach) > 0 {
			params.AfterID = reach[0].ID
		}
		params.MaxRows = int32(limit - len(page.Entries))
		found, err := db.ListAudit(ctx, params)
		if err != nil {
			return page, err
		}
		for _, row := range found {
			page.Entries = append(page.Entries, auditEntry(row))
		}
		if len(page.Entries) == limit {
			page.Next = page.Entries[limit-1].ID
			return page, nil
		}
		if len(reach) == 0 || reach[0].At.Time.Before(f.Since.Add(-auditLate)) {
			return page, nil
		}
		if params.BeforeID = reach[0].ID + 1; time.Since(begun) > most {
			page.Next = params.BeforeID
			return page, nil
		}
	}
}

func auditEntry(row sqlgen.ListAuditRow) AuditEntry {
	return AuditEntry{
		ID: row.ID, At: row.At.Time, Actor: row.Actor, Act: row.Act, Tenant: row.TenantID.Bytes, JobID: row.JobID.Bytes,
		Queue: row.Queue, Target: row.Target, Before: row.Before, PayloadBytes: int(row.PayloadBytes), After: row.After,
		Reason: row.Reason, RequestID: row.RequestID,
	}
}

// from returns a lower bound; the zero time means no bound.
func from(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

// until returns an exclusive upper bound; the zero time means no bound.
func until(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}
