package kafka

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// client is a producer of Kafka's, with a producer ID of its own. It is thrown away when we stop to wait for what
// is under way: it would send that again, some time.
type client struct {
	*kgo.Client
	connection watch
}

// watch keeps in mind since when no broker can be reached.
type watch struct {
	mu    sync.Mutex
	since time.Time
	err   error
}

var _ kgo.HookBrokerConnect = (*watch)(nil)

// OnBrokerConnect is franz-go's: err is why a broker could not be connected to.
func (w *watch) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.since, w.err = time.Time{}, nil
	case w.err == nil:
		w.since, w.err = time.Now(), err
	default:
		w.err = err
	}
}

// lost is why no broker has been reached for as long as we wait; nil if one was.
func (w *watch) lost() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil || time.Since(w.since) < patience {
		return nil
	}
	return fmt.Errorf("no connection for %s: %w", patience, w.err)
}

// open makes a client and asks a broker for an answer.
func open(ctx context.Context, config Config, losses *atomic.Int64) (*client, error) {
	c := &client{}
	options, err := config.options()
	if err != nil {
		return nil, err
	}
	options = append(options, kgo.WithHooks(&c.connection), kgo.ProducerOnDataLossDetected(func(string, int32) { losses.Add(1) }))
	if c.Client, err = kgo.NewClient(options...); err != nil {
		return nil, fmt.Errorf("make a client of Kafka: %w", err)
	}
	if err := c.ask(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *client) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.Ping(ctx); err != nil {
		return fmt.Errorf("ask a broker of Kafka: %w", err)
	}
	return nil
}
