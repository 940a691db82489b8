package operator_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
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

func TestQueuesSayWhatIsUnavailable(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	since := time.Now().Add(-time.Hour).Truncate(time.Second)
	for _, kind := range []string{"mail", "mail", "bill"} {
		id := enqueue(t, db, kind, outbox.Options{Queue: "post"})
		if _, err := db.Exec(t.Context(), `UPDATE outbox.jobs SET unavailable_since = $2, run_at = now() + interval '1 hour' WHERE id = $1`, id, since); err != nil {
			t.Fatal(err)
		}
		since = since.Add(time.Minute)
	}
	// What is due again does not know: its need may be back.
	exec(t, db, `UPDATE outbox.jobs SET unavailable_since = now(), run_at = now() - interval '10 minutes' WHERE id = $1`, enqueue(t, db, "mail", outbox.Options{}))
	queues, err := o.Queues(t.Context())
	if err != nil || len(queues) != 2 {
		t.Fatalf("queues = %+v, %v, want two", queues, err)
	}
	if got := queues[0].Unavailable; got != nil {
		t.Errorf("in the default queue %v is unavailable, want nothing", got)
	}
	got := queues[1].Unavailable
	if want := since.Add(-3 * time.Minute); len(got) != 2 || !got["mail"].Equal(want) || !got["bill"].Equal(want.Add(2*time.Minute)) {
		t.Errorf("in the queue post %v is unavailable, want mail since %s and bill two minutes later", got, want)
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

// A name that no job can have stores nothing. A producer that inserts into outbox.jobs
// itself can use any name that the database takes: it is as easily stopped as any
// other.
func TestAQueueHasANameThatJobsCanHave(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	ctx := t.Context()
	act := func(queue string) map[string]error {
		_, _, limit := o.Limit(ctx, queue, operator.Limits{MaxRunning: new(1)})
		return map[string]error{"pause": o.Pause(ctx, queue), "resume": o.Resume(ctx, queue), "limit": limit}
	}
	odd := []string{"mail ", " mail", "no such!", "-mail", "Küche", "a\tb", strings.Repeat("é", 64)}
	for _, queue := range append(odd, strings.Repeat("q", 129), strings.Repeat("é", 65)) {
		for name, err := range act(queue) {
			if found, ok := errors.AsType[*outbox.InvalidError](err); !ok || found.Field != "queue" {
				t.Errorf("%s of %q: got %v, want an InvalidError of queue", name, queue, err)
			}
		}
	}
	var stored int
	if err := db.QueryRow(ctx, `SELECT (SELECT count(*) FROM outbox.queues) + (SELECT count(*) FROM outbox.audit)`).Scan(&stored); err != nil || stored != 0 {
		t.Errorf("rows stored = %d, %v; want 0", stored, err)
	}
	for _, queue := range odd {
		if _, err := db.Exec(ctx, `INSERT INTO outbox.jobs (id, kind, queue, payload) VALUES (outbox.uuid_v7(), 'mail', $1, '{}')`, queue); err != nil {
			t.Fatalf("the database refuses %q: %v", queue, err)
		}
		if err := o.Pause(ctx, queue); err != nil {
			t.Errorf("pause of %q, which has a job: %v", queue, err)
		}
		if got := len(claim(t, db, queue)); got != 0 {
			t.Errorf("jobs claimed from %q, which is paused = %d, want 0", queue, got)
		}
	}
	if _, err := db.Exec(ctx, `DELETE FROM outbox.jobs`); err != nil {
		t.Fatal(err)
	}
	for _, queue := range odd { // without jobs, but paused
		for name, err := range act(queue) {
			if err != nil {
				t.Errorf("%s of %q, which has a rule: %v", name, queue, err)
			}
		}
	}
}
