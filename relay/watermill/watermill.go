// Package watermill publishes messages through any publisher of Watermill. It provides a [relay.Sink] for brokers
// without a sink in this module.
//
//	sink, err := watermill.Open(watermill.Config{Publisher: publisher})
//
// A message's destination is the topic, and its ID the UUID. Its metadata are the headers by their names, content-type,
// and posthaste-key.
//
// # What a publisher's word is worth
//
// A publisher's Publish returns one error for all of its messages, and states neither which of them failed nor whether
// it is stored all the same. So each call has one message, an error makes its outcome unknown, and nothing is sent
// behind it until it is sent again with the same UUID. [Config.Classify] can interpret a publisher's errors further.
//
// A nil error means whatever the publisher's documentation states. An asynchronous publisher has not stored the message
// by then, and loses what it has in memory when the process ends: use publishers that wait for the broker.
//
// A publisher does not accept a context. A call that has not returned when ctx ends is unknown, and the next one waits
// for it: otherwise it could store an earlier message behind a later one.
package watermill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/posthaste-dev/posthaste/relay"
)

// Config sets how to publish.
type Config struct {
	Publisher message.Publisher // the sink's Close closes it

	// Batch is how many messages of a topic go in one call; 0 means 1. With more, the publisher must publish them in
	// order and stop at the first that fails; otherwise a key's later message can be stored before an earlier one. When
	// a call fails, all of its messages are unknown.
	Batch int

	// Classify interprets a publisher's error for the only message of a call: it returns a [*relay.RefusedError], a
	// [*relay.UnavailableError], or the error itself if nothing is known. Nil leaves every error uninterpreted.
	Classify func(error) error

	// Probe reports whether the broker can be published to. Nil always reports success, so messages are tried in vain
	// while the broker is unavailable.
	Probe func(ctx context.Context) error
}

// This metadata is set in addition to the message's headers.
const (
	contentType = "content-type"
	key         = "posthaste-key"
)

// A Sink publishes through a publisher. Its methods may be called concurrently, and wait for each other.
type Sink struct {
	relay.Turns

	config Config
	free   chan struct{} // contains one element while no call is running
}

var _ relay.Sink = (*Sink)(nil)

// Open validates a configuration.
func Open(config Config) (*Sink, error) {
	config.Batch = cmp.Or(config.Batch, 1)
	if config.Publisher == nil || config.Batch < 1 {
		return nil, errors.New("open the Watermill sink: want a Publisher, and a Batch of 1 or more")
	}
	s := &Sink{config: config, free: make(chan struct{}, 1)}
	s.free <- struct{}{}
	return s, nil
}

// Publish implements [relay.Sink].
func (s *Sink) Publish(ctx context.Context, batch []relay.Message) []error {
	outcomes := make([]error, len(batch))
	for i := range outcomes {
		outcomes[i] = relay.ErrNotTried
	}
	failed := map[string]bool{} // keys with a refused message
	for from := 0; from < len(batch) && ctx.Err() == nil; {
		if k := batch[from].Key; k != "" && failed[k] {
			from++
			continue
		}
		to := s.end(batch, from, failed)
		err := s.call(ctx, batch[from:to])
		if err != nil && s.config.Classify != nil && to == from+1 {
			err = s.config.Classify(err)
		}
		for i := from; i < to; i++ {
			outcomes[i] = err
		}
		if _, refused := errors.AsType[*relay.RefusedError](err); err != nil && !refused {
			break
		}
		if err != nil && batch[from].Key != "" {
			failed[batch[from].Key] = true
		}
		from = to
	}
	return outcomes
}

// end returns where the call that begins with a message ends: at a message of another topic, or of a key that has
// failed.
func (s *Sink) end(batch []relay.Message, from int, failed map[string]bool) int {
	to := from + 1
	for to < len(batch) && to-from < s.config.Batch && batch[to].Destination == batch[from].Destination &&
		!failed[batch[to].Key] {
		to++
	}
	return to
}

var errUnderWay = errors.New("the publisher has not returned from an earlier call")

// call publishes messages in one call. An error means that their outcome is unknown, except errUnderWay, which means
// that they were not sent.
func (s *Sink) call(ctx context.Context, batch []relay.Message) error {
	select {
	case <-s.free:
	case <-ctx.Done():
		return &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errUnderWay}
	}
	messages := make([]*message.Message, len(batch))
	for i := range batch {
		messages[i] = encode(ctx, &batch[i])
	}
	returned := make(chan error, 1)
	go func() {
		err := s.publish(batch[0].Destination, messages)
		s.free <- struct{}{}
		returned <- err
	}()
	select {
	case err := <-returned:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the publisher has not returned: %w", context.Cause(ctx))
	}
}

// publish calls the publisher. If it panics, the outcome is unknown.
func (s *Sink) publish(topic string, messages []*message.Message) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the publisher panicked: %v\n%s", r, debug.Stack())
		}
	}()
	return s.config.Publisher.Publish(topic, messages...)
}

// encode returns a message in Watermill's form. Publishers may change it, so it shares nothing with the original but
// the body.
func encode(ctx context.Context, m *relay.Message) *message.Message {
	to := message.NewMessageWithContext(ctx, m.ID, m.Body)
	for _, h := range m.Headers {
		to.Metadata.Set(h.Name, h.Value)
	}
	if m.ContentType != "" {
		to.Metadata.Set(contentType, m.ContentType)
	}
	if m.Key != "" {
		to.Metadata.Set(key, m.Key)
	}
	return to
}

// Probe calls Config.Probe, unless an earlier call is still running.
func (s *Sink) Probe(ctx context.Context) error {
	select {
	case <-s.free:
		s.free <- struct{}{}
	case <-ctx.Done():
		return &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errUnderWay}
	}
	if s.config.Probe == nil {
		return nil
	}
	return s.config.Probe(ctx)
}

// Check implements [relay.Sink].
func (s *Sink) Check(context.Context, []string) ([]relay.Finding, error) {
	return []relay.Finding{{
		Severity: relay.SeverityNote, What: "what an acknowledgement means is the publisher's affair",
		Remedy: "use a publisher that waits for the broker, and read when it acknowledges",
	}}, nil
}

// Close closes the publisher.
func (s *Sink) Close() error { return s.config.Publisher.Close() }
