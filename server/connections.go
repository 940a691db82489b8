package server

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// defaultConnections is how many connections the API keeps. Each takes some 30 KB, of which 8 KiB may be a body that
// package api does not count.
const defaultConnections = 4096

// tellEvery is the shortest time between log lines that there are too many.
const tellEvery = 10 * time.Second

// boundedListener accepts a limited number of connections at once. At the limit, it ends idle ones, and others wait in
// the system's queue until a connection ends; http.Server cuts off connections that do nothing. (It is
// golang.org/x/net/netutil's LimitListener, with logging, and with connections that can still be closed for writing
// alone: otherwise a refusal of a request that is still being sent would not reach its sender.)
type boundedListener struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	close  func()
	idle   func() // ends idle connections
	log    *slog.Logger
	logged time.Time // only the goroutine that calls Accept uses it
}

func boundConnections(ln net.Listener, most int, endIdle func(), log *slog.Logger) *boundedListener {
	b := &boundedListener{
		Listener: ln, places: make(chan struct{}, most), closed: make(chan struct{}), idle: endIdle,
		log: log,
	}
	b.close = sync.OnceFunc(func() { close(b.closed) })
	return b
}

// Accept waits for a place, and then for a connection.
func (b *boundedListener) Accept() (net.Conn, error) {
	select {
	case b.places <- struct{}{}:
	default:
		if now := time.Now(); now.Sub(b.logged) > tellEvery {
			b.logged = now
			b.log.LogAttrs(context.Background(), slog.LevelWarn, "API connection limit reached, new connections wait",
				slog.Int("connections", cap(b.places)))
		}
		if err := b.await(); err != nil {
			return nil, err
		}
	}
	conn, err := b.Listener.Accept()
	if err != nil {
		<-b.places
		return nil, err
	}
	return &placed{Conn: conn, leave: sync.OnceFunc(func() { <-b.places })}, nil
}

// await waits for a place.
func (b *boundedListener) await() error {
	for {
		b.idle()
		select {
		case b.places <- struct{}{}:
			return nil
		case <-b.closed:
			return net.ErrClosed
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Close ends Accept, even while that waits for a place.
func (b *boundedListener) Close() error {
	b.close()
	return b.Listener.Close()
}

// placed is a connection that has a place.
type placed struct {
	net.Conn
	leave func()
}

func (p *placed) Close() error {
	defer p.leave()
	return p.Conn.Close()
}

// CloseWrite ends a connection whose client is still sending, for http.Server.
func (p *placed) CloseWrite() error {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
