package redis

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/posthaste-dev/posthaste/internal/brokertest"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/relaytest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	relaytest.Run(t, func(t *testing.T) relaytest.Broker { return start(t) })
}

const (
	password = "a-secret-password"
	stream   = "events"
)

// broker is a server with a stream, and a proxy in front of it.
type broker struct {
	*brokertest.Redis
	t     testing.TB
	proxy *fault.Proxy
	url   string // by way of the proxy
	file  string // with the password
	admin *redis.Pool
}

func start(t testing.TB, settings ...string) *broker {
	t.Helper()
	b := &broker{Redis: brokertest.StartRedis(t, password, settings...), t: t, file: filepath.Join(t.TempDir(), "password")}
	if err := os.WriteFile(b.file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.admin = &redis.Pool{Dial: func() (redis.Conn, error) {
		return redis.Dial("tcp", b.Address, redis.DialUsername("admin"), redis.DialPassword("admin"))
	}}
	t.Cleanup(func() { _ = b.admin.Close() })
	b.create(stream)
	b.create("forbidden")
	var err error
	if b.proxy, b.url, err = fault.NewProxy("redis://" + b.Address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.proxy.Close)
	return b
}

// do does something as somebody who may do everything.
func (b *broker) do(command ...any) (answer any) {
	b.t.Helper()
	conn := b.admin.Get()
	defer func() { _ = conn.Close() }()
	answer, err := conn.Do(command[0].(string), command[1:]...)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer
}

func (b *broker) config() Config {
	return Config{URL: b.url, Name: "test", User: "relay", PasswordFile: b.file}
}

func (b *broker) Sink() relay.Sink { return b.open(b.config()) }

func (b *broker) open(config Config) *Sink {
	b.t.Helper()
	s, err := Open(config)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *broker) Destination() string { return stream }
func (b *broker) Missing() string     { return "events.none" }
func (b *broker) Forbidden() string   { return "forbidden" }
func (b *broker) Largest() int        { return 1 << 20 }
func (b *broker) Deduplicates() bool  { return false }
func (b *broker) Secrets() []string   { return []string{password} }

func (b *broker) Slow(latency time.Duration) { b.proxy.Latency.Store(int64(latency)) }

func (b *broker) Line() relaytest.Line {
	return relaytest.Line{Requests: &b.proxy.Requests, Answers: &b.proxy.Answers}
}

func (b *broker) Received() (all []relay.Message) {
	b.t.Helper()
	return b.received(stream)
}

func (b *broker) received(stream string) (all []relay.Message) {
	b.t.Helper()
	for _, e := range b.do("xrange", stream, "-", "+").([]any) {
		all = append(all, received(stream, e.([]any)[1].([]any)))
	}
	return all
}

func received(stream string, fields []any) relay.Message {
	m := relay.Message{Destination: stream}
	for n := 0; n < len(fields); n += 2 {
		name, value := string(fields[n].([]byte)), string(fields[n+1].([]byte))
		switch name {
		case fieldID:
			m.ID = value
			continue
		case fieldKey:
			m.Key = value
			continue
		case fieldContentType:
			m.ContentType = value
			continue
		case fieldData:
			m.Body = []byte(value)
			continue
		}
		if attribute, ok := strings.CutPrefix(name, theirs); ok {
			name = "ce-" + attribute
		}
		if name == "ce-sequence" {
			m.Position, _ = strconv.ParseInt(value, 10, 64)
		}
		m.Headers = append(m.Headers, relay.Header{Name: strings.TrimPrefix(name, escape), Value: value})
	}
	return m
}

// Limit takes the server's memory away: it counts bytes, and not messages, so it takes none.
func (b *broker) Limit(int) (free func()) {
	b.do("config", "set", "maxmemory", "1mb")
	return func() { b.do("config", "set", "maxmemory", "0") }
}

func (b *broker) create(name string) { b.do("xgroup", "create", name, "consumers", "0", "mkstream") }

func (b *broker) Delete() (create func()) {
	b.do("del", stream)
	return func() { b.create(stream) }
}

func (b *broker) Revoke() (restore func()) {
	b.do("acl", "setuser", "relay", "resetpass", ">another")
	b.do("client", "kill", "user", "relay")
	return func() { b.do("acl", "setuser", "relay", "resetpass", ">"+password) }
}
