package amqp

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/posthaste-dev/posthaste/relay"
)

// A Sink publishes to exchanges of a RabbitMQ server or cluster. Its methods may be called concurrently, and wait for
// each other.
type Sink struct {
	relay.Turns

	config Config

	mu      sync.Mutex
	conn    *conn // nil or dead until the next call that needs one
	careful bool  // a channel was closed, and the message at fault is unknown
}

var _ relay.Sink = (*Sink)(nil)

// Open validates a configuration. It does not connect: [Sink.Publish] and [Sink.Probe] connect if there is no
// connection, and report an unavailable server.
func Open(config Config) (*Sink, error) {
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("open the RabbitMQ sink: %w", err)
	}
	config.Name = cmp.Or(config.Name, "posthaste")
	return &Sink{config: config}, nil
}

// Probe connects if there is no connection, and opens a channel.
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

// connected returns a connection that is alive and not blocked, as far as is known. The caller holds the lock.
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
	}
	if err := s.conn.blocked(); err != nil {
		return nil, away(err)
	}
	return s.conn, nil
}
