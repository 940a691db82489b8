package operator_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestADeadLetterIsRetriedWithAllItsAttempts(t *testing.T) {
	t.Parallel()
	for _, status := range []outbox.Status{outbox.Failed, outbox.Dead} {
		t.Run(string(status), func(t *testing.T) {
			t.Parallel()
			o, db := newRig(t)
			id, _ := reach(t, db, status)
			if _, err := db.Exec(t.Context(), `UPDATE outbox.jobs SET backoff = '{1 s,1 h}'`); err != nil {
				t.Fatal(err)
			}
			before := job(t, o, id)
			if !woken(t, db, func() {
				if err := o.Retry(t.Context(), id); err != nil {
					t.Error(err)
				}
			}) {
				t.Error("the dispatchers were not woken")
			}
			after := job(t, o, id)
			if after.Status != outbox.Pending || after.Attempt != 0 || after.LostLeases != 0 || after.Epoch != before.Epoch+1 {
				t.Errorf("after a retry it is %s, attempt %d, epoch %d, want pending, 0, %d", after.Status, after.Attempt, after.Epoch, before.Epoch+1)
			}
			if !slices.Equal(after.Backoff, outbox.Backoff{time.Second, time.Hour}) {
				t.Errorf("after a retry its backoff is %v, want it kept", after.Backoff)
			}
			if len(after.Attempts) != 1 {
				t.Errorf("attempts on record = %d, want the one that failed", len(after.Attempts))
			}
			if claim(t, db, "default")[id] == 0 {
				t.Error("it cannot be claimed")
			}
		})
	}
}

func TestAWaitingJobBecomesDueNow(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	retrying, _ := reach(t, db, outbox.Retrying)
	pending := enqueue(t, db, "mail", outbox.Options{Delay: time.Hour})
	for id, want := range map[outbox.ID]outbox.Status{retrying: outbox.Retrying, pending: outbox.Pending} {
		before := job(t, o, id)
		if err := o.Retry(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		after := job(t, o, id)
		if after.Status != want || after.Attempt != before.Attempt || after.RunAt.After(before.RunAt) || after.Epoch != before.Epoch+1 {
			t.Errorf("after a retry it is %s, attempt %d, due %s, epoch %d", after.Status, after.Attempt, after.RunAt, after.Epoch)
		}
	}
	if got := len(claim(t, db, "default")); got != 2 {
		t.Errorf("jobs that can be claimed now = %d, want 2", got)
	}
}

// The worker of the first attempt was stopped, its job failed otherwise, and an
// operator had it tried again; then the worker goes on:
//
//	worker 1   claim (epoch 1)                                    succeed (epoch 1): refused
//	others                      failed (2)   Retry (3)  claim (4)
//
// The attempt is 1 both times; the epoch is what tells them apart.
func TestARetryFencesAZombie(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id, zombie := reach(t, db, outbox.Failed)
	if err := o.Retry(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if settle(t, db, id, zombie, outbox.Succeeded) {
		t.Fatal("the zombie's outcome was accepted while the job waited")
	}
	epoch := claim(t, db, "default")[id]
	if got := job(t, o, id).Attempt; got != 1 {
		t.Fatalf("attempt = %d, want 1 like the zombie's", got)
	}
	if settle(t, db, id, zombie, outbox.Succeeded) || settle(t, db, id, zombie, outbox.Dead) {
		t.Error("the zombie's outcome was accepted")
	}
	if !settle(t, db, id, epoch, outbox.Succeeded) {
		t.Error("the owner's outcome was refused")
	}
}

func TestADeadLetterIsDismissed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id, _ := reach(t, db, outbox.Dead)
	before := job(t, o, id)
	if err := o.Dismiss(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	after := job(t, o, id)
	if after.Status != outbox.Dismissed || after.FinishedAt.IsZero() || after.Epoch != before.Epoch+1 || after.ErrorCode != "smtp" || len(after.Attempts) != 1 {
		t.Errorf("a dismissed job is %+v", after)
	}
}

func TestActsAreRefusedInOtherStatuses(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	acts := map[string]func(outbox.ID) error{
		"retry":   func(id outbox.ID) error { return o.Retry(t.Context(), id) },
		"dismiss": func(id outbox.ID) error { return o.Dismiss(t.Context(), id) },
	}
	for _, tt := range []struct {
		act    string
		status outbox.Status
	}{
		{"retry", outbox.Running},
		{"retry", outbox.Succeeded},
		{"dismiss", outbox.Running},
		{"dismiss", outbox.Succeeded},
		{"dismiss", outbox.Retrying},
		{"dismiss", outbox.Pending},
	} {
		id, _ := reach(t, db, tt.status)
		before := job(t, o, id)
		err := acts[tt.act](id)
		refused, ok := errors.AsType[*operator.StatusError](err)
		if !ok || refused.Status != tt.status || refused.ID != id || refused.Act != tt.act {
			t.Errorf("%s a job that is %s = %v, want a StatusError", tt.act, tt.status, err)
		}
		if after := job(t, o, id); after.Epoch != before.Epoch || after.Status != before.Status {
			t.Errorf("%s changed a job that is %s", tt.act, tt.status)
		}
	}
}
