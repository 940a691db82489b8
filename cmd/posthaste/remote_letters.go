package main

import (
	"context"
	"iter"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// lettersAct returns an act on the letters that match the filter. The API refuses an act without any condition; --all
// means both statuses.
func (r *remote) lettersAct(f operator.DeadLetterFilter) client.LettersAct {
	filter := letterFilterOf(f)
	if len(filter.Status) == 0 {
		filter.Status = []string{string(outbox.Failed), string(outbox.Dead)}
	}
	return client.LettersAct{Filter: filter, Reason: r.reason}
}

// MatchDeadLetters sets no bound beyond f if the server is too old to report the moment of its count.
func (r *remote) MatchDeadLetters(ctx context.Context, f operator.DeadLetterFilter) (operator.BulkProgress, error) {
	act := r.lettersAct(f)
	act.DryRun = true
	ctx, cancel := patient(ctx)
	defer cancel()
	counted, err := r.api.DismissDeadLetters(ctx, act)
	if counted.FailedUntil.IsZero() {
		counted.FailedUntil = f.FailedUntil
	}
	return operator.BulkProgress{Matched: counted.Matched, FailedUntil: counted.FailedUntil}, err
}

func (r *remote) ReplayDeadLetters(ctx context.Context, f operator.DeadLetterFilter,
	rate float64,
) iter.Seq2[operator.BulkProgress, error] {
	return r.actOnMany(ctx, f, func(ctx context.Context, act client.LettersAct) (client.LettersActed, error) {
		return r.api.ReplayDeadLetters(ctx, client.ReplayAct{LettersAct: act, RatePerSecond: rate})
	})
}

func (r *remote) DismissDeadLetters(ctx context.Context,
	f operator.DeadLetterFilter,
) iter.Seq2[operator.BulkProgress, error] {
	return r.actOnMany(ctx, f, r.api.DismissDeadLetters)
}

// actOnMany repeats requests until everything is done. Acts of a request stay in effect if a later request fails.
func (r *remote) actOnMany(ctx context.Context, f operator.DeadLetterFilter,
	do func(context.Context, client.LettersAct) (client.LettersActed, error),
) iter.Seq2[operator.BulkProgress, error] {
	return func(yield func(operator.BulkProgress, error) bool) {
		progress := operator.BulkProgress{FailedUntil: f.FailedUntil}
		var err error
		act := r.lettersAct(f)
		for err == nil {
			var part client.LettersActed
			if part, err = r.patiently(ctx, act, do); err != nil {
				break
			}
			if act.Cursor == "" {
				progress.Matched = part.Matched
			}
			progress.Done += part.Done
			progress.Passed += part.Passed
			if !yield(progress, nil) || part.Next == "" {
				return
			}
			act.Cursor = part.Next
			err = backoff.Sleep(ctx, seconds(part.AfterSeconds))
		}
		yield(progress, err)
	}
}

func (r *remote) patiently(ctx context.Context, act client.LettersAct,
	do func(context.Context, client.LettersAct) (client.LettersActed, error),
) (client.LettersActed, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	return do(ctx, act)
}

func (r *remote) ReplayEdited(ctx context.Context, id outbox.ID, payload []byte) error {
	return r.replayEdited(ctx, id, client.EditedReplay{PayloadBase64: append([]byte{}, payload...), Reason: r.reason})
}

func (r *remote) WouldReplayEdited(ctx context.Context, id outbox.ID, payload []byte) error {
	return r.replayEdited(ctx, id, client.EditedReplay{PayloadBase64: append([]byte{}, payload...), DryRun: true})
}

// replayEdited sends the payload byte for byte: as JSON within JSON it would lose its spaces.
func (r *remote) replayEdited(ctx context.Context, id outbox.ID, edited client.EditedReplay) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	edited.Forget = r.forget
	_, err := r.api.ReplayDeadLetter(ctx, id.String(), edited)
	return err
}
