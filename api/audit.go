package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Act is an act of an operator.
type Act struct {
	ID        int64           `json:"id" doc:"Number of the act; later acts have higher numbers"`
	At        time.Time       `json:"at"`
	Actor     string          `json:"actor" doc:"The operator, or the name of the token"`
	Act       string          `json:"act" example:"job.replay"`
	Tenant    string          `json:"tenant,omitempty" format:"uuid" doc:"Omitted if the act concerned no single tenant"`
	JobID     string          `json:"jobId,omitempty" format:"uuid"`
	Queue     string          `json:"queue,omitempty"`
	Target    string          `json:"target,omitempty" doc:"Other target of the act, such as a key or a schedule"`
	Before    json.RawMessage `json:"before,omitempty" doc:"The old values of what it changed"`
	After     json.RawMessage `json:"after,omitempty" doc:"The new values of what it changed"`
	Reason    string          `json:"reason,omitempty"`
	RequestID string          `json:"requestId,omitempty"`
}

type auditInput struct {
	OfTenant
	Actor     string    `query:"actor" maxLength:"200"`
	Act       string    `query:"act" maxLength:"128"`
	JobID     string    `query:"job_id" format:"uuid"`
	Queue     string    `query:"queue" maxLength:"128"`
	Target    string    `query:"target" maxLength:"512"`
	RequestID string    `query:"request_id" maxLength:"200"`
	Since     time.Time `query:"since" doc:"Only acts at or after this time"`
	Until     time.Time `query:"until" doc:"Only acts before this time"`
	Limit     int       `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Acts per page"`
	Cursor    string    `query:"cursor" maxLength:"64" doc:"Cursor of the page: next in the body of the previous page, or its Link with rel=next"`
}

type auditOutput struct {
	Link string `header:"Link" doc:"The next page, if there may be one: <?…>; rel=\"next\""`
	Body struct {
		Acts []Act  `json:"acts" nullable:"false" doc:"Newest first. A page may have fewer than the limit, or none, and still have a next page"`
		Next string `json:"next,omitempty" doc:"The cursor of the next page; omitted on the last"`
	}
}

// listAudit lists acts; a tenant sees those on its own objects.
func (s *server) listAudit(ctx context.Context, in *auditInput) (*auditOutput, error) {
	filter, err := in.operators(ctx)
	if err != nil {
		return nil, err
	}
	page, err := s.operator.AuditPage(ctx, filter)
	if err == nil && principal(ctx).Can(access.PayloadRead) {
		err = s.showReplaced(ctx, page.Entries, filter.Tenant)
	}
	if err != nil {
		return nil, err
	}
	out := &auditOutput{}
	out.Body.Acts = make([]Act, len(page.Entries))
	for i, e := range page.Entries {
		out.Body.Acts[i] = viewAct(principal(ctx), e)
	}
	if page.Next > 0 {
		out.Body.Next = makeAuditCursor(page.Next)
		out.Link = in.next(out.Body.Next)
	}
	return out, nil
}

// showReplaced adds the replaced payloads to acts, after it has taken room for them and recorded who reads them, once
// for each job.
func (s *server) showReplaced(ctx context.Context, acts []operator.AuditEntry, tenant outbox.ID) error {
	var jobs []operator.Job
	payloads, listed := 0, map[outbox.ID]bool{}
	for _, e := range acts {
		payloads += e.PayloadBytes
		if e.PayloadBytes > 0 && !listed[e.JobID] {
			listed[e.JobID] = true
			jobs = append(jobs, operator.Job{ID: e.JobID, Tenant: e.Tenant, Queue: e.Queue})
		}
	}
	if payloads == 0 {
		return nil
	}
	if err := s.holdAnswer(ctx, payloads); err != nil {
		return err
	}
	if err := s.recordRead(ctx, "audit", jobs...); err != nil {
		return err
	}
	return s.operator.AddPayloads(ctx, acts, tenant)
}

func (in *auditInput) operators(ctx context.Context) (f operator.AuditFilter, err error) {
	f = operator.AuditFilter{
		Actor: in.Actor, Act: in.Act, Queue: in.Queue, Target: in.Target, RequestID: in.RequestID, Since: in.Since,
		Until: in.Until,
		Limit: in.Limit,
	}
	if f.Tenant, err = in.tenant(ctx); err != nil {
		return f, err
	}
	if in.JobID != "" {
		if f.JobID, err = outbox.ParseID(in.JobID); err != nil || f.JobID.IsZero() { // zero would mean any
			return f, invalidInput.because("", Fault{Parameter: "job_id", Detail: "is no id"})
		}
	}
	f.Before, err = fromCursor(in.Cursor, readAuditCursor)
	return f, err
}

func (in *auditInput) next(cursor string) string {
	return nextLink(in.Limit, cursor, map[string]string{
		"tenant": in.Tenant, "actor": in.Actor, "act": in.Act, "job_id": in.JobID, "queue": in.Queue,
		"target":     in.Target,
		"request_id": in.RequestID, "since": text(in.Since), "until": text(in.Until),
	})
}

func viewAct(who access.Principal, e operator.AuditEntry) Act {
	if !who.Can(access.PayloadRead) {
		e = e.WithoutPayload()
	}
	a := Act{
		ID: e.ID, At: utc(e.At), Actor: e.Actor, Act: e.Act, Queue: e.Queue, Target: e.Target,
		Before: e.Before, After: e.After, Reason: e.Reason, RequestID: e.RequestID,
	}
	if !e.Tenant.IsZero() {
		a.Tenant = e.Tenant.String()
	}
	if !e.JobID.IsZero() {
		a.JobID = e.JobID.String()
	}
	return a
}
