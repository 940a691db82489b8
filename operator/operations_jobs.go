package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// These act on open jobs, like [Operator.Cancel], [Operator.Release] and [Operator.Retry], or edit them.
const (
	CancelJobs  OperationAct = "cancel"
	ReleaseJobs OperationAct = "release"
	RetryJobs   OperationAct = "retry" // makes waiting jobs due at once; ReplayLetters is for dead letters
	EditJobs    OperationAct = "edit"  // applies OperationSpec.Edit to waiting jobs
)

// actsOnJobs maps each act on open jobs to the statuses in which it is possible.
var actsOnJobs = map[OperationAct][]outbox.Status{
	CancelJobs:  {outbox.Created, outbox.Pending, outbox.Blocked, outbox.Running, outbox.Retrying},
	ReleaseJobs: {outbox.Created},
	RetryJobs:   {outbox.Pending, outbox.Retrying},
	EditJobs:    {outbox.Created, outbox.Pending, outbox.Blocked, outbox.Retrying},
}

// OnOpenJobs reports whether the act is one on open jobs rather than on dead letters.
func (a OperationAct) OnOpenJobs() bool { return actsOnJobs[a] != nil }

// Possible returns the statuses of open jobs in which the act is possible; none for an act on dead letters.
func (a OperationAct) Possible() []outbox.Status { return slices.Clone(actsOnJobs[a]) }

// knownActs returns the acts on dead letters and on open jobs.
func knownActs() []string {
	acts := []string{string(ReplayLetters), string(DismissLetters)}
	for act := range actsOnJobs {
		acts = append(acts, string(act))
	}
	slices.Sort(acts)
	return acts
}

// steppedActs returns the acts of operations whose steps this build can take.
func steppedActs() (acts []string) {
	for _, act := range knownActs() {
		acts = append(acts, act, collects+act)
	}
	return acts
}

// OpenFilter selects open jobs for an operation. Its zero value selects all in whose status the act is possible.
type OpenFilter struct {
	Kind     string          // "" means any
	Queue    string          // "" means any
	Key      string          // "" means any
	Tenant   outbox.ID       // zero means any
	Statuses []outbox.Status // empty means any; those in which the act is not possible have no effect
	// These select jobs that were created in this time; zero means no bound.
	CreatedSince, CreatedUntil time.Time
	// AsOf is a value that [Operator.MatchOpenJobs] returned: with it, only jobs are selected to which nothing has
	// happened since. "" selects those that exist now.
	AsOf string
}

// OpenMatch counts the open jobs that match.
type OpenMatch struct {
	Matched  int64
	Keyed    int64 // those of them that have a key
	ByStatus map[outbox.Status]int64
	AsOf     string // with it in the filter, an operation acts on exactly these
}

func (f OpenFilter) validate() error {
	var errs []error
	for _, s := range f.Statuses {
		if _, err := ParseStatus(string(s)); err != nil {
			errs = append(errs, invalid.Field("OpenFilter.Statuses", "has a mistake: %v", err))
		}
	}
	if _, ok := parseAsOf(f.AsOf); f.AsOf != "" && !ok {
		errs = append(errs, invalid.Field("OpenFilter.AsOf", "is not one that a count has returned"))
	}
	return errors.Join(append(errs, validTexts(map[string]string{
		"OpenFilter.Kind": f.Kind, "OpenFilter.Queue": f.Queue, "OpenFilter.Key": f.Key,
	}))...)
}

// statuses returns the statuses that an act concerns.
func (f OpenFilter) statuses(act OperationAct) (words []string) {
	for _, s := range actsOnJobs[act] {
		if len(f.Statuses) == 0 || slices.Contains(f.Statuses, s) {
			words = append(words, string(s))
		}
	}
	return words
}

// openJobs is a filter in stored form.
type openJobs struct {
	Kind         string    `json:"kind,omitempty"`
	Queue        string    `json:"queue,omitempty"`
	Key          string    `json:"key,omitempty"`
	Tenant       string    `json:"tenant,omitempty"`
	Statuses     []string  `json:"statuses"`
	CreatedSince time.Time `json:"created_since,omitzero"`
	CreatedUntil time.Time `json:"created_until,omitzero"`
	Edit         JobEdit   `json:"edit,omitzero"`
	AsOf         string    `json:"as_of,omitempty"`     // while not all of the jobs are stored
	Collected    int64     `json:"collected,omitempty"` // jobs that steps have stored
}

func (n OperationSpec) storedJobs() ([]byte, error) {
	f := n.Jobs
	s := openJobs{
		Kind: f.Kind, Queue: f.Queue, Key: f.Key, Statuses: f.statuses(n.Act), CreatedSince: f.CreatedSince,
		CreatedUntil: f.CreatedUntil, Edit: n.Edit, AsOf: f.AsOf,
	}
	if !f.Tenant.IsZero() {
		s.Tenant = f.Tenant.String()
	}
	return json.Marshal(s)
}

// readOpenJobs returns a filter, without AsOf, and its stored form.
func readOpenJobs(text []byte) (f OpenFilter, s openJobs, err error) {
	if err = json.Unmarshal(text, &s); err == nil && s.Tenant != "" {
		f.Tenant, err = outbox.ParseID(s.Tenant)
	}
	if err != nil {
		return f, s, fmt.Errorf("read the filter of an operation: %w", err)
	}
	f.Kind, f.Queue, f.Key, f.CreatedSince, f.CreatedUntil = s.Kind, s.Queue, s.Key, s.CreatedSince, s.CreatedUntil
	for _, word := range s.Statuses {
		f.Statuses = append(f.Statuses, outbox.Status(word))
	}
	return f, s, nil
}

// meantJobs selects the open jobs of a filter: $1 to $9 are those of params.
//
// A job is unchanged since it was shown if the transaction that wrote its row was visible in the snapshot of the count.
// A row has the lower half of that transaction's id; the upper half is taken to be that of the latest id that has
// begun. So a row that is more than four billion transactions old may look as if it had changed since, and is then
// skipped. The row of a running job is written whenever its lease is extended: the job is unchanged, too, if its
// attempt began before the count.
const meantJobs = `FROM outbox.jobs
CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next) AS xact
WHERE jobs.status::text = ANY ($1::text[])
  AND ($2::text = '' OR jobs.kind = $2)
  AND ($3::text = '' OR jobs.queue = $3)
  AND ($4::text = '' OR jobs.key = $4)
  AND ($5::uuid IS NULL OR jobs.tenant_id = $5)
  AND ($6::timestamptz IS NULL OR jobs.created_at >= $6)
  AND ($7::timestamptz IS NULL OR jobs.created_at < $7)
  AND ($8::text IS NULL
      OR jobs.status = 'running' AND jobs.started_at <= $9::timestamptz
      OR pg_visible_in_snapshot(
          greatest(xact.next - ((xact.next - jobs.xmin::text::bigint) & 4294967295), 0)::text::xid8,
          (SELECT CAST($8::text AS pg_snapshot))))`

func (f OpenFilter) params(act OperationAct) []any {
	params := []any{
		f.statuses(act), f.Kind, f.Queue, f.Key, pgvalue.UUIDOrNull(f.Tenant), timeOrAny(f.CreatedSince),
		timeOrAny(f.CreatedUntil), nil, nil,
	}
	if as, ok := parseAsOf(f.AsOf); ok {
		params[7], params[8] = as.snapshot, as.begun
	}
	return params
}

// MatchOpenJobs counts the open jobs that an act of an operation would affect, and returns in AsOf the moment of the
// count. With it in the filter, [Operator.StartOperation] acts on the jobs that were counted, and skips those that have
// come since, and those that have changed: a person who confirms a number of jobs confirms these. It does not count
// what has not committed. It returns [ErrOldWriter] while a transaction has been writing for so long that the state of
// all others that have begun since cannot be stored.
func (o *Operator) MatchOpenJobs(ctx context.Context, act OperationAct, f OpenFilter) (OpenMatch, error) {
	if !act.OnOpenJobs() {
		return OpenMatch{}, invalid.Field("act", "is %q, which is no act on open jobs", act)
	}
	if err := f.validate(); err != nil {
		return OpenMatch{}, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if f.AsOf == "" {
		as, err := o.asOfNow(ctx)
		if err != nil {
			return OpenMatch{}, fmt.Errorf("count open jobs: %w", err)
		}
		f.AsOf = as.String()
	}
	// The count has the condition of the operation: it leaves out what has committed since AsOf was taken.
	match := OpenMatch{AsOf: f.AsOf}
	var counts []byte
	err := pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `WITH counted AS (
    SELECT jobs.status, count(*) AS n, count(jobs.key) AS keyed `+meantJobs+` GROUP BY jobs.status
)
SELECT coalesce(sum(n), 0)::bigint, coalesce(sum(keyed), 0)::bigint, coalesce(jsonb_object_agg(status, n), '{}')
FROM counted`, f.params(act)...).Scan(&match.Matched, &match.Keyed, &counts)
	})
	if err == nil {
		err = json.Unmarshal(counts, &match.ByStatus)
	}
	if err != nil {
		return OpenMatch{}, fmt.Errorf("count open jobs: %w", err)
	}
	return match, nil
}

// jobsOfStep is how many jobs a step acts on: each takes a statement or two.
const jobsOfStep = 100

// asCounted selects those of an operation's jobs to which nothing has happened since they were counted: a claim and
// every act raise a job's epoch. It is NULL for an operation that was started before migration 00012.
//
// Each job of the step is looked up in both tables. The statistics may not know the operation yet: its million jobs are
// then estimated at one, and a join would begin with them. LIMIT prevents the join, as ANY (ARRAY[…]) does
// (docs/adr/0013).
const asCounted = `
	FROM unnest($2::uuid[]) AS input (id)
	CROSS JOIN LATERAL (
		SELECT counted.epoch
		FROM outbox.operation_jobs AS counted
		WHERE counted.operation_id = $1 AND counted.job_id = input.id
		LIMIT 1
	) AS meant
	JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id])
	WHERE jobs.epoch = coalesce(meant.epoch, jobs.epoch)`

// stepOnJobs acts on the next of an operation's open jobs, in the transaction that locks it. It does not wait for a job
// that another transaction has locked, such as a handler's: it skips the job and returns to it when it has reached the
// end. Claims pass by the jobs that the step has locked; if it leaves some as they are, it wakes the dispatchers.
func (o *Operator) stepOnJobs(ctx context.Context, s operationStep) error {
	tx, taken := o.in, s.taken
	filter, stored, err := readOpenJobs(taken.Filter)
	if err != nil {
		return err
	}
	next, err := idsOf(ctx, tx,
		`SELECT job_id FROM outbox.operation_jobs WHERE operation_id = $1 AND job_id > $2 ORDER BY job_id LIMIT $3`,
		taken.ID, pgtype.UUID{Bytes: taken.Position.Bytes, Valid: true}, s.page)
	if err != nil {
		return err
	}
	locked, err := idsOf(ctx, tx, `SELECT jobs.id`+asCounted+` ORDER BY input.id FOR UPDATE OF jobs SKIP LOCKED`,
		taken.ID, next)
	if err != nil {
		return err
	}
	open, err := idsOf(ctx, tx, `SELECT jobs.id`+asCounted, taken.ID, next)
	if err != nil {
		return err
	}
	busy := slices.DeleteFunc(open, func(id pgtype.UUID) bool { return slices.Contains(locked, id) })
	through := slices.DeleteFunc(slices.Clone(next), func(id pgtype.UUID) bool { return slices.Contains(busy, id) })
	var done int
	switch {
	case s.passOver:
	case OperationAct(taken.Act) == EditJobs:
		done, err = o.editJobs(ctx, taken.ID, stored.Edit, filter.Statuses, locked)
	default:
		done, err = o.actOnJobs(ctx, OperationAct(taken.Act), filter.Statuses, locked)
	}
	if err == nil && done < len(locked) {
		err = o.db.Notify(ctx, []string{engine.Channel})
	}
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `DELETE FROM outbox.operation_jobs WHERE operation_id = $1 AND job_id = ANY ($2)`,
		taken.ID, through); err != nil {
		return err
	}
	advance := sqlgen.AdvanceOperationParams{
		ID: taken.ID, Done: int64(done), Passed: int64(len(through) - done),
		Pause: pgvalue.Interval(time.Duration(done) * s.spacing),
	}
	if len(next) == s.page {
		advance.Position = next[len(next)-1]
		return o.db.AdvanceOperation(ctx, advance)
	}
	var left bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.operation_jobs WHERE operation_id = $1)`,
		taken.ID).Scan(&left); err != nil {
		return err
	}
	advance.Position, advance.Finished = pgtype.UUID{Valid: true}, !left // start over from the beginning
	if left {
		advance.Pause = pgvalue.Interval(max(operationPoll, time.Duration(done)*s.spacing))
	}
	return o.db.AdvanceOperation(ctx, advance)
}

func idsOf(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]pgtype.UUID, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[pgtype.UUID])
}

// actOnJobs acts on jobs while they are in one of the statuses, and returns on how many it has acted.
func (o *Operator) actOnJobs(ctx context.Context, act OperationAct, statuses []outbox.Status,
	ids []pgtype.UUID,
) (done int, err error) {
	only := o.Only(statuses...)
	do := only.Retry
	switch act {
	case CancelJobs:
		do = func(ctx context.Context, id outbox.ID) error {
			_, err := only.Cancel(ctx, id)
			return err
		}
	case ReleaseJobs:
		do = only.Release
	}
	for _, id := range ids {
		err := do(ctx, id.Bytes)
		_, moved := errors.AsType[*StatusError](err)
		switch {
		case err == nil:
			done++
		case !moved && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrPastDeadline):
			return done, err
		}
	}
	return done, nil
}
