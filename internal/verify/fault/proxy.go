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

// Proxy stands between processes and Postgres and does what networks and poolers
// do. The switches may be changed at any time.
type Proxy struct {
	Swallow atomic.Bool  // answer LISTEN as a pooler does that hands the session to others
	Refuse  atomic.Bool  // new connections
	Refused atomic.Int32 // connections
	Latency atomic.Int64 // nanoseconds that every packet of either side is held back

	// A network that is cut holds bytes back, as TCP does that sends them again and
	// again: they arrive when it is mended. Connections made meanwhile hang too.
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
	frozen         atomic.Bool // bytes vanish, and nobody notices
	mute           atomic.Bool // the server's next word is not passed on, but ends the line
}

// NewProxy leads to the server of a database; dsn is that of the same database by
// way of it. The caller closes it.
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

// breaks is where connections break: at a packet that has mark.
type breaks struct {
	mark   []byte
	inside func(sent []byte, at int) int // how many bytes the server gets of it
	decide func() Cut
}

// AtCommit has fn decide where connections break that send COMMIT as a simple
// query, as pgx does. Nil breaks none. Calls may be concurrent.
func (p *Proxy) AtCommit(fn func() Cut) {
	if fn == nil {
		p.atCommit.Store(nil)
		return
	}
	p.atCommit.Store(&breaks{commit, func(_ []byte, at int) int { return at + len(commit)/2 }, fn})
}

// AtBatch has fn decide where connections break that send a batch in which mark is, and
// COMMIT is the last statement. Inside is after COMMIT and before the Sync, at which the
// server would answer.
func (p *Proxy) AtBatch(mark string, fn func() Cut) {
	const sync = 5 // bytes
	p.atCommit.Store(&breaks{[]byte(mark), func(sent []byte, _ int) int { return len(sent) - sync }, fn})
}

// stalls holds answers back until they are healed.
type stalls struct {
	pick   func() time.Duration
	healed chan struct{}
}

// Stall has pick decide how long each packet of the server is held back, until
// heal is called, which lets go of those that are. Calls may be concurrent.
func (p *Proxy) Stall(pick func() time.Duration) (heal func()) {
	s := &stalls{pick, make(chan struct{})}
	p.stalls.Store(s)
	return func() {
		p.stalls.Store(nil)
		close(s.healed)
	}
}

// holdBack waits as Stall says.
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

// Freeze makes the connections of now half-open: whatever either side sends
// vanishes, and neither notices.
func (p *Proxy) Freeze() {
	for _, l := range p.current() {
		l.frozen.Store(true)
	}
}

// Thaw ends the connections that are half-open. The server learns of it now; the
// client may have given up long ago.
func (p *Proxy) Thaw() {
	for _, l := range p.current() {
		if l.frozen.Load() {
			l.close()
		}
	}
}

// Inject sends a statement to the server on every connection of now, behind the
// clients' backs. It must be so short that its message has one byte of length.
func (p *Proxy) Inject(sql string) error {
	message := append([]byte{'Q', 0, 0, 0, byte(4 + len(sql) + 1)}, sql...)
	var errs []error
	for _, l := range p.current() {
		_, err := l.server.Write(append(message, 0))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// CutAll breaks the connections of now; both sides notice.
func (p *Proxy) CutAll() {
	for _, l := range p.current() {
		l.close()
	}
}

// Close ends everything.
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

// commit is the message by which pgx commits.
var commit = []byte("Q\x00\x00\x00\x0bcommit\x00")

// meddle sees what the client sends before the server does, and returns what the
// server gets, and whether the line lives on.
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

// copy moves bytes until either side ends or meddle says so, and then ends both,
// unless frozen.
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
