// Package natsproc runs NATS servers with JetStream: real ones, in processes of their own that can be killed, stopped
// and started again on the same store. They are built from this repository by the go command.
package natsproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/internal/freeport"
	"github.com/posthaste-dev/posthaste/internal/source"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// Options are options of a server. The zero value is what nats-server does by default.
type Options struct {
	SyncAlways bool   // fsync every message before its acknowledgement
	Config     string // more of a configuration of nats-server: users, TLS
}

// Server is a server in a process of its own. The caller kills it in the end.
type Server struct {
	*child.Process
	URL string // nats://host:port

	port    int
	dir     string
	options Options
}

// Start starts a server on an empty store in a folder, and waits until it accepts connections.
func Start(dir string, options Options) (*Server, error) {
	port, err := freeport.Pick()
	if err != nil {
		return nil, err
	}
	s := &Server{URL: fmt.Sprintf("nats://127.0.0.1:%d", port), port: port, dir: dir, options: options}
	return s, s.Restart()
}

// Restart starts a killed server again: on the same store, at the same address.
func (s *Server) Restart() error {
	program, err := binary()
	if err != nil {
		return err
	}
	if err := s.write(); err != nil {
		return err
	}
	log := filepath.Join(s.dir, "log")
	if s.Process, err = child.Start("natsdev", log, program, nil, nil, s.config()); err != nil {
		return err
	}
	if err := s.ready(); err != nil {
		said, _ := os.ReadFile(log)
		return fmt.Errorf("%w\n%s", err, said)
	}
	return nil
}

// Configure writes a new configuration in place of Options.Config, which SIGHUP makes the server read.
func (s *Server) Configure(config string) error {
	s.options.Config = config
	return s.write()
}

func (s *Server) config() string { return filepath.Join(s.dir, "nats.conf") }

func (s *Server) write() error {
	interval := "2m" // the server's default
	if s.options.SyncAlways {
		interval = "always"
	}
	text := fmt.Sprintf("host: 127.0.0.1\nport: %d\njetstream { store_dir: %q, sync_interval: %s }\n%s\n",
		s.port, filepath.Join(s.dir, "store"), interval, s.options.Config)
	return os.WriteFile(s.config(), []byte(text), 0o600)
}

// ready waits until the server accepts connections. The server accepts them before it has recovered its streams, so a
// client may see JetStream only a moment later.
func (s *Server) ready() error {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if !s.Alive() {
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

// binary builds the server's command. The go command does nothing if the program is up to date.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("posthaste-natsdev-%d", os.Getuid()), "natsdev")
	return path, source.Build(context.Background(), "internal/natsdev", path)
})
