package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// watchEvery is how often a stream of one job reads that job. One statement reads the jobs of all streams.
const watchEvery = 500 * time.Millisecond

// deafAfter is for how long looks of a stream of one job may fail; it is the same for streams of all jobs.
const deafAfter = 30 * time.Second

type changesInput struct {
	ChangeFilter
	OfTenant
	LastEventID string `header:"Last-Event-ID" maxLength:"128" doc:"The id of the last event that the client has received: the stream starts with the changes since then"`
}

// streamChanges streams the changes of the jobs that the principal may see and the filter matches, from now on or from
// the client's position on.
func (s *server) streamChanges(ctx context.Context, in *changesInput) (*source, error) {
	var from watch.Position
	if in.LastEventID != "" {
		var err error
		if from, err = watch.ParsePosition(in.LastEventID); err != nil {
			return nil, invalidInput.because(
				"", Fault{Header: "Last-Event-ID", Detail: "is not one that was given here"})
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
	r, err := s.watch.Changes.Open(ctx, tenant, wanted, from)
	if err != nil {
		return nil, err
	}
	return &source{sendTo: func(out *stream) { out.sendBatches(r) }, close: r.Close}, nil
}

// sendBatches sends a reader's batches until the stream ends.
func (o *stream) sendBatches(r *watch.Reader) {
	quiet := time.NewTicker(o.server.config.keepAlive)
	defer quiet.Stop()
	first, at := true, ""
	for {
		select {
		case b, ok := <-r.Batches():
			if !ok {
				o.server.metrics.slow.Inc()
				o.Send(tooSlow)
				return
			}
			r.Took(b)
			at = b.After.String()
			if first && !o.Send(preamble(startOf(b))) {
				return
			}
			first = false
			if !o.sendUnless(r.Ended(), b.Text) {
				if r.IsEnded() {
					o.server.metrics.slow.Inc()
				}
				return
			}
		case <-quiet.C:
			if !o.Send(watch.StillHere(at)) {
				return
			}
		case <-o.ctx.Done():
			return
		}
	}
}

// startOf returns the id in the preamble. It is empty if changes follow at once: a client that loses the connection
// among them must continue from the position that it sent.
func startOf(b *watch.Batch) string {
	if len(b.Text) > 0 {
		return ""
	}
	return b.After.String()
}

var tooSlow = func() []byte {
	var text bytes.Buffer
	watch.WriteEvent(&text, "resync", "", struct{}{})
	return text.Bytes()
}()

type jobChangesInput struct {
	ID          string `path:"id" format:"uuid" doc:"Id of the job"`
	LastEventID string `header:"Last-Event-ID" maxLength:"128" doc:"The id of the last event that the client has received"`
}

// streamJobChanges streams the states of a job until it has closed. A client that reconnects with the last of them gets
// a 204: there is nothing more.
func (s *server) streamJobChanges(ctx context.Context, in *jobChangesInput) (*source, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if job.Status.Closed() && stateID(job) == in.LastEventID {
		return nil, nil
	}
	return &source{sendTo: func(out *stream) { out.sendStates(job, in.LastEventID) }}, nil
}

// stateID identifies a state of a job. The attempt distinguishes a job that was snoozed from one that did not run, and
// the suffix one that was asked to stop.
func stateID(j operator.Job) string {
	id := strconv.FormatInt(j.Epoch, 10) + "." + strconv.Itoa(j.Attempt) + "." + string(j.Status)
	if !j.CancelRequestedAt.IsZero() {
		id += ".stop"
	}
	return id
}

// sendStates sends a job's states from the present one on, except the one that the client has. It ends when looks have
// failed for long: a client must not mistake an unresponsive database for a job that does not change.
func (o *stream) sendStates(job operator.Job, sent string) {
	look, quiet := time.NewTicker(watchEvery), time.NewTicker(o.server.config.keepAlive)
	defer look.Stop()
	defer quiet.Stop()
	if !o.Send(preamble("")) {
		return
	}
	heard, deafAfter := time.Now(), cmp.Or(o.server.config.deafAfter, deafAfter)
	for {
		if now := stateID(job); now != sent {
			var text bytes.Buffer
			watch.WriteEvent(&text, "job", now, view(principal(o.ctx), job))
			sent = now
			if !o.Send(text.Bytes()) {
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
			if !o.Send(watch.StillHere(sent)) {
				return
			}
		case <-look.C:
			now, err := o.lookAgain(job.ID)
			switch {
			case err == nil:
				job, heard = now, time.Now()
			case errors.Is(err, operator.ErrNotFound), time.Since(heard) > deafAfter:
				return // a client that reconnects gets a 404, or a 503
			}
		}
	}
}

// lookAgain returns the job's present state. It logs an error, unless the job was trimmed.
func (o *stream) lookAgain(id outbox.ID) (operator.Job, error) {
	ctx, cancel := context.WithTimeout(o.ctx, o.server.config.Timeout)
	defer cancel()
	job, err := o.server.find(ctx, id.String())
	if err != nil && !errors.Is(err, operator.ErrNotFound) {
		_ = o.server.explain(ctx, err)
	}
	return job, err
}

func millis(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }
