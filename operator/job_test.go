package operator_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestAJobIsFoundOpenAndClosed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id := enqueue(t, db, "mail", outbox.Options{Queue: "post", Key: outbox.KeyRules{Name: "k"}, Timeout: time.Minute, Backoff: outbox.Backoff{0, time.Hour}, Headers: map[string]string{"a": "b"}})
	j := job(t, o, id)
	if j.ID != id || j.Status != outbox.Pending || j.Kind != "mail" || j.Queue != "post" || j.Key != "k" || j.Timeout != time.Minute || !slices.Equal(j.Backoff, outbox.Backoff{0, time.Hour}) ||
		string(j.Payload) != `{"n":1}` || j.PayloadBytes != 7 || string(j.Headers) != `{"a": "b"}` || j.Tenant != outbox.RootTenant ||
		j.MaxAttempts != engine.DefaultMaxAttempts || j.CreatedAt.IsZero() || !j.StartedAt.IsZero() || !j.FinishedAt.IsZero() {
		t.Errorf("a pending job is %+v", j)
	}
	epoch := claim(t, db, "post")[id]
	if j := job(t, o, id); j.Status != outbox.Running || j.Worker != "worker-1" || j.LeaseExpiresAt.IsZero() || j.Attempt != 1 {
		t.Errorf("a running job is %+v", j)
	}
	settle(t, db, id, epoch, outbox.Succeeded)
	if j := job(t, o, id); j.Status != outbox.Succeeded || !slices.Equal(j.Backoff, outbox.Backoff{0, time.Hour}) || j.FinishedAt.IsZero() || string(j.Result) != "done" || j.Worker != "worker-1" {
		t.Errorf("a closed job is %+v", j)
	}
}

func TestAFailedJobHasItsAttempts(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id, epoch := reach(t, db, outbox.Failed)
	j := job(t, o, id)
	if j.ErrorCode != "smtp" || j.ErrorMessage != "mailbox full" || len(j.Attempts) != 1 {
		t.Fatalf("a failed job is %+v", j)
	}
	if a := j.Attempts[0]; a.Attempt != 1 || a.Epoch != epoch || a.Worker != "worker-1" || a.ErrorCode != "smtp" || a.StartedAt.IsZero() || a.FinishedAt.IsZero() {
		t.Errorf("its attempt is %+v", a)
	}
}

// Operators see which job's end stored a job, wherever that one is now.
func TestAFollowUpNamesItsParent(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id, epoch := reach(t, db, outbox.Running)
	parent := &outbox.Claimed{ID: id, Epoch: epoch, Tenant: outbox.RootTenant}
	child, err := parent.Then(outbox.Raw{KindName: "bill", Payload: []byte("{}")}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if settled, err := engine.SettleSucceeded(t.Context(), db, []engine.Success{{ID: pgvalue.UUID(id), Epoch: epoch, FollowUps: engine.InternalOf(parent).FollowUps.Rows()}}, false); err != nil || len(settled) != 1 {
		t.Fatalf("settled %v, %v", settled, err)
	}
	wantParent := func(status outbox.Status) {
		t.Helper()
		if j := job(t, o, child); j.Status != status || j.Parent != id {
			t.Errorf("the follow-up is %s and of parent %s, want %s, %s", j.Status, j.Parent, status, id)
		}
		listed, err := o.Jobs(t.Context(), operator.Filter{Kind: "bill"})
		if err != nil || len(listed) != 1 || listed[0].Parent != id {
			t.Errorf("listed %+v, %v, want the follow-up with its parent", listed, err)
		}
	}
	wantParent(outbox.Pending)
	epoch = claim(t, db, "default")[child]
	settle(t, db, child, epoch, outbox.Dead)
	wantParent(outbox.Dead)
	if err := o.Dismiss(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	wantParent(outbox.Dismissed)
	if j := job(t, o, id); !j.Parent.IsZero() {
		t.Errorf("the first job has parent %s, want none", j.Parent)
	}
}

func TestAnUnknownJobIsNotFound(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	id := outbox.NewID()
	_, err := o.Job(t.Context(), id)
	for what, err := range map[string]error{
		"find": err, "retry": o.Retry(t.Context(), id), "dismiss": o.Dismiss(t.Context(), id),
	} {
		if !errors.Is(err, operator.ErrNotFound) {
			t.Errorf("%s = %v, want %v", what, err, operator.ErrNotFound)
		}
	}
}

func ids(jobs []operator.Job) (ids []outbox.ID) {
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

func TestJobsAreListedNewestFirstAndByFilter(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	succeeded, _ := reach(t, db, outbox.Succeeded)
	failed, _ := reach(t, db, outbox.Failed)
	dead, _ := reach(t, db, outbox.Dead)
	running, _ := reach(t, db, outbox.Running)
	pending := enqueue(t, db, "bill", outbox.Options{})
	other := enqueue(t, db, "mail", outbox.Options{Queue: "post"})

	tests := map[string]struct {
		filter operator.Filter
		want   []outbox.ID
	}{
		"everything":          {operator.Filter{}, []outbox.ID{other, pending, running, dead, failed, succeeded}},
		"a kind":              {operator.Filter{Kind: "bill"}, []outbox.ID{pending}},
		"a queue":             {operator.Filter{Queue: "post"}, []outbox.ID{other}},
		"closed":              {operator.Filter{Statuses: []outbox.Status{outbox.Succeeded, outbox.Cancelled}}, []outbox.ID{succeeded}},
		"dead letters":        {operator.Filter{Statuses: []outbox.Status{outbox.Failed, outbox.Dead}}, []outbox.ID{dead, failed}},
		"across all places":   {operator.Filter{Statuses: []outbox.Status{outbox.Succeeded, outbox.Dead, outbox.Running}}, []outbox.ID{running, dead, succeeded}},
		"a limit":             {operator.Filter{Limit: 2}, []outbox.ID{other, pending}},
		"the page after that": {operator.Filter{Limit: 2, Before: pending}, []outbox.ID{running, dead}},
		"nothing":             {operator.Filter{Kind: "none"}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			jobs, err := o.Jobs(t.Context(), tt.filter)
			if err != nil {
				t.Fatal(err)
			}
			if got := ids(jobs); !slices.Equal(got, tt.want) {
				t.Errorf("jobs = %v, want %v", got, tt.want)
			}
			for _, j := range jobs {
				if j.Payload != nil || j.PayloadBytes != 7 {
					t.Errorf("payload = %q of %d bytes, want none of 7", j.Payload, j.PayloadBytes)
				}
			}
		})
	}
}

func TestNoMoreThanTheMaximumIsListed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	if _, err := outbox.EnqueueMany(t.Context(), db, slices.Repeat([]outbox.Request{{Args: outbox.Raw{KindName: "mail", Payload: []byte("{}")}}}, 250)); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int]int{0: 50, 10: 10, 200: 200} {
		jobs, err := o.Jobs(t.Context(), operator.Filter{Limit: limit})
		if err != nil || len(jobs) != want {
			t.Errorf("jobs with limit %d = %d, %v, want %d", limit, len(jobs), err, want)
		}
	}
	for _, f := range []operator.Filter{{Limit: -1}, {Statuses: []outbox.Status{"open"}}} {
		_, err := o.Jobs(t.Context(), f)
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("jobs of %+v = %v, want an InvalidError", f, err)
		}
	}
}
