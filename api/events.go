package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// watchEvery is how often the job of a stream is looked at. The look-ups of all
// streams go together.
const watchEvery = 500 * time.Millisecond

type eventsInput struct {
	EventFilter
	OfTenant
	LastEventID string `header:"Last-Event-ID" maxLength:"128" doc:"The id of the last event that the client has: it is told what has changed since"`
}

// listenToJobs tells what becomes of the jobs that the principal may see and wants to
// know of, from now on or from where it was.
func (s *server) listenToJobs(ctx context.Context, in *eventsInput) (*tale, error) {
	var from operator.Position
	if in.LastEventID != "" {
		var err error
		if from, err = operator.ParsePosition(in.LastEventID); err != nil {
			return nil, invalidInput.because("", Fault{Header: "Last-Event-ID", Detail: "is not one that was given here"})
		}
	}
	wanted, err := in.read()
	if err != nil {
		return nil, err
	}
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	r := s.hub.join(tenant, wanted, from)
	select {
	case err := <-r.begun:
		if err != nil {
			s.hub.leave(tenant, r)
			return nil, err
		}
	case <-ctx.Done():
		s.hub.leave(tenant, r)
		return nil, ctx.Err()
	}
	return &tale{tell: func(out *stream) { out.read(r) }, end: func() { s.hub.leave(tenant, r) }}, nil
}

// read sends what the hub hands over until the stream ends.
func (o *stream) read(r *reader) {
	quiet := time.NewTicker(o.server.config.keepAlive)
	defer quiet.Stop()
	first, at := true, ""
	for {
		select {
		case b, ok := <-r.batches:
			if !ok {
				o.server.metrics.slow.Inc()
				o.send(tooSlow)
				return
			}
			r.took(b)
			at = b.after.String()
			if first && !o.send(greet(startOf(b))) {
				return
			}
			if first = false; !o.sendUnless(r.ended, b.text) {
				if r.isEnded() {
					o.server.metrics.slow.Inc()
				}
				return
			}
		case <-quiet.C:
			if !o.send(still(at)) {
				return
			}
		case <-o.ctx.Done():
			return
		}
	}
}

// startOf is the id at the beginning: none if there are events first, which begin
// again from where the client was.
func startOf(b *batch) string {
	if len(b.text) > 0 {
		return ""
	}
	return b.after.String()
}

var tooSlow = func() []byte {
	var text bytes.Buffer
	writeEvent(&text, "resync", "", struct{}{})
	return text.Bytes()
}()

type jobEventsInput struct {
	ID          string `path:"id" format:"uuid" doc:"Of the job"`
	LastEventID string `header:"Last-Event-ID" maxLength:"128" doc:"The id of the last event that the client has"`
}

// listenToJob tells the states of a job until it has closed. A client that comes back
// with the last one is told that there is nothing more: 204.
func (s *server) listenToJob(ctx context.Context, in *jobEventsInput) (*tale, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if job.Status.Closed() && stateID(job) == in.LastEventID {
		return nil, nil
	}
	return &tale{tell: func(out *stream) { out.watch(job, in.LastEventID) }}, nil
}

// stateID names a state of a job. The attempt tells a snooze from nothing.
func stateID(j operator.Job) string {
	return strconv.FormatInt(j.Epoch, 10) + "." + strconv.Itoa(j.Attempt) + "." + j.Status.String()
}

// watch tells a job's states from the one that was found on, but for one that was told.
func (o *stream) watch(job operator.Job, told string) {
	look, quiet := time.NewTicker(watchEvery), time.NewTicker(o.server.config.keepAlive)
	defer look.Stop()
	defer quiet.Stop()
	if !o.send(greet("")) {
		return
	}
	for {
		if now := stateID(job); now != told {
			var text bytes.Buffer
			writeEvent(&text, "job", now, view(principal(o.ctx), job))
			if told = now; !o.send(text.Bytes()) {
				return
			}
		}
		if job.Status.Closed() {
			return
		}
		select {
		case <-o.ctx.Done():
			return
		case <-quiet.C:
			if !o.send(still(told)) {
				return
			}
		case <-look.C:
			var err error
			if job, err = o.lookAgain(job); err != nil {
				return // it was trimmed: a client that comes back is told so
			}
		}
	}
}

// lookAgain returns the job as it is now, or as it was if the database cannot say.
func (o *stream) lookAgain(job operator.Job) (operator.Job, error) {
	ctx, cancel := context.WithTimeout(o.ctx, o.server.config.Timeout)
	defer cancel()
	now, err := o.server.find(ctx, job.ID.String())
	if errors.Is(err, operator.ErrNotFound) {
		return job, err
	}
	if err != nil {
		_ = o.server.explain(ctx, err)
		return job, nil
	}
	return now, nil
}

func millis(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }
