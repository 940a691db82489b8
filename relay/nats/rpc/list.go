package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// listTime limits the search for a page of jobs. The jobs found by then are sent.
const listTime = 5 * time.Second

// paging is part of every list request.
type paging struct {
	Offset *int `json:"offset"`
	Limit  *int `json:"limit"`
}

// page is the answer to every list request.
type page struct {
	Entries []json.RawMessage `json:"entries"`
	// Count is the total if there is no NextOffset, and otherwise a lower bound.
	Count      int `json:"count"`
	Offset     int `json:"offset"`
	Limit      int `json:"limit"` // the applied limit
	NextOffset int `json:"nextOffset,omitempty"`
}

// read returns offset and limit, and every mistake in them.
func (p paging) read() (offset, limit int, wrong []issue) {
	if p.Offset != nil {
		offset = *p.Offset
	}
	if offset < 0 || offset > operator.MaxSkip {
		wrong = append(wrong,
			issue{"/offset", fmt.Sprintf("is %d, want 0 to %d; since leaves out older jobs", offset, operator.MaxSkip)})
	}
	switch {
	case p.Limit == nil:
		wrong = append(wrong, issue{"/limit", "is missing"})
	case *p.Limit < 1:
		wrong = append(wrong, issue{"/limit", fmt.Sprintf("is %d, want at least 1", *p.Limit)})
	default:
		limit = min(*p.Limit, operator.MaxLimit)
	}
	return offset, limit, wrong
}

// fill returns a page with as many entries as fit into an answer. more means that others follow them.
func fill[T any](r *request, entries []T, offset, limit int, more bool) (*page, error) {
	p := &page{Entries: []json.RawMessage{}, Offset: offset, Limit: limit}
	size := 100 // for the other fields
	for _, e := range entries {
		text, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		if size += len(text) + 1; size > r.room {
			if len(p.Entries) == 0 {
				return nil, unexpected("too_large")
			}
			more = true
			break
		}
		p.Entries = append(p.Entries, text)
	}
	p.Count = offset + len(p.Entries)
	if more {
		p.NextOffset = p.Count
		p.Count++
	}
	return p, nil
}

// jobFilter selects jobs.
type jobFilter struct {
	Service string `json:"service"`
	Type    string `json:"type"`
	Since   string `json:"since"`
	ofTenant
}

type listRequest struct {
	paging
	jobFilter
	State []string `json:"state"`
}

type listDLQRequest struct {
	paging
	jobFilter
}

func list(s *Service, ctx context.Context, r *request) (any, error) {
	var in listRequest
	if err := r.read(&in); err != nil {
		return nil, err
	}
	if len(in.State) > len(states) { // each unknown state is a mistake in the answer
		return nil, invalid(issue{"/state", fmt.Sprintf("has %d states, want at most %d", len(in.State), len(states))})
	}
	var statuses []outbox.Status
	var wrong []issue
	for i, state := range in.State {
		some := statusesOf(state)
		if some == nil {
			wrong = append(wrong, issue{fmt.Sprintf("/state/%d", i), "is no state of a job"})
		}
		statuses = append(statuses, some...)
	}
	return listJobs(ctx, s.operator, r, in.paging, in.jobFilter, statuses, wrong)
}

func listDLQ(s *Service, ctx context.Context, r *request) (any, error) {
	var in listDLQRequest
	if err := r.read(&in); err != nil {
		return nil, err
	}
	return listJobs(ctx, s.operator, r, in.paging, in.jobFilter, []outbox.Status{outbox.Dead}, nil)
}

func listJobs(
	ctx context.Context, o *operator.Operator, r *request, p paging, f jobFilter, statuses []outbox.Status,
	wrong []issue,
) (any, error) {
	offset, limit, more := p.read()
	wrong = append(wrong, more...)
	tenant, err := f.tenant(r)
	if err != nil {
		return nil, err
	}
	filter := operator.Filter{Kind: f.Type, Queue: f.Service, Tenant: tenant, Statuses: statuses, Skip: offset}
	if f.Since != "" {
		if filter.CreatedSince, err = time.Parse(time.RFC3339, f.Since); err != nil {
			wrong = append(wrong, issue{"/since", "is no time like 2026-01-02T15:04:05Z"})
		}
	}
	if len(wrong) > 0 {
		return nil, invalid(wrong...)
	}
	found, further, err := find(ctx, o, filter, limit)
	if err != nil {
		return nil, err
	}
	entries := make([]job, len(found))
	for i, j := range found {
		entries[i] = view(r.who, j)
	}
	return fill(r, entries, offset, limit, further)
}

// find returns up to limit jobs, and whether there are others, or may be. When its time is over, it returns those found
// so far.
func find(ctx context.Context, o *operator.Operator, f operator.Filter,
	limit int,
) (jobs []operator.Job, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	for len(jobs) <= limit {
		f.Limit = min(limit+1-len(jobs), operator.MaxLimit)
		page, err := o.Page(ctx, f)
		if len(jobs) > 0 && errors.Is(err, context.DeadlineExceeded) {
			return jobs, true, nil
		}
		if err != nil {
			return nil, false, err
		}
		jobs = append(jobs, page.Jobs...)
		if page.Next.IsZero() {
			return jobs[:min(len(jobs), limit)], len(jobs) > limit, nil
		}
		f.Before, f.Skip = page.Next, page.Skip
	}
	return jobs[:limit], true, nil
}
