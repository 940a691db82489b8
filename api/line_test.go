package api

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
)

// by returns the context of a request.
func by(ctx context.Context, who access.Principal) context.Context {
	return context.WithValue(ctx, principalKey, who)
}

// One whose requests fill the line is overtaken by one who has none at work.
func TestALineServesThoseFirstWhoHaveLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(2, unlimited)
		served := make(chan string, 20)
		ask := func(name string, who access.Principal) {
			go func() {
				leave, err := l.take(by(t.Context(), who))
				if err != nil {
					t.Error(err)
					return
				}
				served <- name
				time.Sleep(time.Second)
				leave()
			}()
			synctest.Wait()
		}
		for range 6 {
			ask("ada", ada)
		}
		ask("bob", bob)
		ask("cyd", cyd)
		time.Sleep(10 * time.Second)
		synctest.Wait() // for the race detector
		close(served)
		var order []string
		for name := range served {
			order = append(order, name)
		}
		// The two that leave at once do so in any order.
		if len(order) != 8 || slices.Index(order, "bob") > 3 || slices.Index(order, "cyd") > 5 {
			t.Errorf("served: %v, want the others before most of ada's", order)
		}
		if l.working.taken+len(l.working.of)+l.waiting.taken+len(l.waiting.of)+len(l.queue) != 0 {
			t.Errorf("slots are still taken: %+v", l)
		}
	})
}

// A request whose turn does not come has done nothing.
func TestATurnThatDoesNotComeIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(1, unlimited)
		leave, err := l.take(by(t.Context(), ada))
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.take(by(ctx, bob))
		if p := problemOf(err); p.Code != overloaded.name || p.Outcome != outcomeNone || p.retryAfter == 0 {
			t.Errorf("%+v", p)
		}
	})
}

// A caller whose requests have long been waiting shortens its own patience, and nobody else's.
func TestOneCallersQueueLeavesOthersTheirPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(4, 16)
		ask := func(who access.Principal) {
			go func() {
				if leave, err := a.acquire(t.Context(), who, func() {}); err == nil {
					time.Sleep(400 * time.Millisecond)
					leave()
				}
			}()
			synctest.Wait()
		}
		for range 8 {
			ask(ada)
		}
		time.Sleep(300 * time.Millisecond)
		ask(bob)
		ask(bob)
		if of, others := a.patience(callers.Of(ada)), a.patience(callers.Of(bob)); of != crowdWait || others != queueWait {
			t.Errorf("patience is %s and %s, want %s for the crowd's and %s for another's", of, others, crowdWait, queueWait)
		}
		time.Sleep(5 * time.Second)
		ask(cyd)
		if len(a.free) != 1 {
			t.Errorf("callers that have gone are remembered: %v", a.free)
		}
		time.Sleep(time.Second)
	})
}
