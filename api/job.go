package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"mime"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
	"github.com/posthaste-dev/posthaste/protect"
)

// Job is a job as its clients see it: the request and its outcome.
type Job struct {
	ID         string    `json:"id" format:"uuid"`
	Kind       string    `json:"kind"`
	Queue      string    `json:"queue"`
	Status     string    `json:"status" enum:"created,pending,blocked,running,retrying,failed,dead,succeeded,cancelled,expired,skipped,stale,dismissed"`
	Priority   int       `json:"priority"`
	Key        string    `json:"key,omitempty"`
	CreatedAt  time.Time `json:"createdAt"`
	RunAt      time.Time `json:"runAt" doc:"When it is due, or was"`
	StartedAt  time.Time `json:"startedAt,omitzero" doc:"When the latest attempt started"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	Deadline   time.Time `json:"deadline,omitzero" doc:"Time from which on it neither starts nor succeeds"`
	Parent     string    `json:"parent,omitempty" format:"uuid" doc:"Of a follow-up or a hook: the job whose end stored it"`

	CancelRequestedAt time.Time `json:"cancelRequestedAt,omitzero" doc:"When its handler was asked to stop"`

	Error *JobError `json:"error,omitempty" doc:"Error of the latest failed attempt"`

	Payload
	Internals *Internals `json:"internals,omitempty" doc:"Only with admin.read"`
}

// Payload is shown only with payload.read. JSON is shown as it is stored.
type Payload struct {
	JSON        json.RawMessage `json:"payload,omitempty" doc:"Only with payload.read"`
	Base64      string          `json:"payloadBase64,omitempty" doc:"Instead of payload, if that is not JSON"`
	ContentType string          `json:"payloadContentType,omitempty"`
}

// JobError is the reason for which an attempt failed.
type JobError struct {
	Code    string `json:"code" doc:"The handler's code, or error, panic, job_timeout, cancelled or another one" example:"job_timeout"`
	Message string `json:"message,omitempty" doc:"Only with admin.read"`
}

// Internals describe how a job is run.
type Internals struct {
	Tenant         string          `json:"tenant" format:"uuid"`
	Attempt        int             `json:"attempt"`
	MaxAttempts    int             `json:"maxAttempts"`
	LostLeases     int             `json:"lostLeases"`
	Epoch          int64           `json:"epoch"`
	TimeoutSeconds float64         `json:"timeoutSeconds,omitempty"`
	BackoffSeconds []float64       `json:"backoffSeconds,omitempty" doc:"Waits between attempts, if the job has its own; omitted if its kind's apply"`
	Worker         string          `json:"worker,omitempty"`
	LeaseExpiresAt time.Time       `json:"leaseExpiresAt,omitzero"`
	PayloadBytes   int             `json:"payloadBytes"`
	Streamed       bool            `json:"streamed,omitempty" doc:"Each change of the job is stored as an event"`
	Headers        json.RawMessage `json:"headers,omitempty"`
}

// view returns what the principal may see of a job.
func view(who access.Principal, j operator.Job) Job {
	v := Job{
		ID: j.ID.String(), Kind: j.Kind, Queue: j.Queue, Status: string(j.Status), Priority: j.Priority, Key: j.Key,
		CreatedAt: utc(j.CreatedAt), RunAt: utc(j.RunAt), StartedAt: utc(j.StartedAt), FinishedAt: utc(j.FinishedAt),
		Deadline: utc(j.Deadline), CancelRequestedAt: utc(j.CancelRequestedAt), Error: viewError(who, j),
	}
	if !j.Parent.IsZero() {
		v.Parent = j.Parent.String()
	}
	if who.Can(access.AdminRead) {
		v.Internals = &Internals{
			Tenant: j.Tenant.String(), Attempt: j.Attempt, MaxAttempts: j.MaxAttempts, LostLeases: j.LostLeases,
			Epoch:          j.Epoch,
			TimeoutSeconds: j.Timeout.Seconds(), BackoffSeconds: backoffSeconds(j.Backoff), Worker: j.Worker,
			LeaseExpiresAt: utc(j.LeaseExpiresAt), PayloadBytes: j.PayloadBytes, Streamed: j.Streamed,
		}
		if who.Can(access.PayloadRead) {
			v.Internals.Headers = j.Headers
		}
	}
	if who.Can(access.PayloadRead) && j.Payload != nil {
		v.Payload = showBytes(j.Payload, j.ContentType)
	}
	return v
}

func viewError(who access.Principal, j operator.Job) *JobError {
	if j.ErrorCode == "" {
		return nil
	}
	e := &JobError{Code: j.ErrorCode}
	if who.Can(access.AdminRead) {
		e.Message = j.ErrorMessage
	}
	return e
}

func backoffSeconds(b outbox.Backoff) (waits []float64) {
	for _, wait := range b {
		waits = append(waits, wait.Seconds())
	}
	return waits
}

// utc returns a time in the form that is shown.
func utc(t time.Time) time.Time { return operator.Presentable(t) }

func showBytes(b []byte, contentType string) Payload {
	p := Payload{ContentType: contentType}
	if kind, _, _ := mime.ParseMediaType(contentType); kind == "application/json" && json.Valid(b) {
		p.JSON = b
	} else {
		p.Base64 = base64.StdEncoding.EncodeToString(b)
	}
	return p
}

type jobInput struct {
	ID string `path:"id" format:"uuid" doc:"Id of the job"`
}

// find returns the job with the id if the principal may know that it exists. Every route that takes an id calls it
// first: a foreign job gets the same answer, at the same cost, as an absent one.
func (s *server) find(ctx context.Context, text string) (operator.Job, error) {
	id, err := outbox.ParseID(text)
	if err != nil {
		return operator.Job{},
			invalidInput.because(
				"", Fault{
					Parameter: "id",
					Detail:    "is no id, want 36 characters like 01976f0e-7a5c-7d3e-8f4b-0123456789ab",
				})
	}
	job, err := s.lookups.ask(ctx, operator.Wanted{ID: id, Tenant: within(ctx)})
	if err == nil && job.ID.IsZero() {
		err = operator.ErrNotFound
	}
	return job, err
}

// within returns the tenant that the principal is restricted to; zero means none.
func within(ctx context.Context) outbox.ID { return tenantOf(principal(ctx)) }

func tenantOf(who access.Principal) outbox.ID {
	if who.AllTenants {
		return outbox.ID{}
	}
	return who.Tenant
}

// findGroup queries jobs for one tenant after the other, each in a context tied to it.
func (s *server) findGroup(ctx context.Context, wanted []operator.Wanted) []answerTo[operator.Job] {
	answers := make([]answerTo[operator.Job], len(wanted))
	for tenant, places := range byTenant(wanted, func(w operator.Wanted) outbox.ID { return w.Tenant }) {
		some := make([]operator.Wanted, len(places))
		for i, place := range places {
			some[i] = wanted[place]
		}
		jobs, err := s.quick.Find(operator.WithTenant(ctx, tenant), some)
		for i, place := range places {
			answers[place].err = err
			if err == nil {
				answers[place].value = jobs[i]
			}
		}
	}
	return answers
}

type jobOutput struct{ Body Job }

func (s *server) getJob(ctx context.Context, in *jobInput) (*jobOutput, error) {
	job, err := s.find(ctx, in.ID)
	if err == nil && principal(ctx).Can(access.PayloadRead) {
		job, err = s.jobWithPayload(ctx, job)
	}
	if err != nil {
		return nil, err
	}
	return &jobOutput{Body: view(principal(ctx), job)}, nil
}

// recordRead records that the principal reads what only payload.read shows, if reads are audited; where says by what.
// It is the last step before the content is loaded. An answer that is refused for want of room or of a turn leaves no
// entry; one that fails later, or whose client has gone, leaves one of a read that did not happen. The other way round,
// what could not be recorded would have been shown.
func (s *server) recordRead(ctx context.Context, where string, jobs ...operator.Job) error {
	if !s.config.AuditReads {
		return nil
	}
	return s.by(ctx).RecordReads(ctx, jobs, where)
}

func (s *server) jobWithPayload(ctx context.Context, job operator.Job) (operator.Job, error) {
	if err := s.holdAnswer(ctx, job.PayloadBytes); err != nil {
		return job, err
	}
	leave, err := s.statements.take(ctx)
	if err != nil {
		return job, err
	}
	defer leave()
	if err := s.recordRead(ctx, "job", job); err != nil {
		return job, err
	}
	return s.operator.Job(ctx, job.ID)
}

// Result is the result of a finished job.
type Result struct {
	ID     string          `json:"id" format:"uuid"`
	Status string          `json:"status"`
	Result json.RawMessage `json:"result,omitempty" doc:"The handler's result, if it is JSON"`
	Base64 string          `json:"resultBase64,omitempty" doc:"Instead of result, if that is not JSON or is sealed"`
	Sealed string          `json:"resultSealed,omitempty" doc:"Content type of the seal, of a sealed result. The server cannot open it; protect.OpenResult opens resultBase64" example:"application/vnd.posthaste.sealed"`
	Error  *JobError       `json:"error,omitempty" doc:"Why it has no result"`
}

type resultOutput struct{ Body Result }

// getResult answers for closed jobs, and for dead letters, which have an error.
func (s *server) getResult(ctx context.Context, in *jobInput) (*resultOutput, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if !job.Status.Closed() && !deadLetter(job.Status) {
		return nil, jobNotFinished.because("The job is " + string(job.Status) + ".").after(1)
	}
	r := Result{ID: job.ID.String(), Status: string(job.Status)}
	if job.Status.Closed() {
		result, err := s.result(ctx, job.ID)
		if err != nil {
			return nil, err
		}
		if len(result) > 0 {
			shown := showBytes(result, "application/json")
			r.Result, r.Base64, r.Sealed = shown.JSON, shown.Base64, protect.SealedResult(result)
		}
	}
	switch job.Status {
	case outbox.Succeeded:
	case outbox.Cancelled:
		r.Error = &JobError{Code: codes.Cancelled} // also for one that never ran, and so has no attempt's error
	default:
		r.Error = viewError(principal(ctx), job)
	}
	return &resultOutput{Body: r}, nil
}

// result returns the result of a closed job. It reads a large one once there is room for it.
func (s *server) result(ctx context.Context, id outbox.ID) ([]byte, error) {
	size, result, err := s.operator.Result(ctx, id, smallBody)
	if err != nil || size <= smallBody {
		return result, err
	}
	if err = s.holdAnswer(ctx, size); err != nil {
		return nil, err
	}
	_, result, err = s.operator.Result(ctx, id, size)
	return result, err
}

// Attempt is a failed attempt.
type Attempt struct {
	Attempt    int       `json:"attempt"`
	Epoch      int64     `json:"epoch"`
	Worker     string    `json:"worker"`
	StartedAt  time.Time `json:"startedAt"`
	FinishedAt time.Time `json:"finishedAt"`
	Error      JobError  `json:"error"`
	Stack      string    `json:"stack,omitempty" doc:"Stack trace, of a panic"`
}

type attemptsOutput struct {
	Body struct {
		Attempts []Attempt `json:"attempts" nullable:"false"`
	}
}

func (s *server) listAttempts(ctx context.Context, in *jobInput) (*attemptsOutput, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	attempts, err := s.operator.Attempts(ctx, job.ID)
	if err != nil {
		return nil, err
	}
	size := 0
	for _, a := range attempts {
		size += len(a.ErrorMessage) + len(a.Stack)
	}
	if err := s.holdAnswer(ctx, size); err != nil {
		return nil, err
	}
	out := &attemptsOutput{}
	out.Body.Attempts = make([]Attempt, len(attempts))
	for i, a := range attempts {
		out.Body.Attempts[i] = Attempt{
			Attempt: a.Attempt, Epoch: a.Epoch, Worker: a.Worker, StartedAt: utc(a.StartedAt),
			FinishedAt: utc(a.FinishedAt),
			Error:      JobError{Code: a.ErrorCode, Message: a.ErrorMessage}, Stack: a.Stack,
		}
	}
	return out, nil
}
