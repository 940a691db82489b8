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

// These causes end a handler's context; [outbox.ErrLeaseLost] does, too. Package dispatcher exports them under the same
// names, and documents what they mean to a handler.
var (
	ErrTimeout   = fmt.Errorf("job timeout: %w", context.DeadlineExceeded)
	ErrShutdown  = errors.New("shutting down: the grace period is over")
	ErrCancelled = errors.New("job cancelled")
	ErrDeadline  = fmt.Errorf("job deadline: %w", context.DeadlineExceeded)
)

// ErrNotBegun means that a batch's handler did not get to a job, which says nothing about the job or its dependency:
// the job goes back with its attempt.
var ErrNotBegun = errors.New("the handler has not come to it")

// Discarded is what dispatcher.Discard returns.
type Discarded struct{ Err error }

func (e *Discarded) Error() string { return e.Err.Error() }
func (e *Discarded) Unwrap() error { return e.Err }

// Postponed is what dispatcher.RetryAfter and RetryAtLeast return.
type Postponed struct {
	Wait    time.Duration
	AtLeast bool // wait for the policy's time if that is longer
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
	OfTarget bool // other jobs of the kind may have another target
}

func (e *Unavailable) Error() string { return e.Err.Error() }
func (e *Unavailable) Unwrap() error { return e.Err }

// WithCode attaches the error code that is stored with the failed attempt. Handlers can do the same with any error type
// that has a method Code() string.
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

// Code returns the code that is stored with the attempt.
func (e *Panicked) Code() string { return codes.Panic }

// Call calls a handler, and turns a panic into an error.
func Call(ctx context.Context, handler func(context.Context, *outbox.Claimed) error, job *outbox.Claimed) (err error) {
	if panicked := Catch(func() { err = handler(ctx, job) }); panicked != nil {
		return panicked
	}
	return err
}

// Catch returns the panic of f with its stack, because a handler's bug must not take down the process and every other
// job in it. Catch recognizes a panic by f not having returned, not by the recovered value: with GODEBUG=panicnil=1
// that is nil for panic(nil). After runtime.Goexit Catch does not return.
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

// CauseOf returns context.Cause for a context that has ended, and nil otherwise.
func CauseOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
