package watch_test

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// notified waits until a reader of acts is notified of one, and reports whether it is within so long.
func notified(r *watch.ActsReader, within time.Duration) bool {
	select {
	case <-r.Notified():
		return true
	case <-time.After(within):
		return false
	}
}

// An act on a queue is notified to all, one on a tenant's schedule to those who see that tenant, and one on a job to
// nobody.
func TestActsNotifyThoseWhoSeeThem(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	a, b := outbox.NewID(), outbox.NewID()
	acts := watch.NewActs(db, watch.ChangesConfig{LookEvery: 20 * time.Millisecond}, nil)
	readers := map[string]*watch.ActsReader{}
	for name, tenant := range map[string]outbox.ID{"all": {}, "a": a, "b": b} {
		r, err := acts.Open(t.Context(), tenant)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		readers[name] = r
	}
	record := func(act string, tenant any, job any) {
		t.Helper()
		if _, err := db.Exec(t.Context(), `INSERT INTO outbox.audit (actor, act, tenant_id, job_id) VALUES ('ada', $1, $2, $3)`, act, tenant, job); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		act         string
		tenant, job any
		notified    map[string]bool
	}{
		{"job.retry", a, outbox.NewID(), nil},
		{"schedule.pause", a, nil, map[string]bool{"all": true, "a": true}},
		{"queue.pause", nil, nil, map[string]bool{"all": true, "a": true, "b": true}},
	} {
		record(c.act, c.tenant, c.job)
		for name, r := range readers {
			within := 10 * time.Second
			if !c.notified[name] {
				within = 200 * time.Millisecond
			}
			if got := notified(r, within); got != c.notified[name] {
				t.Errorf("%s: %s is notified: %t, want %t", c.act, name, got, c.notified[name])
			}
		}
	}
}
