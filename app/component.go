package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// A Component is a part of the process that this package does not know, such as the API of package server.
type Component struct {
	Name        string                      // in /readyz, in metrics and in the log
	Run         func(context.Context) error // works until its context ends; is called again if it returns earlier
	Ready       func() error                // why it does not work, or works in part (ErrDegraded), while it runs
	Pool        *pgxpool.Pool               // its connections, closed at the end of the process; nil means none
	QuickPool   *pgxpool.Pool               // more of them, for statements that the others must not delay
	NeedsSchema bool                        // start only once the schema exists

	// Dispatching, if set, receives the presence of the process's dispatcher, if it has one, before anything runs.
	Dispatching func(dispatcher.Presence)
}

// ErrDegraded is wrapped by the error that a Component's Ready returns while the component does only part of its work.
// The process is then ready, and degraded.
var ErrDegraded = errors.New("works in part")

// component is a part of the process that runs for as long as the process does.
type component struct {
	name       string
	run        func(context.Context) error
	look       func() State // called while it runs
	needSchema bool         // starts once the schema is there

	running atomic.Bool
	stopped atomic.Bool           // for good, on request
	failure atomic.Pointer[error] // why it stopped unasked
	untidy  error                 // why it did not stop in good order; set before supervise returns
}

// maxRestartWait is the longest pause before a component that keeps stopping is started again.
const maxRestartWait = time.Minute

// supervise keeps a component running until ctx ends. No component takes the process down: the others go on working
// meanwhile, and /readyz reports the failure.
func (p *process) supervise(ctx context.Context, c *component) {
	defer c.stopped.Store(true)
	if c.needSchema {
		select {
		case <-ctx.Done():
			return
		case <-p.gate.open:
		}
	}
	retry := backoff.Backoff{Min: time.Second, Max: maxRestartWait}
	for {
		c.running.Store(true)
		err := c.run(ctx)
		c.running.Store(false)
		if ctx.Err() != nil {
			if err != nil {
				p.log.LogAttrs(ctx, slog.LevelWarn, "component did not stop in good order",
					slog.String("component", c.name), slog.String("err", err.Error()))
				c.untidy = fmt.Errorf("%s did not stop in good order: %w", c.name, err)
			}
			return
		}
		if errors.Is(err, backoff.ErrRanBefore) && c.failure.Load() != nil { // keep the earlier failure and its reason
			<-ctx.Done()
			return
		}
		if err == nil {
			err = errStopped
		}
		c.failure.Store(&err)
		p.log.LogAttrs(ctx, slog.LevelError, "component stopped by itself", slog.String("component", c.name),
			slog.String("err", err.Error()))
		if retry.Wait(ctx) != nil {
			return
		}
	}
}

// state returns the component's state for /readyz.
func (c *component) state() State {
	switch failure := c.failure.Load(); {
	case c.stopped.Load():
		return State{State: stateStopped}
	case c.running.Load():
		return c.look()
	case failure != nil:
		return State{State: stateFailed, Detail: (*failure).Error()}
	}
	return State{State: stateWaiting}
}

// unlessReady returns a look function that calls a component's Ready method.
func unlessReady(ready func() error) func() State {
	return func() State {
		if ready == nil {
			return State{State: stateWorking}
		}
		switch err := ready(); {
		case errors.Is(err, ErrDegraded):
			return State{State: stateDegraded, Detail: err.Error()}
		case err != nil:
			return State{State: stateFailing, Detail: err.Error()}
		}
		return State{State: stateWorking}
	}
}
