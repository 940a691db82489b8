// Package relaytest is the conformance suite of sinks: it tests the promises of [relay.Sink] against a real broker in a
// process of its own, with the faults that brokers have.
package relaytest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/relay"
)

// A Broker is a broker with an empty destination. Its own methods end the test if they fail.
type Broker interface {
	// Sink returns a new sink that publishes to the broker. The test closes it.
	Sink() relay.Sink

	Destination() string // accepts messages of up to Largest bytes, body and headers
	Largest() int        // the largest message that it accepts
	Missing() string     // a destination that does not exist
	Forbidden() string   // an existing destination to which the sink may not publish
	Deduplicates() bool  // the broker drops a message whose ID it already has

	// Received returns the messages in the destination, in the order in which they were stored, and leaves them there.
	Received() []relay.Message

	Kill()                            // SIGKILL
	Restart()                         // after Kill, on the same files
	Stop()                            // SIGSTOP
	Continue()                        // SIGCONT
	Slow(latency time.Duration)       // delays every packet; 0 ends it
	Line() Line                       // the connection to the broker that all its sinks use
	Limit(messages int) (free func()) // the destination accepts so many more messages, until free
	Revoke() (restore func())         // ends connections with the sink's credentials, and accepts no new ones
	Secrets() []string                // of the credentials
}

// Line is a network that can be cut: it withholds bytes while a valve is shut, and delivers them when it is opened.
type Line struct{ Requests, Answers Valve }

// Valve is one direction of a line.
type Valve interface {
	Shut()
	Open()
}

// message returns the n-th message of a test.
func message(b Broker, n int, key string) relay.Message {
	return relay.Message{
		ID: fmt.Sprintf("id-%06d", n), Destination: b.Destination(), Key: key, ContentType: "application/json",
		Headers: []relay.Header{
			{Name: "ce-partitionkey", Value: key},
			{Name: "ce-sequence", Value: fmt.Sprintf("%020d", n)},
		},
		Body: fmt.Appendf(nil, `{"n":%d}`, n), Position: int64(n),
	}
}

// batch returns n messages with the given number of keys, in turns.
func batch(b Broker, n, keys int) []relay.Message {
	all := make([]relay.Message, n)
	for i := range all {
		all[i] = message(b, i+1, fmt.Sprintf("key-%d", i%keys))
	}
	return all
}

// outcome returns a word for an outcome, and its code.
func outcome(err error) string {
	if err == nil {
		return "stored"
	}
	if errors.Is(err, relay.ErrNotTried) {
		return "not tried"
	}
	if refused, ok := errors.AsType[*relay.RefusedError](err); ok {
		return "refused " + refused.Code
	}
	if unavailable, ok := errors.AsType[*relay.UnavailableError](err); ok {
		return "unavailable " + unavailable.Code
	}
	return "unknown"
}

// count counts outcomes.
func count(outcomes []error) map[string]int {
	all := map[string]int{}
	for _, err := range outcomes {
		all[outcome(err)]++
	}
	return all
}

// sink opens a sink for the duration of a test.
func sink(t *testing.T, b Broker) relay.Sink {
	t.Helper()
	s := b.Sink()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// publish publishes a batch and checks what is promised of all outcomes.
func publish(ctx context.Context, t *testing.T, b Broker, s relay.Sink, batch []relay.Message) []error {
	t.Helper()
	outcomes := s.Publish(ctx, batch)
	checkOutcomes(t, b, batch, outcomes)
	return outcomes
}

// returns fails the test unless a call returns although the broker still gives no answer: its context ends after half a
// second. The limit of a minute allows for a busy machine.
func returns(t *testing.T, call func()) {
	t.Helper()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		call()
	}()
	select {
	case <-returned:
	case <-time.After(time.Minute):
		t.Fatal("Publish does not return after its context")
	}
}

func checkOutcomes(t *testing.T, b Broker, batch []relay.Message, outcomes []error) {
	t.Helper()
	if len(outcomes) != len(batch) {
		t.Fatalf("Publish returned %d outcomes for %d messages", len(outcomes), len(batch))
	}
	failed := map[string]string{}
	for i, m := range batch {
		first, after := failed[m.Key]
		got := outcome(outcomes[i])
		if m.Key != "" && after && got != "not tried" && got != first {
			t.Errorf("%s of %s: %s (%v), but one of the key before it was %s", m.ID, m.Key, got, outcomes[i], first)
		}
		if got != "stored" && !after {
			failed[m.Key] = got
		}
		for _, secret := range b.Secrets() {
			if outcomes[i] != nil && strings.Contains(outcomes[i].Error(), secret) {
				t.Errorf("%s: the error has a secret in it: %v", m.ID, outcomes[i])
			}
		}
	}
}

// deliver publishes messages as the relay does: messages that were not accepted are published again, in order, once the
// broker answers. It returns how many times it had to.
func deliver(ctx context.Context, t *testing.T, b Broker, s relay.Sink, all []relay.Message, size int) (again int) {
	t.Helper()
	for len(all) > 0 {
		n := min(size, len(all))
		var rest []relay.Message
		for i, err := range publish(ctx, t, b, s, all[:n]) {
			if _, refused := errors.AsType[*relay.RefusedError](err); refused {
				t.Fatalf("%s: %v", all[i].ID, err)
			}
			if err != nil {
				rest = append(rest, all[i])
			}
		}
		if len(rest) > 0 {
			again++
			await(ctx, t, s)
		}
		if ctx.Err() != nil && len(rest) > 0 {
			t.Fatalf("%s is not accepted: %v", rest[0].ID, ctx.Err())
		}
		if len(rest) == n { // a broker that has just come back needs a little rest; the relay gives it more
			time.Sleep(500 * time.Millisecond)
		}
		all = append(rest, all[n:]...)
	}
	return again
}

// await waits until the broker can be published to.
func await(ctx context.Context, t *testing.T, s relay.Sink) {
	t.Helper()
	for err := s.Probe(ctx); err != nil; err = s.Probe(ctx) {
		if ctx.Err() != nil {
			t.Fatalf("the broker does not come back: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// inOrder checks that a destination has every message, and those of each key in order, apart from repeats. It returns
// how many repeats there are.
func inOrder(t *testing.T, got, want []relay.Message) (repeats int) {
	t.Helper()
	have, last := map[string]bool{}, map[string]int64{}
	for _, m := range got {
		if have[m.ID] {
			repeats++
			continue
		}
		have[m.ID] = true
		if m.Key != "" && m.Position < last[m.Key] {
			t.Errorf("%s has %d after %d", m.Key, m.Position, last[m.Key])
		}
		last[m.Key] = m.Position
	}
	missing := 0
	for _, m := range want {
		if !have[m.ID] {
			missing++
		}
	}
	if missing > 0 || len(have) > len(want) {
		t.Errorf("the destination has %d different messages of %d, %d are missing", len(have), len(want), missing)
	}
	return repeats
}
