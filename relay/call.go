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
type caller struct {
	name    string
	sink    Sink
	metrics *sinkMetrics
	hanging atomic.Int64 // calls that have not returned in time
	counted atomic.Int64 // of the messages that the broker has dropped
}

// bounded has a sink do something until ctx ends, and returns its answer. A sink that does not return soon after, or
// panics, has a fault, which becomes an error; one that does not return is not called again until it has.
func bounded[T any](ctx context.Context, c *caller, do func(context.Context) T) (answer T, err error) {
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
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer c.countDuplicates()
	ctx, ended := c.trace(ctx, batch)
	outcomes, err := bounded(ctx, c, func(ctx context.Context) []error { return c.sink.Publish(ctx, batch) })
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
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	answer, err := bounded(ctx, c, c.sink.Probe)
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
