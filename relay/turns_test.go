package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// stuck is a sink that executes one call at a time, and whose broker does not answer about messages to one destination.
type stuck struct {
	Turns
	Sink

	mu     sync.Mutex
	hurry  bool // a call had less than its time
	called bool // now
	closed string
}

func (s *stuck) Close() error {
	s.closed = fmt.Sprintf("during a call: %t", s.called)
	return nil
}

func (s *stuck) Publish(ctx context.Context, batch []Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called = true
	defer func() { s.called = false }()
	deadline, ok := ctx.Deadline()
	s.hurry = s.hurry || !ok || time.Until(deadline) != publishTimeout
	if batch[0].Destination == "stuck" {
		<-ctx.Done()
		return []error{ctx.Err()}
	}
	return []error{nil}
}

// Eight workers at a time publish to a destination that does not answer. Another kind's batch, and a relay's, wait for
// one of them at most, and each has ten seconds of its own.
func TestASharedSinkIsCalledInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &stuck{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var working sync.WaitGroup
		away, kind := NewCaller(sink), NewCaller(sink)
		for range 8 {
			working.Go(func() {
				for ctx.Err() == nil {
					away.Publish(ctx, []Message{{Destination: "stuck"}})
				}
			})
		}
		p := newSinkClient("s", sink, newMetrics(nil).of("s"), time.Now)
		for range 5 {
			synctest.Wait()
			for what, publish := range map[string]func() error{
				"a relay's": func() error { return p.deliver(ctx, []outgoing{{}}, publishTimeout)[0] },
				"a kind's":  func() error { return kind.Publish(ctx, []Message{{}})[0] },
			} {
				began := time.Now()
				if err := publish(); err != nil {
					t.Errorf("%s batch: %v", what, err)
				}
				if took := time.Since(began); took > publishTimeout {
					t.Errorf("%s batch took %s", what, took)
				}
				time.Sleep(time.Second)
			}
		}
		cancel()
		working.Wait()
		if sink.hurry {
			t.Error("a call had less than its time, or no end")
		}
	})
}

// A caller whose time is over before its turn has sent nothing.
func TestACallThatNeverHasItsTurnIsNotTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCaller(&stuck{})
		long, cancel := context.WithCancel(t.Context())
		var working sync.WaitGroup
		for range 2 { // one has the turn, and one waits for it
			working.Go(func() { c.Publish(long, []Message{{Destination: "stuck"}}) })
		}
		synctest.Wait()
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if outcomes := c.Publish(short, make([]Message, 3)); len(outcomes) != 3 || !errors.Is(outcomes[2], ErrNotTried) {
			t.Errorf("%v", outcomes)
		}
		cancel()
		working.Wait()
	})
}

// A relay that ends while a kind uses its sink closes the sink after that call.
func TestASharedSinkIsClosedBetweenTwoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &stuck{}
		c := NewCaller(sink)
		var working sync.WaitGroup
		working.Go(func() { c.Publish(t.Context(), []Message{{Destination: "stuck"}}) })
		synctest.Wait()
		r := &Relay{publishers: []*publisher{{
			sinkClient: newSinkClient("s", sink, newMetrics(nil).of("s"), time.Now), log: slog.New(slog.DiscardHandler),
		}}}
		r.closeSinks()
		if sink.closed != "during a call: false" {
			t.Errorf("closed %q", sink.closed)
		}
		working.Wait()
	})
}

// late is a sink without Turns, whose calls return when they are let go.
type late struct {
	Sink
	calls atomic.Int32
	letGo chan struct{}
}

func (s *late) Publish(context.Context, []Message) []error {
	s.calls.Add(1)
	<-s.letGo
	return []error{nil}
}

// A sink without Turns may be called concurrently, but not while a call has not returned in time: what that one still
// sends would arrive behind what is sent anew.
func TestASinkWithoutTurnsIsNotCalledWhileACallHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &late{letGo: make(chan struct{})}
		c := NewCaller(sink)
		var working sync.WaitGroup
		for range 2 {
			working.Go(func() { c.Publish(t.Context(), []Message{{}}) })
		}
		synctest.Wait()
		if n := sink.calls.Load(); n != 2 {
			t.Errorf("%d calls at once, want 2", n)
		}
		working.Wait()
		away, ok := errors.AsType[*UnavailableError](c.Publish(t.Context(), []Message{{}})[0])
		if n := sink.calls.Load(); n != 2 || !ok || away.Code != CodeUnanswered {
			t.Errorf("%d calls, %v; want no third, and an outage", n, away)
		}
		close(sink.letGo)
		synctest.Wait()
		if err := c.Publish(t.Context(), []Message{{}})[0]; err != nil {
			t.Errorf("once they have returned: %v", err)
		}
	})
}
