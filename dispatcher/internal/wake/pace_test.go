package wake

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// paced is a claim loop's waker and its pace.
type paced struct {
	*Waker
	Pace
}

// exhausted returns a pace that has looked in vain so often that it has no token for the next look within an hour.
func exhausted() *paced {
	q := &paced{Waker: New()}
	q.tokens, q.counted = 1-tokensPerSecond*3600, time.Now()
	q.OwnFinds = true
	return q
}

func (q *paced) look(ctx context.Context) bool { return q.Wait(ctx, q.Waker) }

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
			q.Looked(Others, false)
		}
		const looks = 100
		for range looks {
			q.Poke() // what comes meanwhile changes nothing
			q.look(t.Context())
			q.Looked(Others, false)
		}
		if took, want := time.Since(began), looks*time.Second/tokensPerSecond; took < want {
			t.Errorf("%d looks in %s, want them to take %s", looks, took, want)
		}
		q.look(t.Context())
		began = time.Now()
		for range looks {
			q.Looked(Others, true)
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
				q.Poke()
				<-q.Signal // a notification, which a look is to answer
				if before {
					q.PokeOwn()
				} else {
					go func() {
						time.Sleep(time.Second)
						q.Poke()
						time.Sleep(time.Second)
						q.PokeOwn()
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
		q.OwnFinds = false
		q.PokeOwn()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if q.look(ctx) {
			t.Error("was answered at once")
		}
	})
}
