package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// OfOperation names an operation.
type OfOperation struct {
	Operation string `path:"operation" format:"uuid" doc:"Id of the operation"`
}

// NewOperation is an act on many jobs that outlives the request.
type NewOperation struct {
	Act           string           `json:"act" enum:"replay,dismiss,cancel,release,retry,edit" doc:"On dead letters: replay, dismiss. On open jobs: cancel, release (held ones), retry (waiting ones become due at once), edit (waiting ones). cancel also requires the capability jobs.cancel"`
	Filter        DeadLetterFilter `json:"filter,omitzero" empty:"leave it out to mean any" doc:"Selects dead letters: at least one condition. With failedUntil of a preview, exactly those that were counted, except those that have changed since"`
	Jobs          OpenJobsFilter   `json:"jobs,omitzero" empty:"leave it out to mean any" doc:"Selects open jobs: at least one condition. With asOf of a preview, exactly those that were counted, except those that have changed since"`
	Edit          JobEdit          `json:"edit,omitzero" empty:"leave it out to keep what the jobs have" doc:"With edit: the new values"`
	RatePerSecond float64          `json:"ratePerSecond,omitempty" minimum:"0.001" maximum:"100000" doc:"Replay: at most this many become due per second, evenly spread. Acts on open jobs: at most this many are acted on per second. Unlimited if omitted"`
	Reason        string           `json:"reason,omitempty" maxLength:"2000" doc:"For the audit"`
}

// JobEdit lists changes to waiting jobs. Omitted fields change nothing.
type JobEdit struct {
	Queue    string    `json:"queue,omitempty" maxLength:"128" doc:"New queue. Jobs with a key are not moved, because their limit and order hold within one queue"`
	Priority *int      `json:"priority,omitempty" minimum:"-32768" maximum:"32767"`
	RunAt    time.Time `json:"runAt,omitzero" doc:"New time; a past one means now"`
}

// OpenJobsFilter selects open jobs. It leaves out those in a status in which the act is not possible.
type OpenJobsFilter struct {
	OfTenant
	Kind         string    `json:"kind,omitempty" maxLength:"128"`
	Queue        string    `json:"queue,omitempty" maxLength:"128"`
	Key          string    `json:"key,omitempty" maxLength:"512"`
	Status       []string  `json:"status,omitempty" nullable:"false" enum:"created,pending,blocked,running,retrying" doc:"If omitted, all statuses in which the act is possible"`
	CreatedSince time.Time `json:"createdSince,omitzero" doc:"Enqueued at this time or later"`
	CreatedUntil time.Time `json:"createdUntil,omitzero" doc:"Enqueued before this time"`
	AsOf         string    `json:"asOf,omitempty" maxLength:"32768" doc:"asOf of a preview with the same conditions: select only jobs that have not changed since"`
}

func (f OpenJobsFilter) isZero() bool {
	return f.Tenant == "" && f.Kind == "" && f.Queue == "" && f.Key == "" && len(f.Status) == 0 &&
		f.CreatedSince.IsZero() && f.CreatedUntil.IsZero()
}

// operators returns the operator's filter, restricted to the principal's tenant.
func (f OpenJobsFilter) operators(ctx context.Context, place Fault) (of operator.OpenFilter, err error) {
	of = operator.OpenFilter{
		Kind: f.Kind, Queue: f.Queue, Key: f.Key, CreatedSince: f.CreatedSince,
		CreatedUntil: f.CreatedUntil, AsOf: f.AsOf,
	}
	for _, status := range f.Status {
		of.Statuses = append(of.Statuses, outbox.Status(status))
	}
	of.Tenant, err = f.tenantAt(ctx, place)
	return of, err
}

// OperationPreview is how many jobs an operation would act on.
type OperationPreview struct {
	Matched     int64            `json:"matched"`
	Keyed       int64            `json:"keyed,omitempty" doc:"Acts on open jobs: number of jobs with a key"`
	ByStatus    map[string]int64 `json:"byStatus,omitempty" doc:"Acts on open jobs: number of jobs by status"`
	AsOf        string           `json:"asOf,omitempty" doc:"Acts on open jobs: pass it as asOf in jobs to exclude jobs that are new or have changed since the count"`
	FailedUntil time.Time        `json:"failedUntil,omitzero" doc:"Acts on dead letters: pass it as failedUntil in the filter to exclude later dead letters"`
}

// Operation is the progress of an act on many jobs.
type Operation struct {
	ID            string           `json:"id" format:"uuid"`
	Tenant        string           `json:"tenant,omitempty" format:"uuid" doc:"Tenant of the jobs; omitted: all tenants"`
	Act           string           `json:"act"`
	State         string           `json:"state" enum:"running,stopped,done"`
	Filter        DeadLetterFilter `json:"filter,omitzero" doc:"The filter, of an act on dead letters"`
	Jobs          OpenJobsFilter   `json:"jobs,omitzero" doc:"The filter, of an act on open jobs"`
	Edit          JobEdit          `json:"edit,omitzero" doc:"The new values, of edit"`
	RatePerSecond float64          `json:"ratePerSecond,omitempty"`
	Matched       int64            `json:"matched" doc:"Number of jobs at the start"`
	Collecting    bool             `json:"collecting,omitempty" doc:"Nothing is done yet: of many open jobs, it stores first which ones it concerns"`
	Collected     int64            `json:"collected,omitempty" doc:"While collecting: number of jobs stored so far"`
	Done          int64            `json:"done"`
	Passed        int64            `json:"passed" doc:"Number skipped, because they have changed meanwhile or their deadline has passed"`
	Actor         string           `json:"actor"`
	Reason        string           `json:"reason,omitempty"`
	AuditID       string           `json:"auditRequestId,omitempty" doc:"The request_id of its entries in the audit"`
	StartedAt     time.Time        `json:"startedAt"`
	StoppedAt     time.Time        `json:"stoppedAt,omitzero"`
	FinishedAt    time.Time        `json:"finishedAt,omitzero"`
	Failure       string           `json:"failure,omitempty" doc:"Error of the latest step, which is retried"`
}

type (
	startOperationInput  struct{ Body NewOperation }
	previewOutput        struct{ Body OperationPreview }
	operationOutput      struct{ Body Operation }
	switchOperationInput struct {
		OfOperation
		ForAudit
	}
	operationsInput struct {
		OfTenant
		Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Operations per page"`
		Cursor string `query:"cursor" maxLength:"64" doc:"Cursor of the page: next in the body of the previous page, or its Link with rel=next"`
	}
	operationsOutput struct {
		Link string `header:"Link" doc:"The next page, if there may be one: <?…>; rel=\"next\""`
		Body struct {
			Operations []Operation `json:"operations" nullable:"false" doc:"Newest first"`
			Next       string      `json:"next,omitempty" doc:"The cursor of the next page; omitted on the last"`
		}
	}
)

func operationOf(ctx context.Context, o operator.Operation) Operation {
	if !within(ctx).IsZero() {
		o = o.ForTenant()
	}
	v := Operation{
		ID: o.ID.String(), Tenant: textOfID(o.Tenant), Act: string(o.Act), State: "running", RatePerSecond: o.PerSecond,
		Matched: o.Matched, Collecting: o.Collecting, Collected: o.Collected, Done: o.Done, Passed: o.Passed,
		Actor: o.Actor, Reason: o.Reason, AuditID: o.RequestID, StartedAt: utc(o.StartedAt),
		StoppedAt: utc(o.StoppedAt), FinishedAt: utc(o.FinishedAt), Failure: o.Failure,
	}
	if o.Act.OnOpenJobs() {
		f := o.Jobs
		v.Edit = JobEdit{Queue: o.Edit.Queue, Priority: o.Edit.Priority, RunAt: utc(o.Edit.RunAt)}
		v.Jobs = OpenJobsFilter{
			OfTenant: OfTenant{Tenant: textOfID(f.Tenant)}, Kind: f.Kind, Queue: f.Queue, Key: f.Key,
			CreatedSince: utc(f.CreatedSince), CreatedUntil: utc(f.CreatedUntil),
		}
		for _, status := range f.Statuses {
			v.Jobs.Status = append(v.Jobs.Status, string(status))
		}
	} else {
		f := o.Filter
		v.Filter = DeadLetterFilter{
			OfTenant: OfTenant{Tenant: textOfID(f.Tenant)}, Kind: f.Kind, Queue: f.Queue, Key: f.Key,
			ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint,
			CreatedSince: utc(f.CreatedSince), CreatedUntil: utc(f.CreatedUntil), FailedSince: utc(f.FailedSince),
			FailedUntil: utc(f.FailedUntil),
		}
		if f.Status != "" {
			v.Filter.Status = []string{string(f.Status)}
		}
	}
	switch {
	case !o.FinishedAt.IsZero():
		v.State = "done"
	case !o.StoppedAt.IsZero():
		v.State = "stopped"
	}
	return v
}

// mayHave refuses an act on many jobs to principals that may not do it to one.
func mayHave(ctx context.Context, act operator.OperationAct) error {
	if act == operator.CancelJobs && !principal(ctx).Can(access.JobsCancel) {
		return forbidden.because("To cancel jobs takes the capability " + string(access.JobsCancel) + ".")
	}
	return nil
}

// operators returns the operation that the principal may start.
func (n NewOperation) operators(ctx context.Context) (of operator.OperationSpec, err error) {
	of = operator.OperationSpec{
		Act: operator.OperationAct(n.Act), PerSecond: n.RatePerSecond,
		Edit: operator.JobEdit{Queue: n.Edit.Queue, Priority: n.Edit.Priority, RunAt: n.Edit.RunAt},
	}
	refuse := func(pointer, detail string) (operator.OperationSpec, error) {
		return of, invalidInput.because("", Fault{Pointer: pointer, Detail: detail})
	}
	open := of.Act.OnOpenJobs()
	switch {
	case open && !n.Filter.isZero():
		return refuse("#/filter", "is of dead letters: "+n.Act+" goes with jobs")
	case !open && (!n.Jobs.isZero() || n.Jobs.AsOf != ""):
		return refuse("#/jobs", "is of open jobs: "+n.Act+" goes with filter")
	case open && n.Jobs.isZero():
		return refuse("#/jobs", "has no condition")
	case !open && n.Filter.isZero():
		return refuse("#/filter", "has no condition")
	case mayHave(ctx, of.Act) != nil:
		return of, mayHave(ctx, of.Act)
	case open:
		of.Jobs, err = n.Jobs.operators(ctx, inJobs)
	default:
		of.Filter, err = n.Filter.operators(ctx, inFilter)
	}
	return of, err
}

func (s *server) previewOperation(ctx context.Context, in *startOperationInput) (*previewOutput, error) {
	would, err := in.Body.operators(ctx)
	if err != nil {
		return nil, err
	}
	if !would.Act.OnOpenJobs() {
		counted, err := s.operator.MatchDeadLetters(ctx, would.Filter)
		return &previewOutput{OperationPreview{Matched: counted.Matched, FailedUntil: utc(counted.FailedUntil)}}, err
	}
	counted, err := s.operator.MatchOpenJobs(ctx, would.Act, would.Jobs)
	if err != nil {
		return nil, err
	}
	out := &previewOutput{OperationPreview{
		Matched: counted.Matched, Keyed: counted.Keyed, AsOf: counted.AsOf,
		ByStatus: map[string]int64{},
	}}
	for status, n := range counted.ByStatus {
		out.Body.ByStatus[string(status)] = n
	}
	return out, nil
}

func (s *server) startOperation(ctx context.Context, in *startOperationInput) (*operationOutput, error) {
	what, err := in.Body.operators(ctx)
	if err != nil {
		return nil, err
	}
	started, err := s.by(ctx).Because(in.Body.Reason).StartOperation(ctx, what)
	if err != nil {
		return nil, err
	}
	return &operationOutput{operationOf(ctx, started)}, nil
}

func (s *server) listOperations(ctx context.Context, in *operationsInput) (*operationsOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	before, err := fromCursor(in.Cursor, readCursor)
	if err != nil {
		return nil, err
	}
	list, err := s.operator.Operations(ctx, tenant, before, in.Limit)
	if err != nil {
		return nil, err
	}
	out := &operationsOutput{}
	out.Body.Operations = make([]Operation, len(list))
	for i, o := range list {
		out.Body.Operations[i] = operationOf(ctx, o)
	}
	if len(list) == in.Limit {
		out.Body.Next = makeCursor(list[in.Limit-1].ID)
		out.Link = nextLink(in.Limit, out.Body.Next, map[string]string{"tenant": in.Tenant})
	}
	return out, nil
}

func (s *server) getOperation(ctx context.Context, in *OfOperation) (*operationOutput, error) {
	return s.onOperation(ctx, in.Operation, s.operator.Operation)
}

func (s *server) stopOperation(ctx context.Context, in *switchOperationInput) (*operationOutput, error) {
	return s.onOperation(ctx, in.Operation, s.by(ctx).Because(in.Reason).StopOperation)
}

func (s *server) resumeOperation(ctx context.Context, in *switchOperationInput) (*operationOutput, error) {
	return s.onOperation(ctx, in.Operation,
		func(ctx context.Context, tenant, id outbox.ID) (operator.Operation, error) {
			found, err := s.operator.Operation(ctx, tenant, id)
			if err == nil {
				err = mayHave(ctx, found.Act)
			}
			if err != nil {
				return found, err
			}
			return s.by(ctx).Because(in.Reason).ResumeOperation(ctx, tenant, id)
		})
}

func (s *server) onOperation(ctx context.Context, text string,
	do func(ctx context.Context, tenant, id outbox.ID) (operator.Operation, error),
) (*operationOutput, error) {
	id, err := outbox.ParseID(text)
	if err != nil {
		return nil, invalidInput.because("", Fault{Parameter: "operation", Detail: "is no operation's id"})
	}
	found, err := do(ctx, within(ctx), id)
	if err != nil {
		return nil, err
	}
	return &operationOutput{operationOf(ctx, found)}, nil
}
