package api

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Filter selects jobs.
type Filter struct {
	OfTenant
	Kind          string    `query:"kind" json:"kind,omitempty" maxLength:"128"`
	Queue         string    `query:"queue" json:"queue,omitempty" maxLength:"128"`
	Key           string    `query:"key" json:"key,omitempty" maxLength:"512"`
	Fingerprint   string    `query:"error_fingerprint" json:"errorFingerprint,omitempty" maxLength:"128" doc:"Fingerprint of the error of dead letters, from GET /dead-letters/groups"`
	Status        []string  `query:"status" json:"status,omitempty" nullable:"false" enum:"created,pending,blocked,running,retrying,failed,dead,succeeded,cancelled,expired,skipped,stale,dismissed" doc:"Jobs in one of these statuses, separated by commas; dead letters are failed,dead"`
	Worker        string    `query:"worker" json:"worker,omitempty" maxLength:"256" doc:"Worker that holds the lease, or closed the job, by its whole name. For admin.read only"`
	ErrorCode     string    `query:"error_code" json:"errorCode,omitempty" maxLength:"128" doc:"Code of the latest failed attempt"`
	MinAttempt    int       `query:"min_attempt" json:"minAttempt,omitempty" minimum:"0" maximum:"2147483647" doc:"Jobs that have reached this attempt. For admin.read only"`
	Parent        string    `query:"parent" json:"parent,omitempty" format:"uuid" doc:"Jobs that the end of this job stored"`
	IDPrefix      string    `query:"id_prefix" json:"idPrefix,omitempty" maxLength:"36" doc:"Prefix of the id" example:"01976f0e-7a5c"`
	Contains      string    `query:"contains" json:"contains,omitempty" maxLength:"200" doc:"Text in the first 64 KiB of the payload, or in the headers, as they are stored. For payload.read only"`
	FinishedSince time.Time `query:"finished_since" json:"finishedSince,omitzero" doc:"Closed at this time or later; excludes open jobs"`
	FinishedUntil time.Time `query:"finished_until" json:"finishedUntil,omitzero" doc:"Closed before this time"`
	CreatedSince  time.Time `query:"created_since" json:"createdSince,omitzero" doc:"Created at this time or later"`
	CreatedUntil  time.Time `query:"created_until" json:"createdUntil,omitzero" doc:"Created before this time"`
}

func (f Filter) isZero() bool {
	return f.Tenant == "" && f.Kind == "" && f.Queue == "" && f.Key == "" && f.Fingerprint == "" &&
		len(f.Status) == 0 && f.Worker == "" && f.ErrorCode == "" && f.MinAttempt == 0 && f.Parent == "" &&
		f.IDPrefix == "" && f.Contains == "" && f.FinishedSince.IsZero() && f.FinishedUntil.IsZero() &&
		f.CreatedSince.IsZero() && f.CreatedUntil.IsZero()
}

// operators returns the operator's filter, restricted to the principal's tenant.
func (f Filter) operators(ctx context.Context, place Fault) (of operator.Filter, err error) {
	of = operator.Filter{
		Kind: f.Kind, Queue: f.Queue, Key: f.Key, Fingerprint: f.Fingerprint, CreatedSince: f.CreatedSince,
		CreatedUntil: f.CreatedUntil,
		Worker:       f.Worker, ErrorCode: f.ErrorCode, MinAttempt: f.MinAttempt, IDPrefix: f.IDPrefix,
		Contains:      f.Contains,
		FinishedSince: f.FinishedSince, FinishedUntil: f.FinishedUntil,
	}
	if (f.Worker != "" || f.MinAttempt > 0) && !principal(ctx).Can(access.AdminRead) {
		return of, forbidden.because("To ask for a worker or an attempt takes the capability " +
			string(access.AdminRead) + ".")
	}
	if f.Contains != "" && !principal(ctx).Can(access.PayloadRead) {
		return of, forbidden.because("To search payloads takes the capability " + string(access.PayloadRead) + ".")
	}
	if f.Parent != "" {
		if of.Parent, err = outbox.ParseID(f.Parent); err != nil || of.Parent.IsZero() { // zero would mean any
			at := Fault{Parameter: "parent", Detail: "is no id"}
			if place.Pointer != "" {
				at = Fault{Pointer: "#/filter/parent", Detail: at.Detail}
			}
			return of, invalidInput.because("", at)
		}
	}
	for _, status := range f.Status {
		of.Statuses = append(of.Statuses, outbox.Status(status))
	}
	of.Tenant, err = f.tenantAt(ctx, place)
	return of, err
}

type listInput struct {
	Filter
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Jobs per page"`
	Offset int    `query:"offset" minimum:"0" maximum:"10000" doc:"Skip this many of the newest jobs; a cursor is cheaper, and misses none"`
	Cursor string `query:"cursor" maxLength:"64" doc:"Cursor of the page: next in the body of the previous page, or its Link with rel=next"`
}

type listOutput struct {
	Link string `header:"Link" doc:"The next page, if there may be one: <?…>; rel=\"next\""`
	Body struct {
		Jobs []Job  `json:"jobs" nullable:"false"`
		Next string `json:"next,omitempty" doc:"The cursor of the next page; omitted on the last. A page that is not full may have one, because a filter that matches few of many jobs is answered in parts"`
	}
}

// listJobs returns a page. A page that is not full may have a successor, too, because each takes bounded time.
func (s *server) listJobs(ctx context.Context, in *listInput) (*listOutput, error) {
	filter, err := in.operators(ctx, inQuery)
	if err != nil {
		return nil, err
	}
	filter.Limit, filter.Skip = in.Limit, in.Offset
	if in.Cursor != "" {
		if in.Offset > 0 {
			return nil, invalidInput.because("", Fault{Parameter: "offset", Detail: "excludes cursor; set one of them"})
		}
		if filter.Before, filter.Skip, err = readJobsCursor(in.Cursor); err != nil {
			return nil, badCursor(Fault{Parameter: "cursor"})
		}
	}
	page, err := s.operator.Page(ctx, filter)
	if err != nil {
		return nil, err
	}
	out := &listOutput{}
	out.Body.Jobs = make([]Job, len(page.Jobs))
	for i, job := range page.Jobs {
		out.Body.Jobs[i] = view(principal(ctx), job)
	}
	if !page.Next.IsZero() {
		out.Body.Next = makeJobsCursor(page)
		out.Link = in.next(out.Body.Next)
	}
	return out, nil
}

// next returns the link to the next page.
func (in *listInput) next(cursor string) string {
	return nextLink(in.Limit, cursor, map[string]string{
		"tenant": in.Tenant, "kind": in.Kind, "queue": in.Queue, "key": in.Key, "error_fingerprint": in.Fingerprint,
		"status":        strings.Join(in.Status, ","),
		"created_since": text(in.CreatedSince), "created_until": text(in.CreatedUntil), "worker": in.Worker,
		"error_code":  in.ErrorCode,
		"min_attempt": number(in.MinAttempt), "parent": in.Parent, "id_prefix": in.IDPrefix, "contains": in.Contains,
		"finished_since": text(in.FinishedSince), "finished_until": text(in.FinishedUntil),
	})
}

// nextLink returns the link to a list's next page.
func nextLink(limit int, cursor string, filters map[string]string) string {
	q := url.Values{"limit": {strconv.Itoa(limit)}, "cursor": {cursor}}
	for name, value := range filters {
		if value != "" {
			q.Set(name, value)
		}
	}
	return "<?" + q.Encode() + `>; rel="next"`
}

// number returns "" for 0.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// text returns "" for the zero time.
func text(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}
