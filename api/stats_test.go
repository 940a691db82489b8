package api

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// slowCounts is a cache whose counts take a second of virtual time, or so long.
type slowCounts struct {
	*statsCache
	t        *testing.T
	stop     chan struct{}
	mu       sync.Mutex
	made     map[outbox.ID]int64
	running  map[outbox.ID]bool
	failures error
	takes    time.Duration
	tenants  bool // the count of all says what each tenant has
}

func newSlowCounts(t *testing.T) *slowCounts {
	s := &slowCounts{t: t, stop: make(chan struct{}), made: map[outbox.ID]int64{}, running: map[outbox.ID]bool{}, takes: time.Second}
	s.statsCache = &statsCache{stopping: s.stop, count: func(tenant outbox.ID) (jobs operator.OpenJobs, byTenant map[outbox.ID]operator.OpenJobs, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.running[tenant] {
			t.Error("two counts of one tenant at once")
		}
		s.running[tenant] = true
		takes := s.takes
		s.mu.Unlock()
		time.Sleep(takes)
		s.mu.Lock()
		s.running[tenant] = false
		s.made[tenant]++
		if s.tenants && tenant.IsZero() {
			byTenant = map[outbox.ID]operator.OpenJobs{{1}: jobsOf(outbox.ID{1}, 100)}
		}
		return jobsOf(tenant, s.made[tenant]), byTenant, s.failures
	}}
	return s
}

// jobsOf are in a queue named for their tenant.
func jobsOf(tenant outbox.ID, n int64) operator.OpenJobs {
	return operator.OpenJobs{tenant.String(): {outbox.Pending: n}}
}

// ask returns the number of the count that was shown, and how long it took.
func (s *slowCounts) ask(tenant outbox.ID) (n int64, took time.Duration, err error) {
	s.t.Helper()
	began := time.Now()
	got, err := s.look(s.t.Context(), tenant)
	if err != nil {
		return 0, time.Since(began), err
	}
	if age := time.Since(got.asOf); age > recountBy {
		s.t.Errorf("shown after %s", age)
	}
	if len(got.jobs) != 1 || got.jobs[tenant.String()] == nil {
		s.t.Errorf("%s was shown %v", tenant, got.jobs)
	}
	return got.jobs[tenant.String()][outbox.Pending], time.Since(began), nil
}

func (s *slowCounts) want(tenant outbox.ID, n int64, took time.Duration) {
	s.t.Helper()
	if got, after, err := s.ask(tenant); err != nil || got != n || after != took {
		s.t.Errorf("shown count %d after %s, %v; want %d after %s", got, after, err, n, took)
	}
}

func (s *slowCounts) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = err
}

func TestNobodyWaitsForACountWhileThereIsAnOlderOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowCounts(t)
		a, b := outbox.ID{1}, outbox.ID{2}
		var both sync.WaitGroup
		for range 2 { // who come first wait, for one count
			both.Go(func() { s.want(a, 1, time.Second) })
		}
		both.Wait()
		s.want(b, 1, time.Second)
		time.Sleep(countedFor - 2*time.Second)
		s.want(a, 1, 0)
		synctest.Wait()
		time.Sleep(3 * time.Second) // old enough to be made anew, but beside the answer
		s.want(a, 1, 0)
		s.want(a, 1, 0)
		time.Sleep(2 * time.Second)
		s.want(a, 2, 0)

		for range 59 { // nobody waits within an hour, however long nobody asked
			time.Sleep(time.Minute)
			if _, took, err := s.ask(b); err != nil || took != 0 {
				t.Fatalf("after a minute: %s, %v", took, err)
			}
		}
		s.mu.Lock()
		if n := s.made[a]; n < 110 || n > 125 {
			t.Errorf("%d counts in the hour in which nobody asked, want one every half a minute", n)
		}
		s.mu.Unlock()
		time.Sleep(2 * keptFor)
		s.mu.Lock()
		n := s.made[b]
		s.mu.Unlock()
		time.Sleep(keptFor)
		s.want(b, n+1, time.Second) // nothing was counted for nobody, and nothing so old is shown
		close(s.stop)
		time.Sleep(time.Minute)
	})
}

func TestAnErrorIsNotHiddenBehindAnOldCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowCounts(t)
		defer close(s.stop)
		s.want(outbox.ID{}, 1, time.Second)
		outage := errors.New("no database")
		s.fail(outage)
		time.Sleep(10 * time.Second)
		s.want(outbox.ID{}, 1, 0)
		time.Sleep(recountBy)
		if _, _, err := s.ask(outbox.ID{}); !errors.Is(err, outage) {
			t.Errorf("after a minute of failures: %v", err)
		}
		s.fail(nil)
		if n, took, err := s.ask(outbox.ID{}); err != nil || took != time.Second || n < 3 {
			t.Errorf("when it is over: %d after %s, %v", n, took, err)
		}
	})
}

// Who asks after an act is shown what it did, if that can be counted soon.
func TestAfterAnActACountIsWaitedForButNotForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowCounts(t)
		defer close(s.stop)
		s.takes = patience - time.Millisecond
		s.want(outbox.ID{}, 1, s.takes)
		time.Sleep(time.Millisecond)
		s.outdate()
		s.want(outbox.ID{}, 2, s.takes)
		s.want(outbox.ID{}, 2, 0)

		s.mu.Lock()
		s.takes = time.Second
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
		s.outdate()
		s.want(outbox.ID{}, 2, patience)
		time.Sleep(time.Second)
		s.want(outbox.ID{}, 3, 0)

		// A count that was under way at the act is not what is waited for.
		time.Sleep(countedFor)
		s.want(outbox.ID{}, 3, 0)
		time.Sleep(time.Second - 10*time.Millisecond)
		s.mu.Lock()
		s.takes = 10 * time.Millisecond
		s.mu.Unlock()
		s.outdate()
		s.want(outbox.ID{}, 5, 20*time.Millisecond)

		s.fail(errors.New("no database"))
		time.Sleep(time.Millisecond)
		s.outdate()
		s.want(outbox.ID{}, 5, 10*time.Millisecond)
	})
}

func TestATenantThatWasNotCountedYetIsShownItsPartOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowCounts(t)
		s.tenants, s.keepAll = true, true
		s.get(outbox.ID{})
		time.Sleep(3 * keptFor) // and nobody asks
		s.mu.Lock()
		if n := s.made[outbox.ID{}]; n < 300 {
			t.Errorf("%d counts of all in three hours, want one every half a minute", n)
		}
		s.mu.Unlock()
		a, none := outbox.ID{1}, outbox.ID{2}
		s.want(a, 100, 0)
		time.Sleep(countedFor + recountEvery)
		if n, took, err := s.ask(a); n == 100 || took != 0 || err != nil { // its own by now
			t.Errorf("shown count %d after %s, %v; want one of its own", n, took, err)
		}
		if got, err := s.look(t.Context(), none); err != nil || len(got.jobs) != 0 {
			t.Errorf("a tenant without jobs is shown %v, %v", got, err)
		}
		for n := range maxCounts { // more than are remembered, but for that of all
			if _, err := s.look(t.Context(), outbox.ID{3, byte(n), byte(n >> 8)}); err != nil {
				t.Fatal(err)
			}
		}
		s.want(a, 100, 0)
		close(s.stop)
		time.Sleep(2 * recountEvery)
		s.mu.Lock()
		n := s.made[outbox.ID{}]
		s.mu.Unlock()
		time.Sleep(keptFor)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.made[outbox.ID{}] != n {
			t.Error("it goes on after the end")
		}
	})
}
