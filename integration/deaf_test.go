package integration

import (
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// Every notification is dropped while 500 jobs trickle in: the poll finds them all.
func TestEveryNotificationIsDropped(t *testing.T) {
	s := newStory(t)
	s.worker("a", "OUTBOX_POLL_INTERVAL=1s").ready()
	s.worker("b", "OUTBOX_POLL_INTERVAL=1s").ready()
	var ids []outbox.ID
	for i := range 500 {
		ids = append(ids, s.enqueueSilently(task{N: i, Do: "effect"}))
		time.Sleep(4 * time.Millisecond) // the pace
	}
	s.awaitClosed(len(ids))
	s.checkClosed(ids)
	s.checkEffects(ids)
	s.checkLedger()
}

// Somebody without any privilege forges thousands of notifications a second:
// real jobs start as quickly as ever. What the storm costs in queries is row C5 of
// the scorecard: the server counts each wake of a listener as a transaction.
func TestAStormOfForgedNotifications(t *testing.T) {
	const duration = 3 * time.Second
	s := newStory(t)
	heavy(t)
	heavy(t) // a storm beside other heavy stories is a breeze
	stranger := s.stranger()
	s.worker("a").ready()
	s.picksUp(deafPickup)

	var forged atomic.Int64
	var storm sync.WaitGroup
	began := time.Now()
	for range 2 {
		storm.Go(func() { forged.Add(s.forge(stranger, duration)) })
	}
	var slowest time.Duration
	for range time.Tick(duration / 10) {
		if time.Since(began) > duration {
			break
		}
		slowest = max(slowest, s.picksUp(deafPickup))
	}
	storm.Wait()
	t.Logf("%d forged notifications in %s; slowest start of a real job %s", forged.Load(), time.Since(began).Round(time.Millisecond), slowest)
	if forged.Load() < 1000 {
		t.Errorf("only %d notifications could be forged: the story proves nothing", forged.Load())
	}
	if slowest > time.Second {
		t.Errorf("a real job started after %s", slowest)
	}
	s.checkLedger()
}

// stranger is the URL of a role that was granted nothing.
func (s *story) stranger() string {
	s.Helper()
	u, err := url.Parse(s.url)
	if err != nil {
		s.Fatal(err)
	}
	role, password := "stranger_"+u.Path[1:], outbox.NewID().String()
	s.exec(fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD '%s'`, role, password))
	s.Cleanup(func() {
		if _, err := s.db.Exec(background, `DROP ROLE `+role); err != nil {
			s.Error(err)
		}
	})
	u.User = url.UserPassword(role, password)
	return u.String()
}

// forge notifies as fast as it can for a while and returns how often it did.
func (s *story) forge(dsn string, duration time.Duration) (n int64) {
	conn, err := pgx.Connect(background, dsn)
	if err != nil {
		s.Error(err)
		return 0
	}
	defer func() { _ = conn.Close(background) }()
	for began := time.Now(); time.Since(began) < duration; n++ {
		if _, err := conn.Exec(background, `NOTIFY outbox_jobs`); err != nil {
			s.Error(err)
			return n
		}
	}
	return n
}
