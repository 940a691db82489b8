package api

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
)

// hold takes a place for a while, and tells what became of it.
func hold(a *admission, ctx context.Context, d time.Duration, taken, refused *atomic.Int64) {
	leave, err := a.acquire(ctx, ada, func() {})
	if err != nil {
		refused.Add(1)
		return
	}
	taken.Add(1)
	time.Sleep(d)
	leave()
}

// A burst waits its turn; a crowd that does not end is refused soon, and what is
// taken has not waited long.
func TestABurstWaitsAndACrowdIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(2, 13)
		var taken, refused atomic.Int64
		for range 12 {
			go hold(a, t.Context(), 50*time.Millisecond, &taken, &refused)
		}
		time.Sleep(2 * time.Second)
		if taken.Load() != 12 || refused.Load() != 0 {
			t.Fatalf("of a burst %d were taken and %d refused, want all 12 taken", taken.Load(), refused.Load())
		}

		// Ten times as many as there is room for, each asking again at once.
		taken.Store(0)
		var longest atomic.Int64
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		begun := time.Now()
		for range 120 {
			go func() {
				for ctx.Err() == nil {
					asked := time.Now()
					leave, err := a.acquire(ctx, ada, func() {})
					if err != nil {
						refused.Add(1)
						continue
					}
					if waited := time.Since(asked); time.Since(begun) > time.Second {
						longest.Store(max(longest.Load(), int64(waited)))
					}
					taken.Add(1)
					time.Sleep(10 * time.Millisecond)
					leave()
				}
			}()
		}
		<-ctx.Done()
		synctest.Wait()
		if rate := taken.Load() / 20; rate < 150 { // of the 200 that there is room for
			t.Errorf("%d a second were taken, want nearly 200", rate)
		}
		if got := time.Duration(longest.Load()); got > crowdWait {
			t.Errorf("one that was taken had waited %s, want %s at most", got, crowdWait)
		}
		if rate := refused.Load() / 20; rate > 120*int64(time.Second/refusalWait)*3/2 {
			t.Errorf("%d a second were refused: a client that asks again at once is not held back", rate)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if a.working.taken+a.waiting.taken+len(a.working.of)+len(a.waiting.of)+len(a.refusals) != 0 {
			t.Errorf("slots are still taken: %+v", a)
		}
	})
}

func TestWhoGoesAwayWaitsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(1, 1)
		leave, err := a.acquire(t.Context(), ada, func() {})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // one in the queue, one who is being refused
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan error, 2)
			for range 2 {
				go func() { _, err := a.acquire(ctx, ada, func() {}); left <- err }()
			}
			synctest.Wait()
			cancel()
			for range 2 {
				if err := <-left; !errors.Is(err, context.Canceled) {
					t.Errorf("enter = %v, want %v", err, context.Canceled)
				}
			}
		}
		leave()
	})
}

// One whose requests all hang leaves slots to the others, of those that are worked on
// and in the queue, and the others theirs to each other.
func TestOneCallerLeavesPlacesToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(16, 16)
		ctx, release := context.WithCancel(t.Context())
		var taken, refused atomic.Int64
		hang := func(who access.Principal, n int) int64 {
			taken.Store(0)
			for range n {
				go func() {
					leave, err := a.acquire(ctx, who, func() {})
					if err != nil {
						refused.Add(1)
						return
					}
					taken.Add(1)
					<-ctx.Done()
					leave()
				}()
			}
			synctest.Wait()
			return taken.Load()
		}
		for _, c := range []struct {
			who  access.Principal
			want int64
		}{{ada, 12}, {bob, 3}, {cyd, 1}} {
			if n := hang(c.who, 100); n != c.want {
				t.Errorf("%s of tenant %s has %d of 16 slots, want %d", c.who.Name, c.who.Tenant, n, c.want)
			}
		}
		if a.waiting.of[callers.Of(ada)] != 12 {
			t.Errorf("in the queue: %v, want 12 of the first", a.waiting.of)
		}
		release()
		synctest.Wait()
		time.Sleep(time.Second)
		if a.working.taken+a.waiting.taken+len(a.queue) != 0 {
			t.Errorf("slots are still taken: %+v", a)
		}
	})
}

// A caller that makes bearers up is refused at once some times, and then held back, like
// one that asks for more than there is room for.
func TestAFloodOfBadBearersIsHeldBack(t *testing.T) {
	config := Config{Authenticator: nobody{}}.withDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := &server{config: config, log: config.Logger, metrics: newMetrics(nil), admission: newAdmission(64, 128), unknown: callers.NewLimits(unknownRate)}
		mux := http.NewServeMux()
		if _, err := s.register(mux, routes); err != nil {
			t.Fatal(err)
		}
		handler := s.outermost(mux)
		var answers, atOnce atomic.Int32
		began := time.Now()
		for range 3 * unknownRate {
			go func() {
				w, req := httptest.NewRecorder(), httptest.NewRequest("GET", "/jobs", nil)
				req.Header.Set("Authorization", "Bearer made-up")
				handler.ServeHTTP(w, req)
				if w.Code == http.StatusUnauthorized {
					answers.Add(1)
				}
				if time.Since(began) == 0 {
					atOnce.Add(1)
				}
			}()
		}
		synctest.Wait()
		if n := atOnce.Load(); n != unknownRate {
			t.Errorf("%d were answered at once, want %d", n, unknownRate)
		}
		time.Sleep(2 * refusalWait)
		synctest.Wait()
		if n := answers.Load(); n != 3*unknownRate {
			t.Errorf("%d were told that they are not known, want all %d", n, 3*unknownRate)
		}
	})
}

type nobody struct{}

func (nobody) Authenticate(context.Context, string) (access.Principal, error) {
	return access.Principal{}, access.ErrUnauthenticated
}
