package relay

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Turns makes the callers of a sink wait for each other: relays, and kinds of package jobs, that share it. A sink that
// executes one call at a time embeds a Turns, whose zero value is ready to use.
//
// The time of a call would run while the sink executes others. So a call waits here, before its time begins: waiting
// calls get their turn in the order in which they came.
//
//	A   |--- ten seconds without an answer ---|
//	B       waits                             |--- ten seconds from here
type Turns struct {
	once    sync.Once
	turn    turn
	hanging atomic.Int64 // calls that have not returned in time
}

func (t *Turns) turns() *Turns {
	t.once.Do(func() { t.turn = newTurn() })
	return t
}

// turnsOf returns the Turns that a sink embeds, or nil.
func turnsOf(sink Sink) *Turns {
	if s, ok := sink.(interface{ turns() *Turns }); ok {
		return s.turns()
	}
	return nil
}

// turn is full while somebody has it. Nobody waits for a nil one.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take waits for the turn. If ctx ends before, take returns an error that wraps [ErrNotTried].
func (t turn) take(ctx context.Context) error {
	if t == nil {
		return nil
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNotTried, context.Cause(ctx))
	}
}

func (t turn) give() {
	if t != nil {
		<-t
	}
}

// A Caller publishes by a sink that others may call, too.
type Caller struct {
	sink  Sink
	turns *Turns
	own   turn
}

// NewCaller returns a caller of a sink.
func NewCaller(sink Sink) *Caller {
	if turns := turnsOf(sink); turns != nil {
		return &Caller{sink, turns, newTurn()}
	}
	return &Caller{sink: sink, turns: new(Turns)} // without a turn: the sink may be called concurrently
}

// Publish publishes a batch and returns an outcome for each message, also if the sink does not. If the sink has
// [Turns], Publish waits for its turn until ctx ends; of the concurrent calls of one Caller, one at a time waits among
// those of others. Then the sink has ten seconds. As long as a call has not returned in time, Publish makes no other.
func (c *Caller) Publish(ctx context.Context, batch []Message) []error {
	if err := c.own.take(ctx); err != nil {
		return slices.Repeat([]error{err}, len(batch))
	}
	defer c.own.give()
	return c.turns.publish(ctx, c.sink, batch, publishTimeout)
}

// publish publishes messages and returns an outcome for each. If the sink panics, does not return, or returns the wrong
// number of outcomes, the outcome of every message is unknown.
func (t *Turns) publish(ctx context.Context, sink Sink, batch []Message, timeout time.Duration) []error {
	outcomes, err := callSink(ctx, t, timeout, func(ctx context.Context) []error { return sink.Publish(ctx, batch) })
	if err == nil && len(outcomes) != len(batch) {
		err = fmt.Errorf("the sink returned %d outcomes for %d messages", len(outcomes), len(batch))
	}
	if err != nil {
		return slices.Repeat([]error{err}, len(batch))
	}
	return outcomes
}

// callSink calls do once it is the caller's turn, until timeout has passed or ctx ends, and returns the sink's answer.
// If the sink panics or does not return soon after that, callSink returns an error; a sink that has not returned is not
// called again until it has.
func callSink[T any](ctx context.Context, t *Turns, timeout time.Duration, do func(context.Context) T) (answer T,
	err error,
) {
	if err := t.turn.take(ctx); err != nil {
		return answer, err
	}
	defer t.turn.give()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if t.hanging.Load() > 0 {
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
	t.hanging.Add(1)
	go func() {
		<-returned
		t.hanging.Add(-1)
	}()
	return answer, fmt.Errorf("the sink does not return: %w", context.Cause(ctx))
}
