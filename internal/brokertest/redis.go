package brokertest

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// Redis is a Redis server that fsyncs what it acknowledges, with two users: admin, whose password is admin, who may do
// everything, and relay, who may add to streams whose names begin with events.
type Redis struct {
	server
}

// StartRedis starts a server on an empty directory and waits until it accepts connections. It accepts values of up to 1
// MiB. The test's end stops it.
func StartRedis(t testing.TB, password string, settings ...string) *Redis {
	t.Helper()
	program := installed(t, "redis-server")
	dir := t.TempDir()
	s := &Redis{server{t: t, name: "redis", dir: dir, program: program, within: 20 * time.Second}}
	port := freePort(t)
	s.Address = "127.0.0.1:" + port
	users := s.write("users.acl", fmt.Sprintf("user default off ~* &* +@all\nuser admin on >admin ~* &* +@all\n"+
		"user relay on >%s ~events* +xadd +multi +exec +ping +select +type +config|get +client|setname +acl|dryrun\n",
		password))
	s.args = append([]string{
		"--bind", "127.0.0.1", "--port", port, "--dir", filepath.Clean(dir), "--aclfile", users, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--proto-max-bulk-len", "1mb",
	}, settings...)
	s.Restart()
	t.Cleanup(s.Kill)
	return s
}
