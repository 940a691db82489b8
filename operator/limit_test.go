package operator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestLimitsAreSetChangedAndLifted(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	ada := o.As(operator.Actor{Name: "ada", RequestID: "r1"}).Because("the bank asked for it")
	minute := operator.Rate{Starts: 100, Interval: time.Minute}
	for _, step := range []struct {
		limits     operator.Limits
		maxRunning int
		rate       operator.Rate
		heard      bool // by the dispatchers
	}{
		{operator.Limits{MaxRunning: new(0)}, 0, operator.Rate{}, false}, // there is none
		{operator.Limits{MaxRunning: new(5)}, 5, operator.Rate{}, true},
		{operator.Limits{MaxRunning: new(5)}, 5, operator.Rate{}, false},
		{operator.Limits{Rate: &minute}, 5, minute, true},
		{operator.Limits{}, 5, minute, false},
		{operator.Limits{MaxRunning: new(10_000), Rate: &operator.Rate{Starts: 1, Interval: 10 * time.Millisecond}}, 10_000, operator.Rate{Starts: 1, Interval: 10 * time.Millisecond}, true},
		{operator.Limits{Rate: new(operator.Rate{})}, 10_000, operator.Rate{}, true},
		{operator.Limits{MaxRunning: new(0)}, 0, operator.Rate{}, true},
	} {
		heard := woken(t, db, func() {
			maxRunning, rate, err := ada.Limit(t.Context(), "bank", step.limits)
			if err != nil || maxRunning != step.maxRunning || rate != step.rate {
				t.Errorf("set %+v: got %d, %v, %v; want %d, %v", step.limits, maxRunning, rate, err, step.maxRunning, step.rate)
			}
		})
		if heard != step.heard {
			t.Errorf("set %+v: the dispatchers were woken: %v, want %v", step.limits, heard, step.heard)
		}
		queues, err := o.Queues(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var want []operator.Queue
		if step.maxRunning > 0 || step.rate.Starts > 0 {
			want = []operator.Queue{{Name: "bank", MaxRunning: step.maxRunning, Rate: step.rate, Jobs: map[outbox.Status]int64{}}}
		}
		if diff := cmp.Diff(want, queues); diff != "" {
			t.Errorf("set %+v: queues (-want +got):\n%s", step.limits, diff)
		}
	}
	acts := audit(t, o, operator.AuditFilter{Act: "queue.limit", Queue: "bank"})
	if len(acts) != 5 {
		t.Fatalf("acts recorded = %d, want 5: one for each change", len(acts))
	}
	last := acts[1] // newest first: that before was lifted
	if last.Actor != "ada" || last.RequestID != "r1" || last.Reason != "the bank asked for it" ||
		field(t, last.Before, "rate") != "1" || field(t, last.After, "rate") != "<nil>" || field(t, last.After, "max_running") != "10000" {
		t.Errorf("recorded %+v with before %s and after %s", last, last.Before, last.After)
	}
}

// Of a queue that has no limits yet, two operators set one each at the same time: both hold.
func TestLimitsThatAreSetAtOnceAreBothKept(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, _, err := o.WithTx(tx).Limit(t.Context(), "bank", operator.Limits{MaxRunning: new(10)}); err != nil {
		t.Fatal(err)
	}
	minute := operator.Rate{Starts: 600, Interval: time.Minute}
	second := make(chan error, 1)
	go func() {
		maxRunning, rate, err := o.Limit(t.Context(), "bank", operator.Limits{Rate: &minute})
		if err == nil && (maxRunning != 10 || rate != minute) {
			err = fmt.Errorf("the second one set %d and %v", maxRunning, rate)
		}
		second <- err
	}()
	pgtest.AwaitLocks(t, db, 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
	acts := audit(t, o, operator.AuditFilter{Act: "queue.limit", Queue: "bank"})
	if len(acts) != 2 || field(t, acts[0].Before, "max_running") != "10" || field(t, acts[0].Before, "rate") != "<nil>" {
		t.Errorf("recorded %+v", acts)
	}
}

func TestLimitsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	rate := func(starts int, interval time.Duration) operator.Limits {
		return operator.Limits{Rate: &operator.Rate{Starts: starts, Interval: interval}}
	}
	for field, limits := range map[string]operator.Limits{
		"Limits.MaxRunning is -1":             {MaxRunning: new(-1)},
		"Limits.MaxRunning is 10001":          {MaxRunning: new(10_001)},
		"Limits.Rate.Starts is 0":             rate(0, time.Second),
		"Limits.Rate.Starts is 1000001":       rate(1_000_001, time.Second),
		"Limits.Rate.Interval is 0s":          rate(1, 0),
		"Limits.Rate.Interval is 9ms":         rate(1, 9*time.Millisecond),
		"Limits.Rate.Interval is 744h0m0.00":  rate(1, 31*24*time.Hour+time.Millisecond),
		"queue is empty, want 1 to 128 chara": {MaxRunning: new(1)},
	} {
		queue := "bank"
		if strings.HasPrefix(field, "queue") {
			queue = ""
		}
		_, _, err := o.Limit(t.Context(), queue, limits)
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: got %v, want an InvalidError that says %q", limits, err, field)
		}
	}
	if acts := audit(t, o, operator.AuditFilter{}); len(acts) != 0 {
		t.Errorf("recorded %+v, want nothing", acts)
	}
}

// A kind of which no dispatcher has a handler is listed, also while the queue's
// limit is reached; one that has is not.
func TestUnhandledKindsAreListed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	if _, _, err := o.Limit(t.Context(), "default", operator.Limits{MaxRunning: new(1)}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `
		INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing)
		VALUES ('w', '', '{default}', '{1}', '{mail}', true)`); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"mail", "fax", "fax"} {
		enqueue(t, db, kind, outbox.Options{})
	}
	enqueue(t, db, "mail", outbox.Options{Queue: "elsewhere"})
	unhandled, err := o.Unhandled(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, u := range unhandled {
		got[u.Queue+" "+u.Kind] = u.Jobs
	}
	if diff := cmp.Diff(map[string]int64{"default fax": 2, "elsewhere mail": 1}, got); diff != "" {
		t.Errorf("jobs without a handler (-want +got):\n%s", diff)
	}
}
