package amqp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	connectTimeout = 5 * time.Second  // per node, from the first packet to the end of the handshake
	heartbeat      = 10 * time.Second // a connection that receives nothing for 15 s is broken
	closeTimeout   = 2 * time.Second
)

// conn is one connection. It is never re-established: messages without an answer on it are unknown.
type conn struct {
	amqp   *amqp.Connection
	socket net.Conn

	channel  *channel        // nil until the next publication needs one
	sent     map[string]bool // exchanges that have accepted a message
	largest  int             // largest body that was accepted, or is small enough to be
	stale    bool            // messages have been sent whose answers are no longer waited for
	blocking atomic.Pointer[string]
	blocks   chan struct{} // receives when the connection becomes blocked or unblocked
}

// smallBody is a size that every server takes: nobody sets max_message_size lower.
const smallBody = 16 << 10

// connect connects to one of the nodes. It returns soon after ctx ends.
func connect(ctx context.Context, config Config) (*conn, error) {
	var errs []error
	for _, url := range config.URLs {
		c, err := dial(ctx, config, url)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("connect to RabbitMQ: %w", errors.Join(errs...))
}

func dial(ctx context.Context, config Config, url string) (*conn, error) {
	c := &conn{sent: map[string]bool{}, largest: smallBody, blocks: make(chan struct{}, 1)}
	login, err := config.login()
	if err != nil {
		return nil, err
	}
	security, err := config.tls()
	if err != nil {
		return nil, err
	}
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(config.Name)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	unguarded := func() bool { return true }
	c.amqp, err = amqp.DialConfig(url, amqp.Config{
		SASL: login, TLSClientConfig: security, Properties: properties, Heartbeat: heartbeat,
		Dial: func(network, address string) (net.Conn, error) {
			socket, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err == nil {
				c.socket = socket
				unguarded = context.AfterFunc(ctx, func() { _ = socket.Close() })
			}
			return socket, err
		},
	})
	if !unguarded() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if c.socket != nil {
			_ = c.socket.Close()
		}
		return nil, err
	}
	go c.watch(c.amqp.NotifyBlocked(make(chan amqp.Blocking, 1)))
	return c, nil
}

// watch records whether the server has blocked the connection, as it does while it is short of memory or disk. It ends
// with the connection.
func (c *conn) watch(blockings <-chan amqp.Blocking) {
	for b := range blockings {
		if b.Active {
			c.blocking.Store(&b.Reason)
		} else {
			c.blocking.Store(nil)
		}
		select {
		case c.blocks <- struct{}{}:
		default:
		}
	}
}

// blocked returns why the server accepts nothing from this client now; nil if it does.
func (c *conn) blocked() error {
	if reason := c.blocking.Load(); reason != nil {
		return fmt.Errorf("the server has blocked the connection: %s", *reason)
	}
	return nil
}

// guard breaks the connection when ctx ends, until the returned function is called.
func (c *conn) guard(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.socket.Close() })
}

// usable reports whether the next publication can use this connection. A blocked one is kept even with unanswered
// messages: a new connection would only add more of them with each attempt.
func (c *conn) usable() bool {
	return !c.amqp.IsClosed() && (!c.stale || c.blocked() != nil)
}

func (c *conn) close() {
	_ = c.amqp.CloseDeadline(time.Now().Add(closeTimeout)) // the server first accepts what it has received
	_ = c.socket.Close()
}

// channel is one channel in confirm mode. The server closes it when it cannot take a message.
type channel struct {
	*amqp.Channel
	published uint64
	confirms  chan amqp.Confirmation // in the order of the messages; closed with the channel
	returns   chan amqp.Return       // before the confirmations of the messages
	closed    chan *amqp.Error       // receives the reason before confirms is closed
}

// open returns the channel, or a new one if the last was closed.
func (c *conn) open() (*channel, error) {
	if c.channel != nil && !c.channel.IsClosed() {
		return c.channel, nil
	}
	ch, err := c.amqp.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	c.channel = &channel{
		Channel:  ch,
		confirms: ch.NotifyPublish(make(chan amqp.Confirmation, maxUnderWay)), // the client never blocks on it
		returns:  ch.NotifyReturn(make(chan amqp.Return, maxUnderWay)),
		closed:   ch.NotifyClose(make(chan *amqp.Error, 1)),
	}
	return c.channel, nil
}

// renew makes the next publication open another channel. The last one must have no unanswered messages.
func (c *conn) renew() {
	_ = c.channel.Close()
	c.channel = nil
}

// fate returns why a channel was closed.
func (c *channel) fate() error {
	if err := <-c.closed; err != nil {
		return err
	}
	return amqp.ErrClosed
}
