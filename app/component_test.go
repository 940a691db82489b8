package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
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

func TestAComponentThatRunsOnceStaysFailedForItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		p := &process{log: slog.New(slog.DiscardHandler)}
		runs := 0
		c := &component{name: "once", run: func(context.Context) error {
			if runs++; runs > 1 {
				return fmt.Errorf("once: %w", backoff.ErrRanBefore)
			}
			return errors.New("a reason")
		}}
		go p.supervise(ctx, c)
		time.Sleep(10 * time.Minute) // virtual
		synctest.Wait()
		if got := c.state(); runs != 2 || got != (State{State: stateFailed, Detail: "a reason"}) {
			t.Errorf("got %+v after %d runs, want failed with the reason after 2", got, runs)
		}
		stop()
	})
}

// A migration that goes on after its context has ended holds the process up as a component does.
func TestAMigrationThatDoesNotStopIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &process{gate: newGate(nil, Config{}, new(readiness))}
		if err := p.awaitEnd(make(chan struct{})); err == nil || !strings.Contains(err.Error(), "migration") {
			t.Errorf("got %v, want that it has not stopped", err)
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
