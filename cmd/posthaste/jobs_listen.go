package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// listenRemembers is the minimum number of jobs whose last printed state is remembered.
const listenRemembers = 10_000

// streamJobs prints the changes that the API streams, until it is asked to stop. ok is false if the API cannot stream
// them and must be polled.
func (p *program) streamJobs(ctx context.Context, c *cli.Command, r *remote, w tailed) (ok bool, err error) {
	if w.filter.Key != "" {
		if !w.filter.Tenant.IsZero() {
			return false, usagef("--tenant: with --key the API has no such filter")
		}
		return false, nil
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	line := &lineState{stop: stop, comment: p.comment}
	r.line.watch = line.became
	defer func() { r.line.watch = nil }()
	known := &remembered{most: listenRemembers}
	for e, err := range r.api.Changes(ctx, w.changes(), "") {
		line.begun = line.begun || err == nil
		switch {
		case isProblem(err, client.CodeForbidden) && w.filter.Tenant.IsZero() && !line.begun:
			p.comment("the token has not the capability admin.stream: polling instead")
			return false, nil
		case err != nil && line.failed != nil:
			return true, line.failed
		case err != nil && ctx.Err() != nil:
			return true, nil // asked to stop
		case err != nil:
			return true, err
		case e.Name == client.ChangeResync:
			p.comment("changes may have been left out here: see posthaste jobs list")
		case e.Name == client.ChangeJob:
			if err := p.printStreamed(c, known, e.Job); err != nil {
				return true, err
			}
		}
	}
	return true, nil
}

// changes returns the filter in the API's form.
func (w tailed) changes() client.ChangeFilter {
	f := client.ChangeFilter{Kind: w.filter.Kind, Queue: w.filter.Queue, Tenant: textOf(w.filter.Tenant)}
	for _, s := range w.filter.Statuses {
		f.Status = append(f.Status, string(s))
	}
	for _, id := range w.jobs {
		f.Jobs = append(f.Jobs, id.String())
	}
	return f
}

// printStreamed prints a change, unless it is not newer than what was printed of the job: a state may be sent again
// after a lost connection.
func (p *program) printStreamed(c *cli.Command, known *remembered, e client.JobChange) error {
	now := mark{outbox.Status(e.Status), e.Epoch}
	before, was := known.replace(e.ID, now)
	if was && (before == now || now.epoch < before.epoch) {
		return nil
	}
	j := operator.Job{
		ID: idOf(e.ID), Tenant: idOf(e.Tenant), Kind: e.Kind, Queue: e.Queue, Status: now.status, Epoch: e.Epoch,
		Attempt: e.Attempt, FinishedAt: e.FinishedAt,
	}
	if e.Error != nil {
		j.ErrorCode = e.Error.Code
	}
	return p.printChange(c, string(before.status), j)
}

// remembered holds the states that were printed last, for at least the newest most jobs, and for fewer than twice as
// many.
type remembered struct {
	most         int
	newer, older map[string]mark
}

// replace stores a state and returns the previous one. A state older than those remembered stays unknown.
func (r *remembered) replace(id string, now mark) (before mark, known bool) {
	if r.newer == nil || len(r.newer) >= r.most {
		r.newer, r.older = map[string]mark{}, r.newer
	}
	if before, known = r.newer[id]; !known {
		before, known = r.older[id]
	}
	if !known || now.epoch >= before.epoch {
		r.newer[id] = now
	}
	return before, known
}

// line is the transport to the API. It can report the outcome of requests.
type line struct {
	watch func(answered bool, err error) // nil, or called with the outcome of a request; err makes the answer useless
}

func (l *line) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(req)
	if l.watch == nil {
		return resp, err
	}
	switch {
	case err != nil:
		l.watch(false, err)
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusInternalServerError:
		l.watch(true, fmt.Errorf("the API answers %s", resp.Status))
	default:
		l.watch(true, nil)
	}
	return resp, err
}

// lineState reports once that the API is unavailable, and once that it is back. If nobody answers from the start, that
// is an error.
type lineState struct {
	stop    context.CancelCauseFunc
	comment func(string)

	up, away bool  // somebody has answered; nobody does at the moment
	begun    bool  // something was sent
	failed   error // why there was no first connection
}

func (s *lineState) became(answered bool, err error) {
	s.up = s.up || answered
	switch {
	case errors.Is(err, context.Canceled):
	case err != nil && !s.up:
		s.failed = err
		s.stop(err)
	case err != nil && !s.away:
		s.away = true
		s.comment(err.Error() + "; trying again")
	case err == nil:
		if s.away {
			s.comment("the API is back: going on from where it was")
		}
		s.away = false
	}
}
