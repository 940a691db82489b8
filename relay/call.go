package relay

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// hangGrace is how long a sink's call may take to return after its context has ended.
const hangGrace = 2 * time.Second

// errHangs is the outcome of messages that are not sent because an earlier call of the sink has not returned: whatever
// that call still sends would arrive behind them.
var errHangs = errors.New("the sink has not returned from an earlier call, although its time is over")

// A sinkClient calls a sink, as one of those that share it. Each publisher has one.
//
// Each held message is a call of its own; only the one that has heldTurn waits for the sink's turn. So the owner's
// batch waits for at most one held message, however many there are, and for a probe or two.
type sinkClient struct {
	name     string
	sink     Sink
	metrics  *sinkMetrics
	turns    *Turns
	heldTurn turn         // of held messages
	counted  atomic.Int64 // messages that the broker has dropped
	lost     atomic.Int64 // losses that the broker has reported

	mu       sync.Mutex
	now      func() time.Time
	accepted int                    // messages
	attempts map[string]heldAttempt // by destination
}

// heldAttempt records the last attempt of a held message to a destination, if it had no answer.
type heldAttempt struct {
	id, key  string    // of the message
	accepted int       // how many messages the sink had accepted by then
	used     bool      // the destination has accepted a message since
	other    time.Time // when a message that is not behind this one was last sent there; at first, when this one was
}

func newSinkClient(name string, sink Sink, metrics *sinkMetrics, now func() time.Time) sinkClient {
	return sinkClient{
		name: name, sink: sink, metrics: metrics, turns: cmp.Or(turnsOf(sink), new(Turns).turns()),
		heldTurn: newTurn(), now: now, attempts: map[string]heldAttempt{},
	}
}

// outgoing is a message with the index of its event.
type outgoing struct {
	Message
	index int
	place string // what accepts the message, or does not: its destination, or a part of that
}

// placeOf returns the destination of a message, or the part of it that fails on its own.
func (c *sinkClient) placeOf(m Message) string {
	if d, ok := c.sink.(Divider); ok {
		if part := d.Part(m); part != "" {
			return m.Destination + "/" + part
		}
	}
	return m.Destination
}

// deliver publishes messages and returns an outcome for each.
func (c *sinkClient) deliver(ctx context.Context, messages []outgoing, timeout time.Duration) []error {
	if len(messages) == 0 {
		return nil
	}
	batch := make([]Message, len(messages))
	for i := range messages {
		batch[i] = messages[i].Message
	}
	defer c.countReported()
	ctx, ended := c.trace(ctx, batch)
	outcomes := c.turns.publish(ctx, c.sink, batch, timeout)
	ended(outcomes)
	c.noteAccepted(batch, outcomes)
	return outcomes
}

// noteAccepted records what the sink, and the destinations of held messages without an answer, accept.
func (c *sinkClient) noteAccepted(batch []Message, outcomes []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range batch {
		m := &batch[i]
		if outcomes[i] == nil {
			c.accepted++
		}
		last, asked := c.attempts[m.Destination]
		if !asked || errors.Is(outcomes[i], ErrNotTried) {
			continue
		}
		last.used = last.used || outcomes[i] == nil
		if m.ID != last.id && (m.Key == "" || m.Key != last.key) {
			last.other = c.now()
		}
		c.attempts[m.Destination] = last
	}
}

// isAtFault reports whether a held message is at fault that had no answer: since the last such attempt, its destination
// has accepted a message, or the sink has, while nothing else was sent to the destination for [noDestinationLimit]. It
// forgets all attempts when there are too many: then one more of each does not count.
func (c *sinkClient) isAtFault(m Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	last, again := c.attempts[m.Destination]
	if !again {
		last.other = now
	}
	if len(c.attempts) >= maxBatch {
		clear(c.attempts)
	}
	c.attempts[m.Destination] = heldAttempt{id: m.ID, key: m.Key, accepted: c.accepted, other: last.other}
	return last.used || again && c.accepted > last.accepted && now.Sub(last.other) > noDestinationLimit
}

// trace begins the span of a batch, if the program uses package tracing, and returns the function that ends it.
func (c *sinkClient) trace(ctx context.Context, batch []Message) (context.Context, func(outcomes []error)) {
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

// probe calls the sink's Probe.
func (c *sinkClient) probe(ctx context.Context) error {
	answer, err := callSink(ctx, c.turns, publishTimeout, c.sink.Probe)
	if err != nil {
		return err
	}
	return answer
}

// close closes the sink once nobody is calling it: a kind of package jobs may share it. It gives up waiting for a sink
// that is called for longer than a call may take.
func (c *sinkClient) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), publishTimeout+hangGrace)
	defer cancel()
	answer, err := callSink(ctx, c.turns, publishTimeout, func(context.Context) error { return c.sink.Close() })
	if err != nil {
		return err
	}
	return answer
}

// dropped returns how many messages the broker has dropped as repeats.
func (c *sinkClient) dropped() int64 {
	if d, ok := c.sink.(Deduplicator); ok {
		return d.Duplicates()
	}
	return 0
}

// countReported counts what the sink has reported since the last batch.
func (c *sinkClient) countReported() {
	now := c.dropped()
	c.metrics.duplicates.Add(float64(max(0, now-c.counted.Swap(now))))
	if l, ok := c.sink.(LossReporter); ok {
		now := l.DataLosses()
		c.metrics.dataLosses.Add(float64(max(0, now-c.lost.Swap(now))))
	}
}
