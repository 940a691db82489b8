package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

const (
	connectTimeout = 5 * time.Second
	silence        = 30 * time.Second // after which a connection is broken; shorter waits use a context
	idleTimeout    = time.Second      // after which the server may have closed a connection that nobody used
	defaultLargest = 512 << 20        // proto-max-bulk-len by default
	leastLargest   = 1 << 20          // the lowest value that the server accepts
)

// conn is a connection. It is discarded after an exchange that was not answered.
type conn struct {
	redis.Conn
	largest int       // largest body or header, in bytes
	used    time.Time // when somebody last began to use it

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
	c := &conn{largest: defaultLargest, used: time.Now()}
	defer c.guard(ctx)()
	c.Conn, err = redis.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "6379")),
		redis.DialContextFunc(c.dial(security)), redis.DialReadTimeout(silence), redis.DialWriteTimeout(silence),
		redis.DialUsername(config.User), redis.DialPassword(password), redis.DialClientName(config.Name),
		redis.DialDatabase(db))
	if err != nil {
		return nil, fmt.Errorf("connect to Redis: %w", err)
	}
	// This must be a transaction, like the runs: after a refused MULTI, the server would execute each of their
	// commands.
	if _, err := c.transaction([][]any{{"PING"}}); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("connect to Redis: %w", err)
	}
	settings, err := redis.StringMap(c.Do("CONFIG", "GET", "proto-max-bulk-len"))
	if n, bad := strconv.Atoi(settings["proto-max-bulk-len"]); err == nil && bad == nil {
		c.largest = max(n, leastLargest)
	}
	if err := c.Err(); err != nil { // a refusal is none: a service may not have CONFIG
		_ = c.Close()
		return nil, fmt.Errorf("connect to Redis: %w", err)
	}
	return c, nil
}

// errAborted is the answer to a command that the server would have carried out if it had accepted the others.
var errAborted = errors.New("the server has refused another command of the transaction")

// transaction sends commands between MULTI and EXEC, and returns the answer to each: nil, what the command returns, or
// an error. Its own error means that the server has refused the transaction, if [word] finds the server's word in it,
// and otherwise that there is no answer.
//
// A server that refuses EXEC carries out none of the commands, and one that refuses MULTI each by itself. It refuses
// MULTI only if somebody has revoked the permission since the client connected, and once, because [connect] then fails.
func (c *conn) transaction(commands [][]any) (answers []any, err error) {
	if err := c.Send("MULTI"); err != nil {
		return nil, err
	}
	for _, command := range commands {
		if err := c.Send(command[0].(string), command[1:]...); err != nil {
			return nil, err
		}
	}
	if err := c.Send("EXEC"); err != nil {
		return nil, err
	}
	all, err := redis.Values(c.Do("")) // of all that was sent
	if err != nil {
		return nil, err
	}
	last := len(all) - 1
	if refusal, ok := all[0].(redis.Error); ok {
		return nil, refusal
	}
	if answers, ok := all[last].([]any); ok && len(answers) == len(commands) {
		return answers, nil
	}
	refusal, ok := all[last].(redis.Error)
	if !ok {
		return nil, fmt.Errorf("EXEC of %d commands returned %v", len(commands), all[last])
	}
	answers = all[1:last]
	accepted := 0
	for n, answer := range answers {
		if _, refused := answer.(redis.Error); !refused {
			answers[n] = errAborted
			accepted++
		}
	}
	if accepted == len(commands) {
		return nil, refusal
	}
	return answers, nil
}

// answers reports whether the connection works. It asks the server if nobody has used the connection for a while: what
// is sent to a server that has closed it would be of unknown outcome.
func (c *conn) answers(ctx context.Context) bool {
	idle := time.Since(c.used) > idleTimeout
	c.used = time.Now()
	if idle {
		defer c.guard(ctx)()
		_, _ = c.Do("PING")
	}
	return c.Err() == nil
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

// guard breaks the connection when ctx ends, until the returned function is called: the client itself does not observe
// a context.
func (c *conn) guard(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.socket != nil {
			_ = c.socket.Close()
		}
	})
}
