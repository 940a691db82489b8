package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A job is enqueued while a worker listens that polls every five minutes only:
// the notification starts it, and it ends succeeded at its first attempt.
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

// A hundred items are created in a burst, a transaction each: all are enriched
// within five seconds.
func TestABurstOfAHundredItems(t *testing.T) {
	s := newStory(t)
	heavy(t)
	s.exec(`INSERT INTO items SELECT n, 'enriching' FROM generate_series(0, 99) AS n`)
	s.worker("a").ready()

	began := time.Now()
	var ids []outbox.ID
	for i := range 100 {
		ids = append(ids, s.enqueue(task{N: i, Do: "enrich"}))
	}
	s.awaitClosed(100)
	took := time.Since(began)
	t.Logf("100 items in %s", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("100 items took %s, want 5s at most", took)
	}
	if n := s.count(`SELECT count(*) FROM items WHERE state = 'ready' AND changes = 1`); n != 100 {
		t.Errorf("%d of 100 items were enriched once", n)
	}
	s.checkClosed(ids)
	s.checkLedger()
}

// Nobody notifies: the poll finds the jobs, and the look that every worker takes
// when it starts finds those of before.
func TestMissedNotification(t *testing.T) {
	s := newStory(t)
	before := s.enqueueSilently(task{Do: "nothing"})
	deaf := s.worker("deaf", "OUTBOX_LISTEN=off") // a listener that connects would wake it
	s.awaitStatus(before, outbox.Succeeded)
	s.stop(deaf)

	s.worker("a", "OUTBOX_POLL_INTERVAL=500ms").ready()
	after := s.enqueueSilently(task{Do: "nothing"})
	if got := s.awaitStatus(after, outbox.Succeeded); got.Attempt != 1 {
		t.Errorf("got %+v, want one attempt", got)
	}
	s.checkLedger()
}

// A worker dies by kill -9 between its effect and the settlement, so that the
// same job is processed twice: the second time leaves the item as it is, both
// with the state under a lock and with the inbox.
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

// Jobs fail and panic at every attempt: they are tried as often as they may be,
// end dead with every attempt logged and the panic's stack kept, and take
// neither the process nor their neighbours down.
func TestFailuresAreBoundedAndLogged(t *testing.T) {
	s := newStory(t)
	s.worker("a", "VERIFY_RETRY=50ms").ready()
	failing := s.enqueueMany(10, func(i int) task { return task{N: i, Do: []string{"fail", "panic"}[i%2]} }, outbox.Options{MaxAttempts: 3})
	good := s.enqueueMany(10, func(i int) task { return task{N: 10 + i, Do: "effect"} })

	for _, id := range failing {
		if got := s.awaitStatus(id, outbox.Dead); got.Attempt != 3 || got.LostLeases != 0 {
			t.Errorf("got %+v, want 3 attempts", got)
		}
	}
	s.awaitClosed(len(good))
	for what, want := range map[string]int{"error_code = 'error' AND stack IS NULL": 15, "error_code = 'panic' AND stack LIKE '%handlers.go%'": 15} {
		if n := s.count(`SELECT count(*) FROM outbox.attempts WHERE ` + what); n != want {
			t.Errorf("%d attempts have %s, want %d", n, what, want)
		}
	}
	if n := len(s.ledger.of("start", func(e entry) bool { return e.Do == "fail" || e.Do == "panic" })); n != 30 {
		t.Errorf("the failing jobs were started %d times, want 30", n)
	}
	s.checkClosed(good)
	s.checkEffects(good)
	s.checkLedger()
}
