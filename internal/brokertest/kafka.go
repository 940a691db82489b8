package brokertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/source"
)

// Kafka is kfake in a process of its own, which is not a real Kafka broker. Package internal/kafkadev describes its
// users.
type Kafka struct {
	server
}

// StartKafka starts a server on an empty directory and waits until it accepts connections. Clients connect to the
// address that advertise returns for the server's. The test's end stops it.
func StartKafka(t testing.TB, password string, advertise func(address string) string) *Kafka {
	t.Helper()
	program, err := kafkadev()
	if err != nil {
		t.Fatal(err)
	}
	s := &Kafka{server{t: t, name: "kafka", dir: t.TempDir(), program: program, within: 30 * time.Second}}
	s.Address = "127.0.0.1:" + freePort(t)
	s.args = []string{"-listen", s.Address, "-advertise", advertise(s.Address), "-dir", s.dir, "-password", password}
	s.Restart()
	t.Cleanup(s.Kill)
	return s
}

// Limit makes the server accept the given number of further records, and then respond as if its disk were full, until
// free is called.
func (s *Kafka) Limit(records int) (free func()) {
	s.t.Helper()
	file := s.write("limit", fmt.Sprint(records))
	s.reload()
	return func() {
		_ = os.Remove(file)
		s.reload()
	}
}

// Unreadable makes the server respond to each fetch as if its disk had failed, until repair is called.
func (s *Kafka) Unreadable() (repair func()) {
	s.t.Helper()
	file := s.write("unreadable", "")
	s.reload()
	return func() {
		_ = os.Remove(file)
		s.reload()
	}
}

// Revoke makes the server refuse logins of relay, until restore is called.
func (s *Kafka) Revoke() (restore func()) {
	s.t.Helper()
	file := s.write("revoked", "")
	s.reload()
	return func() {
		_ = os.Remove(file)
		s.reload()
	}
}

func (s *Kafka) reload() {
	s.signal(syscall.SIGUSR1)
	time.Sleep(200 * time.Millisecond)
}

// kafkadev builds the server's command. The go command does nothing if the program is up to date.
var kafkadev = sync.OnceValues(func() (string, error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("posthaste-kafkadev-%d", os.Getuid()), "kafkadev")
	return path, source.Build(context.Background(), "internal/kafkadev", path)
})
