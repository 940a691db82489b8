package integration

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Handlers keep every connection of their pool for three times as long as the
// leases, and others wait for one: the leases are extended all the same, no job is
// lost to another worker and none needs a second attempt.
func TestHandlersExhaustTheirPool(t *testing.T) {
	const ttl = 3 * time.Second
	s := newStory(t)
	env := []string{"OUTBOX_LEASE_TTL=" + ttl.String(), "VERIFY_POOL=4", "VERIFY_CONCURRENCY=12"}
	a := s.worker("a", env...).ready()
	hogs := s.enqueueMany(4, func(i int) task { return task{N: i, Do: "hog", Ms: 3 * int(ttl.Milliseconds())} })
	s.awaitEntries(len(hogs), "start")
	queued := s.enqueueMany(8, func(i int) task { return task{N: 4 + i, Do: "effect"} })
	s.awaitEntries(len(hogs)+len(queued), "start")
	s.worker("b", env...).ready() // which would take over

	a.ready()
	ids := append(hogs, queued...)
	s.awaitClosed(len(ids))
	for _, id := range ids {
		if got := s.awaitStatus(id, outbox.Succeeded); got.Attempt != 1 || got.LostLeases != 0 || got.Epoch != 1 {
			t.Errorf("got %+v, want one attempt under one lease", got)
		}
	}
	for _, e := range s.ledger.of("end") {
		if e.Cause != "" {
			t.Errorf("the context of job %d ended: %s", e.N, e.Cause)
		}
	}
	s.checkClosed(ids)
	s.checkEffects(queued)
	s.checkLedger()
}
