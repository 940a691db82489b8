package listener_test

import (
	"bytes"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between a listener and Postgres and does what networks and
// poolers do.
type proxy struct {
	t        testing.TB
	addr     string          // where it listens
	server   func() net.Conn // dials Postgres
	behave   atomic.Int32    // towards connections that are accepted from now on
	accepted atomic.Int32    // connections
	refused  atomic.Int32

	mu    sync.Mutex
	front net.Listener // nil while down
	pairs []*pair
	tasks sync.WaitGroup
}

// The ways to treat a new connection.
const (
	forward       = iota
	refuse        // accept and close at once
	ignore        // accept and never answer
	swallowListen // answer LISTEN as if it were done, as a pooler does that hands the session to others
	muteListen    // go silent on LISTEN
)

// pair is one proxied connection.
type pair struct {
	client, server net.Conn
	frozen         atomic.Bool // bytes vanish, and nobody notices
	closed         atomic.Bool
}

func newProxy(t testing.TB, server func() net.Conn) *proxy {
	t.Helper()
	p := &proxy{t: t, server: server, addr: "127.0.0.1:0"}
	p.up()
	t.Cleanup(func() {
		p.down()
		p.tasks.Wait()
	})
	return p
}

func (p *proxy) up() {
	p.t.Helper()
	front, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatalf("start proxy: %v", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.front, p.addr = front, front.Addr().String()
	p.tasks.Go(func() {
		for {
			client, err := front.Accept()
			if err != nil {
				return
			}
			p.accepted.Add(1)
			p.accept(client)
		}
	})
}

// down closes the port and every connection.
func (p *proxy) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.front != nil {
		p.front.Close()
	}
	for _, pair := range p.pairs {
		pair.close()
	}
	p.front, p.pairs = nil, nil
}

// freeze makes the connections of now half-open: whatever either side sends
// vanishes, and neither notices.
func (p *proxy) freeze() {
	for _, pair := range p.current() {
		pair.frozen.Store(true)
	}
}

// inject sends a query to the server behind the client's back.
func (p *proxy) inject(query string) {
	for _, pair := range p.current() {
		message := append([]byte{'Q', 0, 0, 0, byte(4 + len(query) + 1)}, query...)
		if _, err := pair.server.Write(append(message, 0)); err != nil && !pair.closed.Load() {
			p.t.Errorf("inject %q: %v", query, err)
		}
	}
}

// current returns the connections that are not closed.
func (p *proxy) current() []*pair {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.pairs), func(c *pair) bool { return c.closed.Load() })
}

func (p *proxy) accept(client net.Conn) {
	behaviour := p.behave.Load()
	if behaviour == refuse {
		p.refused.Add(1)
		client.Close()
		return
	}
	c := &pair{client: client}
	if behaviour != ignore {
		c.server = p.server()
		p.tasks.Go(func() { c.copy(c.server, client, func(b []byte) { c.meddle(b, behaviour) }) })
		p.tasks.Go(func() { c.copy(client, c.server, func([]byte) {}) })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pairs = append(p.pairs, c)
	if p.front == nil { // went down in between
		c.close()
	}
}

// meddle sees what the client sends before the server does. A LISTEN is a
// message of its own, sent only after the answer to the one before.
func (c *pair) meddle(sent []byte, behaviour int32) {
	at := bytes.Index(sent, []byte(`listen "`))
	switch {
	case at < 0:
	case behaviour == swallowListen:
		copy(sent[at:], "notify")
	case behaviour == muteListen:
		c.frozen.Store(true)
	}
}

// copy moves bytes until either side ends, and then ends both, unless frozen.
func (c *pair) copy(to io.Writer, from io.Reader, before func([]byte)) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		before(buf[:n])
		if c.frozen.Load() {
			if err != nil {
				return
			}
			continue
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			c.close()
			return
		}
	}
}

func (c *pair) close() {
	c.closed.Store(true)
	c.client.Close()
	if c.server != nil {
		c.server.Close()
	}
}
