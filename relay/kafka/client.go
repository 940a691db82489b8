package kafka

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// client is a client of Kafka; that of a sink has its own producer ID. It is discarded once its messages are no longer
// waited for: it would send them again at some time.
type client struct {
	*kgo.Client
	connection watch
}

// watch records since when no broker can be reached.
type watch struct {
	mu    sync.Mutex
	since time.Time // when the first connection failed after a broker was reached last
	last  time.Time // when the last one failed
	err   error     // why; nil if a broker was reached since
}

var (
	_ kgo.HookBrokerConnect = (*watch)(nil)
	_ kgo.HookBrokerE2E     = (*watch)(nil)
)

// OnBrokerConnect implements a hook of franz-go: err is why a broker could not be connected to.
func (w *watch) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.err = nil
		return
	}
	w.last = time.Now()
	if w.err == nil {
		w.since = w.last
	}
	w.err = err
}

// OnBrokerE2E implements a hook of franz-go, which calls it after each request: an answer on an older connection means
// that a broker was reached, too. Answers to the requests with which a connection begins do not: a broker that refuses
// the login answers them.
func (w *watch) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, request kgo.BrokerE2E) {
	switch kmsg.Key(key) {
	case kmsg.ApiVersions, kmsg.SASLHandshake, kmsg.SASLAuthenticate:
		return
	}
	if request.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = nil
}

// lost returns why no broker has been reached for as long as a client waits; nil if one was. A client that has not
// tried to connect for as long has no need to: its last failure says nothing about the present.
func (w *watch) lost() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil || time.Since(w.since) < patience || time.Since(w.last) > patience {
		return nil
	}
	return fmt.Errorf("no connection for %s: %w", patience, w.err)
}

// open makes a client and waits for an answer from a broker.
func open(ctx context.Context, config Config, more ...kgo.Opt) (*client, error) {
	c := &client{}
	options, err := config.options()
	if err != nil {
		return nil, err
	}
	options = append(append(options, kgo.WithHooks(&c.connection)), more...)
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
