package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// maxBulk is how many jobs one request can act on.
const maxBulk = 1000

// Bulk selects jobs to act on, by their ids or by a filter.
type Bulk struct {
	IDs    []string `json:"ids,omitempty" maxItems:"1000" nullable:"false" format:"uuid"`
	Filter *Filter  `json:"filter,omitempty" empty:"leave it out to mean any" doc:"At least one condition. The default statuses are dead letters for retry and dismiss, held jobs for release, and waiting and running jobs for cancel"`
	While  []string `json:"while,omitempty" empty:"leave it out to mean any" nullable:"false" enum:"created,pending,blocked,running,retrying,failed,dead,cancelled" doc:"With ids: act only on jobs that are in one of these statuses when their turn comes. With a filter, its statuses apply, and a job to which something has happened since it was found is refused"`
	Epochs []int64  `json:"epochs,omitempty" empty:"leave it out to mean any" maxItems:"1000" nullable:"false" doc:"With ids: the epoch of each, in the same order, as internals show it. Act only on jobs that still have it: nothing has happened to them since"`
	DryRun bool     `json:"dryRun,omitempty" doc:"Only list the jobs that it would act on"`
	Reason string   `json:"reason,omitempty" maxLength:"2000" doc:"For the audit"`
	Cursor string   `json:"cursor,omitempty" maxLength:"64" doc:"With a filter: next of the previous response to the same filter, to continue where it ended"`
}

type bulkInput struct{ Body Bulk }

// BulkResult contains the outcome for each job.
type BulkResult struct {
	Done    int       `json:"done" doc:"Number of jobs acted on, or that would be"`
	Refused int       `json:"refused" doc:"Number of jobs not acted on, or whose outcome is unknown; their codes give the reason"`
	Jobs    []Outcome `json:"jobs" nullable:"false" doc:"In the order of the ids, or newest first"`
	More    bool      `json:"more" doc:"More jobs may remain. With a filter: repeat the request with next. With ids: repeat it with those that are not among jobs"`
	Next    string    `json:"next,omitempty" doc:"With a filter, if more jobs may remain: the cursor of the next request. Jobs enqueued after the first request are not touched"`
}

// Outcome is the outcome for one job.
type Outcome struct {
	ID   string `json:"id" format:"uuid"`
	Code string `json:"code,omitempty" doc:"Nothing was done: job_not_found, job_status_conflict, row_locked (by another transaction). The outcome is unknown: timeout, internal_error" example:"job_status_conflict"`
	// Requested is set by cancellations.
	Requested bool `json:"requested,omitempty" doc:"The job is running and was asked to stop, or would be"`
}

type bulkOutput struct{ Body BulkResult }

func (s *server) retryJobs(ctx context.Context, in *bulkInput) (*bulkOutput, error) {
	return s.actOnMany(ctx, in.Body, bulkAct{retryable, deadLetters, true, outright((*operator.Operator).Retry)})
}

func (s *server) dismissJobs(ctx context.Context, in *bulkInput) (*bulkOutput, error) {
	return s.actOnMany(ctx, in.Body, bulkAct{deadLetter, deadLetters, false, outright((*operator.Operator).Dismiss)})
}

func (s *server) releaseJobs(ctx context.Context, in *bulkInput) (*bulkOutput, error) {
	held := func(s outbox.Status) bool { return s == outbox.Created }
	return s.actOnMany(ctx, in.Body, bulkAct{
		held,
		[]outbox.Status{outbox.Created},
		false,
		outright((*operator.Operator).Release),
	})
}

func (s *server) cancelJobs(ctx context.Context, in *bulkInput) (*bulkOutput, error) {
	return s.actOnMany(ctx, in.Body,
		bulkAct{
			cancellable, stoppable, false,
			func(o *operator.Operator, ctx context.Context, id outbox.ID) (bool, error) {
				became, err := o.Cancel(ctx, id)
				return became == operator.CancelRequested, err
			},
		})
}

// bulkAct is an act on many jobs.
type bulkAct struct {
	possible func(outbox.Status) bool
	unless   []outbox.Status // statuses meant by a filter that names none
	inTime   bool            // refused for a job past its deadline
	do       func(*operator.Operator, context.Context, outbox.ID) (requested bool, err error)
}

// outright returns a bulk act for an act that is done when it returns.
func outright(do act) func(*operator.Operator, context.Context, outbox.ID) (bool, error) {
	return func(o *operator.Operator, ctx context.Context, id outbox.ID) (bool, error) {
		return false, do(o, ctx, id)
	}
}

var (
	deadLetters = []outbox.Status{outbox.Failed, outbox.Dead}
	stoppable   = []outbox.Status{outbox.Created, outbox.Pending, outbox.Blocked, outbox.Running, outbox.Retrying}
)

// cancellable reports whether a job in this status may be cancelled, which includes cancelled ones: repeating a
// cancellation is harmless.
func cancellable(s outbox.Status) bool { return slices.Contains(stoppable, s) || s == outbox.Cancelled }

func deadLetter(s outbox.Status) bool { return s == outbox.Failed || s == outbox.Dead }

func retryable(s outbox.Status) bool {
	return deadLetter(s) || s == outbox.Pending || s == outbox.Retrying
}

// wouldDo returns what do would return for a job in its present state.
func (a bulkAct) wouldDo(job candidate) (requested bool, err error) {
	switch {
	case !a.possible(job.status), job.meant != nil && *job.meant != job.epoch:
		return false, &operator.StatusError{ID: job.id, Status: job.status}
	case a.inTime && job.late:
		return false, operator.ErrPastDeadline
	}
	return job.status == outbox.Running, nil // possible only for a cancellation
}

// actOnMany acts on one job after the other, each in a transaction of its own: completed acts stay in effect, and
// appear in the answer, whatever happens with the others. It answers before its client loses patience, even if it must
// wait for each job.
func (s *server) actOnMany(ctx context.Context, b Bulk, act bulkAct) (*bulkOutput, error) {
	began, most := time.Now(), min(maxActTime, s.config.Timeout/2)
	enough := began.Add(most)
	only, err := b.statuses(act.unless)
	if err != nil {
		return nil, err
	}
	jobs, next, err := s.chosen(ctx, b, only, began.Add(most/2)) // the other half is for the acts
	if err != nil {
		return nil, err
	}
	by := s.by(ctx).Because(b.Reason).Only(only...)
	possible := act.possible
	act.possible = func(status outbox.Status) bool {
		return possible(status) && (len(only) == 0 || slices.Contains(only, status))
	}
	out := BulkResult{Jobs: make([]Outcome, 0, len(jobs)), More: next != "", Next: next}
	for i, job := range jobs {
		requested, err := false, operator.ErrNotFound
		switch {
		case i > 0 && time.Now().After(enough):
			err = errEnough
		case job.found && b.DryRun:
			requested, err = act.wouldDo(job)
		case job.found && job.meant != nil:
			requested, err = s.patiently(ctx, by.AtEpoch(*job.meant), job.id, act)
		case job.found:
			requested, err = s.patiently(ctx, by, job.id, act)
		}
		if s.endsAct(ctx, err) {
			if i == 0 {
				return nil, err
			}
			out.More = true
			if b.Filter != nil {
				out.Next = makeCursor(jobs[i-1].id)
			}
			break
		}
		out.add(job.id, requested, err)
		if err != nil {
			_ = s.explain(ctx, err) // logs errors that are not the client's fault
		}
	}
	return &bulkOutput{Body: out}, nil
}

// errEnough ends an act on many jobs for this request.
var errEnough = errors.New("it is time to answer")

// endsAct reports whether the error would also affect the next job.
func (s *server) endsAct(ctx context.Context, err error) bool {
	return err != nil && (errors.Is(err, errEnough) || ctx.Err() != nil ||
		problemOf(err).Status == http.StatusServiceUnavailable)
}

// patiently acts on a job, waiting for another transaction's lock on it only as long as there is time left for an
// answer.
func (s *server) patiently(ctx context.Context, by *operator.Operator, id outbox.ID,
	act bulkAct,
) (requested bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout/3)
	defer cancel()
	return act.do(by, ctx, id)
}

// add records the outcome for a job.
func (r *BulkResult) add(id outbox.ID, requested bool, err error) {
	if err == nil {
		r.Done++
		r.Jobs = append(r.Jobs, Outcome{ID: id.String(), Requested: requested})
		return
	}
	r.Refused++
	r.Jobs = append(r.Jobs, Outcome{ID: id.String(), Code: problemOf(err).Code})
}

// statuses returns those in which a job must be when its turn comes; none means any. With a filter these are the
// requested ones.
func (b Bulk) statuses(unless []outbox.Status) (only []outbox.Status, err error) {
	texts := b.While
	if b.Filter != nil {
		if len(b.While) > 0 {
			return nil, invalidInput.because("", Fault{Pointer: "#/while", Detail: "goes with ids"})
		}
		texts = b.Filter.Status
	}
	for _, text := range texts {
		only = append(only, outbox.Status(text))
	}
	if b.Filter != nil && len(only) == 0 {
		only = unless
	}
	return only, nil
}

type candidate struct {
	id     outbox.ID
	status outbox.Status
	late   bool // past its deadline, by the database's clock; known after look
	found  bool
	epoch  int64  // known after look
	meant  *int64 // epoch of a job that may be acted on; nil means any
}

// chosen returns the jobs that the principal selected, up to the maximum, and the cursor of the following ones. A
// filter selects jobs in the given statuses.
func (s *server) chosen(ctx context.Context, b Bulk, statuses []outbox.Status,
	enough time.Time,
) (jobs []candidate, next string, err error) {
	refuse := func(pointer, detail string) error {
		return invalidInput.because("", Fault{Pointer: pointer, Detail: detail})
	}
	switch {
	case (len(b.IDs) == 0) == (b.Filter == nil):
		return nil, "", refuse("#", "wants ids or filter, one of them")
	case len(b.Epochs) > 0 && len(b.Epochs) != len(b.IDs):
		return nil, "", refuse("#/epochs", "wants one for each of ids")
	case b.Filter == nil && b.Cursor != "":
		return nil, "", refuse("#/cursor", "goes with a filter")
	case b.Filter == nil:
		jobs, err = s.byID(ctx, b.IDs)
		for i := range b.Epochs[:min(len(b.Epochs), len(jobs))] {
			jobs[i].meant = &b.Epochs[i]
		}
		return jobs, "", err
	case b.Filter.isZero():
		return nil, "", refuse("#/filter", "has no condition")
	}
	filter, err := b.Filter.operators(ctx, inFilter)
	if err != nil {
		return nil, "", err
	}
	filter.Statuses = statuses
	if b.Cursor != "" {
		if filter.Before, err = readCursor(b.Cursor); err != nil {
			return nil, "", refuse("#/cursor", "is not a cursor returned by this API")
		}
	}
	if jobs, next, err = s.byFilter(ctx, filter, enough); err == nil && b.DryRun {
		err = s.look(ctx, jobs)
	}
	return jobs, next, err
}

func (s *server) byID(ctx context.Context, texts []string) ([]candidate, error) {
	jobs := make([]candidate, len(texts))
	for i, text := range texts {
		id, err := outbox.ParseID(text)
		if err != nil {
			return nil, invalidInput.because("", Fault{Pointer: fmt.Sprintf("#/ids/%d", i), Detail: "is no id"})
		}
		jobs[i].id = id
	}
	return jobs, s.look(ctx, jobs)
}

// look queries the present state of the jobs that belong to the principal.
func (s *server) look(ctx context.Context, jobs []candidate) error {
	wanted := make([]operator.Wanted, len(jobs))
	for i, job := range jobs {
		wanted[i] = operator.Wanted{ID: job.id, Tenant: within(ctx)}
	}
	found, err := s.operator.Find(ctx, wanted)
	if err != nil {
		return err
	}
	for i, job := range found {
		jobs[i].found, jobs[i].status, jobs[i].late = !job.ID.IsZero(), job.Status, job.PastDeadline
		jobs[i].epoch = job.Epoch
	}
	return nil
}

// byFilter reads page after page, newest first, while there is time. Each page takes bounded time, but may contain few
// of many jobs. A job is meant in the epoch in which it was found: one that has run since may have another worker or
// error, and no longer match.
func (s *server) byFilter(ctx context.Context, filter operator.Filter,
	enough time.Time,
) (jobs []candidate, next string, err error) {
	for {
		filter.Limit = min(operator.MaxLimit, maxBulk-len(jobs))
		page, err := s.operator.Page(ctx, filter)
		if err != nil {
			return nil, "", err
		}
		for _, job := range page.Jobs {
			jobs = append(jobs, candidate{id: job.ID, status: job.Status, found: true, meant: &job.Epoch})
		}
		switch filter.Before = page.Next; {
		case page.Next.IsZero():
			return jobs, "", nil
		case len(jobs) == maxBulk, time.Now().After(enough):
			return jobs, makeCursor(page.Next), nil
		}
	}
}
