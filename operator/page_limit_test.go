package operator_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A list that returned 200 rows for a limit of 250 would end there for a caller that takes a short page for the last.
func TestALimitThatAListCannotServeIsRefused(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	job, _ := reach(t, db, outbox.Dead)
	exec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	type list struct {
		field string
		most  int
		ask   func(ctx context.Context, limit int) error
	}
	none, all := outbox.ID{}, operator.DeadLetterFilter{}
	for name, list := range map[string]list{
		"Jobs": {"Filter.Limit", 200, func(ctx context.Context, n int) error {
			_, err := o.Jobs(ctx, operator.Filter{Limit: n})
			return err
		}},
		"Page": {"Filter.Limit", 200, func(ctx context.Context, n int) error {
			_, err := o.Page(ctx, operator.Filter{Kind: "k", Limit: n})
			return err
		}},
		"Audit": {"AuditFilter.Limit", 200, func(ctx context.Context, n int) error {
			_, err := o.Audit(ctx, operator.AuditFilter{Limit: n})
			return err
		}},
		"AuditPage": {"AuditFilter.Limit", 200, func(ctx context.Context, n int) error {
			_, err := o.AuditPage(ctx, operator.AuditFilter{Limit: n})
			return err
		}},
		"QueueActs": {"limit", 200, func(ctx context.Context, n int) error {
			_, err := o.QueueActs(ctx, "mail", none, n)
			return err
		}},
		"Children": {"limit", 200, func(ctx context.Context, n int) error {
			_, err := o.Children(ctx, job, none, n)
			return err
		}},
		"DeadLetters": {"limit", 200, func(ctx context.Context, n int) error {
			_, err := o.DeadLetters(ctx, all, none, n)
			return err
		}},
		"DeadLetterPage": {"limit", 200, func(ctx context.Context, n int) error {
			_, err := o.DeadLetterPage(ctx, all, none, n)
			return err
		}},
		"DeadLetterGroups": {"limit", 200, func(ctx context.Context, n int) error {
			_, err := o.DeadLetterGroups(ctx, all, n)
			return err
		}},
		"Held": {"limit", 200, func(ctx context.Context, n int) error {
			_, err := o.Held(ctx, "orders", operator.HeldPlace{}, n)
			return err
		}},
		"Keys": {"KeyFilter.Limit", 200, func(ctx context.Context, n int) error {
			_, err := o.Keys(ctx, operator.KeyFilter{Limit: n})
			return err
		}},
		"Operations": {"limit", 200, func(ctx context.Context, n int) error {
			_, err := o.Operations(ctx, none, none, n)
			return err
		}},
		"LongestRunning": {"limit", 200, func(ctx context.Context, n int) error {
			_, err := o.LongestRunning(ctx, "mail", none, n)
			return err
		}},
		"SchedulesPage": {"SchedulesQuery.Limit", 10_000, func(ctx context.Context, n int) error {
			_, err := o.SchedulesPage(ctx, operator.SchedulesQuery{Limit: n})
			return err
		}},
		"OverdueSchedules": {"limit", 10_000, func(ctx context.Context, n int) error {
			_, err := o.OverdueSchedules(ctx, none, time.Minute, n)
			return err
		}},
	} {
		for _, n := range []int{-1, list.most + 1, math.MaxInt32 + 2} {
			err := list.ask(t.Context(), n)
			if refused, ok := errors.AsType[*outbox.InvalidError](err); !ok || refused.Field != list.field {
				t.Errorf("%s with limit %d: %v, want %s refused", name, n, err, list.field)
			}
		}
		for _, n := range []int{0, 1, list.most} {
			if err := list.ask(t.Context(), n); err != nil {
				t.Errorf("%s with limit %d: %v", name, n, err)
			}
		}
	}
}
