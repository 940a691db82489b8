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
	q.ownFinds.Store(true)
	return q
}

func (q *paced) look(ctx context.Context) bool { return q.wait(ctx, q.wake) }

// wakeOwn does what Wake leads to.
func (q *paced) wakeOwn() {
	q.producerWoke.Store(true)
	q.poke()
}

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
			q.looked(false, false)
		}
		const looks = 100
		for range looks {
			q.poke() // what comes meanwhile changes nothing
			q.look(t.Context())
			q.looked(false, false)
		}
		if took, want := time.Since(began), looks*time.Second/tokensPerSecond; took < want {
			t.Errorf("%d looks in %s, want them to take %s", looks, took, want)
		}
		q.look(t.Context())
		began = time.Now()
		for range looks {
			q.looked(false, true)
			q.look(t.Context())
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("what finds jobs was held up by %s", took)
		}
	})
}

// Somebody forges notifications, which come during claims as well as between them, while real jobs come. Each of these
// costs a claim, and the notifications cost no more than fifty in a second, whatever the claims find.
func TestForgedNotificationsCostFewClaims(t *testing.T) {
	const jobs, every, claims = 600, 10 * time.Millisecond, time.Millisecond
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		r.set(func() { r.take = func(claimRequest) time.Duration { return claims } })
		forging, end := context.WithCancel(context.Background())
		var forger sync.WaitGroup
		forger.Go(func() {
			for forging.Err() == nil {
				r.capacity.poke()
				time.Sleep(claims / 5)
			}
		})
		before, _ := r.counts()
		for range jobs {
			r.add(outbox.RootTenant, 1, 0)
			r.capacity.poke()
			time.Sleep(every)
		}
		end()
		forger.Wait()
		r.sleep(time.Second / tokensPerSecond)
		const most = jobs + tokensPerSecond*int(jobs*every/time.Second) + 2*maxTokens
		if after, _ := r.counts(); after-before > most {
			t.Errorf("%d claims for %d jobs, want %d at most", after-before, jobs, most)
		}
		if len(r.done) != jobs {
			t.Errorf("%d of %d jobs have succeeded", len(r.done), jobs)
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
					q.wakeOwn()
				} else {
					go func() {
						time.Sleep(time.Second)
						q.poke()
						time.Sleep(time.Second)
						q.wakeOwn()
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
		q.ownFinds.Store(false)
		q.wakeOwn()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if q.look(ctx) {
			t.Error("was answered at once")
		}
	})
}
