// Package natstest starts NATS servers with JetStream for tests: real ones, in processes of their own that can be
// killed, stopped and started again on the same store.
package natstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// Options of a server. The zero value is what nats-server does by itself.
type Options struct {
	SyncAlways bool   // fsync every message before its acknowledgement
	Config     string // more of a configuration of nats-server: users, TLS
}

// Server is a server in a process of its own.
type Server struct {
	URL string // nats://host:port

	t       testing.TB
	port    int
	dir     string
	options Options
	process *child.Process
}

// Start starts a server on an empty store and waits until it takes connections. The test's end stops it.
func Start(t testing.TB, options Options) *Server {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{URL: fmt.Sprintf("nats://127.0.0.1:%d", port), t: t, port: port, dir: t.TempDir(), options: options}
	s.Restart()
	t.Cleanup(func() { s.Kill() })
	return s
}

// Restart starts the server that has been killed again: on the same store, at the same address.
func (s *Server) Restart() {
	s.t.Helper()
	program, err := binary()
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(s.options.Config)
	s.process, err = child.Start("natsdev", filepath.Join(s.dir, "log"), program, nil, nil, s.config())
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.ready(); err != nil {
		log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		s.t.Fatalf("%v\n%s", err, log)
	}
}

// Kill ends the server by SIGKILL and waits until it is gone.
func (s *Server) Kill() {
	if err := s.process.Kill9(); err != nil {
		s.t.Error(err)
	}
}

// Stop stops the process, which keeps its connections and answers nothing.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Continue lets a stopped process go on.
func (s *Server) Continue() { s.signal(syscall.SIGCONT) }

// Reload makes the server read a new configuration in place of Options.Config.
func (s *Server) Reload(config string) {
	s.options.Config = config
	s.write(config)
	s.signal(syscall.SIGHUP)
}

// Connect connects as somebody who may do everything, and closes with the test.
func (s *Server) Connect(options ...nats.Option) jetstream.JetStream {
	s.t.Helper()
	nc, err := nats.Connect(s.URL, append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond)}, options...)...)
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
	for began := time.Now(); err != nil && time.Since(began) < 30*time.Second; all, err = drain(t.Context(), js, stream) {
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

func (s *Server) config() string { return filepath.Join(s.dir, "nats.conf") }

func (s *Server) write(config string) {
	s.t.Helper()
	interval := "2m" // the server's default
	if s.options.SyncAlways {
		interval = "always"
	}
	text := fmt.Sprintf("host: 127.0.0.1\nport: %d\njetstream { store_dir: %q, sync_interval: %s }\n%s\n",
		s.port, filepath.Join(s.dir, "store"), interval, config)
	if err := os.WriteFile(s.config(), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// ready waits until the server takes connections. It greets those before it has recovered its streams, so a client may
// see JetStream come a moment later.
func (s *Server) ready() error {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if !s.process.Alive() {
			return errors.New("the NATS server has ended")
		}
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := conn.Read(make([]byte, 16))
		_ = conn.Close()
		if n > 0 && err == nil {
			return nil
		}
	}
	return errors.New("the NATS server does not take connections")
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// binary builds the server's command, of which the go command knows whether it is up to date.
var binary = sync.OnceValues(func() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("posthaste-natsdev-%d", os.Getuid()))
	path := filepath.Join(dir, "natsdev")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Dir = filepath.Join(filepath.Dir(file), "..", "natsdev")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the NATS server: %w\n%s", err, out)
	}
	return path, nil
})
