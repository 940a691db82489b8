package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/relay/internal/cloudevents"
)

// SourceConfig sets what a [Source] fetches.
type SourceConfig struct {
	Stream string
	// Consumer is a durable pull consumer. If it does not exist, it is created: from the beginning of the stream, for
	// all its Subjects or those named here, and without a limit of deliveries.
	Consumer string
	Subjects []string
	// Ordered makes the messages that a dead process had taken come again before newer ones. The next process waits for
	// them: for the consumer's AckWait, which is 15 s unless somebody else has created the consumer, and at most 5 s
	// more.
	Ordered bool
}

const (
	ackWait       = 15 * time.Second
	maxAckPending = 2000
	pullWait      = 4500 * time.Millisecond // after which the server ends a request
	pullSlack     = 500 * time.Millisecond  // for the end to arrive
	maxPullBytes  = 32 << 20                // a message larger than a request's limit would never come
	nakTimeout    = time.Second
	quietTime     = 250 * time.Millisecond // after which no message is still on its way
)

// A Source fetches messages of a JetStream stream for a [bridge.Bridges], and acknowledges them: the last of a batch
// with an answer, which the server sends after it has processed all before it.
//
// A message's ID is its Nats-Msg-Id; without that, ce-source and ce-id; and without these, the time of the stream's
// creation and the message's sequence. Its key is ce-partitionkey, percent-decoded.
type Source struct {
	config Config
	of     SourceConfig

	nc      *nats.Conn // nil or dead until the next Fetch
	sockets *sockets
	closed  chan struct{}
	created time.Time // of the stream
	request request
	pending []*nats.Msg // returned and not acknowledged
	behind  uint64      // how many messages were behind the last delivered one

	returning *returning // nil unless Ordered
}

var (
	_ bridge.Source  = (*Source)(nil)
	_ bridge.Lagging = (*Source)(nil)
)

// OpenSource validates a configuration. It does not connect.
func OpenSource(config Config, of SourceConfig) (*Source, error) {
	var errs []error
	for _, field := range []struct{ name, value string }{{"Stream", of.Stream}, {"Consumer", of.Consumer}} {
		if field.value == "" || strings.ContainsAny(field.value, " \t\r\n.*>/\\") {
			errs = append(errs, fmt.Errorf("the %s is %q, want a name without spaces and any of . * > / \\", field.name,
				field.value))
		}
	}
	if err := errors.Join(append(errs, config.Validate())...); err != nil {
		return nil, fmt.Errorf("open the NATS source: %w", err)
	}
	return &Source{config: config, of: of}, nil
}

// Probe connects if there is no connection, and checks that the stream and the consumer exist.
func (s *Source) Probe(ctx context.Context) error { return s.connected(ctx) }

// Fetch implements [bridge.Source]. It returns as soon as there are messages.
func (s *Source) Fetch(ctx context.Context, most int) ([]bridge.Message, error) {
	if err := s.connected(ctx); err != nil {
		return nil, err
	}
	var came []*nats.Msg
	if !s.returning.released() {
		var err error
		if came, err = s.arrived(ctx, most); err != nil {
			return nil, err
		}
	}
	if n := len(came); n > 0 {
		if about, err := came[n-1].Metadata(); err == nil {
			s.behind = about.NumPending
		}
	}
	var messages []bridge.Message
	for _, m := range s.returning.pass(came, most) {
		messages = append(messages, s.take(m))
	}
	return messages, nil
}

// Lag implements [bridge.Lagging].
func (s *Source) Lag() int64 {
	lag := int64(s.behind) + int64(len(s.request.came))
	if s.returning != nil {
		lag += int64(len(s.returning.kept))
	}
	return lag
}

// lost abandons the connection and returns the reason.
func (s *Source) lost(err error) error {
	if last := s.nc.LastError(); last != nil {
		err = fmt.Errorf("%w: %w", err, last)
	}
	s.drop()
	return fmt.Errorf("fetch from stream %s: %w", s.of.Stream, err)
}

// take returns a message that JetStream has delivered as a bridge's message.
func (s *Source) take(m *nats.Msg) bridge.Message {
	s.pending = append(s.pending, m)
	header := m.Header
	message := bridge.Message{
		Source: s.of.Stream, Subject: m.Subject, Body: m.Data, ContentType: header.Get(headerContentType),
		Key: cloudevents.Unescape(header.Get(attribute + "partitionkey")),
	}
	if message.ContentType == "" {
		message.ContentType = cloudevents.Unescape(header.Get(attributeOfType))
	}
	if about, err := m.Metadata(); err == nil {
		message.Position = int64(about.Sequence.Stream)
	}
	switch id, ce := header.Get(headerID), header.Get(attribute+"id"); {
	case id != "":
		message.ID = id
	case ce != "":
		message.ID = header.Get(attribute+"source") + "/" + ce // not decoded: jobs have been stored under such IDs
	default:
		message.ID = fmt.Sprintf("%s/%d", s.created.UTC().Format(time.RFC3339Nano), message.Position)
	}
	for name, values := range header {
		for _, value := range values {
			message.Headers = append(message.Headers, bridge.Header{Name: name, Value: value})
		}
	}
	return message
}

// Ack implements [bridge.Source].
func (s *Source) Ack(ctx context.Context) error {
	pending := s.pending
	s.pending = nil
	for i, m := range pending {
		var err error
		if i < len(pending)-1 {
			err = m.Ack()
		} else {
			err = m.AckSync(nats.Context(ctx))
		}
		if err != nil {
			return s.lost(err)
		}
	}
	return nil
}

// Release implements [bridge.Source]. It gives messages that have arrived back; those on their way come again after
// AckWait.
func (s *Source) Release() {
	if s.nc == nil {
		return
	}
	if s.request.left > 0 {
		s.flush() // whatever the server had sent by then has arrived
		for s.request.left > 0 {
			select {
			case m := <-s.request.came:
				s.pending = append(s.pending, s.request.collect(m, s.request.left)...)
			case <-time.After(quietTime):
				s.request.left = 0
			}
		}
	}
	if s.returning != nil {
		for _, m := range s.returning.kept {
			s.pending = append(s.pending, m.Msg)
		}
	}
	for _, m := range s.pending {
		_ = m.Nak()
	}
	s.flush()
	s.drop()
}

// flush waits until the server has received what was sent, and everything that it had sent by then has arrived.
func (s *Source) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), nakTimeout)
	defer cancel()
	_ = s.nc.FlushWithContext(ctx)
}

// Close closes the connection.
func (s *Source) Close() error {
	s.drop()
	return nil
}

func (s *Source) drop() {
	if s.nc != nil {
		s.sockets.close()
		s.nc.Close()
	}
	s.nc, s.request, s.pending, s.returning = nil, request{}, nil, nil
}

// connected connects if there is no connection, and finds or creates the consumer.
func (s *Source) connected(ctx context.Context) error {
	if s.nc != nil && s.nc.IsConnected() {
		return nil
	}
	s.drop()
	s.sockets, s.closed = &sockets{}, make(chan struct{})
	closed := s.closed
	// The connection outlives ctx, which limits this Fetch only.
	options, err := s.config.options(context.WithoutCancel(ctx), s.sockets)
	if err != nil {
		return err
	}
	options = append(options, nats.ClosedHandler(func(*nats.Conn) { close(closed) }),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if s.nc, err = nats.Connect(strings.Join(s.config.URLs, ","), options...); err != nil {
		s.nc = nil
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if err := s.find(ctx); err != nil {
		s.drop()
		return err
	}
	return nil
}

func (s *Source) find(ctx context.Context) error {
	js, err := jetstream.New(s.nc)
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	stream, err := js.Stream(ctx, s.of.Stream)
	if err != nil {
		return fmt.Errorf("look for stream %s: %w", s.of.Stream, err)
	}
	s.created = stream.CachedInfo().Created
	consumer, err := stream.Consumer(ctx, s.of.Consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		consumer, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: s.of.Consumer, FilterSubjects: s.of.Subjects, AckPolicy: jetstream.AckExplicitPolicy,
			AckWait:    ackWait,
			MaxDeliver: -1, MaxAckPending: maxAckPending, DeliverPolicy: jetstream.DeliverAllPolicy,
		})
	}
	if err != nil {
		return fmt.Errorf("look for consumer %s of stream %s: %w", s.of.Consumer, s.of.Stream, err)
	}
	info := consumer.CachedInfo()
	if err := s.fit(info.Config); err != nil {
		return fmt.Errorf("consumer %s of stream %s: %w", s.of.Consumer, s.of.Stream, err)
	}
	if s.returning = nil; s.of.Ordered {
		s.returning = newReturning(info)
	}
	s.behind = info.NumPending
	return nil
}

// fit returns why a consumer that somebody else has created would lose messages, or deliver the wrong ones.
func (s *Source) fit(c jetstream.ConsumerConfig) error {
	subjects := c.FilterSubjects
	if c.FilterSubject != "" {
		subjects = []string{c.FilterSubject}
	}
	switch {
	case c.AckPolicy != jetstream.AckExplicitPolicy:
		policy := strings.ToLower(strings.TrimPrefix(c.AckPolicy.String(), "Ack"))
		return fmt.Errorf("its ack_policy is %s, want explicit: a message that was not stored would not come again",
			policy)
	case c.HeadersOnly:
		return errors.New("it has headers_only, want none: every message would come without its body")
	case c.MaxDeliver > 0:
		return fmt.Errorf("its max_deliver is %d, want -1: after as many deliveries, as in an outage of the database, a message would be lost", c.MaxDeliver)
	case s.of.Ordered && (c.MaxAckPending < 0 || c.MaxAckPending > mostAckPending):
		return fmt.Errorf("its max_ack_pending is %d, want up to %d for messages in order: so many may be kept in memory", c.MaxAckPending, mostAckPending)
	case len(s.of.Subjects) == 0 && len(subjects) > 0:
		return fmt.Errorf("its subjects are %q, and the bridge names none, which is all of the stream: name these, change or delete the consumer, or take another name", subjects)
	case !slices.Equal(slices.Sorted(slices.Values(subjects)), slices.Sorted(slices.Values(s.of.Subjects))):
		return fmt.Errorf("its subjects are %q, want %q: change or delete it, or take another name", subjects,
			s.of.Subjects)
	}
	return nil
}
