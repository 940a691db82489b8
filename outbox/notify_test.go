package outbox

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// recorder is a coalescer whose sends are written down instead.
type recorder struct {
	*coalescer
	start time.Time
	mu    sync.Mutex
	sent  []time.Duration // when each send started
	send  func(context.Context) error
}

func newRecorder() *recorder {
	r := &recorder{coalescer: newCoalescer(nil), start: time.Now()}
	r.coalescer.send = func(ctx context.Context) error {
		r.mu.Lock()
		r.sent = append(r.sent, time.Since(r.start))
		r.mu.Unlock()
		if r.send != nil {
			return r.send(ctx)
		}
		return nil
	}
	return r
}

func TestWakesAreCoalescedWithALeadingAndATrailingEdge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wake func(*recorder)
		want []time.Duration
	}{
		"a lone wake is sent at once": {
			func(r *recorder) { r.wake() },
			[]time.Duration{0},
		},
		"of a burst the first is sent at once and the last when the window is over": {
			func(r *recorder) {
				var wg sync.WaitGroup
				for range 1000 {
					wg.Go(r.wake)
				}
				wg.Wait()
			},
			[]time.Duration{0, coalesceWindow},
		},
		"a wake within the window waits for its end": {
			func(r *recorder) { r.wake(); time.Sleep(coalesceWindow - 1); r.wake() },
			[]time.Duration{0, coalesceWindow},
		},
		"a wake after the window is sent at once": {
			func(r *recorder) { r.wake(); time.Sleep(2 * coalesceWindow); r.wake() },
			[]time.Duration{0, 2 * coalesceWindow},
		},
		"a steady stream is sent once a window, and then its last": {
			func(r *recorder) {
				for range 100 {
					r.wake()
					time.Sleep(coalesceWindow / 30)
				}
			},
			[]time.Duration{0, coalesceWindow, 2 * coalesceWindow, 3 * coalesceWindow, 4 * coalesceWindow},
		},
		"a wake while one is being sent is sent after it": {
			func(r *recorder) {
				r.send = func(context.Context) error { time.Sleep(time.Second); return nil }
				r.wake()
				time.Sleep(time.Second / 2)
				r.wake()
			},
			[]time.Duration{0, time.Second + coalesceWindow},
		},
		"a send that fails is not the last": {
			func(r *recorder) {
				r.send = func(context.Context) error { return errors.New("no connection") }
				r.wake()
				time.Sleep(time.Second)
				r.wake()
			},
			[]time.Duration{0, time.Second},
		},
		"a send that hangs is given up": {
			func(r *recorder) {
				r.send = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
				r.wake()
				time.Sleep(time.Second)
				r.wake()
			},
			[]time.Duration{0, notifyTimeout + coalesceWindow},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRecorder()
				c.wake(r)
				r.flush()
				if diff := cmp.Diff(c.want, r.sent); diff != "" {
					t.Errorf("sends started at (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestFlushWaitsForWhatIsBeingSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		r.flush() // nothing to wait for
		if took := time.Since(r.start); took != 0 {
			t.Errorf("an idle flush took %s", took)
		}
		r.send = func(context.Context) error { time.Sleep(time.Second); return nil }
		r.wake()
		r.wake()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(r.flush)
		}
		wg.Wait()
		if got, want := time.Since(r.start), 2*(time.Second+coalesceWindow); got != want || len(r.sent) != 2 {
			t.Errorf("flushed %d sends after %s, want 2 after %s", len(r.sent), got, want)
		}
	})
}

func TestNotifyModesAreParsed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]NotifyMode{"": NotifyCoalesced, "coalesced": NotifyCoalesced, "transactional": NotifyTransactional, "off": NotifyOff} {
		if got, err := ParseNotifyMode(text); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"Off", "on", " off"} {
		if got, err := ParseNotifyMode(text); err == nil || got != "" {
			t.Errorf("%q is %q, %v; want an error", text, got, err)
		}
	}
}
