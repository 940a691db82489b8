package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// ErrTooLate is what [Claimed.Then] returns when the attempt's settlement can take
// no more: the handler has returned, or Complete has been called.
var ErrTooLate = errors.New("the attempt is over")

// followUps is what an attempt wants to be stored with its success.
type followUps struct {
	mu     sync.Mutex
	jobs   []row
	bytes  int
	sealed bool
	hook   *successHook
}

type successHook struct {
	kind       string
	withResult bool
}

// Then adds a job that is stored by the statement which settles this one as
// succeeded: it exists exactly when that settlement does, also when it is
// [Claimed.Complete] in the handler's own transaction. When the attempt fails, is
// snoozed or interrupted, or has lost its lease, nothing is stored; the next attempt
// adds what it wants anew.
//
// The follow-up belongs to this job's tenant and remembers it as its parent. Without
// Options.Headers and Options.Caller it has this job's headers, so that a trace goes on. An idempotency key is
// refused: a follow-up exists once as it is.
//
// What is not acceptable gets [*InvalidError]s, joined, and adds nothing; so do more
// than 100 follow-ups, or than 4 MiB of payloads and headers. Then may be called concurrently.
func (c *Claimed) Then(args Args, opts Options) (ID, error) {
	opts.fillFrom(args)
	var errs []error
	if opts.IdempotencyKey != "" {
		errs = append(errs, invalid("Options.IdempotencyKey", "is set, which a follow-up cannot have: it exists once, with its parent's settlement"))
		opts.IdempotencyKey = ""
	}
	if opts.Key.MaxQueued != 0 {
		errs = append(errs, invalid("Options.Key.MaxQueued", "is set, which a follow-up cannot have: nobody could be told that the key is full"))
		opts.Key.MaxQueued, opts.Key.WhenFull = 0, ""
	}
	if !opts.Tenant.IsZero() && opts.Tenant != c.Tenant {
		errs = append(errs, invalid("Options.Tenant", "is %s, want none: a follow-up belongs to the tenant of its parent, %s", opts.Tenant, c.Tenant))
	}
	opts.Tenant = c.Tenant
	job, err := newRow(context.Background(), args, &opts)
	if opts.Headers == nil && opts.Caller == (Caller{}) {
		job.Headers = c.headersText()
	}
	if err = errors.Join(append(errs, err)...); err == nil {
		err = c.follow.add(job, c.Completed())
	}
	if err != nil {
		return ID{}, fmt.Errorf("follow-up of job %s: %w", c.ID, err)
	}
	return ID(job.ID.Bytes), nil
}

func (f *followUps) add(job row, completed bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	bytes := f.bytes + size([]row{job})
	switch {
	case f.sealed || completed:
		return ErrTooLate
	case len(f.jobs) == engine.MaxFollowUps:
		return invalid("Then", "was called %d times, want at most %d follow-ups a job", len(f.jobs)+1, engine.MaxFollowUps)
	case bytes > engine.MaxFollowUpBytes:
		return invalid("Then", "has %d bytes of follow-ups, want at most %d", bytes, engine.MaxFollowUpBytes)
	}
	f.jobs, f.bytes = append(f.jobs, job), bytes
	return nil
}

func (c *Claimed) headersText() *string {
	if len(c.RawHeaders) == 0 {
		return nil
	}
	text := string(c.RawHeaders)
	return &text
}

// HookSuccess has the settlement that succeeds store a job of the given kind, whose
// payload is an [Ended]. It is how a dispatcher keeps the promise of its OnSuccess;
// handlers use Then.
func (c *Claimed) HookSuccess(kind string, withResult bool) {
	c.follow.hook = &successHook{kind, withResult}
}

// SealFollowUps ends the time for Then and tells whether there is anything to follow,
// and how large it is. A dispatcher calls it when the handler has returned.
func (c *Claimed) SealFollowUps() (follows bool, bytes int) {
	f := &c.follow
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sealed = true
	if f.hook != nil {
		bytes = len(c.Payload)
	}
	return f.any(), f.bytes + bytes
}

func (f *followUps) any() bool { return len(f.jobs) > 0 || f.hook != nil }

func (c *Claimed) follows() bool {
	c.follow.mu.Lock()
	defer c.follow.mu.Unlock()
	return c.follow.any()
}

// SettleSucceeded settles jobs as succeeded, each with its Result and its follow-ups,
// and returns the ids of those that it settled: the others had lost their leases,
// and nothing of them is stored. It is what a dispatcher does; a handler calls
// [Claimed.Complete].
func SettleSucceeded(ctx context.Context, db DB, jobs []*Claimed) ([]ID, error) {
	return settleSucceeded(ctx, db, jobs, false)
}

func settleSucceeded(ctx context.Context, db DB, jobs []*Claimed, notify bool) ([]ID, error) {
	var ids, parents []pgtype.UUID
	var epochs []int64
	var results [][]byte
	var follow []row
	var all []int
	for _, c := range jobs {
		ids, epochs, results = append(ids, c.ID.pg()), append(epochs, c.Epoch), append(results, c.Result)
		for _, r := range c.followUps() {
			parents, follow, all = append(parents, c.ID.pg()), append(follow, r), append(all, len(all))
		}
	}
	stored := arrays(follow, all)
	p := stored.Follow()
	p.Notify, p.Ids, p.Epochs, p.Results, p.ParentIds = notify, ids, epochs, results, parents
	rows, err := sqlgen.New(db).SettleSucceededThen(ctx, p)
	if err != nil {
		return nil, err
	}
	settled := make([]ID, len(rows))
	for i, r := range rows {
		settled[i] = ID(r.ID.Bytes)
	}
	return settled, nil
}

// followUps is what is to be stored with the success.
func (c *Claimed) followUps() []row {
	c.follow.mu.Lock()
	defer c.follow.mu.Unlock()
	jobs := c.follow.jobs
	if hook := c.follow.hook; hook != nil {
		jobs = append(jobs[:len(jobs):len(jobs)], c.hookRow(hook))
	}
	return jobs
}

func (c *Claimed) hookRow(hook *successHook) row {
	told := ended{ID: c.ID, Kind: c.Kind, Queue: c.Queue, Status: Succeeded, Attempt: c.Attempt, Epoch: c.Epoch}
	switch {
	case c.protector != nil: // what was sealed is not told in the clear
	case c.ContentType == contentJSON && json.Valid(c.Payload):
		told.Args = c.Payload
	default:
		told.Payload = c.Payload
	}
	if hook.withResult && json.Valid(c.Result) {
		told.Result = c.Result
	}
	payload, err := json.Marshal(told)
	if err != nil { // two raw messages that are valid, and plain types
		panic(fmt.Sprintf("outbox: encode the end of job %s: %v", c.ID, err))
	}
	return row{
		ID: NewID().pg(), TenantID: c.Tenant.pg(), Queue: c.Queue, Kind: hook.kind, Priority: int16(c.Priority),
		MaxAttempts: engine.DefaultMaxAttempts, Payload: payload, ContentType: contentJSON, Headers: c.headersText(),
	}
}
