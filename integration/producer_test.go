package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// A producer with eight connections places orders, each with a job in the same
// transaction, and is killed with -9 twenty times in the middle of it: no order
// is without its job, no job without its order, and what was acknowledged is
// there. Then the jobs run: one effect an order.
func TestAKilledProducerLeavesNoOrphans(t *testing.T) {
	s := newStory(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for i := range 20 {
		before := s.count(`SELECT count(*) FROM orders`)
		p := s.start(programs.worker, fmt.Sprintf("p%d", i), nil, "verify-producer")
		s.await("the producer to be at work", func() bool { return s.count(`SELECT count(*) FROM orders`) > before+50 })
		time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond) // where in its work it dies
		p.kill9()
	}
	// What the last of them sent may still be under way in the server.
	s.await("the producers' sessions to end", func() bool {
		return s.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name <> 'story' AND backend_type = 'client backend'`) == 0
	})

	const keys = `SELECT convert_from(payload, 'UTF8')::jsonb ->> 'key' AS id FROM outbox.jobs`
	if n := s.count(`SELECT count(*) FROM orders WHERE id NOT IN (` + keys + `)`); n > 0 {
		t.Errorf("%d orders have no job", n)
	}
	if n := s.count(`SELECT count(*) FROM (` + keys + `) AS job WHERE id NOT IN (SELECT id FROM orders)`); n > 0 {
		t.Errorf("%d jobs have no order", n)
	}
	orders, acked := s.count(`SELECT count(*) FROM orders`), 0
	known := map[string]bool{}
	for _, id := range s.texts(`SELECT id FROM orders`) {
		known[id] = true
	}
	for _, e := range s.ledger.of("acked") {
		if acked++; !known[e.Key] {
			t.Errorf("order %s was acknowledged and is not there", e.Key)
		}
	}
	t.Logf("%d orders, %d acknowledged", orders, acked)

	s.worker("a")
	s.awaitClosed(orders)
	if n := s.count(`SELECT count(*) FROM (SELECT job_id FROM effects GROUP BY job_id HAVING count(*) = 1) AS once`); n != orders {
		t.Errorf("%d orders have one effect each, want %d", n, orders)
	}
	s.checkLedger()
}
