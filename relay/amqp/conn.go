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
	connectTimeout = 5 * time.Second  // for each node, from the first packet to the end of the handshake
	heartbeat      = 10 * time.Second // a connection of which nothing came for 15 s is broken
	closeTimeout   = 2 * time.Second
)

// conn is one connection. It is never re-established under way: what was under way on it is unknown.
type conn struct {
	amqp   *amqp.Connection
	socket net.Conn

	channel  *channel        // nil until the next publication needs one
	sent     map[string]bool // exchanges that have taken a message
	largest  int             // body that was taken, or is small enough to be
	stale    bool            // something is under way of which the answer is not waited for any more
	blocking atomic.Pointer[string]
	blocks   chan struct{} // it has just been blocked, or is not any more
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

// watch keeps in mind whether the server has blocked the connection, as it does while it is short of memory or disk.
// It ends with the connection.
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

// blocked is why the server takes nothing of us now; nil if it does.
func (c *conn) blocked() error {
	if reason := c.blocking.Load(); reason != nil {
		return fmt.Errorf("the server has blocked the connection: %s", *reason)
	}
	return nil
}

// guard breaks the connection off when ctx ends, until its result is called.
func (c *conn) guard(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.socket.Close() })
}

// usable reports whether the next publication can have this connection. One that is blocked is kept,
// though something is under way on it: on a new one more would be, with each attempt.
func (c *conn) usable() bool {
	return !c.amqp.IsClosed() && (!c.stale || c.blocked() != nil)
}

func (c *conn) close() {
	_ = c.amqp.CloseDeadline(time.Now().Add(closeTimeout)) // what the server has received it takes first
	_ = c.socket.Close()
}

// channel is one channel in confirm mode. The server ends it when it cannot take a message.
type channel struct {
	*amqp.Channel
	published uint64
	confirms  chan amqp.Confirmation // in the order of the messages; closed with the channel
	returns   chan amqp.Return       // before the confirmations of the messages
	closed    chan *amqp.Error       // has why, before confirms is closed
}

// open returns the channel, a new one if the last was closed.
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
		confirms: ch.NotifyPublish(make(chan amqp.Confirmation, maxUnderWay)), // the client never waits for us
		returns:  ch.NotifyReturn(make(chan amqp.Return, maxUnderWay)),
		closed:   ch.NotifyClose(make(chan *amqp.Error, 1)),
	}
	return c.channel, nil
}

// renew makes the next publication open another channel. Nothing is under way on the last.
func (c *conn) renew() {
	_ = c.channel.Close()
	c.channel = nil
}

// fate is why a channel was closed.
func (c *channel) fate() error {
	if err := <-c.closed; err != nil {
		return err
	}
	return amqp.ErrClosed
}
