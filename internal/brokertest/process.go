// Package brokertest starts brokers for tests: real ones if they are installed, in processes of their own that can be
// killed, stopped and started again on the same files.
package brokertest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/freeport"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// required names the variable with which .ci/run makes a missing broker an error.
const required = "POSTHASTE_BROKERS"

// installed returns the path of a program. If the program is missing, it skips the test, or fails it if the program is
// required.
func installed(t testing.TB, paths ...string) string {
	t.Helper()
	for _, path := range paths {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	if os.Getenv(required) == "required" {
		t.Fatalf("%s is not installed, and %s is set to required", filepath.Base(paths[0]), required)
	}
	t.Skipf("%s is not installed: this test is skipped", filepath.Base(paths[0]))
	return ""
}

// server is a broker's process, with what is needed to start it again.
type server struct {
	Address string // host:port

	t       testing.TB
	name    string
	dir     string
	program string
	args    []string
	env     []string
	within  time.Duration // it takes connections
	process *child.Process
}

// Restart starts a killed server again, on the same files and at the same address, and waits until it accepts
// connections.
func (s *server) Restart() {
	s.t.Helper()
	var err error
	if s.process, err = child.Start(s.name, s.log(), s.program, s.env, nil, s.args...); err != nil {
		s.t.Error(err)
		return
	}
	for deadline := time.Now().Add(s.within); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if !s.process.Alive() {
			break
		}
		if conn, err := net.DialTimeout("tcp", s.Address, time.Second); err == nil {
			_ = conn.Close()
			return
		}
	}
	log, _ := os.ReadFile(s.log())
	s.t.Errorf("%s does not take connections:\n%s", s.name, log)
}

func (s *server) log() string { return filepath.Join(s.dir, s.name+".log") }

// Kill kills the server with SIGKILL and waits until it has ended.
func (s *server) Kill() {
	if err := s.process.Kill9(); err != nil {
		s.t.Error(err)
	}
}

// Stop stops the process with SIGSTOP: it keeps its connections and does not respond.
func (s *server) Stop() {
	s.t.Helper()
	if err := s.process.Stop(); err != nil {
		s.t.Error(err)
	}
}

// Continue lets a stopped process continue.
func (s *server) Continue() { s.signal(syscall.SIGCONT) }

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.process.Signal(sig); err != nil {
		s.t.Error(err)
	}
}

// write writes a file into the server's directory and returns its path.
func (s *server) write(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func freePort(t testing.TB) string {
	t.Helper()
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

// run runs a command of a broker and returns its output.
func run(env []string, program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	cmd.Env = child.Environment(env)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return string(out), nil
}
