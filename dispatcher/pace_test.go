package dispatcher

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// paced is a claim loop's waker and its pace.
type paced struct {
	*waker
	pace
	found bool // by the last look
}

// exhausted returns a pace that has looked in vain so often that it has no token for the next look within an hour.
func exhausted() *paced {
	q := &paced{waker: newWaker()}
	q.tokens, q.counted = -tokensPerSecond*3600, time.Now()
	q.ownFinds.Store(true)
	return q
}

func (q *paced) look(ctx context.Context) bool { return q.wait(ctx, q.found, q.wake) }

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
		}
		const looks = 100
		for range looks {
			q.poke() // what comes meanwhile changes nothing
			q.look(t.Context())
		}
		if took, want := time.Since(began), looks*time.Second/tokensPerSecond; took < want {
			t.Errorf("%d looks in %s, want them to take %s", looks, took, want)
		}
		q.found = true
		began = time.Now()
		for range looks {
			q.look(t.Context())
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("what finds jobs was held up by %s", took)
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
