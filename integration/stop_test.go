package integration

import (
	"syscall"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// exitMargin is what a stop may take beyond its grace period on a busy machine.
const exitMargin = 15 * time.Second

// Jobs outlast the grace period: they are cut off with that cause, go back with
// no attempt spent and no error recorded, and the exit status is still 0.
func TestStopCutsOffWhatOutlastsTheGracePeriod(t *testing.T) {
	s := newStory(t)
	a := s.worker("a", "OUTBOX_GRACE_PERIOD=1s").ready()
	ids := s.enqueueMany(10, func(i int) task { return task{N: i, Do: "block"} })
	s.awaitEntries(len(ids), "start")
	a.terminate()
	if code := a.exit(exitMargin); code != 0 {
		t.Errorf("exit status %d, want 0", code)
	}
	for _, e := range s.awaitEntries(len(ids), "end") {
		if e.Cause != "shutting down: the grace period is over" {
			t.Errorf("job %d was cut off with cause %q", e.N, e.Cause)
		}
	}
	if n := s.count(`SELECT count(*) FROM outbox.jobs WHERE status = 'pending' AND attempt = 0 AND last_error_code IS NULL`); n != len(ids) {
		t.Errorf("%d of %d jobs went back unharmed", n, len(ids))
	}
	s.checkLedger()
}

// A second signal ends the waiting: the worker is gone long before its grace
// period is over, says by its exit status that it did not stop in order, and its
// jobs run elsewhere when the leases have lapsed.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	const grace = 10 * time.Minute
	s := newStory(t)
	a := s.worker("a", "OUTBOX_GRACE_PERIOD="+grace.String(), "OUTBOX_LEASE_TTL=2s").ready()
	ids := s.enqueueMany(10, func(i int) task { return task{N: i, Do: "gated"} })
	s.awaitEntries(len(ids), "start", byWorker("a"))
	a.terminate()
	s.await("the worker to drain", func() bool { return len(a.logged("stopping")) > 0 })
	// A signal right after the first would count as the same; this one is repeated
	// until it does not.
	s.awaitFor(exitMargin, "the worker to end", func() bool {
		_ = a.Signal(syscall.SIGTERM) // it may just have gone
		return !a.Alive()
	})
	if code := a.exit(patience); code == 0 {
		t.Error("exit status 0, want that of a stop that was not orderly")
	}
	s.exec(`INSERT INTO gates DEFAULT VALUES`)
	s.worker("b")
	s.awaitClosed(len(ids))
	for _, id := range ids {
		if got := s.row(id); got.LostLeases != 1 {
			t.Errorf("got %+v, want one lost lease", got)
		}
	}
	s.checkClosed(ids)
	s.checkEffects(ids)
	s.checkLedger()
}

// SIGTERM arrives while the database is down and outcomes wait to be stored: the
// worker does not hang on to them for ever but exits, and once the database is
// back the jobs run again.
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
