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
	Payload        any       `json:"payload,omitempty"` // encoded as JSON; nil means {}
	Queue          string    `json:"queue,omitempty"`
	Priority       int       `json:"priority,omitempty"` // higher is more urgent
	DelaySeconds   float64   `json:"delaySeconds,omitempty"`
	RunAt          time.Time `json:"runAt,omitzero"` // excludes DelaySeconds
	MaxAttempts    int       `json:"maxAttempts,omitempty"`
	TimeoutSeconds float64   `json:"timeoutSeconds,omitempty"` // of one attempt
	// BackoffSeconds are the waits between attempts, the last of which repeats; nil means the kind's.
	BackoffSeconds []float64 `json:"backoffSeconds,omitempty"`
	Deadline       time.Time `json:"deadline,omitzero"`  // from then on it may neither start nor succeed
	Hold           bool      `json:"hold,omitempty"`     // do not run it until somebody releases it
	Streamed       bool      `json:"streamed,omitempty"` // store each change of it as an event
	// Key groups jobs of a queue: those with the same key run one at a time, or as KeyRules allow.
	Key            string            `json:"key,omitempty"`
	IdempotencyKey string            `json:"idempotencyKey,omitempty"` // makes it safe to repeat
	Headers        map[string]string `json:"headers,omitempty"`

	KeyRules
}

// KeyRules set how jobs with the same key share it. With the zero value they run one at a time.
type KeyRules struct {
	MaxActive        int     `json:"maxActive,omitempty"`
	Ordered          bool    `json:"ordered,omitempty"`          // start only as the first unfinished one
	Sequence         int64   `json:"sequence,omitempty"`         // position in that order; 0 orders by commit
	OnDeath          string  `json:"onDeath,omitempty"`          // skip or park; "" makes those behind it wait
	ParkAfterSeconds float64 `json:"parkAfterSeconds,omitempty"` // with park
	OnLapse          string  `json:"onLapse,omitempty"`          // fail-stale or block; "" runs it again
	MaxQueued        int     `json:"maxQueued,omitempty"`        // store it only if fewer of the key wait
	WhenFull         string  `json:"whenFull,omitempty"`         // coalesce or replace-oldest; "" gives CodeKeyFull
}

// Accepted confirms that a job is stored.
type Accepted struct {
	ID     string `json:"id"`
	Status string `json:"status"` // as stored

	// Verdict is set with MaxQueued: accepted; coalesced, if the waiting job with this id stands for it; or replaced,
	// if the job Replaced was closed for it.
	Verdict  string `json:"verdict,omitempty"`
	Replaced string `json:"replaced,omitempty"`
}

// Job is a job as the token may see it: Internals requires admin.read, the payload payload.read.
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
	Deadline   time.Time `json:"deadline,omitzero"`   // from then on it may neither start nor succeed
	Parent     string    `json:"parent,omitempty"`    // of a follow-up: the job whose end stored it
	Error      *JobError `json:"error,omitempty"`     // of the latest failed attempt

	CancelRequestedAt time.Time `json:"cancelRequestedAt,omitzero"` // when its handler was asked to stop

	Payload            json.RawMessage `json:"payload,omitempty"`
	PayloadBase64      []byte          `json:"payloadBase64,omitempty"` // decoded; set if it is not JSON
	PayloadContentType string          `json:"payloadContentType,omitempty"`
	Internals          *Internals      `json:"internals,omitempty"`
}

// JobError is the reason for which an attempt failed.
type JobError struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"` // requires admin.read
}

// Internals describe how a job is run.
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

// Result is the result of a finished job.
type Result struct {
	ID           string          `json:"id"`
	Status       string          `json:"status"`
	Result       json.RawMessage `json:"result,omitempty"`
	ResultBase64 []byte          `json:"resultBase64,omitempty"` // decoded; set if it is sealed or not JSON
	// ResultSealed is the content type of the seal if the result is sealed; protect.OpenResult opens ResultBase64.
	ResultSealed string    `json:"resultSealed,omitempty"`
	Error        *JobError `json:"error,omitempty"` // why there is no result
}

// Attempt is a failed attempt.
type Attempt struct {
	Attempt    int       `json:"attempt"`
	Epoch      int64     `json:"epoch"`
	Worker     string    `json:"worker"`
	StartedAt  time.Time `json:"startedAt"`
	FinishedAt time.Time `json:"finishedAt"`
	Error      JobError  `json:"error"`
	Stack      string    `json:"stack,omitempty"` // of a panic
}

// JobFilter selects jobs. Its zero value selects all.
type JobFilter struct {
	Tenant        string    `json:"tenant,omitempty"` // for tokens of all tenants; "" means any
	Kind          string    `json:"kind,omitempty"`
	Queue         string    `json:"queue,omitempty"`
	Key           string    `json:"key,omitempty"`
	Fingerprint   string    `json:"errorFingerprint,omitempty"` // of dead letters that failed alike
	Status        []string  `json:"status,omitempty"`           // any of these
	Worker        string    `json:"worker,omitempty"`           // that holds the lease, or closed it; for admin.read
	ErrorCode     string    `json:"errorCode,omitempty"`        // of the latest failed attempt
	MinAttempt    int       `json:"minAttempt,omitempty"`       // requires admin.read
	Parent        string    `json:"parent,omitempty"`           // the job whose end stored them
	IDPrefix      string    `json:"idPrefix,omitempty"`         // beginning of the id
	Contains      string    `json:"contains,omitempty"`         // in payload (64 KiB) or headers; for payload.read
	FinishedSince time.Time `json:"finishedSince,omitzero"`     // closed at this time or later: open jobs are left out
	FinishedUntil time.Time `json:"finishedUntil,omitzero"`
	CreatedSince  time.Time `json:"createdSince,omitzero"` // at this time or later
	CreatedUntil  time.Time `json:"createdUntil,omitzero"`
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
	set(q, "finished_since", instant(f.FinishedSince))
	set(q, "finished_until", instant(f.FinishedUntil))
	set(q, "created_since", instant(f.CreatedSince))
	set(q, "created_until", instant(f.CreatedUntil))
	return q
}

// set adds a parameter unless it is empty.
func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

// instant returns "" for the zero time.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// number returns "" for 0.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// PageRequest selects a part of a list. Its zero value means the first 50.
type PageRequest struct {
	Limit  int    // 0 means 50; at most 200
	Offset int    // at most 10 000; a cursor is cheaper, and misses nothing
	Cursor string // Next of the previous page
}

func (p PageRequest) add(q url.Values) url.Values {
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

// Enqueue stores a job: when it returns, the job is committed. With an IdempotencyKey it is repeated if no answer
// comes, and then answers as it did the first time. Without one, an error leaves it open whether the job is stored,
// unless it is a [*Problem] whose Outcome states it.
func (c *Client) Enqueue(ctx context.Context, job NewJob) (Accepted, error) {
	r := post("/jobs", job)
	r.repeatable = job.IdempotencyKey != ""
	stored, err := ask[Accepted](ctx, c, r)
	if err == nil && stored.ID == "" {
		err = errors.New("POST /jobs: the answer names no job: it is not the API's")
	}
	return stored, err
}

// EnqueueBatch stores up to 1 000 jobs, all or none, and returns them in their order. It is repeated if every job has
// an IdempotencyKey.
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
		err = fmt.Errorf("POST /jobs/batch: the answer is about %d jobs of %d: it is not the API's", len(answer.Jobs),
			len(jobs))
	}
	return answer.Jobs, err
}

type batchAnswer struct {
	Jobs []Accepted `json:"jobs"`
}

// JobPage lists jobs, newest first.
func (c *Client) JobPage(ctx context.Context, f JobFilter, p PageRequest) (JobPage, error) {
	return ask[JobPage](ctx, c, get("/jobs", p.add(f.query())))
}

// Jobs yields the jobs that match the filter, newest first, page after page, and finally an error if there is one. It
// neither repeats nor misses a job that existed from the first page to the last.
func (c *Client) Jobs(ctx context.Context, f JobFilter) iter.Seq2[Job, error] {
	return pages(func(cursor string) ([]Job, string, error) {
		page, err := c.JobPage(ctx, f, PageRequest{Limit: 200, Cursor: cursor})
		return page.Jobs, page.Next, err
	})
}

// pages yields the items of all pages, from the first on.
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

// Result returns the result of a finished job. Before that, it returns a [*Problem] with [CodeJobNotFinished].
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
