package api

import (
	"bytes"
	"cmp"
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

// enqueueBatch stores the jobs of all lines in one transaction. If lines are not acceptable, the answer names them and
// nothing is stored.
func (s *server) enqueueBatch(ctx context.Context, in *batchInput) (*batchOutput, error) {
	requests, lineOf, p := s.readBatch(ctx, in.RawBody)
	if p != nil {
		return nil, p
	}
	if len(requests) == 0 {
		return nil, malformed.because("The body has no job.")
	}
	leave, err := s.batches.take(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	jobs, err := s.store(ctx, requests, keyPatience)
	if jobs != nil && err != nil && slices.ContainsFunc(requests, hasNoKey) {
		// The jobs are stored. On an error the client would store some of them again; compared with that, not knowing
		// how a repeat's first request was stored is the lesser evil.
		_ = s.explain(ctx, err)
		err = nil
	}
	if bad, ok := errors.AsType[*outbox.RequestError](err); ok {
		var found lineFaults
		found.addRefused(requests, lineOf)
		if found.problem == nil {
			found.add(lineOf[bad.Index], problemOf(bad))
		}
		return nil, found.all()
	}
	if err != nil {
		return nil, busyKey(err, requests)
	}
	out := &batchOutput{}
	for _, job := range jobs {
		out.Body.Jobs = append(out.Body.Jobs, job.accepted())
	}
	return out, nil
}

// readBatch returns the requests of the lines, and the line of each; or a problem, which names every line that is not
// acceptable.
func (s *server) readBatch(ctx context.Context, body []byte) ([]outbox.Request, []int, *Problem) {
	var requests []outbox.Request
	var lineOf []int
	var found lineFaults
	check, checked := s.checkerOfMany(ctx)
	defer checked()
	for line, text := range lines(body) {
		if len(requests) == maxBatch {
			return nil, nil, invalidInput.because(fmt.Sprintf("It has more than %d jobs.", maxBatch))
		}
		job, p := s.readLine(text)
		if p == nil {
			p = checkJob(ctx, job, check)
		}
		switch {
		case p != nil && !slices.Contains([]int{malformed.status, bodyTooLarge.status, invalidInput.status}, p.Status):
			return nil, nil, p // the line is not at fault
		case p != nil:
			found.add(line, p)
		case job.MaxQueued != 0:
			found.add(line, invalidInput.because("", Fault{
				Pointer: "#/maxQueued",
				Detail:  "is decided on one job at a time: use POST /jobs",
			}))
		default:
			requests, lineOf = append(requests, job.request(ctx)), append(lineOf, line)
		}
		if len(found.faults) >= maxFaults {
			break
		}
	}
	if found.problem != nil {
		found.addRefused(requests, lineOf)
		return nil, nil, found.all()
	}
	return requests, lineOf, nil
}

// maxFaults limits the faults of a batch that an answer names.
const maxFaults = 20

// lineFaults collects the faults of a batch. The first problem found gives its code and its status to the answer.
type lineFaults struct {
	problem *Problem
	faults  []Fault
}

func (f *lineFaults) add(line int, p *Problem) {
	if f.problem == nil {
		f.problem = p
	}
	if len(p.Errors) == 0 {
		p.Errors = []Fault{{Detail: cmp.Or(p.Detail, p.Title)}}
	}
	for _, fault := range p.Errors {
		fault.Line = line
		f.faults = append(f.faults, fault)
	}
}

// addRefused adds the faults of the requests that package outbox refuses; it stores none after the first of them.
func (f *lineFaults) addRefused(requests []outbox.Request, lineOf []int) {
	for i, r := range requests {
		if _, err := outbox.Encode(r.Args, r.Options); err != nil {
			f.add(lineOf[i], problemOf(err))
		}
	}
}

// all returns the problem with the faults of the first lines.
func (f *lineFaults) all() *Problem {
	slices.SortStableFunc(f.faults, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
	f.problem.Errors = f.faults[:min(len(f.faults), maxFaults)]
	return f.problem
}

// hasNoKey reports whether a repeat of the request would store another job.
func hasNoKey(r outbox.Request) bool { return !hasKey(r) }

func hasKey(r outbox.Request) bool { return r.Options.IdempotencyKey != "" }

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
