package fault

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy stands between processes and Postgres, and injects the faults of networks and poolers. Its switches may be
// changed at any time.
type Proxy struct {
	Swallow atomic.Bool  // replace LISTEN: the session does not listen, as behind a pooler that gives it to others
	Refuse  atomic.Bool  // new connections
	Refused atomic.Int32 // connections
	Latency atomic.Int64 // nanoseconds that every packet of either side is held back

	// A shut valve holds bytes back, as TCP does when it retransmits: they arrive when the valve opens. Connections
	// made meanwhile hang, too.
	Requests, Answers Valve

	front    net.Listener
	server   string // "host:port"
	atCommit atomic.Pointer[breaks]
	stalls   atomic.Pointer[stalls]

	mu    sync.Mutex
	lines []*line
}

// Cut is where a connection breaks when its client sends COMMIT.
type Cut int

// Where a connection breaks.
const (
	Nowhere Cut = iota
	Before      // the server does not get the COMMIT
	Inside      // it gets a part of the message
	After       // it commits, and the client does not learn of it
)

// line is one proxied connection.
type line struct {
	client, server net.Conn
	frozen         atomic.Bool // bytes are dropped, and neither side gets an error
	mute           atomic.Bool // the server's next packet is not passed on, but ends the line
}

// NewProxy starts a proxy for the server of a database, and returns the URL of the same database through the proxy. The
// caller closes it.
func NewProxy(database string) (p *Proxy, dsn string, err error) {
	u, err := url.Parse(database)
	if err != nil {
		return nil, "", fmt.Errorf("proxy: %w", err)
	}
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("proxy: %w", err)
	}
	p = &Proxy{front: front, server: u.Host}
	if u.Port() == "" {
		p.server = net.JoinHostPort(u.Hostname(), "5432")
	}
	go p.accept()
	u.Host = front.Addr().String()
	return p, u.String(), nil
}

// breaks says where connections break: at a packet that contains mark.
type breaks struct {
	mark   []byte
	inside func(sent []byte, at int) int // how many bytes of the packet the server gets for Inside
	decide func() Cut
}

// AtCommit makes fn decide whether and where a connection breaks that sends COMMIT as a simple query, as pgx does. If
// fn is nil, no connection breaks. Calls of fn may be concurrent.
func (p *Proxy) AtCommit(fn func() Cut) {
	if fn == nil {
		p.atCommit.Store(nil)
		return
	}
	p.atCommit.Store(&breaks{commit, func(_ []byte, at int) int { return at + len(commit)/2 }, fn})
}

// AtBatch makes fn decide whether and where a connection breaks that sends a batch which contains mark, and whose last
// statement is COMMIT. Inside is between the COMMIT and the Sync, at which the server would respond.
func (p *Proxy) AtBatch(mark string, fn func() Cut) {
	const sync = 5 // bytes
	p.atCommit.Store(&breaks{[]byte(mark), func(sent []byte, _ int) int { return len(sent) - sync }, fn})
}

// stalls holds responses back until it is healed.
type stalls struct {
	pick   func() time.Duration
	healed chan struct{}
}

// Stall makes pick decide how long each packet of the server is held back, until heal is called, which also releases
// the packets that are held back. Calls of pick may be concurrent.
func (p *Proxy) Stall(pick func() time.Duration) (heal func()) {
	s := &stalls{pick, make(chan struct{})}
	p.stalls.Store(s)
	return func() {
		p.stalls.Store(nil)
		close(s.healed)
	}
}

// holdBack waits for as long as the pick of Stall decides.
func (p *Proxy) holdBack() {
	s := p.stalls.Load()
	if s == nil {
		return
	}
	if d := s.pick(); d > 0 {
		select {
		case <-time.After(d):
		case <-s.healed:
		}
	}
}

// Freeze makes the current connections half-open: whatever either side sends is dropped, and neither side gets an
// error.
func (p *Proxy) Freeze() {
	for _, l := range p.current() {
		l.frozen.Store(true)
	}
}

// Thaw closes the half-open connections. The server notices that now; the client may have given up long ago.
func (p *Proxy) Thaw() {
	for _, l := range p.current() {
		if l.frozen.Load() {
			l.close()
		}
	}
}

// Inject sends a statement to the server on every current connection, without the clients' knowledge. The statement
// must be so short that the length of its message fits in one byte.
func (p *Proxy) Inject(sql string) error {
	message := append([]byte{'Q', 0, 0, 0, byte(4 + len(sql) + 1)}, sql...)
	var errs []error
	for _, l := range p.current() {
		_, err := l.server.Write(append(message, 0))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// CutAll closes the current connections; both sides notice.
func (p *Proxy) CutAll() {
	for _, l := range p.current() {
		l.close()
	}
}

// Close stops the proxy and closes all its connections.
func (p *Proxy) Close() {
	p.Requests.Open()
	p.Answers.Open()
	p.front.Close()
	p.CutAll()
}

func (p *Proxy) current() []*line {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*line(nil), p.lines...)
}

func (p *Proxy) accept() {
	for {
		client, err := p.front.Accept()
		if err != nil {
			return
		}
		if p.Refuse.Load() {
			p.Refused.Add(1)
			client.Close()
			continue
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			client.Close()
			continue
		}
		l := &line{client: client, server: server}
		p.mu.Lock()
		p.lines = append(p.lines, l)
		p.mu.Unlock()
		go l.copy(server, client, &p.Requests, func(sent []byte) ([]byte, bool) { return p.meddle(l, sent) })
		go l.copy(client, server, &p.Answers, func(answer []byte) ([]byte, bool) {
			p.delay()
			p.holdBack()
			if l.mute.Load() {
				return nil, false
			}
			return answer, true
		})
	}
}

func (p *Proxy) delay() {
	if d := p.Latency.Load(); d > 0 {
		time.Sleep(time.Duration(d))
	}
}

// commit is the message with which pgx commits.
var commit = []byte("Q\x00\x00\x00\x0bcommit\x00")

// meddle returns what the server gets of what the client has sent, and whether the line lives on.
func (p *Proxy) meddle(l *line, sent []byte) (passed []byte, lives bool) {
	p.delay()
	if at := bytes.Index(bytes.ToLower(sent), []byte(`listen "`)); at >= 0 && p.Swallow.Load() {
		copy(sent[at:], "notify")
	}
	breaks := p.atCommit.Load()
	if breaks == nil {
		return sent, true
	}
	at := bytes.Index(sent, breaks.mark)
	if at < 0 {
		return sent, true
	}
	switch breaks.decide() {
	case Before:
		return sent[:at], false
	case Inside:
		return sent[:breaks.inside(sent, at)], false
	case After:
		l.mute.Store(true)
	}
	return sent, true
}

// copy copies bytes until either side ends or meddle reports false, and then closes both sides, unless the line is
// frozen.
func (l *line) copy(to, from net.Conn, valve *Valve, meddle func([]byte) ([]byte, bool)) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		valve.pass()
		frozen := l.frozen.Load()
		if n > 0 && !frozen {
			passed, lives := meddle(buf[:n])
			if _, failed := to.Write(passed); failed != nil {
				err = failed
			}
			if !lives {
				l.close()
				return
			}
		}
		if err != nil {
			if !frozen {
				l.close()
			}
			return
		}
	}
}

func (l *line) close() {
	l.client.Close()
	l.server.Close()
}
