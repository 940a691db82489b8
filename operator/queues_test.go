package operator_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox"
)

func TestAPausedQueueIsNotClaimedFrom(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	enqueue(t, db, "mail", outbox.Options{Queue: "post"})
	enqueue(t, db, "mail", outbox.Options{})
	for range 2 {
		if err := o.Pause(t.Context(), "post"); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(claim(t, db, "post")); got != 0 {
		t.Errorf("jobs claimed from a paused queue = %d, want 0", got)
	}
	if got := len(claim(t, db, "default")); got != 1 {
		t.Errorf("jobs claimed from another = %d, want 1", got)
	}
	if !woken(t, db, func() {
		if err := o.Resume(t.Context(), "post"); err != nil {
			t.Error(err)
		}
	}) {
		t.Error("the dispatchers were not woken")
	}
	if got := len(claim(t, db, "post")); got != 1 {
		t.Errorf("jobs claimed from a resumed queue = %d, want 1", got)
	}
	if woken(t, db, func() {
		if err := o.Resume(t.Context(), "post"); err != nil {
			t.Error(err)
		}
	}) {
		t.Error("resuming a queue that is not paused woke the dispatchers")
	}
}

func TestQueuesAreCounted(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	reach(t, db, outbox.Dead)
	reach(t, db, outbox.Succeeded) // in the history: not counted
	enqueue(t, db, "mail", outbox.Options{})
	enqueue(t, db, "mail", outbox.Options{})
	enqueue(t, db, "mail", outbox.Options{Queue: "post"})
	for _, queue := range []string{"post", "quiet"} {
		if err := o.Pause(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
	}
	queues, err := o.Queues(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		name   string
		paused bool
		jobs   map[outbox.Status]int64
	}{
		{"default", false, map[outbox.Status]int64{outbox.Pending: 2, outbox.Dead: 1}},
		{"post", true, map[outbox.Status]int64{outbox.Pending: 1}},
		{"quiet", true, map[outbox.Status]int64{}},
	}
	if len(queues) != len(want) {
		t.Fatalf("queues = %+v, want %d", queues, len(want))
	}
	for i, q := range queues {
		if q.Name != want[i].name || q.PausedSince.IsZero() == want[i].paused || !maps.Equal(q.Jobs, want[i].jobs) {
			t.Errorf("queue %d = %+v, want %+v", i, q, want[i])
		}
	}
}

func TestAQueueNeedsAName(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	for _, err := range []error{o.Pause(t.Context(), ""), o.Resume(t.Context(), "")} {
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("got %v, want an InvalidError", err)
		}
	}
}
