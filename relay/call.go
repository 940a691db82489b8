package relay

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// hangGrace is how long after the end of its context a sink's call may take to return.
const hangGrace = 2 * time.Second

// errHangs is the outcome of messages that are not sent because an earlier call of the sink has not returned: what it
// still sends would come behind them.
var errHangs = errors.New("the sink has not returned from an earlier call, although its time is over")

// caller calls a sink. A publisher has one, and nobody else calls its sink.
//
// Sinks carry out one call after the other, and the time of a call runs while it waits for others. So a call waits
// here, before its time begins: those who wait for turn get it in the order in which they came. Of the held messages,
// each of which is a call, the one that has heldTurn waits for turn, so that the owner's batch waits for one of them
// at most, however many there are, and for a probe or two.
type caller struct {
	name     string
	sink     Sink
	metrics  *sinkMetrics
	turn     chan struct{} // full while the sink is called
	heldTurn chan struct{} // full while a held message is published or waits for turn
	hanging  atomic.Int64  // calls that have not returned in time
	counted  atomic.Int64  // of the messages that the broker has dropped
}

func newCaller(name string, sink Sink, metrics *sinkMetrics) caller {
	return caller{name: name, sink: sink, metrics: metrics, turn: make(chan struct{}, 1), heldTurn: make(chan struct{}, 1)}
}

// bounded has a sink do something, once it is its turn, until its time is over or ctx ends, and returns the sink's
// answer. A sink that does not return soon after, or panics, has a fault, which becomes an error; one that does not
// return is not called again until it has.
func bounded[T any](ctx context.Context, c *caller, timeout time.Duration, do func(context.Context) T) (answer T, err error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return answer, fmt.Errorf("%w: %w", ErrNotTried, context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if c.hanging.Load() > 0 {
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
	c.hanging.Add(1)
	go func() {
		<-returned
		c.hanging.Add(-1)
	}()
	return answer, fmt.Errorf("the sink does not return: %w", context.Cause(ctx))
}

// outgoing is a message with the index of its event.
type outgoing struct {
	Message
	index int
}

// deliver returns an outcome for each message. A sink that panics, does not return, or returns another number
// of outcomes has a fault: then nothing is known of any.
func (c *caller) deliver(ctx context.Context, messages []outgoing, timeout time.Duration) []error {
	if len(messages) == 0 {
		return nil
	}
	batch := make([]Message, len(messages))
	for i := range messages {
		batch[i] = messages[i].Message
	}
	defer c.countDuplicates()
	ctx, ended := c.trace(ctx, batch)
	outcomes, err := bounded(ctx, c, timeout, func(ctx context.Context) []error { return c.sink.Publish(ctx, batch) })
	if err == nil && len(outcomes) != len(batch) {
		err = fmt.Errorf("the sink returned %d outcomes for %d messages", len(outcomes), len(batch))
	}
	if err != nil {
		outcomes = make([]error, len(batch))
		for i := range outcomes {
			outcomes[i] = err
		}
	}
	ended(outcomes)
	return outcomes
}

// trace begins the span of a batch, if the program uses package tracing, and returns what ends it.
func (c *caller) trace(ctx context.Context, batch []Message) (context.Context, func(outcomes []error)) {
	t := engine.Tracing()
	if t == nil {
		return ctx, func([]error) {}
	}
	s := engine.SpanStart{Operation: engine.OpSend, Name: c.name, Destination: c.name, Count: len(batch)}
	for i := range batch {
		headers := map[string]string{}
		for _, h := range batch[i].Headers {
			headers[h.Name] = h.Value
		}
		s.Headers = append(s.Headers, headers)
	}
	ctx, span := t.Start(ctx, s)
	return ctx, func(outcomes []error) {
		for _, err := range outcomes {
			if err != nil && !errors.Is(err, ErrNotTried) {
				span.End("", failureOf(err).code, err.Error())
				return
			}
		}
		span.End("", "", "")
	}
}

// probe is the sink's Probe.
func (c *caller) probe(ctx context.Context) error {
	answer, err := bounded(ctx, c, publishTimeout, c.sink.Probe)
	if err != nil {
		return err
	}
	return answer
}

// dropped is how many messages the broker has dropped as repeats.
func (c *caller) dropped() int64 {
	if d, ok := c.sink.(Deduplicator); ok {
		return d.Duplicates()
	}
	return 0
}

func (c *caller) countDuplicates() {
	now := c.dropped()
	c.metrics.duplicates.Add(float64(max(0, now-c.counted.Swap(now))))
}
