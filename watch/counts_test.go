package watch

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// takes is how long a count takes, which is followed by a rest of less than countedFor.
const takes = 100 * time.Millisecond

// slowCounts is a cache whose counts take some virtual time.
type slowCounts struct {
	*Counts
	t        *testing.T
	stop     chan struct{}
	mu       sync.Mutex
	made     map[outbox.ID]int64
	running  bool
	busy     time.Duration // that counts took
	failures error
	takes    time.Duration
	tenants  bool // the count of all says what each tenant has
}

func newSlowCounts(t *testing.T) *slowCounts {
	s := &slowCounts{t: t, stop: make(chan struct{}), made: map[outbox.ID]int64{}, takes: takes}
	s.Counts = &Counts{stopping: s.stop, count: func(tenant outbox.ID) (jobs operator.OpenJobs, byTenant map[outbox.ID]operator.OpenJobs, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.running {
			t.Error("two counts at once")
		}
		s.running = true
		takes := s.takes
		s.mu.Unlock()
		time.Sleep(takes)
		s.mu.Lock()
		s.running = false
		s.busy += takes
		s.made[tenant]++
		if s.tenants && tenant.IsZero() {
			byTenant = map[outbox.ID]operator.OpenJobs{{1}: jobsOf(outbox.ID{1}, 1000+s.made[tenant])}
		}
		return jobsOf(tenant, s.made[tenant]), byTenant, s.failures
	}}
	return s
}

// jobsOf returns n pending jobs of a tenant, in a queue named for it.
func jobsOf(tenant outbox.ID, n int64) operator.OpenJobs {
	return operator.OpenJobs{tenant.String(): {Jobs: map[outbox.Status]int64{outbox.Pending: n}}}
}

// ask returns the number of the count that was shown, and how long it took.
func (s *slowCounts) ask(tenant outbox.ID) (n int64, took time.Duration, err error) {
	s.t.Helper()
	began := time.Now()
	got, err := s.Look(s.t.Context(), tenant)
	if err != nil {
		return 0, time.Since(began), err
	}
	if age := time.Since(got.AsOf); age > recountBy {
		s.t.Errorf("shown after %s", age)
	}
	if len(got.Jobs) != 1 || got.Jobs[tenant.String()].Jobs == nil {
		s.t.Errorf("%s was shown %v", tenant, got.Jobs)
	}
	return got.Jobs[tenant.String()].Jobs[outbox.Pending], time.Since(began), nil
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
			both.Go(func() { s.want(a, 1, takes) })
		}
		both.Wait()
		s.want(b, 1, takes)
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
		s.want(b, n+1, takes) // nothing was counted for nobody, and nothing so old is shown
		close(s.stop)
		time.Sleep(time.Minute)
	})
}

func TestAnErrorIsNotHiddenBehindAnOldCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowCounts(t)
		defer close(s.stop)
		s.want(outbox.ID{}, 1, takes)
		outage := errors.New("no database")
		s.fail(outage)
		time.Sleep(10 * time.Second)
		s.want(outbox.ID{}, 1, 0)
		time.Sleep(recountBy)
		if _, _, err := s.ask(outbox.ID{}); !errors.Is(err, outage) {
			t.Errorf("after a minute of failures: %v", err)
		}
		s.fail(nil)
		if n, took, err := s.ask(outbox.ID{}); err != nil || took != takes || n < 3 {
			t.Errorf("when it is over: %d after %s, %v", n, took, err)
		}
	})
}

// A request after an act gets what it did, if that can be counted soon.
func TestAfterAnActACountIsWaitedForButNotForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowCounts(t)
		defer close(s.stop)
		s.takes = patience - time.Millisecond
		s.want(outbox.ID{}, 1, s.takes)
		time.Sleep(time.Millisecond)
		s.Outdate()
		s.want(outbox.ID{}, 2, s.takes)
		s.want(outbox.ID{}, 2, 0)

		s.mu.Lock()
		s.takes = takes
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
		s.Outdate()
		s.want(outbox.ID{}, 2, patience)
		time.Sleep(time.Second)
		s.want(outbox.ID{}, 3, 0)

		// A count that was under way at the act is not what is waited for.
		time.Sleep(countedFor)
		s.want(outbox.ID{}, 3, 0)
		time.Sleep(takes - 10*time.Millisecond)
		s.mu.Lock()
		s.takes = 10 * time.Millisecond
		s.mu.Unlock()
		s.Outdate()
		s.want(outbox.ID{}, 5, 20*time.Millisecond)

		s.fail(errors.New("no database"))
		time.Sleep(time.Millisecond)
		s.Outdate()
		s.want(outbox.ID{}, 5, 10*time.Millisecond)
	})
}

func TestATenantIsShownItsPartOfAllWhileThatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowCounts(t)
		s.tenants, s.keepAll = true, true
		s.get(outbox.ID{})
		a, none := outbox.ID{1}, outbox.ID{2}
		s.want(a, 1001, takes)  // the first count is under way
		time.Sleep(3 * keptFor) // and nobody asks
		s.mu.Lock()
		n := s.made[outbox.ID{}]
		s.mu.Unlock()
		if n < 110 || n > 125 {
			t.Errorf("%d counts of all in three hours, want one every half a minute in the first", n)
		}
		s.want(a, 1001+n, takes)                            // who comes then waits for one, of all
		for made := n; n == made; time.Sleep(time.Second) { // until one was just made
			s.mu.Lock()
			n = s.made[outbox.ID{}]
			s.mu.Unlock()
		}
		s.want(a, 1000+n, 0)
		time.Sleep(countedFor)
		s.want(a, 1000+n, 0) // older than it may be, so made anew beside the answer
		time.Sleep(countedFor)
		s.want(a, 1001+n, 0)
		if got, err := s.Look(t.Context(), none); err != nil || len(got.Jobs) != 0 {
			t.Errorf("a tenant without jobs is shown %v, %v", got, err)
		}
		s.Outdate()
		s.want(a, 1001+n, patience)
		time.Sleep(time.Second)
		s.want(a, 1002+n, 0)
		time.Sleep(recountEvery)
		s.mu.Lock()
		if s.made[a]+s.made[none] != 0 {
			t.Errorf("%d and %d counts of single tenants, want none", s.made[a], s.made[none])
		}
		s.mu.Unlock()

		// Once the tenants are too many, each is counted.
		s.mu.Lock()
		s.tenants = false
		s.mu.Unlock()
		time.Sleep(2 * recountEvery)
		s.want(a, 1, takes)
		for n := range 2 * maxCounts { // more than are remembered, but for that of all
			s.counts[outbox.ID{3, byte(n), byte(n >> 8)}] = &counts{}
		}
		s.want(none, 1, takes)
		if len(s.counts) != 2 || s.counts[outbox.ID{}] == nil {
			t.Errorf("%d counts are remembered, want that of all and the newest", len(s.counts))
		}
		close(s.stop)
		time.Sleep(2 * recountEvery)
		s.mu.Lock()
		n = s.made[outbox.ID{}]
		s.mu.Unlock()
		time.Sleep(keptFor)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.made[outbox.ID{}] != n {
			t.Error("it goes on after the end")
		}
	})
}

// However many tenants asked once, what is counted for nobody takes a part of one
// connection, and who asks anew waits for a count or two and not for all of theirs.
func TestCountsOfManyTenantsLeaveTheDatabaseToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowCounts(t)
		s.takes = 240 * time.Millisecond
		var asking sync.WaitGroup
		for n := range 125 {
			asking.Go(func() {
				if _, _, err := s.ask(outbox.ID{1, byte(n)}); err != nil {
					t.Error(err)
				}
			})
		}
		asking.Wait()
		s.mu.Lock()
		before := s.busy
		s.mu.Unlock()
		const span = 10 * time.Minute
		time.Sleep(span)
		s.mu.Lock()
		if busy := s.busy - before; busy > span/40 || busy < span/60 {
			t.Errorf("for nobody, counts were made for %s of %s, want a fiftieth of it", busy, span)
		}
		s.mu.Unlock()
		for n := range 10 {
			time.Sleep(time.Duration(n) * 100 * time.Millisecond)
			if _, took, err := s.ask(outbox.ID{2, byte(n)}); err != nil || took > 2*s.takes {
				t.Errorf("who asks first waited %s, %v; want two counts at most", took, err)
			}
		}
		close(s.stop)
		time.Sleep(keptFor)
	})
}
