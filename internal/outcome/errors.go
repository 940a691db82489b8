package outcome

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// Causes with which a handler's context ends, besides [outbox.ErrLeaseLost]. Package dispatcher has them by the same
// names, and says there what they mean to a handler.
var (
	ErrTimeout   = fmt.Errorf("job timeout: %w", context.DeadlineExceeded)
	ErrShutdown  = errors.New("shutting down: the grace period is over")
	ErrCancelled = errors.New("job cancelled")
	ErrDeadline  = fmt.Errorf("job deadline: %w", context.DeadlineExceeded)
)

// ErrNotBegun is that a batch's handler has not come to a job, which says nothing of the job nor of what it needs: it
// goes back with its attempt.
var ErrNotBegun = errors.New("the handler has not come to it")

// Discarded is what dispatcher.Discard returns.
type Discarded struct{ Err error }

func (e *Discarded) Error() string { return e.Err.Error() }
func (e *Discarded) Unwrap() error { return e.Err }

// Postponed is what dispatcher.RetryAfter and RetryAtLeast return.
type Postponed struct {
	Wait    time.Duration
	AtLeast bool // the policy's wait, if that is longer
	Err     error
}

func (e *Postponed) Error() string { return e.Err.Error() }
func (e *Postponed) Unwrap() error { return e.Err }

// Snoozed is what dispatcher.Snooze returns.
type Snoozed struct{ Wait time.Duration }

func (e *Snoozed) Error() string { return fmt.Sprintf("snoozed for %s", e.Wait) }

// Unavailable is what dispatcher.Unavailable and TargetUnavailable return.
type Unavailable struct {
	Err      error
	Wait     time.Duration
	OfTarget bool // others of the kind may have another
}

func (e *Unavailable) Error() string { return e.Err.Error() }
func (e *Unavailable) Unwrap() error { return e.Err }

// WithCode gives an error the code that is stored with the failed attempt.
// Handlers do the same with any error type that has a method Code() string.
func WithCode(code string, err error) error { return &coded{code, err} }

type coded struct {
	code string
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }
func (e *coded) Code() string  { return e.code }

// ErrExited is the error of a handler that ended its goroutine with runtime.Goexit, as t.FailNow does.
var ErrExited = WithCode(codes.Goexit, errors.New("the handler ended its goroutine with runtime.Goexit"))

// Panicked is a handler's panic.
type Panicked struct {
	Value any
	Stack string
}

func (e *Panicked) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Code is the code that is stored with the attempt.
func (e *Panicked) Code() string { return codes.Panic }

// Call calls a handler, and turns a panic into an error.
func Call(ctx context.Context, handler func(context.Context, *outbox.Claimed) error, job *outbox.Claimed) (err error) {
	if panicked := Catch(func() { err = handler(ctx, job) }); panicked != nil {
		return panicked
	}
	return err
}

// Catch returns the panic of f with its stack, because a handler's bug must not
// take the process, and every other job in it, down. That f has not
// returned is the sign of it, not the recovered value: with GODEBUG=panicnil=1
// that is nil for panic(nil). After runtime.Goexit it goes nowhere.
func Catch(f func()) (panicked *Panicked) {
	returned := false
	defer func() {
		if value := recover(); !returned {
			panicked = &Panicked{Value: value, Stack: string(debug.Stack())}
		}
	}()
	f()
	returned = true
	return nil
}

// CauseOf is context.Cause for a context that has ended, nil otherwise.
func CauseOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
