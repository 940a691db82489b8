package redis

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/posthaste-dev/posthaste/relay"
)

// Sink publishes to streams of a Redis or Valkey server. Its methods may be called concurrently, and wait for each
// other.
type Sink struct {
	config Config

	mu   sync.Mutex
	conn *conn // nil until the next that needs one
}

var _ relay.Sink = (*Sink)(nil)

// Open checks a configuration. It does not connect: a server that is away is a matter of [Sink.Publish] and
// [Sink.Probe], each of which connects if there is no connection.
func Open(config Config) (*Sink, error) {
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("open the Redis sink: %w", err)
	}
	config.Name = cmp.Or(config.Name, "posthaste")
	return &Sink{config: config}, nil
}

// Limits are unknown: the server has one for each body and header by itself, which is looked at before sending.
func (s *Sink) Limits() relay.Limits { return relay.Limits{} }

// Probe asks the server for an answer.
func (s *Sink) Probe(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.connected(ctx)
	if err != nil {
		return err
	}
	defer c.guard(ctx)()
	if err := c.Ping(ctx).Err(); err != nil {
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

// connected returns a connection that has answered. The caller has the lock.
func (s *Sink) connected(ctx context.Context) (*conn, error) {
	if s.conn == nil {
		c, err := connect(ctx, s.config)
		if err != nil {
			return nil, away(err)
		}
		s.conn = c
	}
	return s.conn, nil
}

func (s *Sink) drop() {
	if s.conn != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
}
