package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	ndjson      = "application/x-ndjson"
	maxBatch    = 1000
	batchFactor = 16 // a batch's body may be this many times a request's
)

type batchInput struct {
	RawBody []byte `contentType:"application/x-ndjson" doc:"One job a line, as POST /jobs takes it"`
}

type batchOutput struct {
	Body struct {
		Jobs []Accepted `json:"jobs" doc:"In the order of the lines" nullable:"false"`
	}
}

// enqueueBatch stores the jobs of all lines in one transaction. If a line is not acceptable, the answer names it and
// nothing is stored.
func (s *server) enqueueBatch(ctx context.Context, in *batchInput) (*batchOutput, error) {
	var requests []outbox.Request
	var lineOf []int // of each request
	for line, text := range lines(in.RawBody) {
		if len(requests) == maxBatch {
			return nil, invalidInput.because(fmt.Sprintf("It has more than %d jobs.", maxBatch))
		}
		job, p := s.readLine(text)
		if p == nil {
			p = s.checkJob(ctx, job)
		}
		if p != nil {
			for i := range p.Errors {
				p.Errors[i].Line = line
			}
			return nil, p
		}
		if job.MaxQueued != 0 {
			return nil, invalidInput.because(
				"", Fault{
					Line: line, Pointer: "#/maxQueued",
					Detail: "is decided on one job at a time: use POST /jobs",
				})
		}
		requests = append(requests, job.request(ctx))
		lineOf = append(lineOf, line)
	}
	if len(requests) == 0 {
		return nil, malformed.because("The body has no job.")
	}
	jobs, err := s.store(ctx, requests, keyPatience)
	if jobs != nil && err != nil && slices.ContainsFunc(requests, hasNoKey) {
		// The jobs are stored. On an error the client would store some of them again; compared with that, not knowing
		// how a repeat's first request was stored is the lesser evil.
		_ = s.explain(ctx, err)
		err = nil
	}
	if bad, ok := errors.AsType[*outbox.RequestError](err); ok {
		p := problemOf(bad)
		for i := range p.Errors {
			p.Errors[i].Line = lineOf[bad.Index]
		}
		return nil, p
	}
	if err != nil {
		return nil, busyKey(err)
	}
	out := &batchOutput{}
	for _, job := range jobs {
		out.Body.Jobs = append(out.Body.Jobs, job.accepted())
	}
	return out, nil
}

// hasNoKey reports whether a repeat of the request would store another job.
func hasNoKey(r outbox.Request) bool { return r.Options.IdempotencyKey == "" }

// lines yields the lines that are not blank, with their numbers from 1.
func lines(body []byte) func(yield func(int, []byte) bool) {
	return func(yield func(int, []byte) bool) {
		number := 0
		for text := range bytes.Lines(body) {
			number++
			if text = bytes.Trim(text, " \t\r\n"); len(text) > 0 && !yield(number, text) {
				return
			}
		}
	}
}

// readLine validates a line as strictly as POST /jobs validates its body.
func (s *server) readLine(text []byte) (NewJob, *Problem) {
	var job NewJob
	if len(text) > s.config.MaxBodyBytes {
		return job, bodyTooLarge.because("", Fault{Detail: "is more than " + bytesText(int64(s.config.MaxBodyBytes))})
	}
	if p := readable(text, s.newJob.shape); p != nil {
		return job, p
	}
	var parsed any
	if err := unmarshal(text, &parsed); err != nil {
		return job, malformed.because("", Fault{Pointer: "#", Detail: errUnreadable.Error()})
	}
	found := &huma.ValidateResult{}
	huma.Validate(s.newJob.registry, s.newJob.schema, huma.NewPathBuffer([]byte("body"), 4), huma.ModeWriteToServer,
		parsed, found)
	if len(found.Errors) > 0 {
		return job, fromHuma(&huma.ErrorModel{Status: invalidInput.status, Errors: details(found.Errors)})
	}
	if err := json.Unmarshal(text, &job); err != nil {
		return job, invalidInput.because("", Fault{Pointer: "#", Detail: errUnreadable.Error()})
	}
	return job, nil
}

func details(errs []error) []*huma.ErrorDetail {
	var found []*huma.ErrorDetail
	for _, err := range errs {
		if d, ok := errors.AsType[*huma.ErrorDetail](err); ok {
			found = append(found, d)
		}
	}
	return found
}

func bytesText(n int64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}
