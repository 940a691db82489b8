package brokertest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// RabbitMQ is a RabbitMQ server with two users: admin, whose password is admin, who may do everything, and relay, who
// may publish to exchanges whose names begin with events.
type RabbitMQ struct {
	server
	ctl string
}

const scripts = "/usr/lib/rabbitmq/bin/" // of Debian's package, without the switch to a user of its own

// StartRabbitMQ starts a server on an empty directory and waits until it accepts connections. It accepts messages with
// bodies of up to the given number of bytes. The test's end stops it.
func StartRabbitMQ(t testing.TB, password string, largest int) *RabbitMQ {
	t.Helper()
	program := installed(t, scripts+"rabbitmq-server", "rabbitmq-server")
	dir := t.TempDir()
	s := &RabbitMQ{
		server: server{t: t, name: "rabbitmq", dir: dir, program: program, within: 3 * time.Minute},
		ctl:    installed(t, scripts+"rabbitmqctl", "rabbitmqctl"),
	}
	port, names := freePort(t), freePort(t)
	s.Address = "127.0.0.1:" + port
	s.write(".erlang.cookie", "a cookie")
	definitions := s.write("definitions.json", definitions(t, password))
	config := s.write("rabbitmq.conf",
		fmt.Sprintf("listeners.tcp.1 = %s\nload_definitions = %s\nmax_message_size = %d\nlog.console = true\nlog.file = false\n",
			s.Address, definitions, largest))
	s.env = []string{
		"HOME=" + dir, "ERL_EPMD_PORT=" + names, "ERL_EPMD_ADDRESS=127.0.0.1",
		"RUNNING_UNDER_SYSTEMD=true", // so the script becomes the server, and does not wait for it
		"RABBITMQ_NODENAME=test@localhost", "RABBITMQ_DIST_PORT=" + freePort(t), "RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILE=" + config, "RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "db"), "RABBITMQ_LOG_BASE=" +
			filepath.Join(dir, "logs"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "plugins"),
	}
	// Otherwise the server would start Erlang's name server itself, and leave it running.
	register, err := child.Start("epmd", filepath.Join(dir, "epmd.log"), installed(t, "epmd"), nil, nil, "-port", names,
		"-address", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = register.Kill9() })
	s.Restart()
	t.Cleanup(s.Kill)
	return s
}

// definitions returns the definitions with which the server starts.
func definitions(t testing.TB, password string) string {
	t.Helper()
	type object map[string]any
	text, err := json.Marshal(object{
		"vhosts": []object{{"name": "/"}},
		"users": []object{
			{"name": "admin", "password": "admin", "tags": "administrator"},
			{"name": "relay", "password": password, "tags": ""},
		},
		"permissions": []object{
			{"user": "admin", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
			{"user": "relay", "vhost": "/", "configure": "^$", "write": "^(events.*|amq.default)$", "read": "^$"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Ctl runs rabbitmqctl.
func (s *RabbitMQ) Ctl(args ...string) {
	s.t.Helper()
	if _, err := run(s.env, s.ctl, args...); err != nil {
		s.t.Error(err)
	}
}
