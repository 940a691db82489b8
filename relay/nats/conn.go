package nats

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// answerTimeout is how long nothing may come back while an answer to messages is due, and questionTimeout to a
	// question about a stream, which the message's own way does not depend on.
	answerTimeout   = 5 * time.Second
	questionTimeout = 2 * time.Second

	// buffered is how many answers wait to be read: more than there are messages in a run.
	buffered = 4 * maxRun
)

// errSilent ends an exchange of which nothing more comes back.
var errSilent = errors.New("the server does not answer")

// conn is one connection. It is used by one goroutine at a time, and is thrown away after an exchange that was not
// answered to its end: so what comes back never belongs to an earlier one.
type conn struct {
	nc       *nats.Conn
	sockets  *sockets
	inbox    string         // of all answers, with its last dot
	answers  chan *nats.Msg // to what we sent, by their subjects
	violated chan string    // subjects to which we may not publish, each time that we did
	closed   chan struct{}
}

// connect connects to one of the servers. It returns soon after ctx ends.
func connect(ctx context.Context, config Config) (*conn, error) {
	c := &conn{
		sockets: &sockets{}, answers: make(chan *nats.Msg, buffered), violated: make(chan string, buffered), closed: make(chan struct{}),
	}
	options, err := config.options(ctx, c.sockets)
	if err != nil {
		return nil, err
	}
	options = append(options,
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { c.asynchronous(err) }))
	if c.nc, err = nats.Connect(strings.Join(config.URLs, ","), options...); err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	c.inbox = c.nc.NewInbox() + "."
	_, err = c.nc.ChanSubscribe(c.inbox+">", c.answers)
	if err == nil {
		_, err = c.roundTrip(ctx)
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("subscribe to answers: %w", err)
	}
	return c, nil
}

// asynchronous takes what the server reports of no message in particular. A violation of permissions is one of these.
func (c *conn) asynchronous(err error) {
	if errors.Is(err, nats.ErrSlowConsumer) || isSubscription(err) {
		c.close() // answers are lost, or will never come
		return
	}
	if subject, ok := violation(err); ok {
		select {
		case c.violated <- subject:
		default: // the message's answer is waited for in vain
		}
	}
}

const (
	onPublish   = `Permissions Violation for Publish to `
	onSubscribe = `Permissions Violation for Subscription to `
)

func isSubscription(err error) bool {
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), onSubscribe)
}

// violation returns the subject to which the server did not let us publish.
func violation(err error) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	_, quoted, ok := strings.Cut(err.Error(), onPublish)
	if !ok {
		return "", false
	}
	subject, err = strconv.Unquote(quoted)
	return subject, err == nil
}

// alive reports whether the connection is still there, as far as it is known.
func (c *conn) alive() bool {
	select {
	case <-c.closed:
		return false
	default:
		return c.nc.IsConnected()
	}
}

// close ends the connection at once, even if it is being written to.
func (c *conn) close() {
	c.sockets.close()
	c.nc.Close()
}

// lost is the error of what was under way when the connection ended.
func (c *conn) lost() error {
	if err := c.nc.LastError(); err != nil {
		return fmt.Errorf("the connection to NATS ended: %w", err)
	}
	return fmt.Errorf("the connection to NATS ended: %w", nats.ErrConnectionClosed)
}

// exchange is a question, or a run of messages, and its answers.
type exchange struct {
	c      *conn
	id     string // unique among all clients
	prefix string // of the subjects of answers
}

func (c *conn) exchange() exchange {
	id := strings.TrimPrefix(nats.NewInbox(), nats.InboxPrefix)
	return exchange{c, id, c.inbox + id + "."}
}

// event is what comes back: an answer, or a violation of permissions.
type event struct {
	to       string    // what follows the exchange in the answer's subject
	answer   *nats.Msg // nil for a violation
	violated string    // its subject
}

// next waits for something that belongs to the exchange, for so long at most. After an error nothing more will come,
// and the connection is closed.
func (x exchange) next(ctx context.Context, within time.Duration) (event, error) {
	silence := time.NewTimer(within)
	defer silence.Stop()
	for {
		select {
		case m := <-x.c.answers:
			if to, ours := strings.CutPrefix(m.Subject, x.prefix); ours {
				return event{to: to, answer: m}, nil
			}
		case subject := <-x.c.violated:
			return event{violated: subject}, nil
		case <-x.c.closed:
			return event{}, x.c.lost()
		case <-ctx.Done():
			x.c.close()
			return event{}, context.Cause(ctx)
		case <-silence.C:
			x.c.close()
			return event{}, errSilent
		}
	}
}

// ask sends a question and returns its answer.
func (c *conn) ask(ctx context.Context, subject string, question []byte) (*nats.Msg, error) {
	x := c.exchange()
	if err := c.nc.PublishRequest(subject, x.prefix+"0", question); err != nil {
		return nil, err
	}
	for {
		e, err := x.next(ctx, questionTimeout)
		switch {
		case err != nil:
			return nil, err
		case e.violated == subject:
			return nil, fmt.Errorf("%w: publish to %s", nats.ErrPermissionViolation, subject)
		case e.answer != nil && noResponders(e.answer):
			return nil, nats.ErrNoResponders
		case e.answer != nil:
			return e.answer, nil
		}
	}
}

// roundTrip returns how long the way to the server and back takes.
func (c *conn) roundTrip(ctx context.Context) (time.Duration, error) {
	bounded, cancel := context.WithTimeout(ctx, answerTimeout) // nats.go wants a deadline
	defer cancel()
	start := time.Now()
	err := c.nc.FlushWithContext(bounded)
	return time.Since(start), err
}

// noResponders reports whether the server says that nobody listens to a subject.
func noResponders(m *nats.Msg) bool { return len(m.Data) == 0 && m.Header.Get("Status") == "503" }

// sockets are those of a connection that nats.go has dialled.
type sockets struct {
	mu     sync.Mutex
	all    []net.Conn
	closed bool
}

// close makes a write fail that nats.go has begun, and which would make its own Close wait.
func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, socket := range s.all {
		_ = socket.Close()
	}
}

// dialer dials the sockets of one connection, until ctx ends.
type dialer struct {
	ctx     context.Context
	sockets *sockets
}

// Dial is nats.go's CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(d.ctx, connectTimeout)
	defer cancel()
	socket, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.sockets.mu.Lock()
	defer d.sockets.mu.Unlock()
	d.sockets.all = append(d.sockets.all, socket)
	return socket, nil
}
