package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/outbox"
)

// deafPickup is what a deaf worker may take to find a job: it looks every two
// seconds, whatever its poll interval is; the rest is for a busy machine.
const deafPickup = 10 * time.Second

// Nobody answers at the listener's address: the worker says that it is deaf, goes on
// being ready, and finds jobs by polling every two seconds, although it was told to poll
// every five minutes. Rows C2 and C4 of the scorecard have the other ways to be deaf.
func TestTheListenersAddressIsDead(t *testing.T) {
	s := newStory(t)
	p, dsn := s.newProxy()
	p.Refuse.Store(true)
	a := s.worker("a", "OUTBOX_LISTEN_URL="+dsn)
	s.await("the listener to try again and again", func() bool { return p.Refused.Load() > 5 })
	s.staysDeaf(a)
}

func (s *story) staysDeaf(a *process) {
	s.Helper()
	a.awaitReadyz(http.StatusOK, "degraded", "listener", "deaf", "dispatcher", "working")
	for range 3 {
		s.Logf("picked up after %s", s.picksUp(deafPickup))
	}
	if code, r := a.readyz(); code != http.StatusOK || r.Status != "degraded" {
		s.Errorf("/readyz is %d %s in the end, want 200 degraded", code, r.Status)
	}
	s.checkLedger()
}

// newProxy leads to the story's server; dsn is that of its database by way of it.
func (s *story) newProxy() (p *fault.Proxy, dsn string) {
	s.Helper()
	p, dsn, err := fault.NewProxy(s.url)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(p.Close)
	return p, dsn
}

// picksUp enqueues a job and fails if it does not start in time.
func (s *story) picksUp(within time.Duration) time.Duration {
	s.Helper()
	sent := time.Now()
	id := s.enqueue(task{Do: "nothing"})
	var starts []entry
	s.awaitFor(within, "a job to be picked up", func() bool {
		starts = s.ledger.of("start", ofJob(id))
		return len(starts) > 0
	})
	took := starts[0].At.Sub(sent)
	s.awaitStatus(id, outbox.Succeeded)
	return took.Round(time.Millisecond)
}
