package integration

import (
	"fmt"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox"
)

// One job kills its process whenever it runs, among 200 good ones, and a supervisor restarts the process: the job is
// executed exactly as often as it has attempts, and is then dead and waits for a person. All others succeed.
func TestAPoisonJobIsBounded(t *testing.T) {
	s := newStory(t)
	ids := s.enqueueMany(100, func(i int) task { return task{N: i, Do: "effect", Ms: 50} })
	poison := s.enqueue(task{N: 666, Do: "exit"}, outbox.Options{MaxAttempts: 3})
	ids = append(ids, s.enqueueMany(100, func(i int) task { return task{N: 100 + i, Do: "effect", Ms: 50} })...)

	deaths := 0
	start := func() *process {
		p := s.worker(fmt.Sprintf("w%d", deaths), "OUTBOX_LEASE_TTL=2s", "VERIFY_CONCURRENCY=8")
		p.MayEnd()
		return p
	}
	worker := start()
	s.await("the poison job's death and everything else's success", func() bool {
		if !worker.Alive() {
			deaths++
			worker = start()
		}
		return s.row(poison).Status == "dead" && s.closed() == len(ids)
	})
	if got := s.row(poison); got.Attempt != 3 || got.LostLeases != 3 {
		t.Errorf("the poison job is %+v, want 3 attempts, each with a lost lease", got)
	}
	if n := len(s.ledger.of("start", ofJob(poison))); n != 3 || deaths != 3 {
		t.Errorf("the poison job was executed %d times and killed %d workers, want 3", n, deaths)
	}
	s.checkClosed(ids)
	s.checkEffects(ids)
	s.checkLedger()
}
