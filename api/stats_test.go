package api

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// slowCounts is a cache whose counts take a second of virtual time.
type slowCounts struct {
	*statsCache
	t        *testing.T
	stop     chan struct{}
	mu       sync.Mutex
	made     map[outbox.ID]int64
	running  map[outbox.ID]bool
	failures error

	forgotten bool // then there may be two counts at once
}

func newSlowCounts(t *testing.T) *slowCounts {
	s := &slowCounts{t: t, stop: make(chan struct{}), made: map[outbox.ID]int64{}, running: map[outbox.ID]bool{}}
	s.statsCache = &statsCache{stopping: s.stop, count: func(tenant outbox.ID) ([]operator.Queue, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.running[tenant] && !s.forgotten {
			t.Error("two counts of one tenant at once")
		}
		s.running[tenant] = true
		s.mu.Unlock()
		time.Sleep(time.Second)
		s.mu.Lock()
		s.running[tenant] = false
		s.made[tenant]++
		return []operator.Queue{{Name: tenant.String(), Jobs: map[outbox.Status]int64{outbox.Pending: s.made[tenant]}}}, s.failures
	}}
	return s
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
	if got.queues[0].Name != tenant.String() {
		s.t.Errorf("%s was shown %s", tenant, got.queues[0].Name)
	}
	return got.queues[0].Jobs[outbox.Pending], time.Since(began), nil
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

func TestAForgottenCountIsMadeAnewAndNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowCounts(t)
		s.want(outbox.ID{}, 1, time.Second)
		s.forget()
		s.want(outbox.ID{}, 2, time.Second)
		s.forgotten = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		s.forget()
		if _, err := s.look(ctx, outbox.ID{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who does not wait gets %v", err)
		}
		time.Sleep(time.Second)
		s.want(outbox.ID{}, 3, 0)
		time.Sleep(recountEvery + time.Second) // three timers are over, one of which counts
		s.want(outbox.ID{}, 4, 0)
		close(s.stop)
		time.Sleep(2 * recountEvery)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := s.made[outbox.ID{}]; n != 4 {
			t.Errorf("%d counts: it goes on after the end", n)
		}
	})
}
