package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// NewJob is a job to enqueue. Only Kind is required.
type NewJob struct {
	Kind           string    `json:"kind"`
	Payload        any       `json:"payload,omitempty"` // becomes JSON; nil is {}
	Queue          string    `json:"queue,omitempty"`
	Priority       int       `json:"priority,omitempty"` // higher is more urgent
	DelaySeconds   float64   `json:"delaySeconds,omitempty"`
	RunAt          time.Time `json:"runAt,omitzero"` // excludes DelaySeconds
	MaxAttempts    int       `json:"maxAttempts,omitempty"`
	TimeoutSeconds float64   `json:"timeoutSeconds,omitempty"` // of one attempt
	// BackoffSeconds is the waits between attempts, the last from then on; nil leaves them to the kind.
	BackoffSeconds []float64 `json:"backoffSeconds,omitempty"`
	Deadline       time.Time `json:"deadline,omitzero"`  // from then on it neither starts nor succeeds
	Hold           bool      `json:"hold,omitempty"`     // it is not run before somebody releases it
	Streamed       bool      `json:"streamed,omitempty"` // each change of it is stored as an event
	// Jobs of a queue with the same Key run one at a time, or as KeyRules say.
	Key            string            `json:"key,omitempty"`
	IdempotencyKey string            `json:"idempotencyKey,omitempty"` // makes it safe to repeat
	Headers        map[string]string `json:"headers,omitempty"`

	KeyRules
}

// KeyRules are how jobs with the same key share it. With the zero value they run one at
// a time.
type KeyRules struct {
	MaxActive        int     `json:"maxActive,omitempty"`
	Ordered          bool    `json:"ordered,omitempty"`          // start only as the first that is not finished
	Sequence         int64   `json:"sequence,omitempty"`         // position in that order; 0: by the time of storing
	OnDeath          string  `json:"onDeath,omitempty"`          // skip or park; "": those behind it wait
	ParkAfterSeconds float64 `json:"parkAfterSeconds,omitempty"` // with park
	OnLapse          string  `json:"onLapse,omitempty"`          // fail-stale or block; "": it runs again
	MaxQueued        int     `json:"maxQueued,omitempty"`        // store it only if fewer of the key wait
	WhenFull         string  `json:"whenFull,omitempty"`         // coalesce or replace-oldest; "": CodeKeyFull
}

// Accepted says that a job is stored.
type Accepted struct {
	ID     string `json:"id"`
	Status string `json:"status"` // with which it was stored

	// With MaxQueued: accepted; coalesced, if the job with this id waits and stands for
	// it; or replaced, if the job Replaced was closed for it.
	Verdict  string `json:"verdict,omitempty"`
	Replaced string `json:"replaced,omitempty"`
}

// Job is a job as the token may see it: Internals need admin.read, the payload
// payload.read.
type Job struct {
	ID         string    `json:"id"`
	Kind       string    `json:"kind"`
	Queue      string    `json:"queue"`
	Status     string    `json:"status"`
	Priority   int       `json:"priority"`
	Key        string    `json:"key,omitempty"`
	CreatedAt  time.Time `json:"createdAt"`
	RunAt      time.Time `json:"runAt"`
	StartedAt  time.Time `json:"startedAt,omitzero"`  // of the latest attempt
	FinishedAt time.Time `json:"finishedAt,omitzero"` // zero while it is open
	Deadline   time.Time `json:"deadline,omitzero"`   // from then on it neither starts nor succeeds
	Parent     string    `json:"parent,omitempty"`    // of a follow-up: the job whose end stored it
	Error      *JobError `json:"error,omitempty"`     // of the latest failed attempt

	CancelRequestedAt time.Time `json:"cancelRequestedAt,omitzero"` // when its handler was asked to stop

	Payload            json.RawMessage `json:"payload,omitempty"`
	PayloadBase64      []byte          `json:"payloadBase64,omitempty"` // decoded, if it is no JSON
	PayloadContentType string          `json:"payloadContentType,omitempty"`
	Internals          *Internals      `json:"internals,omitempty"`
}

// JobError is why an attempt failed.
type JobError struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"` // for admin.read only
}

// Internals is how a job is carried out.
type Internals struct {
	Tenant         string          `json:"tenant"`
	Attempt        int             `json:"attempt"`
	MaxAttempts    int             `json:"maxAttempts"`
	LostLeases     int             `json:"lostLeases"`
	Epoch          int64           `json:"epoch"`
	TimeoutSeconds float64         `json:"timeoutSeconds,omitempty"`
	BackoffSeconds []float64       `json:"backoffSeconds,omitempty"`
	Worker         string          `json:"worker,omitempty"`
	LeaseExpiresAt time.Time       `json:"leaseExpiresAt,omitzero"`
	PayloadBytes   int             `json:"payloadBytes"`
	Streamed       bool            `json:"streamed,omitempty"`
	Headers        json.RawMessage `json:"headers,omitempty"`
}

// Result is what a finished job left.
type Result struct {
	ID           string          `json:"id"`
	Status       string          `json:"status"`
	Result       json.RawMessage `json:"result,omitempty"`
	ResultBase64 []byte          `json:"resultBase64,omitempty"` // decoded, if it is no JSON or sealed
	// ResultSealed is the content type of the seal if the result is sealed: protect.OpenResult opens ResultBase64.
	ResultSealed string    `json:"resultSealed,omitempty"`
	Error        *JobError `json:"error,omitempty"` // why there is no result
}

// Attempt is an attempt that failed.
type Attempt struct {
	Attempt    int       `json:"attempt"`
	Epoch      int64     `json:"epoch"`
	Worker     string    `json:"worker"`
	StartedAt  time.Time `json:"startedAt"`
	FinishedAt time.Time `json:"finishedAt"`
	Error      JobError  `json:"error"`
	Stack      string    `json:"stack,omitempty"` // of a panic
}

// JobFilter says which jobs. Its zero value is all.
type JobFilter struct {
	Tenant         string    `json:"tenant,omitempty"` // for tokens of all tenants; "" is any
	Kind           string    `json:"kind,omitempty"`
	Queue          string    `json:"queue,omitempty"`
	Key            string    `json:"key,omitempty"`
	Fingerprint    string    `json:"errorFingerprint,omitempty"` // of dead letters that failed alike
	Status         []string  `json:"status,omitempty"`           // any of these
	Worker         string    `json:"worker,omitempty"`           // holds the lease, or closed it; for admin.read only
	ErrorCode      string    `json:"errorCode,omitempty"`        // of the latest failed attempt
	MinAttempt     int       `json:"minAttempt,omitempty"`       // for admin.read only
	Parent         string    `json:"parent,omitempty"`           // the job whose end stored them
	IDPrefix       string    `json:"idPrefix,omitempty"`         // what the id begins with
	Contains       string    `json:"contains,omitempty"`         // in payload (64 KiB) or headers; for payload.read
	FinishedAfter  time.Time `json:"finishedAfter,omitzero"`     // closed at this time or later: open jobs are left out
	FinishedBefore time.Time `json:"finishedBefore,omitzero"`
	CreatedAfter   time.Time `json:"createdAfter,omitzero"` // at this time or later
	CreatedBefore  time.Time `json:"createdBefore,omitzero"`
}

func (f JobFilter) query() url.Values {
	q := tenant(f.Tenant)
	set(q, "kind", f.Kind)
	set(q, "queue", f.Queue)
	set(q, "key", f.Key)
	set(q, "error_fingerprint", f.Fingerprint)
	set(q, "status", strings.Join(f.Status, ","))
	set(q, "worker", f.Worker)
	set(q, "error_code", f.ErrorCode)
	if f.MinAttempt > 0 {
		q.Set("min_attempt", strconv.Itoa(f.MinAttempt))
	}
	set(q, "parent", f.Parent)
	set(q, "id_prefix", f.IDPrefix)
	set(q, "contains", f.Contains)
	set(q, "finished_after", instant(f.FinishedAfter))
	set(q, "finished_before", instant(f.FinishedBefore))
	set(q, "created_after", instant(f.CreatedAfter))
	set(q, "created_before", instant(f.CreatedBefore))
	return q
}

// set leaves out what is empty.
func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

// instant is "" for the zero time.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// number is "" for 0.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// Page says which part of a list. Its zero value is the first 50.
type Page struct {
	Limit  int    // 0 is 50; more than 200 is 200
	Offset int    // at most 10 000; a cursor is cheaper, and misses nothing
	Cursor string // of the page before: its Next
}

func (p Page) add(q url.Values) url.Values {
	set(q, "limit", number(p.Limit))
	set(q, "offset", number(p.Offset))
	set(q, "cursor", p.Cursor)
	return q
}

// JobPage is a page of a list of jobs.
type JobPage struct {
	Jobs []Job  `json:"jobs"`
	Next string `json:"next,omitempty"` // the Cursor of the next page; "" if there is none
}

// Enqueue stores a job: when it returns, the job is committed. With an
// IdempotencyKey it is repeated when no answer comes, and answers as it did the
// first time; without one, an error leaves it open whether the job is stored, unless it
// is a [*Problem] whose Outcome says so.
func (c *Client) Enqueue(ctx context.Context, job NewJob) (Accepted, error) {
	r := post("/jobs", job)
	r.repeatable = job.IdempotencyKey != ""
	stored, err := ask[Accepted](ctx, c, r)
	if err == nil && stored.ID == "" {
		err = errors.New("POST /jobs: the answer names no job: it is not the API's")
	}
	return stored, err
}

// EnqueueBatch stores up to 1 000 jobs, all or none, and returns them in their
// order. It is repeated if every one of them has an IdempotencyKey.
func (c *Client) EnqueueBatch(ctx context.Context, jobs []NewJob) ([]Accepted, error) {
	r := request{method: "POST", path: "/jobs/batch", contentType: "application/x-ndjson", repeatable: true}
	var lines bytes.Buffer
	for i, job := range jobs {
		line, err := encode(job)
		if err != nil {
			return nil, fmt.Errorf("POST /jobs/batch: job %d: %w", i, err)
		}
		lines.Write(line)
		r.repeatable = r.repeatable && job.IdempotencyKey != ""
	}
	r.body = lines.Bytes()
	answer, err := ask[batchAnswer](ctx, c, r)
	if err == nil && len(answer.Jobs) != len(jobs) {
		err = fmt.Errorf("POST /jobs/batch: the answer is about %d jobs of %d: it is not the API's", len(answer.Jobs), len(jobs))
	}
	return answer.Jobs, err
}

type batchAnswer struct {
	Jobs []Accepted `json:"jobs"`
}

// JobPage lists jobs, newest first.
func (c *Client) JobPage(ctx context.Context, f JobFilter, p Page) (JobPage, error) {
	return ask[JobPage](ctx, c, get("/jobs", p.add(f.query())))
}

// Jobs yields the jobs that the filter means, newest first, page after page, and an
// error at last if there is one. It neither repeats nor leaves out a job that was there
// from the first page to the last.
func (c *Client) Jobs(ctx context.Context, f JobFilter) iter.Seq2[Job, error] {
	return pages(func(cursor string) ([]Job, string, error) {
		page, err := c.JobPage(ctx, f, Page{Limit: 200, Cursor: cursor})
		return page.Jobs, page.Next, err
	})
}

// pages yields what is on all pages, from the first on.
func pages[T any](read func(cursor string) (items []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for cursor := ""; ; {
			items, next, err := read(cursor)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			cursor = next
		}
	}
}

// Job returns a job.
func (c *Client) Job(ctx context.Context, id string) (Job, error) {
	return ask[Job](ctx, c, get("/jobs", nil).segment("job's id", id, ""))
}

// Result returns what a finished job left. Until then it is a [*Problem] with
// [CodeJobNotFinished].
func (c *Client) Result(ctx context.Context, id string) (Result, error) {
	return ask[Result](ctx, c, get("/jobs", nil).segment("job's id", id, "/result"))
}

// Attempts lists the failed attempts of a job, newest first.
func (c *Client) Attempts(ctx context.Context, id string) ([]Attempt, error) {
	answer, err := ask[attemptsAnswer](ctx, c, get("/jobs", nil).segment("job's id", id, "/attempts"))
	return answer.Attempts, err
}

type attemptsAnswer struct {
	Attempts []Attempt `json:"attempts"`
}
