package amqp

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/posthaste-dev/posthaste/relay"
)

// Sink publishes to exchanges of a RabbitMQ server or cluster. Its methods may be called concurrently, and wait
// for each other.
type Sink struct {
	config Config
	frame  atomic.Int64 // of the connection that there was last

	mu      sync.Mutex
	conn    *conn // nil, or dead, until the next that needs one
	careful bool  // a channel was closed, and we do not know for which message
}

var _ relay.Sink = (*Sink)(nil)

// Open checks a configuration. It does not connect: a server that is away is a matter of [Sink.Publish] and
// [Sink.Probe], each of which connects if there is no connection.
func Open(config Config) (*Sink, error) {
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("open the RabbitMQ sink: %w", err)
	}
	config.Name = cmp.Or(config.Name, "posthaste")
	return &Sink{config: config}, nil
}

// Limits are those of the server that the sink was connected to last. What a body may have is not known: the server
// names max_message_size to no client.
func (s *Sink) Limits() relay.Limits {
	return relay.Limits{HeaderBytes: max(0, int(s.frame.Load())-reserve)}
}

// Probe connects, if there is no connection, and opens a channel.
func (s *Sink) Probe(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.connected(ctx)
	if err != nil {
		return err
	}
	defer c.guard(ctx)()
	probe, err := c.amqp.Channel()
	if err == nil {
		err = probe.Close()
	}
	if err != nil {
		return away(fmt.Errorf("open a channel: %w", err))
	}
	return nil
}

// Close closes the connection.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.close()
	}
	return nil
}

// connected returns a connection that is alive and not blocked, as far as it is known. The caller has the lock.
func (s *Sink) connected(ctx context.Context) (*conn, error) {
	if s.conn == nil || !s.conn.usable() {
		if s.conn != nil {
			s.conn.close()
			s.conn = nil
		}
		c, err := connect(ctx, s.config)
		if err != nil {
			return nil, away(err)
		}
		s.conn = c
		s.frame.Store(int64(c.amqp.Config.FrameSize))
	}
	if err := s.conn.blocked(); err != nil {
		return nil, away(err)
	}
	return s.conn, nil
}
