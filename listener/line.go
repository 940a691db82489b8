package listener

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// dialer notices a dead peer in about ten seconds instead of minutes.
var dialer = net.Dialer{
	KeepAliveConfig: net.KeepAliveConfig{
		Enable:   true,
		Idle:     5 * time.Second,
		Interval: 2 * time.Second,
		Count:    3,
	},
	Control: setUserTimeout,
}

// userTimeout bounds how long sent data may stay unacknowledged.
const userTimeout = 10 * time.Second

// line is a connection and the socket beneath it. Only one goroutine may use
// the connection, but any may close the socket, and whoever is blocked on the
// connection then returns.
type line struct {
	conn *pgx.Conn

	mu     sync.Mutex
	socket net.Conn
}

// dialling marks the context in which pgx may dial.
type dialling struct{}

// open connects. When pgx gives up a connection it lets a goroutine, which
// nobody can wait for, dial once more to cancel what runs there. We have nothing
// worth cancelling, so that dial, known by its context, is refused.
func open(ctx context.Context, cfg *pgx.ConnConfig) (*line, error) {
	ln := new(line)
	cfg = cfg.Copy()
	cfg.DialFunc = ln.dial
	conn, err := pgx.ConnectConfig(context.WithValue(ctx, dialling{}, true), cfg)
	if err != nil {
		ln.cut()
		return nil, err
	}
	ln.conn = conn
	return ln, nil
}

func (ln *line) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if ctx.Value(dialling{}) == nil {
		return nil, errors.New("the listener cancels no queries")
	}
	socket, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.socket = socket // pgx may try several; the last is the one it uses
	return socket, nil
}

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
type ownConnection struct{ cfg *pgx.ConnConfig }

func (o ownConnection) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	ln, err := open(ctx, o.cfg)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer ln.hangUp()
	defer ln.conn.Close(ctx)
	return ln.conn.Exec(ctx, sql, args...)
}
