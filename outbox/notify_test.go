package outbox

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
)

// recorder is a coalescer whose sends are written down instead.
type recorder struct {
	*coalescer
	start time.Time
	mu    sync.Mutex
	sent  []time.Duration // when each send started, and
	woken []channels      // what it notified
	send  func(context.Context) error
}

func newRecorder() *recorder {
	r := &recorder{coalescer: newCoalescer(nil), start: time.Now()}
	r.coalescer.send = func(ctx context.Context, due channels) error {
		r.mu.Lock()
		r.sent, r.woken = append(r.sent, time.Since(r.start)), append(r.woken, due)
		r.mu.Unlock()
		if r.send != nil {
			return r.send(ctx)
		}
		return nil
	}
	return r
}

// A program that has closed its pool is not kept from ending.
func TestAWakeUpIsGivenUpWhenThePoolIsClosed(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/nothing") // connects when it is used
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
	c := newCoalescer(pool)
	began := time.Now()
	c.wake(jobsChannel)
	if err := c.flush(t.Context()); err != nil || time.Since(began) >= notifyGiveUp {
		t.Errorf("flush = %v after %s, want nil at once", err, time.Since(began))
	}
}

func TestWakesAreCoalescedWithALeadingAndATrailingEdge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wake func(*recorder)
		want []time.Duration
	}{
		"a lone wake is sent at once": {
			func(r *recorder) { r.wake(jobsChannel) },
			[]time.Duration{0},
		},
		"of a burst the first is sent at once and the last when the window is over": {
			func(r *recorder) {
				r.wake(jobsChannel)
				synctest.Wait() // otherwise its NOTIFY might start after all the others, and answer them too
				var wg sync.WaitGroup
				for range 1000 {
					wg.Go(func() { r.wake(jobsChannel) })
				}
				wg.Wait()
			},
			[]time.Duration{0, coalesceWindow},
		},
		"a wake within the window waits for its end": {
			func(r *recorder) { r.wake(jobsChannel); time.Sleep(coalesceWindow - 1); r.wake(jobsChannel) },
			[]time.Duration{0, coalesceWindow},
		},
		"a wake after the window is sent at once": {
			func(r *recorder) { r.wake(jobsChannel); time.Sleep(2 * coalesceWindow); r.wake(jobsChannel) },
			[]time.Duration{0, 2 * coalesceWindow},
		},
		"a steady stream is sent once a window, and then its last": {
			func(r *recorder) {
				for range 100 {
					r.wake(jobsChannel)
					time.Sleep(coalesceWindow / 30)
				}
			},
			[]time.Duration{0, coalesceWindow, 2 * coalesceWindow, 3 * coalesceWindow, 4 * coalesceWindow},
		},
		"a wake while one is being sent is sent after it": {
			func(r *recorder) {
				r.send = func(context.Context) error { time.Sleep(time.Second); return nil }
				r.wake(jobsChannel)
				time.Sleep(time.Second / 2)
				r.wake(jobsChannel)
			},
			[]time.Duration{0, time.Second + coalesceWindow},
		},
		"a send that fails is repeated": {
			func(r *recorder) {
				r.send = func(context.Context) error {
					if len(r.sent) < 3 {
						return errors.New("no connection")
					}
					return nil
				}
				r.wake(jobsChannel)
			},
			[]time.Duration{0, notifyPause, 2 * notifyPause},
		},
		"a send that is repeated answers what came meanwhile": {
			func(r *recorder) {
				r.send = func(context.Context) error {
					if len(r.sent) < 2 {
						return errors.New("no connection")
					}
					return nil
				}
				r.wake(jobsChannel)
				time.Sleep(notifyPause / 2)
				r.wake(jobsChannel)
			},
			[]time.Duration{0, notifyPause},
		},
		"a send that hangs is repeated, then given up": {
			func(r *recorder) {
				r.send = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
				r.wake(jobsChannel)
				time.Sleep(time.Second)
				r.wake(jobsChannel)
			},
			[]time.Duration{0, notifyTimeout + notifyPause, 2 * (notifyTimeout + notifyPause)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRecorder()
				c.wake(r)
				if err := r.flush(t.Context()); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Minute)
				if diff := cmp.Diff(c.want, r.sent); diff != "" {
					t.Errorf("sends started at (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestASendThatKeepsFailingIsGivenUpAndTheNextIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		r.send = func(context.Context) error { return errors.New("no connection") }
		for round := range 2 {
			r.wake(jobsChannel)
			if err := r.flush(t.Context()); err != nil {
				t.Error(err)
			}
			took := time.Since(r.start)
			time.Sleep(time.Minute)
			if want := (round + 1) * (1 + int(notifyGiveUp/notifyPause)); len(r.sent) != want {
				t.Errorf("sent %d times, want %d", len(r.sent), want)
			}
			if want := notifyGiveUp + time.Duration(round)*(notifyGiveUp+time.Minute); took != want {
				t.Errorf("flushed after %s, want %s", took, want)
			}
		}
	})
}

func TestFlushWaitsForWhatIsBeingSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		flush := func() {
			if err := r.flush(t.Context()); err != nil {
				t.Error(err)
			}
		}
		flush() // nothing to wait for
		if took := time.Since(r.start); took != 0 {
			t.Errorf("an idle flush took %s", took)
		}
		r.send = func(context.Context) error { time.Sleep(time.Second); return nil }
		r.wake(jobsChannel)
		time.Sleep(time.Second / 2)
		r.wake(jobsChannel)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(flush)
		}
		wg.Wait()
		if got, want := time.Since(r.start), 2*time.Second+coalesceWindow; got != want || len(r.sent) != 2 {
			t.Errorf("flushed %d sends after %s, want 2 after %s", len(r.sent), got, want)
		}
		time.Sleep(time.Minute)
	})
}

func TestFlushEndsWhileOthersKeepWaking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		r.send = func(context.Context) error { time.Sleep(time.Second); return nil }
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			for ctx.Err() == nil {
				r.wake(jobsChannel)
				time.Sleep(time.Millisecond)
			}
		}()
		time.Sleep(10*time.Millisecond + time.Microsecond) // the first is being sent, the second waits
		if err := r.flush(t.Context()); err != nil {
			t.Error(err)
		}
		if got, want := time.Since(r.start), 2*time.Second+coalesceWindow; got != want {
			t.Errorf("flushed after %s, want %s", got, want)
		}
		stop()
		time.Sleep(time.Minute)
	})
}

func TestTheContextBoundsAFlush(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		r.send = func(context.Context) error { time.Sleep(time.Second); return nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		r.wake(jobsChannel)
		if err := r.flush(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(r.start) != time.Second/2 {
			t.Errorf("flushed after %s, %v; want the end of the context after 500ms", time.Since(r.start), err)
		}
		time.Sleep(time.Second)
		if err := r.flush(ctx); err != nil {
			t.Errorf("with nothing to wait for: %v", err)
		}
	})
}

func TestNotifyModesAreParsed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]NotifyMode{"": NotifyCoalesced, "coalesced": NotifyCoalesced, "transactional": NotifyTransactional, "off": NotifyOff} {
		if got, err := NotifyMode(text).orDefault(); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"Off", "on", " off"} {
		if got, err := NotifyMode(text).orDefault(); err == nil || got != "" {
			t.Errorf("%q is %q, %v; want an error", text, got, err)
		}
	}
}
