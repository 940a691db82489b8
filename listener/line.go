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

// keepAlive detects a dead peer in about ten seconds instead of minutes.
var keepAlive = net.KeepAliveConfig{
	Enable:   true,
	Idle:     5 * time.Second,
	Interval: 2 * time.Second,
	Count:    3,
}

// userTimeout bounds how long sent data may stay unacknowledged.
const userTimeout = 10 * time.Second

// line is a connection with its underlying socket. Only one goroutine may use the connection, but any may close the
// socket: a call that is blocked on the connection then returns.
type line struct {
	conn  *pgx.Conn
	out   io.Writer                 // writes to the same server, bypassing conn
	heard atomic.Pointer[time.Time] // when data last arrived

	dialer pgconn.DialFunc // from the configuration

	mu     sync.Mutex
	socket net.Conn
}

// dialling marks the contexts in which pgx may dial.
type dialling struct{}

// open connects. When pgx gives up a connection, it starts a goroutine, for which nobody can wait, that dials once more
// to cancel the running statement. The listener has nothing worth cancelling, so that dial, recognized by its context,
// is refused.
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
	return timedConn{socket, ln}, nil
}

// watchPeer makes the system detect when the peer of a TCP socket is dead. This is best effort: without it, the
// questions and the canary remain.
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

// A timedConn notes when data last arrived on the socket, encrypted or not.
type timedConn struct {
	net.Conn
	line *line
}

func (c timedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.line.heard.Store(new(time.Now()))
	}
	return n, err
}

// question is the message Sync. Between queries, a server or a pooler answers it with ReadyForQuery and does nothing
// else. It is not a statement, begins no transaction, and leaves the text of the last query in pg_stat_activity, by
// which the reaper recognizes our listeners. The loop that waits for notifications skips the answer.
var question = []byte{'S', 0, 0, 0, 4}

// ask asks the peer for a sign of life. Any goroutine may call it once the connection does nothing but wait: the
// question is one write, which cannot mingle with another. A failed write needs no handling, because then there is no
// answer either.
func (ln *line) ask() { _, _ = ln.out.Write(question) }

// heardSince reports whether data arrived after t.
func (ln *line) heardSince(t time.Time) bool { return ln.heard.Load().After(t) }

// cut closes the socket, at any time and from any goroutine.
func (ln *line) cut() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.socket != nil {
		ln.socket.Close()
	}
}

// hangUp cuts the line and waits until pgx has released it. The connection must no longer be in use, and must have been
// closed or found broken.
func (ln *line) hangUp() {
	ln.cut()
	<-ln.conn.PgConn().CleanupDone()
}

// ownConnection is a Sender that opens a connection for every statement.
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
