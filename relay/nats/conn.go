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
	// answerTimeout is the longest silence while answers to messages are due. questionTimeout is for the answer to a
	// question about a stream, on which a message's own path does not depend.
	answerTimeout   = 5 * time.Second
	questionTimeout = 2 * time.Second

	// buffered is how many answers can wait to be read: more than a run has messages.
	buffered = 4 * maxRun
)

// errSilent ends an exchange that receives no more answers.
var errSilent = errors.New("the server does not answer")

// conn is one connection. One goroutine uses it at a time. It is discarded after a run of messages that was not fully
// answered. A question may remain unanswered: a late answer has the prefix of its exchange, and is ignored.
type conn struct {
	nc       *nats.Conn
	sockets  *sockets
	inbox    string         // prefix of all answers' subjects, with its last dot
	answers  chan *nats.Msg // answers to sent messages, identified by their subjects
	violated chan string    // forbidden subjects, once for each attempt to publish to one
	closed   chan struct{}
}

// connect connects to one of the servers. It returns soon after ctx ends.
func connect(ctx context.Context, config Config) (*conn, error) {
	c := &conn{
		sockets: &sockets{}, answers: make(chan *nats.Msg, buffered), violated: make(chan string, buffered),
		closed: make(chan struct{}),
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

// asynchronous handles errors that the server does not attribute to a message, such as a violation of permissions.
func (c *conn) asynchronous(err error) {
	if errors.Is(err, nats.ErrSlowConsumer) || isSubscription(err) {
		c.close() // answers are lost, or will never come
		return
	}
	if subject, ok := violation(err); ok {
		select {
		case c.violated <- subject:
		default: // the message will get no answer
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

// violation returns the subject to which the server refused a publication.
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

// alive reports whether the connection is still up, as far as is known.
func (c *conn) alive() bool {
	select {
	case <-c.closed:
		return false
	default:
		return c.nc.IsConnected()
	}
}

// close ends the connection at once, even during a write.
func (c *conn) close() {
	c.sockets.close()
	c.nc.Close()
}

// guard breaks the connection when ctx ends, until the returned function is called: a write to a server that reads
// nothing would last until nats.go gives it up.
func (c *conn) guard(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, c.sockets.close)
}

// lost returns the error of unanswered messages when the connection ended.
func (c *conn) lost() error {
	if err := c.nc.LastError(); err != nil {
		return fmt.Errorf("the connection to NATS ended: %w", err)
	}
	return fmt.Errorf("the connection to NATS ended: %w", nats.ErrConnectionClosed)
}

// exchange is a question, or a run of messages, with its answers.
type exchange struct {
	c      *conn
	id     string // unique among all clients
	prefix string // of the answers' subjects
}

func (c *conn) exchange() exchange {
	id := strings.TrimPrefix(nats.NewInbox(), nats.InboxPrefix)
	return exchange{c, id, c.inbox + id + "."}
}

// event is an answer or a violation of permissions.
type event struct {
	to       string    // the rest of the answer's subject after the exchange's prefix
	answer   *nats.Msg // nil for a violation
	violated string    // its subject
}

// next waits for an event as await does, and also closes the connection if none comes in time.
func (x exchange) next(ctx context.Context, within time.Duration) (event, error) {
	e, err := x.await(ctx, within)
	if errors.Is(err, errSilent) {
		x.c.close()
	}
	return e, err
}

// await waits up to within for an event that belongs to the exchange. If none comes, it returns errSilent. After any
// other error the connection is closed.
func (x exchange) await(ctx context.Context, within time.Duration) (event, error) {
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
			return event{}, errSilent
		}
	}
}

// ask sends a question and returns its answer. If there is none in time, it returns errSilent, and the connection stays
// open: others may answer what is sent on it.
func (c *conn) ask(ctx context.Context, subject string, question []byte) (*nats.Msg, error) {
	x := c.exchange()
	if err := c.nc.PublishRequest(subject, x.prefix+"0", question); err != nil {
		return nil, err
	}
	for {
		e, err := x.await(ctx, questionTimeout)
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

// roundTrip measures how long a message takes to the server and back.
func (c *conn) roundTrip(ctx context.Context) (time.Duration, error) {
	bounded, cancel := context.WithTimeout(ctx, answerTimeout) // nats.go requires a deadline
	defer cancel()
	start := time.Now()
	err := c.nc.FlushWithContext(bounded)
	return time.Since(start), err
}

// noResponders reports whether the server answered that nobody listens to a subject.
func noResponders(m *nats.Msg) bool { return len(m.Data) == 0 && m.Header.Get("Status") == "503" }

// sockets holds the sockets that nats.go has dialled for a connection.
type sockets struct {
	mu  sync.Mutex
	all []net.Conn
}

// close makes a pending write of nats.go fail, for which its own Close would otherwise wait.
func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, socket := range s.all {
		_ = socket.Close()
	}
}

// dialer dials the sockets of one connection, until ctx ends.
type dialer struct {
	ctx     context.Context
	sockets *sockets
}

// Dial implements nats.go's CustomDialer.
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
