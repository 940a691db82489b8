package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

const (
	connectTimeout = 5 * time.Second
	silence        = 30 * time.Second // after which a connection is broken; shorter waits use a context
	defaultLargest = 512 << 20        // proto-max-bulk-len by default
	leastLargest   = 1 << 20          // the lowest value that the server accepts
)

// conn is a client with one connection. It is discarded after an exchange that was not answered.
type conn struct {
	*redis.Client
	largest int // largest body or header, in bytes

	mu     sync.Mutex
	socket net.Conn
}

// connect connects and reads the server's limits. It returns soon after ctx ends.
func connect(ctx context.Context, config Config) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	u, err := url.Parse(config.URL)
	if err != nil {
		return nil, err
	}
	password, err := credentials.Secret(config.Password, config.PasswordFile)
	if err != nil {
		return nil, err
	}
	security, err := config.tls(u)
	if err != nil {
		return nil, err
	}
	db, err := database(u)
	if err != nil {
		return nil, err
	}
	c := &conn{largest: defaultLargest}
	c.Client = redis.NewClient(&redis.Options{
		Addr: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "6379")), DB: db, ClientName: config.Name,
		Username: config.User, Password: password, TLSConfig: security, Protocol: 2, DisableIdentity: true,
		Dialer: c.dial(security), PoolSize: 1, MaxRetries: -1, DialerRetries: 1, ReadTimeout: silence,
		WriteTimeout:             silence,
		PipelinePoolSize:         -1, // or transactions would have a connection of their own, but guard closes only one
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer c.guard(ctx)()
	// This must be a transaction, like the runs: after a refused MULTI, the server would execute each of their
	// commands.
	pipe := c.TxPipeline()
	ping := pipe.Ping(ctx)
	_, _ = pipe.Exec(ctx) // ping has the same error
	if err := ping.Err(); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("connect to Redis: %w", err)
	}
	settings, err := c.ConfigGet(ctx, "proto-max-bulk-len").Result()
	if n, bad := strconv.Atoi(settings["proto-max-bulk-len"]); err == nil && bad == nil {
		c.largest = max(n, leastLargest)
	}
	return c, nil
}

// dial stores the socket, so that it can be closed when a context ends.
func (c *conn) dial(security *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var dialer interface {
			DialContext(ctx context.Context, network, address string) (net.Conn, error)
		} = &net.Dialer{}
		if security != nil {
			dialer = &tls.Dialer{Config: security}
		}
		socket, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.socket = socket
		return socket, nil
	}
}

// guard breaks the connection when ctx ends, until the returned function is called: the client itself observes only a
// context's deadline.
func (c *conn) guard(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.socket != nil {
			_ = c.socket.Close()
		}
	})
}
