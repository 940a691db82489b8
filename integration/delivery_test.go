package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A job is enqueued while a worker listens that polls only every five minutes: the notification starts it, and it
// succeeds on its first attempt.
func TestEnqueueWakesAWorker(t *testing.T) {
	s := newStory(t)
	s.worker("a").ready()

	var took []time.Duration
	for i := range 20 {
		sent := time.Now()
		id := s.enqueue(task{N: i, Do: "effect"})
		took = append(took, s.awaitEntries(1, "start", ofJob(id))[0].At.Sub(sent))
		if got := s.awaitStatus(id, outbox.Succeeded); got.Attempt != 1 || got.LostLeases != 0 {
			t.Errorf("job %d: got %+v, want one attempt and no lost lease", i, got)
		}
	}
	t.Logf("from before the insert to the handler: p50 %s, max %s", percentile(took, 50), percentile(took, 100))
	// Ten polls of a deaf listener would have taken longer.
	if slow := percentile(took, 50); slow > time.Second {
		t.Errorf("a job takes %s to start, want less than a second", slow)
	}
	s.checkLedger()
}

// A worker dies by kill -9 between its effect and the settlement, so that the same job runs twice: the second run
// leaves the item unchanged, both with the state under a lock and with the inbox.
func TestProcessedTwiceChangedOnce(t *testing.T) {
	s := newStory(t)
	s.exec(`INSERT INTO items VALUES (1, 'enriching'), (2, 'enriching')`)
	a := s.worker("a", "OUTBOX_LEASE_TTL=2s").ready()
	ids := []outbox.ID{
		s.enqueue(task{N: 1, Do: "enrich", Ms: 600_000}),
		s.enqueue(task{N: 2, Do: "receive", Key: "message-2", Ms: 600_000}),
	}
	s.awaitEntries(2, "effect", byWorker("a"))
	first := s.texts(`SELECT items::text FROM items ORDER BY id`)
	a.kill9()

	s.worker("b", "OUTBOX_LEASE_TTL=2s").ready()
	for _, id := range ids {
		if got := s.awaitStatus(id, outbox.Succeeded); got.Attempt != 2 {
			t.Errorf("got %+v, want attempt 2", got)
		}
	}
	s.awaitEntries(2, "end", byWorker("b"))
	if second := s.texts(`SELECT items::text FROM items ORDER BY id`); !slices.Equal(first, second) {
		t.Errorf("the items changed from %v to %v", first, second)
	}
	if n := s.count(`SELECT sum(changes) FROM items`); n != 2 {
		t.Errorf("two items were changed %d times", n)
	}
	s.checkLedger()
}
