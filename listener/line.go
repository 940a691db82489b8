package listener

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// keepAlive notices a dead peer in about ten seconds instead of minutes.
var keepAlive = net.KeepAliveConfig{
	Enable:   true,
	Idle:     5 * time.Second,
	Interval: 2 * time.Second,
	Count:    3,
}

// userTimeout bounds how long sent data may stay unacknowledged.
const userTimeout = 10 * time.Second

// line is a connection and the socket beneath it. Only one goroutine may use
// the connection, but any may close the socket: a call that is blocked on the
// connection then returns.
type line struct {
	conn  *pgx.Conn
	out   io.Writer                 // past conn, to the same server
	heard atomic.Pointer[time.Time] // when anything came last

	dialer pgconn.DialFunc // of the configuration

	mu     sync.Mutex
	socket net.Conn
}

// dialling marks the context in which pgx may dial.
type dialling struct{}

// open connects. When pgx gives up a connection it lets a goroutine, which
// nobody can wait for, dial once more to cancel what runs there. We have nothing
// worth cancelling, so that dial, known by its context, is refused.
func open(ctx context.Context, connect connector) (*line, error) {
	cfg, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	ln := &line{dialer: cfg.DialFunc}
	cfg.DialFunc = ln.dial
	conn, err := pgx.ConnectConfig(context.WithValue(ctx, dialling{}, true), cfg)
	if err != nil {
		ln.cut()
		return nil, err
	}
	ln.conn, ln.out = conn, conn.PgConn().Conn()
	return ln, nil
}

func (ln *line) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if ctx.Value(dialling{}) == nil {
		return nil, errors.New("the listener cancels no queries")
	}
	socket, err := ln.dialer(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	watchPeer(socket)
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.socket = socket // pgx may try several; the last is the one it uses
	return ear{socket, ln}, nil
}

// watchPeer has the system notice when the other end of a socket of its own is dead. It is
// best effort: without it, our questions and the canary remain.
func watchPeer(socket net.Conn) {
	tcp, ok := socket.(*net.TCPConn)
	if !ok {
		return
	}
	_ = tcp.SetKeepAliveConfig(keepAlive)
	if raw, err := tcp.SyscallConn(); err == nil {
		setUserTimeout(raw)
	}
}

// ear notes when something is read from the socket, encrypted or not.
type ear struct {
	net.Conn
	line *line
}

func (e ear) Read(b []byte) (int, error) {
	n, err := e.Conn.Read(b)
	if n > 0 {
		e.line.heard.Store(new(time.Now()))
	}
	return n, err
}

// question is the message Sync. Between queries a server, or a pooler, answers it
// with ReadyForQuery and does nothing else: it is no statement, begins no
// transaction, and leaves the text of the last query in pg_stat_activity, by which
// the reaper knows our listeners. The loop that waits for notifications skips the
// answer.
var question = []byte{'S', 0, 0, 0, 4}

// ask asks whether anybody is there. Any goroutine may, once the connection does
// nothing but wait: the question is one write, which cannot mingle with another.
// That it fails is of no interest, because then there is no answer either.
func (ln *line) ask() { _, _ = ln.out.Write(question) }

// heardSince reports whether anything came after t.
func (ln *line) heardSince(t time.Time) bool { return ln.heard.Load().After(t) }

// cut closes the socket, at any time and from any goroutine.
func (ln *line) cut() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.socket != nil {
		ln.socket.Close()
	}
}

// hangUp cuts the line and waits until pgx has let go of it. The connection must
// not be in use any more, and must have been closed or found broken.
func (ln *line) hangUp() {
	ln.cut()
	<-ln.conn.PgConn().CleanupDone()
}

// ownConnection is a Sender that connects for every statement.
type ownConnection struct{ connect connector }

func (o ownConnection) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	ln, err := open(ctx, o.connect)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer ln.hangUp()
	defer ln.conn.Close(ctx)
	return ln.conn.Exec(ctx, sql, args...)
}
