package watch

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"
)

// latest is a look at the database that is running, or its result: callers that ask meanwhile, and for a while
// afterwards, share it.
type latest[T any] struct {
	begun time.Time
	done  chan struct{}
	took  time.Duration // valid once done is closed
	found T
	err   error
}

// begin starts a look. The look does not end with the caller that triggered it, because others wait for it.
func begin[T any](within time.Duration, look func(context.Context) (T, error)) *latest[T] {
	l := &latest[T]{begun: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		defer recovered(&l.err)
		l.found, l.err = look(ctx)
		l.took = time.Since(l.begun)
	}()
	return l
}

// recovered, deferred, turns a panic and its stack into the error of the look that panicked: callers that wait for it
// get and log that error, and the process goes on.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
	}
}

// serves reports whether the look is running, or is recent enough; a look that took long serves longer. A nil look does
// not serve.
func (l *latest[T]) serves(long time.Duration) bool {
	if l == nil {
		return false
	}
	select {
	case <-l.done:
		return l.err == nil && time.Since(l.begun) < max(long, restAfterLook(l.took))
	default:
		return true
	}
}

// over reports whether the look has ended.
func (l *latest[T]) over() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (l *latest[T]) wait(ctx context.Context) (found T, err error) {
	select {
	case <-l.done:
		return l.found, l.err
	case <-ctx.Done():
		return found, ctx.Err()
	}
}
