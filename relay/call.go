package relay

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// hangGrace is how long after the end of its context a sink's call may take to return.
const hangGrace = 2 * time.Second

// errHangs is the outcome of messages that are not sent because an earlier call of the sink has not returned: what it
// still sends would come behind them.
var errHangs = errors.New("the sink has not returned from an earlier call, although its time is over")

// bounded has a sink do something until ctx ends, and returns its answer. A sink that does not return soon after, or
// panics, has a fault, which becomes an error; one that does not return is not called again until it has.
func bounded[T any](ctx context.Context, p *publisher, do func(context.Context) T) (answer T, err error) {
	if p.hanging.Load() > 0 {
		return answer, &UnavailableError{CodeUnanswered, errHangs}
	}
	type result struct {
		answer T
		err    error
	}
	returned := make(chan result, 1)
	call := func() (r result) {
		defer func() {
			if fault := recover(); fault != nil {
				r.err = fmt.Errorf("the sink panicked: %v\n%s", fault, debug.Stack())
			}
		}()
		r.answer = do(ctx)
		return r
	}
	go func() { returned <- call() }()
	select {
	case r := <-returned:
		return r.answer, r.err
	case <-ctx.Done():
	}
	patience := time.NewTimer(hangGrace)
	defer patience.Stop()
	select {
	case r := <-returned:
		return r.answer, r.err
	case <-patience.C:
	}
	p.hanging.Add(1)
	go func() {
		<-returned
		p.hanging.Add(-1)
	}()
	return answer, fmt.Errorf("the sink does not return: %w", context.Cause(ctx))
}
