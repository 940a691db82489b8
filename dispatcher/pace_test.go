package dispatcher

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// paced is a claim loop's waker and its pace.
type paced struct {
	*waker
	pace
}

// exhausted returns a pace that has looked in vain so often that it has no token for the next look within an hour.
func exhausted() *paced {
	q := &paced{waker: newWaker()}
	q.tokens, q.counted = 1-tokensPerSecond*3600, time.Now()
	q.ownFinds = true
	return q
}

func (q *paced) look(ctx context.Context) bool { return q.wait(ctx, q.waker) }

func TestWakeUpsForNothingArePaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := exhausted()
		q.tokens = maxTokens
		began := time.Now()
		for range maxTokens {
			if !q.look(t.Context()) || time.Since(began) > 0 {
				t.Fatalf("one of the first %d looks waited for %s", maxTokens, time.Since(began))
			}
			q.looked(byOthers, false)
		}
		const looks = 100
		for range looks {
			q.poke() // what comes meanwhile changes nothing
			q.look(t.Context())
			q.looked(byOthers, false)
		}
		if took, want := time.Since(began), looks*time.Second/tokensPerSecond; took < want {
			t.Errorf("%d looks in %s, want them to take %s", looks, took, want)
		}
		q.look(t.Context())
		began = time.Now()
		for range looks {
			q.looked(byOthers, true)
			q.look(t.Context())
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("what finds jobs was held up by %s", took)
		}
	})
}

// forged returns how many claims a queue with so many workers makes for jobs that come one by one, while somebody
// forges notifications, which come during claims as well as between them. Before them it has done a job of each flow.
func forged(t *testing.T, workers, jobs int, every time.Duration, flows func(rig)) (claims int) {
	t.Helper()
	const each = time.Millisecond // a claim
	inMemory(t, workers, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		flows(r)
		r.capacity.poke()
		r.sleep(time.Minute)
		r.set(func() { r.take = func(claimRequest) time.Duration { return each } })
		forging, end := context.WithCancel(context.Background())
		var forger sync.WaitGroup
		forger.Go(func() {
			for forging.Err() == nil {
				r.capacity.poke()
				time.Sleep(each / 5)
			}
		})
		before, _ := r.counts()
		known := len(r.done)
		for range jobs {
			r.add(outbox.RootTenant, 1, 0)
			r.capacity.poke()
			time.Sleep(every)
		}
		end()
		forger.Wait()
		r.sleep(time.Second / tokensPerSecond)
		after, _ := r.counts()
		claims = after - before
		if done := len(r.done) - known; done != jobs {
			t.Errorf("%d of %d jobs have succeeded", done, jobs)
		}
	})
	return claims
}

// Real jobs cost a claim each, and forged notifications cost no more than fifty looks in a second, whatever the claims
// find: also if a claim has too little room to look at all flows, and so looks at them in turn. A look at jobs with a
// key and at jobs without one takes two claims.
func TestForgedNotificationsCostFewClaims(t *testing.T) {
	const jobs, every = 600, 10 * time.Millisecond
	const looks = tokensPerSecond*int(jobs*every/time.Second) + 2*maxTokens
	for name, c := range map[string]struct {
		workers, perLook int
		flows            func(rig)
	}{
		"one flow":   {4, 1, func(rig) {}},
		"with a key": {16, 2, func(r rig) { r.addKeyed(outbox.RootTenant, 1, 0, "k") }},
		"one worker": {1, 2, func(r rig) { r.addKeyed(outbox.RootTenant, 1, 0, "k") }},
		"more tenants than workers": {2, 6, func(r rig) {
			for n := range 6 {
				r.add(numbered(n), 1, 0)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if n := forged(t, c.workers, jobs, every, c.flows); n > c.perLook*(jobs+looks) {
				t.Errorf("%d claims for %d jobs, want %d at most", n, jobs, c.perLook*(jobs+looks))
			}
		})
	}
}

// While notifications come all the time, a worker that becomes free gets its next job at once.
func TestForgedNotificationsDoNotDelayTheUseOfRoom(t *testing.T) {
	const jobs, each = 100, 50 * time.Millisecond
	inMemory(t, 1, func(context.Context, *outbox.Job[tiny]) error { time.Sleep(each); return nil }, Config{}, func(r rig) {
		r.add(outbox.RootTenant, jobs, 0)
		began := time.Now()
		for len(r.done) < jobs && time.Since(began) < time.Minute {
			r.capacity.poke()
			time.Sleep(time.Millisecond / 5)
		}
		if took, want := time.Since(began), jobs*each; took > want+want/50 {
			t.Errorf("%d jobs took %s, want %s", jobs, took, want)
		}
	})
}

// Room that a drain has answered lets no notification through that comes later.
func TestAnsweredRoomIsForgotten(t *testing.T) {
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		r.capacity.roomMade()
		r.sleep(time.Second)
		if r.capacity.hasRoom.Load() {
			t.Error("a notification would need no token because of room that was used long ago")
		}
	})
}

// Notifications from elsewhere have used up the tokens when the attached producer commits a job: before a look, or
// while one is awaited.
func TestTheOwnProducersJobsDoNotWaitForOthers(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"before": true, "meanwhile": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := exhausted()
				q.poke()
				<-q.wake // a notification, which a look is to answer
				if before {
					q.pokeOwn()
				} else {
					go func() {
						time.Sleep(time.Second)
						q.poke()
						time.Sleep(time.Second)
						q.pokeOwn()
					}()
				}
				began := time.Now()
				if !q.look(t.Context()) || time.Since(began) > 2*time.Second {
					t.Errorf("the own producer's job waited for %s", time.Since(began))
				}
			})
		})
	}
}

// In a program whose jobs are all for other processes, its own wake-ups are paced like any.
func TestOwnWakeUpsForNothingArePaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := exhausted()
		q.ownFinds = false
		q.pokeOwn()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if q.look(ctx) {
			t.Error("was answered at once")
		}
	})
}
