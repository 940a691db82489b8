// Package rebuilt rebuilds the streamed jobs of a database from their events, and compares them with the stored jobs.
// It does not need package testing, so that a command can use it, too.
package rebuilt

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/lifecycle"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	logged   = `SELECT id, tenant_id, topic, key, payload FROM outbox.events WHERE topic LIKE 'job.%' ORDER BY position`
	reported = `(SELECT json_build_object('current', current, 'total', total, 'message', message, 'at', reported_at)
		FROM outbox.progress WHERE job_id = job.id AND reported_at IS NOT NULL)`
	stored = `
		SELECT id, tenant_id, streamed, status::text, epoch, queue, kind, coalesce(key, ''), priority, attempt, max_attempts, lost_leases,
		       parent_id, payload, content_type, NULL::bytea, coalesce(lease_owner, ''), coalesce(last_error_code, ''), coalesce(last_error_message, ''),
		       created_at, run_at, started_at, NULL::timestamptz, deadline, ` + reported + `
		FROM outbox.jobs AS job
		WHERE streamed IS NOT NULL
		UNION ALL
		SELECT id, tenant_id, streamed, status::text, epoch, queue, kind, coalesce(key, ''), priority, attempt, max_attempts, lost_leases,
		       parent_id, payload, content_type, result, coalesce(worker, ''), coalesce(last_error_code, ''), coalesce(last_error_message, ''),
		       created_at, run_at, started_at, finished_at, deadline, ` + reported + `
		FROM outbox.history AS job
		WHERE streamed IS NOT NULL`
)

// Found is the result of a comparison.
type Found struct {
	Jobs, Events int
	Names        map[lifecycle.Name]int // events of each name
	Differences  []string

	states map[outbox.ID]lifecycle.State
}

// Compare reduces every event, and compares each streamed job with the state that results. Nothing may write to the
// database meanwhile. A caller that has changed rows by hand passes adjust, which changes both states before they are
// compared; nil compares them unchanged.
func Compare(ctx context.Context, db *pgxpool.Pool, adjust func(stored, rebuilt *lifecycle.State)) (Found, error) {
	found := newFound()
	if err := found.readLog(ctx, db); err != nil {
		return *found, fmt.Errorf("read the events: %w", err)
	}
	return found.compare(ctx, db, adjust)
}

// CompareMessages does the same with the bodies of the messages that a sink has accepted, in that order.
func CompareMessages(ctx context.Context, db *pgxpool.Pool, bodies []string) (Found, error) {
	found := newFound()
	for _, body := range bodies {
		e, err := lifecycle.Decode([]byte(body))
		if err != nil {
			return *found, fmt.Errorf("message %s: %w", body, err)
		}
		found.reduce(e)
	}
	return found.compare(ctx, db, nil)
}

func newFound() *Found {
	return &Found{Names: map[lifecycle.Name]int{}, states: map[outbox.ID]lifecycle.State{}}
}

// compare compares the stored jobs with the states.
func (f *Found) compare(ctx context.Context, db *pgxpool.Pool,
	adjust func(stored, rebuilt *lifecycle.State),
) (Found, error) {
	rows, _ := db.Query(ctx, stored) // CollectRows returns the error, too
	jobs, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return *f, fmt.Errorf("read the jobs: %w", err)
	}
	for _, job := range jobs {
		got := f.states[job.Job]
		delete(f.states, job.Job)
		if adjust != nil {
			adjust(&job, &got)
		}
		if want, is := text(job), text(got); want != is {
			f.Differences = append(f.Differences, fmt.Sprintf("job %s is rebuilt as\n%s, and is stored as\n%s",
				job.Job, is, want))
		}
	}
	for id := range f.states {
		f.Differences = append(f.Differences, fmt.Sprintf("job %s has events, and is not stored", id))
	}
	f.Jobs = len(jobs)
	return *f, nil
}

// readLog reduces the events in the log.
func (f *Found) readLog(ctx context.Context, db *pgxpool.Pool) error {
	ids := map[outbox.ID]bool{}
	rows, _ := db.Query(ctx, logged)
	var id, tenant outbox.ID
	var topic, key string
	var payload []byte
	_, err := pgx.ForEachRow(rows, []any{&id, &tenant, &topic, &key, &payload}, func() error {
		e, err := lifecycle.Decode(bytes.Clone(payload))
		if err != nil {
			return fmt.Errorf("event %s: %w", id, err)
		}
		if (ids[id] && e.Name != lifecycle.StaleCompletionIgnored) || e.Tenant != tenant || e.Job.String() != key ||
			"job."+string(e.Name) != topic {
			f.Differences = append(f.Differences,
				fmt.Sprintf("event %s of tenant %s, topic %s, key %s is not its own: %s", id, tenant, topic, key,
					payload))
		}
		ids[id] = true
		f.reduce(e)
		return nil
	})
	return err
}

// reduce reduces an event. It notes a gap, a conflict, and a repeat that would change the state.
func (f *Found) reduce(e lifecycle.Event) {
	f.Events++
	f.Names[e.Name]++
	s, err := lifecycle.Reduce(f.states[e.Job], e)
	if err != nil {
		f.Differences = append(f.Differences, err.Error())
	}
	if again, err := lifecycle.Reduce(s, e); err != nil || text(again) != text(s) {
		f.Differences = append(f.Differences, fmt.Sprintf("a repeat of event %d of job %s makes\n%s (%v) of\n%s", e.N, e.Job,
			text(again), err, text(s)))
	}
	f.states[e.Job] = s
}

func scan(row pgx.CollectableRow) (s lifecycle.State, err error) {
	var parent *outbox.ID
	var started, finished, deadline *time.Time
	var progress *lifecycle.Progress
	err = row.Scan(&s.Job, &s.Tenant, &s.N, (*string)(&s.Status), &s.Epoch, &s.Queue, &s.Kind, &s.Key, &s.Priority,
		&s.Attempt, &s.MaxAttempts, &s.LostLeases,
		&parent, &s.Payload, &s.ContentType, &s.Result, &s.Worker, &s.Error.Code, &s.Error.Message,
		&s.CreatedAt, &s.RunAt, &started, &finished, &deadline, &progress)
	if progress != nil {
		s.Progress = *progress
	}
	if parent != nil {
		s.Parent = *parent
	}
	for _, at := range []struct {
		from *time.Time
		to   *time.Time
	}{{started, &s.StartedAt}, {finished, &s.FinishedAt}, {deadline, &s.Deadline}} {
		if at.from != nil {
			*at.to = *at.from
		}
	}
	return s, err
}

// text returns every field of a state, for comparison.
func text(s lifecycle.State) string {
	for _, at := range []*time.Time{&s.CreatedAt, &s.RunAt, &s.StartedAt, &s.FinishedAt, &s.Deadline, &s.Progress.At} {
		*at = at.UTC()
	}
	payload, result := s.Payload, s.Result
	s.Payload, s.Result = nil, nil
	return fmt.Sprintf("%+v, payload %q, result %q", s, payload, result)
}
