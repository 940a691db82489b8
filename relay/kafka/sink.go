package kafka

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/posthaste-dev/posthaste/relay"
)

// A Sink publishes to topics of a Kafka cluster. Its methods may be called concurrently, and wait for each other.
type Sink struct {
	relay.Turns

	config Config
	losses atomic.Int64

	partitions partitions

	mu     sync.Mutex
	client *client // nil until the next call that needs one
}

var _ relay.Sink = (*Sink)(nil)

// Open validates a configuration. It does not connect: [Sink.Publish] and [Sink.Probe] connect if there is no
// connection, and report an unavailable cluster.
func Open(config Config) (*Sink, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("open the Kafka sink: %w", err)
	}
	return &Sink{config: config}, nil
}

// Exclusive reports whether only one process at a time may publish, because each that does takes the TransactionalID
// from the previous one.
func (s *Sink) Exclusive() bool { return s.config.TransactionalID != "" }

// DataLosses implements [relay.LossReporter]: it returns how many times since Open a broker has lost the producer's
// state (OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID): after an unclean election of a leader this means that
// acknowledged messages are lost.
func (s *Sink) DataLosses() int64 { return s.losses.Load() }

// Probe waits for an answer from a broker, on a new connection if necessary.
func (s *Sink) Probe(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		_, err := s.connected(ctx)
		return err
	}
	if err := s.client.ask(ctx); err != nil {
		s.drop()
		return away(err)
	}
	return nil
}

// Close closes the client.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	return nil
}

// connected returns a client that has reached a broker. The caller holds the lock.
func (s *Sink) connected(ctx context.Context) (*client, error) {
	if s.client == nil {
		c, err := open(ctx, s.config, kgo.RecordPartitioner(&s.partitions),
			kgo.ProducerOnDataLossDetected(func(string, int32) { s.losses.Add(1) }))
		if err != nil {
			return nil, away(err)
		}
		s.client = c
	}
	return s.client, nil
}

// drop closes the client, so that its unanswered messages are not sent again.
func (s *Sink) drop() {
	if s.client != nil {
		s.client.Close()
		s.client = nil
	}
}
