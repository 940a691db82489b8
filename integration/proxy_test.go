package integration

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
)

// proxy stands between a process and Postgres and does what networks and poolers
// do.
type proxy struct {
	s       *story
	front   net.Listener
	server  string       // "host:port"
	swallow atomic.Bool  // answer LISTEN as a pooler does that hands the session to others
	refuse  atomic.Bool  // new connections
	refused atomic.Int32 // connections

	mu    sync.Mutex
	lines []*line
}

// line is one proxied connection.
type line struct {
	client, server net.Conn
	frozen         atomic.Bool // bytes vanish; nobody is told
}

// newProxy leads to the story's server; url is that of the story's database by
// way of it.
func (s *story) newProxy() (p *proxy, dsn string) {
	s.Helper()
	u, err := url.Parse(s.url)
	if err != nil {
		s.Fatal(err)
	}
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	p = &proxy{s: s, front: front, server: u.Host}
	if u.Port() == "" {
		p.server = net.JoinHostPort(u.Hostname(), "5432")
	}
	go p.accept()
	s.Cleanup(p.close)
	u.Host = front.Addr().String()
	return p, u.String()
}

func (p *proxy) accept() {
	for {
		client, err := p.front.Accept()
		if err != nil {
			return
		}
		if p.refuse.Load() {
			p.refused.Add(1)
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
		go l.copy(server, client, p.meddle)
		go l.copy(client, server, func([]byte) {})
	}
}

// freeze makes the connections of now half-open: whatever either side sends
// vanishes, and neither is told.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		l.frozen.Store(true)
	}
}

func (p *proxy) close() {
	p.front.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		l.close()
	}
}

// meddle sees what the client sends before the server does.
func (p *proxy) meddle(sent []byte) {
	if at := bytes.Index(bytes.ToLower(sent), []byte(`listen "`)); at >= 0 && p.swallow.Load() {
		copy(sent[at:], "notify")
	}
}

// copy moves bytes until either side ends, and then ends both, unless frozen.
func (l *line) copy(to, from net.Conn, before func([]byte)) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		before(buf[:n])
		frozen := l.frozen.Load()
		if n > 0 && !frozen {
			if _, failed := to.Write(buf[:n]); failed != nil {
				err = failed
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
