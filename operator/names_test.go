package operator_test

import (
	"errors"
	"testing"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Every name that somebody gives an operator is named when Postgres could not hold
// it, by a typed error, and nothing is stored.
func TestNamesThatAreNoTextAreNamed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	ctx := t.Context()
	odd := []string{"\x00", "a\xff"}
	for _, bad := range odd {
		_, jobs := o.Jobs(ctx, operator.Filter{Kind: bad})
		_, jobsOfKey := o.Jobs(ctx, operator.Filter{Key: bad})
		_, keys := o.Keys(ctx, operator.KeyFilter{Queue: bad})
		_, key := o.Key(ctx, operator.KeyName{Key: bad})
		_, unblock := o.Unblock(ctx, operator.KeyName{Queue: bad, Key: "k"})
		_, unblockNone := o.Unblock(ctx, operator.KeyName{})
		_, _, limit := o.Limit(ctx, bad, operator.Limits{MaxRunning: new(1)})
		_, _, run := o.RunSchedule(ctx, outbox.ID{}, bad)
		_, deadLetters := o.DeadLetters(ctx, operator.DeadLetterFilter{Fingerprint: bad}, outbox.ID{}, 0)
		for _, c := range []struct {
			field string
			err   error
		}{
			{"Filter.Kind", jobs},
			{"Filter.Key", jobsOfKey},
			{"KeyFilter.Queue", keys},
			{"KeyName.Key", key},
			{"KeyName.Queue", unblock},
			{"KeyName.Key", unblockNone},
			{"queue", limit},
			{"queue", o.Pause(ctx, bad)},
			{"queue", o.Resume(ctx, bad)},
			{"name", run},
			{"name", o.PauseSchedule(ctx, outbox.ID{}, bad)},
			{"name", o.ResumeSchedule(ctx, outbox.ID{}, bad)},
			{"name", o.DeleteSchedule(ctx, outbox.ID{}, bad)},
			{"DeadLetterFilter.Fingerprint", deadLetters},
		} {
			if found, ok := errors.AsType[*outbox.InvalidError](c.err); !ok || found.Field != c.field {
				t.Errorf("%q: got %v, want an InvalidError of %s", bad, c.err, c.field)
			}
		}
	}
	var stored int
	err := db.QueryRow(ctx, `SELECT (SELECT count(*) FROM outbox.queues) + (SELECT count(*) FROM outbox.audit)`).Scan(&stored)
	if err != nil || stored != 0 {
		t.Errorf("rows stored = %d, %v; want 0", stored, err)
	}
}
