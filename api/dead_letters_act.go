package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"iter"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
)

// These limit what one request of an act on many dead letters does. The client repeats the request for more, so that no
// request outlasts its client's patience.
const (
	maxActed   = 1000
	maxActTime = 5 * time.Second
)

// LettersAct selects dead letters for an act.
type LettersAct struct {
	Filter DeadLetterFilter `json:"filter" empty:"leave it out to mean any" doc:"At least one condition; both statuses together select all dead letters"`
	DryRun bool             `json:"dryRun,omitempty" doc:"Only count them"`
	Reason string           `json:"reason,omitempty" maxLength:"2000" doc:"For the audit"`
	Cursor string           `json:"cursor,omitempty" maxLength:"64" doc:"next of the previous response to the same filter, to continue where it ended"`
}

// ReplayAct is an act with a rate.
type ReplayAct struct {
	LettersAct
	RatePerSecond float64 `json:"ratePerSecond,omitempty" minimum:"0.001" maximum:"100000" doc:"At most this many become due per second, evenly spread; unlimited if omitted"`
}

// LettersActed is the progress of an act on many dead letters.
type LettersActed struct {
	Matched int64  `json:"matched" doc:"Number of dead letters that match the filter; omitted with a cursor, which does not count again"`
	Done    int64  `json:"done" doc:"Number done by this request"`
	Passed  int64  `json:"passed" doc:"Number skipped, because they have changed meanwhile or their deadline has passed"`
	Next    string `json:"next,omitempty" doc:"The cursor of the next request, if more may remain. Later dead letters are not touched"`
	// AfterSeconds keeps the rate from one request to the next.
	AfterSeconds float64 `json:"afterSeconds,omitempty" doc:"Seconds to wait before the next request, to keep the rate"`
	// FailedUntil makes it possible to confirm the counted dead letters and no others.
	FailedUntil time.Time `json:"failedUntil,omitzero" doc:"Of a dry run: pass it as failedUntil in the filter to exclude later dead letters"`
}

type (
	replayLettersInput  struct{ Body ReplayAct }
	dismissLettersInput struct{ Body LettersAct }
	actedOutput         struct{ Body LettersActed }
)

func (s *server) replayDeadLetters(ctx context.Context, in *replayLettersInput) (*actedOutput, error) {
	rate := in.Body.RatePerSecond
	return s.actOnLetters(ctx, in.Body.LettersAct, rate,
		func(o *operator.Operator, f operator.DeadLetterFilter) iter.Seq2[operator.BulkProgress, error] {
			return o.ReplayDeadLetters(ctx, f, rate)
		})
}

func (s *server) dismissDeadLetters(ctx context.Context, in *dismissLettersInput) (*actedOutput, error) {
	return s.actOnLetters(ctx, in.Body, 0,
		func(o *operator.Operator, f operator.DeadLetterFilter) iter.Seq2[operator.BulkProgress, error] {
			return o.DismissDeadLetters(ctx, f)
		})
}

type actOnAll func(*operator.Operator, operator.DeadLetterFilter) iter.Seq2[operator.BulkProgress, error]

func (s *server) actOnLetters(ctx context.Context, a LettersAct, rate float64, act actOnAll) (*actedOutput, error) {
	if a.Filter.isZero() {
		return nil, invalidInput.because("", Fault{Pointer: "#/filter", Detail: "has no condition"})
	}
	filter, err := a.Filter.operators(ctx, inFilter)
	if err != nil {
		return nil, err
	}
	if a.Cursor != "" {
		if filter.After, filter.FailedUntil, err = readActCursor(a.Cursor); err != nil {
			return nil, badCursor(Fault{Pointer: "#/cursor"})
		}
	}
	if a.DryRun {
		would, err := s.operator.MatchDeadLetters(ctx, filter)
		return &actedOutput{Body: LettersActed{Matched: would.Matched, FailedUntil: would.FailedUntil.UTC()}}, err
	}
	progress, pause, more, err := someOf(act(s.by(ctx).Because(a.Reason), filter), rate,
		min(maxActTime, s.config.Timeout/2))
	if progress.Done > 0 {
		s.watch.Counts.Outdate()
	}
	if err != nil && progress.Last.IsZero() {
		return nil, err
	}
	if err != nil { // the answer has what was done; the next request meets the error
		_ = s.explain(ctx, err)
	}
	out := &actedOutput{Body: LettersActed{Matched: progress.Matched, Done: progress.Done, Passed: progress.Passed}}
	if more {
		out.Body.Next = makeActCursor(progress.Last, progress.FailedUntil)
		out.Body.AfterSeconds = pause.Seconds()
	}
	return out, nil
}

// someOf continues an act until it is done, or until it is time to answer: after a thousand jobs, or if the next pause
// would end after the limit. The client then makes that pause.
func someOf(act iter.Seq2[operator.BulkProgress, error], rate float64,
	limit time.Duration,
) (progress operator.BulkProgress, pause time.Duration, more bool, err error) {
	began := time.Now()
	for next, err := range act {
		if err != nil {
			return progress, pause, !progress.Last.IsZero(), err
		}
		pause = 0
		if rate > 0 {
			pause = time.Duration(float64(next.Done-progress.Done) / rate * float64(time.Second))
		}
		progress = next
		if progress.Done+progress.Passed >= maxActed || !progress.Last.IsZero() && time.Since(began)+pause >= limit {
			return progress, pause, true, nil
		}
	}
	return progress, 0, false, nil
}

// EditedReplay is a dead letter's new payload.
type EditedReplay struct {
	Payload json.RawMessage `json:"payload,omitempty" doc:"The new payload: any JSON, stored as it is written"`
	Base64  *string         `json:"payloadBase64,omitempty" doc:"Instead of payload, if that is not JSON"`
	Reason  string          `json:"reason,omitempty" maxLength:"2000" doc:"For the audit, which keeps the old payload"`
	Forget  bool            `json:"forget,omitempty" doc:"Drop the job's checkpoint and the results of its steps, which belong to the old payload: every step runs again"`
	DryRun  bool            `json:"dryRun,omitempty" doc:"Only check the request: the response is its problem, or the job as it is"`
}

type replayJobInput struct {
	ID   string `path:"id" format:"uuid" doc:"Id of the job"`
	Body EditedReplay
}

// replayDeadLetter makes a dead letter pending again with another payload.
func (s *server) replayDeadLetter(ctx context.Context, in *replayJobInput) (*jobOutput, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	payload, err := in.Body.payload()
	if err != nil {
		return nil, err
	}
	// Reserve room before the act: a 429 means that nothing was done.
	if err := s.holdAnswer(ctx, max(len(payload), job.PayloadBytes)); err != nil {
		return nil, err
	}
	// The answer shows the payload. The read is recorded before the act: if it cannot be, nothing is done. So an act
	// that is refused leaves an entry of a read that did not happen.
	if principal(ctx).Can(access.PayloadRead) {
		if err := s.recordRead(ctx, "replay", job); err != nil {
			return nil, err
		}
	}
	by := s.by(ctx).Because(in.Body.Reason).CheckedBy(s.checker(ctx))
	if in.Body.Forget {
		by = by.Forgetting()
	}
	replay := by.ReplayEdited
	if in.Body.DryRun {
		replay = by.WouldReplayEdited
	}
	err = replay(ctx, job.ID, payload)
	if isSQL(err, insufficientPrivilege) {
		return nil, forbidden.because("This server may not change payloads: its database role does not let it.")
	}
	if err != nil {
		return nil, err
	}
	job, err = s.operator.Job(ctx, job.ID)
	if !in.Body.DryRun {
		err = afterAct(err)
	}
	if err != nil {
		return nil, err
	}
	return &jobOutput{Body: view(principal(ctx), job)}, nil
}

func (e EditedReplay) payload() ([]byte, error) {
	if (e.Payload == nil) == (e.Base64 == nil) {
		return nil, invalidInput.because("", Fault{Pointer: "#", Detail: "wants payload or payloadBase64, one of them"})
	}
	if e.Base64 == nil {
		return e.Payload, nil
	}
	payload, err := base64.StdEncoding.Strict().DecodeString(*e.Base64)
	if err != nil {
		return nil, invalidInput.because("", Fault{Pointer: "#/payloadBase64", Detail: "is not base64"})
	}
	return payload, nil
}
