package outboxtest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Job is a job stored by a test's transaction.
type Job[T any] struct {
	ID       outbox.ID
	Args     T
	Queue    string
	Priority int
	Key      string
	Headers  map[string]string
	Status   outbox.Status
	RunAt    time.Time // when it is, or was, due
	Deadline time.Time // zero if it has none

	created time.Time
	stored  storedJob
}

// Enqueued returns the jobs of T's kind that the transaction has stored and not rolled back, in the order in which they
// were enqueued, including those that have run. db is a [DB], or any pgx.Tx. A payload that does not decode into T
// fails the test.
func Enqueued[T outbox.Args](t testing.TB, db outbox.DB) []Job[T] {
	t.Helper()
	var zero T
	kind := zero.Kind()
	if kind == "" {
		t.Fatalf("Enqueued: %T has no kind of its own", zero)
	}
	stored, err := storedJobs(context.Background(), db, kind)
	if err != nil {
		t.Fatal(err)
	}
	jobs := make([]Job[T], len(stored))
	for n, s := range stored {
		jobs[n] = Job[T]{
			ID: s.id, Queue: s.queue, Priority: s.priority, Key: s.key, Headers: s.headers, Status: s.status,
			RunAt: s.runAt, created: s.created, stored: s,
		}
		if s.deadline != nil {
			jobs[n].Deadline = *s.deadline
		}
		if _, raw := any(zero).(outbox.Raw); raw {
			continue
		}
		protector, unasked := protectorOfZero(zero)
		if err := json.Unmarshal(s.opened(protector).Bytes, &jobs[n].Args); err != nil {
			t.Fatalf("decode the payload of job %s of kind %s: %v", s.id, kind, errors.Join(err, unasked))
		}
	}
	return jobs
}

// RequireEnqueued fails the test unless the transaction has stored a job with this payload, and with the fields that
// are set in the options; fields at the zero value are not compared. Delay and RunAt match to the second; Headers and
// Caller match if the job has these headers among others. Protect, or the Protect in the DefaultOptions of T, opens the
// payload. It returns the first such job. db is a [DB], or any pgx.Tx.
//
// Compare the rules of a key, Hold and Delay before the job runs: the rules of a closed job are not kept, and the
// others change. Check, Key.MaxQueued and Key.WhenFull are not stored with a job; setting them fails the test. The
// failure shows line by line what was enqueued instead.
func RequireEnqueued[T outbox.Args](t testing.TB, db outbox.DB, want T, opts ...outbox.Options) Job[T] {
	t.Helper()
	wanted := expected(t, want, opts)
	var all []Job[T]
	if raw, ok := any(want).(outbox.Raw); ok {
		for _, s := range mustStored(t, db, raw.KindName) {
			all = append(all, Job[T]{
				ID: s.id, Args: want, Queue: s.queue, Priority: s.priority, Key: s.key,
				Headers: s.headers, Status: s.status, RunAt: s.runAt, created: s.created, stored: s,
			})
		}
	} else {
		all = Enqueued[T](t, db)
	}
	for _, job := range all {
		if slices.Equal(wanted.lines, wanted.of(job.stored)) {
			return job
		}
	}
	if len(all) == 0 {
		t.Fatalf("no job of kind %s was enqueued; in this transaction there are:\n%s", want.Kind(),
			listed(mustStored(t, db, "")))
	}
	var b strings.Builder
	for n, job := range all {
		if n == 5 {
			fmt.Fprintf(&b, "  and %d others\n", len(all)-n)
			break
		}
		fmt.Fprintf(&b, "  %s, %s:\n%s", job.stored.kind, job.Status, diff(wanted.lines, wanted.of(job.stored)))
	}
	t.Fatalf("no job of kind %s is the wanted one (-want +enqueued):\n%s", want.Kind(), b.String())
	panic("unreachable")
}

// RequireNotEnqueued fails the test if the transaction has stored a job of T's kind with one of these payloads, or with
// any payload if none is given.
func RequireNotEnqueued[T outbox.Args](t testing.TB, db outbox.DB, unwanted ...T) {
	t.Helper()
	var zero T
	kind := zero.Kind()
	if len(unwanted) > 0 {
		kind = unwanted[0].Kind()
	}
	stored := mustStored(t, db, kind)
	stored = slices.DeleteFunc(stored, func(s storedJob) bool {
		return len(unwanted) > 0 && !slices.ContainsFunc(unwanted, func(u T) bool {
			w := expected(t, u, nil)
			return slices.Equal(w.lines, w.of(s))
		})
	})
	if len(stored) > 0 {
		t.Fatalf("jobs of kind %s were enqueued, and should not have been:\n%s", kind, listed(stored))
	}
}

// expectation is the expected job or event as lines to compare, and a function for the corresponding lines of another
// one.
type expectation struct {
	lines []string
	of    func(storedJob) []string
}

// expected returns the expectation of a job.
func expected(t testing.TB, args outbox.Args, opts []outbox.Options) expectation {
	t.Helper()
	if len(opts) > 1 {
		t.Fatalf("RequireEnqueued takes the options of one job, got %d", len(opts))
	}
	var o outbox.Options
	if len(opts) == 1 {
		o = opts[0]
	}
	if o.Check != nil || o.Key.MaxQueued != 0 || o.Key.WhenFull != "" {
		t.Fatal("RequireEnqueued cannot compare Check, Key.MaxQueued and Key.WhenFull: they are not stored with a job")
	}
	wanted := plain(t, "job", args)
	fields, protector := optionFields(o), cmp.Or(o.Protect, protectorOf(args))
	return expectation{
		lines: append(spelled(wanted.Type, wanted.Bytes), valuesOf(fields, func(f field) string { return f.want })...),
		of: func(s storedJob) []string {
			got := s.opened(protector)
			return append(spelled(got.Type, got.Bytes), valuesOf(fields, func(f field) string { return f.got(s) })...)
		},
	}
}

// plain returns the content that is stored for arguments or an event, before sealing.
func plain(t testing.TB, what string, value any) outbox.Content {
	t.Helper()
	if raw, ok := value.(outbox.Raw); ok {
		return outbox.Content{Type: cmp.Or(raw.ContentType, "application/json"), Bytes: raw.Payload}
	}
	payload, err := json.Marshal(value)
	if err != nil {
		t.Fatalf("the wanted %s: %v", what, err)
	}
	return outbox.Content{Type: "application/json", Bytes: payload}
}

// protectorOf returns the protector that seals the payloads of the arguments' kind, or nil for none.
func protectorOf(args outbox.Args) outbox.Protector {
	if kind, ok := args.(outbox.Defaulter); ok {
		return kind.DefaultOptions().Protect
	}
	return nil
}

// protectorOfZero returns the protector as protectorOf does, for arguments that are not known yet. Their DefaultOptions
// may need what a zero value lacks, and panic; the error matters only if the payload is sealed.
func protectorOfZero(args outbox.Args) (p outbox.Protector, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("DefaultOptions of a zero %T panics: %v", args, cause)
		}
	}()
	return protectorOf(args), nil
}

// storedJob is a row of outbox.jobs or outbox.history.
type storedJob struct {
	id, tenant       outbox.ID
	kind, queue, key string
	priority         int
	maxAttempts      int
	payload          []byte
	contentType      string
	headers          map[string]string
	runAt, created   time.Time
	deadline         *time.Time
	status           outbox.Status
	timeout          time.Duration
	backoff          outbox.Backoff
	streamed, closed bool
	rules            outbox.KeyRules // zero for a closed job, whose rules are not kept
	idempotencyKey   string
}

// opened returns the payload as it was before a protector, which may be nil, sealed it, if one did.
func (s storedJob) opened(p outbox.Protector) outbox.Content {
	stored := outbox.Content{Type: s.contentType, Bytes: s.payload}
	if p == nil {
		return stored
	}
	content, err := p.Open(context.Background(), outbox.Part{Tenant: s.tenant, Job: s.id, Column: "payload"}, stored)
	if err != nil { // it was not sealed, or by another protector
		return stored
	}
	return content
}

func mustStored(t testing.TB, db outbox.DB, kind string) []storedJob {
	t.Helper()
	stored, err := storedJobs(context.Background(), db, kind)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// ours returns a condition that is true of rows written by this transaction or a savepoint in it: they are visible, and
// the transaction that wrote them has not ended. Transactions that begin later have higher numbers, which wrap around
// to 0.
func ours(table string) string {
	return strings.ReplaceAll(`CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN false
		WHEN (table.xmin::text::bigint - (pg_current_xact_id_if_assigned()::text::bigint & 4294967295) + 4294967296) % 4294967296 >= 2147483648 THEN false
		ELSE pg_xact_status((pg_current_xact_id_if_assigned()::text::numeric
			+ (table.xmin::text::bigint - (pg_current_xact_id_if_assigned()::text::bigint & 4294967295) + 4294967296) % 4294967296)::text::xid8) = 'in progress' END`, "table", table)
}

// storedJobs returns the jobs of a kind, or of all kinds, that the transaction has stored, in the order in which it
// stored them.
func storedJobs(ctx context.Context, db outbox.DB, kind string) ([]storedJob, error) {
	rows, err := db.Query(ctx, `
		SELECT job.id, job.tenant_id, job.kind, job.queue, coalesce(job.key, ''), job.priority, job.max_attempts, job.payload, job.content_type,
		       coalesce(job.headers, '{}')::text, job.run_at, job.created_at, job.deadline, job.status::text, `+micros("job.timeout")+`,
		       ARRAY(SELECT `+micros("wait")+` FROM unnest(job.backoff) WITH ORDINALITY AS waits (wait, n) ORDER BY n), job.streamed IS NOT NULL, job.closed,
		       coalesce(job.max_active, 0), coalesce(job.ordered, false), coalesce(job.line_position, 0), coalesce(job.on_death, ''),
		       `+micros("job.park_after")+`, coalesce(job.on_lapse, ''),
		       coalesce((SELECT k.key FROM outbox.idempotency_keys AS k WHERE k.tenant_id = job.tenant_id AND k.kind = job.kind AND k.job_id = job.id), '')
		FROM (
			SELECT id, tenant_id, kind, queue, key, priority, max_attempts, payload, content_type, headers, run_at, created_at, deadline, status, timeout, backoff, streamed,
			       false AS closed, CASE WHEN key IS NOT NULL THEN coalesce(max_active, 1) END AS max_active, ordered, line_position, on_death, park_after, on_lapse
			FROM outbox.jobs WHERE ($1::text = '' OR kind = $1) AND `+ours("jobs")+`
			UNION ALL
			SELECT id, tenant_id, kind, queue, key, priority, max_attempts, payload, content_type, headers, run_at, created_at, deadline, status, timeout, backoff, streamed,
			       true, NULL, NULL, NULL, NULL, NULL, NULL
			FROM outbox.history WHERE ($1::text = '' OR kind = $1) AND `+ours("history")+`
		) AS job
		ORDER BY job.created_at, job.id`, kind)
	if err != nil {
		return nil, fmt.Errorf("look for jobs: %w", err)
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (j storedJob, err error) {
		var headers string
		var timeout, parkAfter int64
		var waits []int64
		err = row.Scan((*[16]byte)(&j.id), (*[16]byte)(&j.tenant), &j.kind, &j.queue, &j.key, &j.priority,
			&j.maxAttempts, &j.payload, &j.contentType,
			&headers, &j.runAt, &j.created, &j.deadline, (*string)(&j.status), &timeout, &waits, &j.streamed, &j.closed,
			&j.rules.MaxActive, &j.rules.Ordered, &j.rules.Sequence, (*string)(&j.rules.OnDeath), &parkAfter,
			(*string)(&j.rules.OnLapse), &j.idempotencyKey)
		if err == nil {
			_ = json.Unmarshal([]byte(headers), &j.headers) // outbox.enqueue may have stored other types; skip them
		}
		j.timeout, j.rules.ParkAfter = time.Duration(timeout)*time.Microsecond, time.Duration(
			parkAfter)*time.Microsecond
		for _, wait := range waits {
			j.backoff = append(j.backoff, time.Duration(wait)*time.Microsecond)
		}
		return j, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for jobs: %w", err)
	}
	return jobs, nil
}

// micros returns SQL for an interval in microseconds, 0 for NULL.
func micros(interval string) string {
	return "coalesce((1000000 * extract(epoch FROM " + interval + "))::bigint, 0)"
}

// listed returns jobs in readable form, a line each.
func listed(jobs []storedJob) string {
	if len(jobs) == 0 {
		return "  no jobs\n"
	}
	var b strings.Builder
	for _, j := range jobs {
		fmt.Fprintf(&b, "  %s in queue %s, %s, due %s: %s\n", j.kind, j.queue, j.status,
			j.runAt.UTC().Format(time.RFC3339), oneLine(j.contentType, j.payload))
	}
	return b.String()
}

// oneLine returns a payload on one line, cut if it is long.
func oneLine(contentType string, payload []byte) string {
	text := strings.Join(spelled(contentType, payload), " ")
	text = blanks.ReplaceAllString(text, " ")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}
