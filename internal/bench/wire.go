package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// wire is a proxy that counts the statements that clients send through it. The server's own counters would also count
// autovacuum's transactions.
type wire struct {
	listener   net.Listener
	upstream   func(context.Context) (net.Conn, error)
	statements atomic.Int64
}

// newWire starts a proxy, and returns it and the URL that leads through it. The proxy ends with ctx.
func newWire(ctx context.Context, databaseURL string) (*wire, string, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, "", err
	}
	network, address := "tcp", net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	if len(config.Host) > 0 && config.Host[0] == '/' {
		network, address = "unix", fmt.Sprintf("%s/.s.PGSQL.%d", config.Host, config.Port)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	w := &wire{listener: l, upstream: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go w.serve(ctx)
	through := url.URL{
		Scheme: "postgres", User: url.UserPassword(config.User, config.Password),
		Host: l.Addr().String(), Path: "/" + config.Database, RawQuery: "sslmode=disable",
	}
	return w, through.String(), nil
}

func (w *wire) serve(ctx context.Context) {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := w.upstream(ctx)
		if err != nil {
			_ = client.Close()
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = client.Close() })
		go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
		go func() { w.count(server, client); _ = server.Close(); stop() }()
	}
}

// count passes the client's messages on: a startup message without a type, then messages with a type and a length. It
// counts those of type Q, a simple query, and E, which executes a prepared one.
func (w *wire) count(server io.Writer, client io.Reader) {
	header := make([]byte, 5)
	for startup := true; ; startup = false {
		head := header
		if startup {
			head = header[1:]
		}
		if _, err := io.ReadFull(client, head); err != nil {
			return
		}
		if !startup && (head[0] == 'Q' || head[0] == 'E') {
			w.statements.Add(1)
		}
		if _, err := server.Write(head); err != nil {
			return
		}
		if _, err := io.CopyN(server, client, int64(binary.BigEndian.Uint32(header[1:]))-4); err != nil {
			return
		}
	}
}
