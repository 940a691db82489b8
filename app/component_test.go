package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAComponentThatStopsByItselfIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		p := &process{log: slog.New(slog.DiscardHandler)}
		runs := 0
		c := &component{name: "odd", look: func() State { return State{State: stateWorking} }, run: func(context.Context) error {
			runs++
			return errors.New("a reason")
		}}
		go p.supervise(ctx, c)
		time.Sleep(10 * time.Minute) // virtual
		synctest.Wait()
		if runs < 10 || runs > 60 {
			t.Errorf("got %d runs in ten minutes, want some that are minutes apart at most", runs)
		}
		if got := c.state(); got != (State{State: stateFailed, Detail: "a reason"}) {
			t.Errorf("got %+v, want failed with the reason", got)
		}
		stop()
		synctest.Wait()
		if got := c.state(); got.State != stateStopped {
			t.Errorf("got %+v after the stop, want stopped", got)
		}
	})
}

// Run, and with it the exit status, says what did not stop in good order.
func TestAComponentThatDoesNotStopInGoodOrderIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := errors.New("2 handlers still run")
		p := &process{log: slog.New(slog.DiscardHandler)}
		for _, err := range []error{nil, left} {
			p.components = append(p.components, &component{name: "worker", run: func(ctx context.Context) error { <-ctx.Done(); return err }})
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			var all sync.WaitGroup
			for _, c := range p.components {
				all.Go(func() { p.supervise(ctx, c) })
			}
			all.Wait()
		}()
		synctest.Wait()
		stop()
		if err := p.awaitEnd(ended); !errors.Is(err, left) {
			t.Errorf("got %v, want what the component said", err)
		}
	})
}

func TestAComponentWaitsForTheSchema(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		p := &process{log: slog.New(slog.DiscardHandler), gate: newGate(nil, Config{}, new(readiness))}
		c := &component{
			name: "worker", needSchema: true, look: func() State { return State{State: stateWorking} },
			run: func(ctx context.Context) error { <-ctx.Done(); return nil },
		}
		go p.supervise(ctx, c)
		synctest.Wait()
		if got := c.state(); got.State != stateWaiting {
			t.Errorf("got %+v before the schema is there, want waiting", got)
		}
		close(p.gate.open)
		synctest.Wait()
		if got := c.state(); got.State != stateWorking {
			t.Errorf("got %+v, want working", got)
		}
	})
}
