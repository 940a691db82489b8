// Package watermill publishes messages by any publisher of Watermill: a [relay.Sink] for brokers that this module has
// no sink for.
//
//	sink, err := watermill.Open(watermill.Config{Publisher: publisher})
//
// A message's destination is the topic, its ID the UUID. Metadata are its headers by their names, content-type, and
// posthaste-key.
//
// # What a publisher's word is worth
//
// Publish of a publisher returns one error for all of its messages, and says neither which of them failed nor whether
// it is stored all the same. So a call has one message, an error means that nothing is known of it, and nothing is sent
// behind it: it is sent again with the same UUID. [Config.Classify] knows more of a publisher's errors.
//
// That it returns nil means what the publisher's documentation says. One that is asynchronous has not stored the
// message by then, and loses what it has in memory when the process ends: use publishers that wait for the broker.
//
// A publisher knows of no context. A call that is still under way when ctx ends is unknown, and the next one waits for
// it: otherwise it could store an earlier message behind a later one.
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

// Config is by what to publish.
type Config struct {
	Publisher message.Publisher // Close of the sink closes it

	// Batch is how many messages of a topic go in one call; 0 is 1. With more the publisher has to publish them in
	// order and to stop at the first that fails, or a key's later message can be stored before an earlier one. When a
	// call fails, nothing is known of any of its messages.
	Batch int

	// Classify says what an error of the publisher's means for the only message of a call: it returns a
	// [*relay.RefusedError], a [*relay.UnavailableError], or the error itself if nothing is known. Nil knows nothing of
	// any.
	Classify func(error) error

	// Probe reports whether the broker can be published to; nil always says yes, so that messages are tried in vain
	// while it is away.
	Probe func(ctx context.Context) error
}

// Metadata besides those of the message's headers.
const (
	contentType = "content-type"
	key         = "posthaste-key"
)

// Sink publishes by a publisher. Its methods may be called concurrently, and wait for each other.
type Sink struct {
	config Config
	free   chan struct{} // has one while no call is under way
}

var _ relay.Sink = (*Sink)(nil)

// Open checks a configuration.
func Open(config Config) (*Sink, error) {
	config.Batch = cmp.Or(config.Batch, 1)
	if config.Publisher == nil || config.Batch < 1 {
		return nil, errors.New("open the Watermill sink: want a Publisher, and a Batch of 1 or more")
	}
	s := &Sink{config: config, free: make(chan struct{}, 1)}
	s.free <- struct{}{}
	return s, nil
}

// Publish is [relay.Sink]'s.
func (s *Sink) Publish(ctx context.Context, batch []relay.Message) []error {
	outcomes := make([]error, len(batch))
	for i := range outcomes {
		outcomes[i] = relay.ErrNotTried
	}
	failed := map[string]bool{} // keys of which a message was refused
	for from := 0; from < len(batch); {
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

// end is where a call ends that begins with a message: at one of another topic, or of a key that has failed.
func (s *Sink) end(batch []relay.Message, from int, failed map[string]bool) int {
	to := from + 1
	for to < len(batch) && to-from < s.config.Batch && batch[to].Destination == batch[from].Destination && !failed[batch[to].Key] {
		to++
	}
	return to
}

var errUnderWay = errors.New("the publisher has not returned from an earlier call")

// call publishes messages by one call. An error is that nothing is known of them, but for errUnderWay, which is that
// they were not sent.
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

// publish calls the publisher. One that panics has said nothing.
func (s *Sink) publish(topic string, messages []*message.Message) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the publisher panicked: %v\n%s", r, debug.Stack())
		}
	}()
	return s.config.Publisher.Publish(topic, messages...)
}

// encode returns a message as Watermill has it. Publishers may change it, and so it shares nothing with ours but the
// body.
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

// Limits are not known.
func (s *Sink) Limits() relay.Limits { return relay.Limits{} }

// Probe asks by Config.Probe, unless an earlier call is still under way.
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

// Check is [relay.Sink]'s.
func (s *Sink) Check(context.Context, []string) ([]relay.Finding, error) {
	return []relay.Finding{{
		Severity: relay.Note, What: "what an acknowledgement means is the publisher's affair",
		Remedy: "use a publisher that waits for the broker, and read when it acknowledges",
	}}, nil
}

// Close closes the publisher.
func (s *Sink) Close() error { return s.config.Publisher.Close() }
