package redis

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/posthaste-dev/posthaste/relay"
)

// A Sink publishes to streams of a Redis or Valkey server. Its methods may be called concurrently, and wait for each
// other.
type Sink struct {
	relay.Turns

	config Config

	mu   sync.Mutex
	conn *conn // nil until the next call that needs one
}

var _ relay.Sink = (*Sink)(nil)

// Open validates a configuration. It does not connect: [Sink.Publish] and [Sink.Probe] connect if there is no
// connection, and report an unavailable server.
func Open(config Config) (*Sink, error) {
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("open the Redis sink: %w", err)
	}
	config.Name = cmp.Or(config.Name, "posthaste")
	return &Sink{config: config}, nil
}

// Probe waits for an answer from the server.
func (s *Sink) Probe(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.connected(ctx)
	if err != nil {
		return err
	}
	defer c.guard(ctx)()
	if _, err := c.Do("PING"); err != nil {
		s.drop()
		return away(err)
	}
	return nil
}

// Close closes the connection.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	return nil
}

// connected returns a connection that has answered, within the last second or now. The caller holds the lock.
func (s *Sink) connected(ctx context.Context) (*conn, error) {
	if s.conn != nil && !s.conn.answers(ctx) {
		s.drop()
	}
	if s.conn == nil {
		c, err := connect(ctx, s.config)
		if err != nil {
			return nil, away(err)
		}
		s.conn = c
	}
	return s.conn, nil
}

// drop closes the connection, if there is one.
func (s *Sink) drop() {
	if s.conn != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
}
