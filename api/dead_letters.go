package api

import (
	"context"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// DeadLetterFilter selects dead letters.
type DeadLetterFilter struct {
	OfTenant
	Kind         string    `query:"kind" json:"kind,omitempty" maxLength:"128"`
	Queue        string    `query:"queue" json:"queue,omitempty" maxLength:"128"`
	Key          string    `query:"key" json:"key,omitempty" maxLength:"512"`
	Status       []string  `query:"status" json:"status,omitempty" nullable:"false" enum:"failed,dead" doc:"Both if omitted"`
	ErrorCode    string    `query:"error_code" json:"errorCode,omitempty" maxLength:"128"`
	Fingerprint  string    `query:"error_fingerprint" json:"errorFingerprint,omitempty" maxLength:"128" doc:"Fingerprint of the error; dead letters with the same error have the same fingerprint"`
	CreatedSince time.Time `query:"created_since" json:"createdSince,omitzero" doc:"Enqueued at this time or later"`
	CreatedUntil time.Time `query:"created_until" json:"createdUntil,omitzero" doc:"Enqueued before this time"`
	FailedSince  time.Time `query:"failed_since" json:"failedSince,omitzero" doc:"Became a dead letter at this time or later"`
	FailedUntil  time.Time `query:"failed_until" json:"failedUntil,omitzero" doc:"Became a dead letter before this time"`
}

func (f DeadLetterFilter) isZero() bool {
	return f.Tenant == "" && f.Kind == "" && f.Queue == "" && f.Key == "" && len(f.Status) == 0 && f.ErrorCode == "" &&
		f.Fingerprint == "" &&
		f.CreatedSince.IsZero() && f.CreatedUntil.IsZero() && f.FailedSince.IsZero() && f.FailedUntil.IsZero()
}

// operators returns the operator's filter, restricted to the principal's tenant.
func (f DeadLetterFilter) operators(ctx context.Context, place Fault) (of operator.DeadLetterFilter, err error) {
	of = operator.DeadLetterFilter{
		Kind: f.Kind, Queue: f.Queue, Key: f.Key, ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint,
		CreatedSince: f.CreatedSince, CreatedUntil: f.CreatedUntil, FailedSince: f.FailedSince,
		FailedUntil: f.FailedUntil,
	}
	for _, status := range f.Status {
		if of.Status != "" && string(of.Status) != status {
			of.Status = "" // both
			break
		}
		of.Status = outbox.Status(status)
	}
	of.Tenant, err = f.tenantAt(ctx, place)
	return of, err
}

func (f DeadLetterFilter) query() map[string]string {
	return map[string]string{
		"tenant": f.Tenant, "kind": f.Kind, "queue": f.Queue, "key": f.Key, "status": strings.Join(f.Status, ","),
		"error_code": f.ErrorCode, "error_fingerprint": f.Fingerprint,
		"created_since": text(f.CreatedSince), "created_until": text(f.CreatedUntil),
		"failed_since": text(f.FailedSince), "failed_until": text(f.FailedUntil),
	}
}

// DeadLetter is a job that waits for a person.
type DeadLetter struct {
	Job
	FailedAt    time.Time `json:"failedAt" doc:"When it became a dead letter"`
	Fingerprint string    `json:"errorFingerprint,omitempty" doc:"Fingerprint of the error; dead letters with the same error have the same fingerprint"`
}

type deadLettersInput struct {
	DeadLetterFilter
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Dead letters per page"`
	Cursor string `query:"cursor" maxLength:"64" doc:"Cursor of the page: next in the body of the previous page, or its Link with rel=next"`
}

type deadLettersOutput struct {
	Link string `header:"Link" doc:"The next page, if there may be one: <?…>; rel=\"next\""`
	Body struct {
		DeadLetters []DeadLetter `json:"deadLetters" nullable:"false" doc:"Newest first, by the time of enqueueing. A page may have fewer than the limit, or none, and still have a next page"`
		Next        string       `json:"next,omitempty" doc:"The cursor of the next page; omitted on the last"`
	}
}

func (s *server) listDeadLetters(ctx context.Context, in *deadLettersInput) (*deadLettersOutput, error) {
	filter, err := in.operators(ctx, inQuery)
	if err != nil {
		return nil, err
	}
	before, err := fromCursor(in.Cursor, readCursor)
	if err != nil {
		return nil, err
	}
	page, err := s.operator.DeadLetterPage(ctx, filter, before, in.Limit)
	if err != nil {
		return nil, err
	}
	out := &deadLettersOutput{}
	out.Body.DeadLetters = make([]DeadLetter, len(page.DeadLetters))
	for i, l := range page.DeadLetters {
		out.Body.DeadLetters[i] = DeadLetter{
			Job: view(principal(ctx), l.Job), FailedAt: utc(l.FailedAt),
			Fingerprint: l.Fingerprint,
		}
	}
	if !page.Next.IsZero() {
		out.Body.Next = makeCursor(page.Next)
		out.Link = nextLink(in.Limit, out.Body.Next, in.query())
	}
	return out, nil
}

// DeadLetterGroup is a group of dead letters that failed alike: of one kind, with one error code, and with messages
// that differ only in numbers, ids, addresses and quoted values.
type DeadLetterGroup struct {
	Fingerprint string    `json:"errorFingerprint,omitempty"`
	Kind        string    `json:"kind"`
	ErrorCode   string    `json:"errorCode,omitempty"`
	Message     string    `json:"message,omitempty" doc:"Error message of the example"`
	Example     string    `json:"example" format:"uuid" doc:"Newest dead letter of the group"`
	Jobs        int64     `json:"jobs"`
	Oldest      time.Time `json:"oldest" doc:"When the first of them became a dead letter"`
	Newest      time.Time `json:"newest" doc:"When the last of them did"`
}

type groupsInput struct {
	DeadLetterFilter
	Limit int `query:"limit" minimum:"1" maximum:"200" default:"50"`
}

type groupsOutput struct {
	Body struct {
		Groups []DeadLetterGroup `json:"groups" nullable:"false" doc:"The largest first, as they were up to 30 seconds ago"`
	}
}

func (s *server) groupDeadLetters(ctx context.Context, in *groupsInput) (*groupsOutput, error) {
	filter, err := in.operators(ctx, inQuery)
	if err != nil {
		return nil, err
	}
	// The look goes on if the client goes away: so does its slot, and a client that comes again waits for its share.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.Timeout)
	defer cancel()
	looked, err := s.watch.LetterGroups.Look(ctx, filter, in.Limit)
	if err != nil {
		return nil, err
	}
	groups := looked.Groups
	out := &groupsOutput{}
	out.Body.Groups = make([]DeadLetterGroup, len(groups))
	for i, g := range groups {
		out.Body.Groups[i] = DeadLetterGroup{
			Fingerprint: g.Fingerprint, Kind: g.Kind, ErrorCode: g.ErrorCode, Message: g.Message,
			Example: g.Example.String(), Jobs: g.Jobs,
			Oldest: utc(g.Oldest), Newest: utc(g.Newest),
		}
	}
	return out, nil
}
