// Package natstest starts NATS servers with JetStream for tests: real ones, in processes of their own that can be
// killed, stopped and started again on the same store.
package natstest

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natsproc"
)

// Options are options of a server. The zero value is what nats-server does by default.
type Options = natsproc.Options

// Server is a server in a process of its own.
type Server struct {
	URL string // nats://host:port

	t      testing.TB
	server *natsproc.Server
}

// Start starts a server on an empty store and waits until it accepts connections. The test's end stops it.
func Start(t testing.TB, options Options) *Server {
	t.Helper()
	server, err := natsproc.Start(t.TempDir(), options)
	if server != nil && server.Process != nil {
		t.Cleanup(func() { _ = server.Kill9() })
	}
	if err != nil {
		t.Fatal(err)
	}
	return &Server{URL: server.URL, t: t, server: server}
}

// Restart starts a killed server again: on the same store, at the same address.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.server.Restart(); err != nil {
		s.t.Fatal(err)
	}
}

// Kill kills the server with SIGKILL and waits until it has ended.
func (s *Server) Kill() {
	if err := s.server.Kill9(); err != nil {
		s.t.Error(err)
	}
}

// Stop stops the process with SIGSTOP: it keeps its connections and does not respond.
func (s *Server) Stop() {
	s.t.Helper()
	if err := s.server.Stop(); err != nil {
		s.t.Fatal(err)
	}
}

// Continue lets a stopped process continue.
func (s *Server) Continue() { s.signal(syscall.SIGCONT) }

// Reload makes the server read a new configuration in place of Options.Config.
func (s *Server) Reload(config string) {
	s.t.Helper()
	if err := s.server.Configure(config); err != nil {
		s.t.Fatal(err)
	}
	s.signal(syscall.SIGHUP)
}

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.server.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// Connect connects as a user that may do everything. The connection is closed when the test ends.
func (s *Server) Connect(options ...nats.Option) jetstream.JetStream {
	s.t.Helper()
	nc, err := nats.Connect(s.URL,
		append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond)}, options...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	return js
}

// Drain returns what a stream has stored, in its order, and leaves it there. It waits for a cluster that has lost a
// leader.
func Drain(t testing.TB, js jetstream.JetStream, stream string) []*nats.Msg {
	t.Helper()
	all, err := drain(t.Context(), js, stream)
	for began := time.Now(); err != nil && time.Since(began) < 30*time.Second; all, err = drain(t.Context(), js,
		stream) {
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		t.Fatalf("read stream %s: %v", stream, err)
	}
	return all
}

func drain(ctx context.Context, js jetstream.JetStream, stream string) ([]*nats.Msg, error) {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	state := s.CachedInfo().State
	if state.Msgs == 0 {
		return nil, nil
	}
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	all := make([]*nats.Msg, 0, state.Msgs)
	for uint64(len(all)) < state.Msgs {
		m, err := messages.Next(jetstream.NextMaxWait(10 * time.Second))
		if err != nil {
			return nil, fmt.Errorf("message %d of %d: %w", len(all)+1, state.Msgs, err)
		}
		all = append(all, &nats.Msg{Subject: m.Subject(), Header: m.Headers(), Data: m.Data()})
	}
	return all, nil
}
