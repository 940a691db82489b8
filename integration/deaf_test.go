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

// The listener's address leads to a pooler that swallows LISTEN: the worker says
// that it is deaf, goes on being ready, and finds jobs by polling every two
// seconds, although it was told to poll every five minutes.
func TestAPoolerSwallowsListen(t *testing.T) {
	s := newStory(t)
	p, dsn := s.newProxy()
	p.Swallow.Store(true)
	a := s.worker("a", "OUTBOX_LISTEN_URL="+dsn)
	s.await("the canary to be missed", func() bool { return len(a.logged("listener is deaf")) > 0 })
	s.staysDeaf(a)
}

// The same when nobody answers at the listener's address.
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

// The listener's connection is half-open: the network swallows everything and
// tells nobody. The canary notices, polling takes over although the worker was
// told to poll every five minutes, and once the network is back so are the
// wake-ups.
func TestAHalfOpenListenerIsNoticed(t *testing.T) {
	s := newStory(t)
	p, dsn := s.newProxy()
	a := s.worker("a", "OUTBOX_LISTEN_URL="+dsn).ready()
	s.picksUp(deafPickup)

	p.Refuse.Store(true)
	p.Freeze()
	frozen := time.Now()
	stranded := s.enqueue(task{Do: "nothing"})
	a.awaitReadyz(http.StatusOK, "degraded", "listener", "deaf")
	t.Logf("noticed after %s", time.Since(frozen).Round(time.Second))
	s.awaitFor(deafPickup, "the job whose notification was lost", func() bool { return s.row(stranded).Status == "succeeded" })
	s.picksUp(deafPickup)

	p.Refuse.Store(false)
	a.ready()
	t.Logf("after the reconnect a job starts within %s", s.picksUp(deafPickup))
	s.checkLedger()
}
