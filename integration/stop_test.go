package integration

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// exitMargin is how much longer than its grace period a stop may take on a busy machine.
const exitMargin = 15 * time.Second

// SIGTERM arrives while the database is down and outcomes wait to be stored: the worker does not wait forever but
// exits, and once the database is back the jobs run again.
func TestStopWhileTheDatabaseIsDown(t *testing.T) {
	const grace = 3 * time.Second
	s := newFaultStory(t)
	a := s.worker("a", "OUTBOX_GRACE_PERIOD="+grace.String(), "OUTBOX_LEASE_TTL=3s", "VERIFY_CONCURRENCY=200").ready()
	ids := s.enqueueMany(200, func(i int) task { return task{N: i, Do: "sleep", Ms: 25 * i} })
	s.awaitEntries(len(ids), "start")
	if err := s.server.Kill9(); err != nil {
		t.Fatal(err)
	}
	a.awaitReadyz(503, "unready", "database", "down")
	asked := time.Now()
	a.terminate()
	code := a.exit(grace + exitMargin)
	t.Logf("gone after %s with a grace period of %s, exit status %d", time.Since(asked).Round(time.Millisecond), grace, code)

	if err := s.server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.worker("b", "OUTBOX_LEASE_TTL=3s").ready()
	s.awaitClosed(len(ids))
	for _, id := range ids {
		if got := s.awaitStatus(id, outbox.Succeeded); got.Attempt != 1 {
			t.Errorf("got %+v, want attempt 1: an outage spends none", got)
		}
	}
	s.checkClosed(ids)
	s.checkLedger()
}
