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

// Component is a part of the process that this package does not know, such as the API
// of package server.
type Component struct {
	Name        string                      // in /readyz, in metrics and in the log
	Run         func(context.Context) error // works until its context ends; is called again if it returns before
	Ready       func() error                // why it does not do its work while it runs, or a part of it: ErrDegraded
	Pool        *pgxpool.Pool               // its connections, which are closed at the end of the process; nil is none
	NeedsSchema bool                        // it starts once the schema is there

	// Dispatching is called with what the dispatcher of the process is, before anything runs, if there is one.
	Dispatching func(dispatcher.Presence)
}

// ErrDegraded is wrapped by what Ready of a Component returns while the component does without a part of its work. The
// process is ready then, and degraded.
var ErrDegraded = errors.New("works in part")

// component is a part of the process that runs for as long as the process does.
type component struct {
	name       string
	run        func(context.Context) error
	look       func() State // while it runs
	needSchema bool         // starts once the schema is there

	running atomic.Bool
	stopped atomic.Bool           // for good, as it was asked to
	failure atomic.Pointer[error] // why it stopped by itself
	untidy  error                 // why it did not stop in good order; written before supervise returns
}

// maxRestartWait is the longest rest of a component that keeps stopping by itself.
const maxRestartWait = time.Minute

// supervise keeps a component running until ctx ends. No component takes the
// process down: the others do their part meanwhile, and /readyz tells.
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
				p.log.LogAttrs(ctx, slog.LevelWarn, "component did not stop in good order", slog.String("component", c.name), slog.String("err", err.Error()))
				c.untidy = fmt.Errorf("%s did not stop in good order: %w", c.name, err)
			}
			return
		}
		if errors.Is(err, backoff.ErrRanBefore) && c.failure.Load() != nil { // it stays failed, for its reason
			<-ctx.Done()
			return
		}
		if err == nil {
			err = errStopped
		}
		c.failure.Store(&err)
		p.log.LogAttrs(ctx, slog.LevelError, "component stopped by itself", slog.String("component", c.name), slog.String("err", err.Error()))
		if retry.Wait(ctx) != nil {
			return
		}
	}
}

// state is what /readyz says of the component.
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

// unlessReady makes a look of a component's Ready method.
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
