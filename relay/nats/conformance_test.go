package nats

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/relaytest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]jetstream.StreamConfig{
		"window":      {},
		"fast ingest": {AllowBatchPublish: true},
		"atomic":      {AllowAtomicPublish: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relaytest.Run(t, func(t *testing.T) relaytest.Broker { return open(t, config) })
		})
	}
}

const (
	streamName = "EVENTS"
	password   = "a-secret-password"
	largest    = 200_000
)

// users returns the server's configuration; the sink is the user "relay".
func users(relay string) string {
	return fmt.Sprintf(`
		accounts: { A: { jetstream: enabled, users: [ { user: admin, password: admin }, %s ] } }
	`, relay)
}

var user = fmt.Sprintf(`{ user: relay, password: %q, permissions: { publish: { allow: [">"], deny: ["events.forbidden.>"] } } }`, password)

// broker is a NATS server with one stream, and a proxy in front of it.
type broker struct {
	*natstest.Server
	t     *testing.T
	js    jetstream.JetStream
	proxy *fault.Proxy
	url   string // by way of the proxy
	file  string // with the password
	kills int    // of the server

	stream jetstream.StreamConfig
}

func open(t *testing.T, config jetstream.StreamConfig) *broker {
	t.Helper()
	b := &broker{t: t, file: filepath.Join(t.TempDir(), "password")}
	if err := os.WriteFile(b.file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Server = natstest.Start(t, natstest.Options{Config: users(user)})
	b.js = b.Connect(nats.UserInfo("admin", "admin"))
	if b.kills = 5; config.AllowBatchPublish || config.AllowAtomicPublish {
		b.kills = 2 // what comes after is the same
	}
	config.Name, config.Subjects, config.MaxMsgSize = streamName, []string{"events.>"}, largest
	b.stream = config
	b.create()
	var err error
	if b.proxy, b.url, err = fault.NewProxy(b.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.proxy.Close)
	return b
}

func (b *broker) Sink() relay.Sink {
	b.t.Helper()
	s, err := Open(Config{URLs: []string{b.url}, Name: b.t.Name(), User: "relay", PasswordFile: b.file})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *broker) Destination() string { return "events.order.paid" }
func (b *broker) Missing() string     { return "elsewhere.order.paid" }
func (b *broker) Forbidden() string   { return "events.forbidden.x" }
func (b *broker) Largest() int        { return largest }
func (b *broker) Deduplicates() bool  { return true }
func (b *broker) Kills() int          { return b.kills }
func (b *broker) Secrets() []string   { return []string{password} }

func (b *broker) Slow(latency time.Duration) { b.proxy.Latency.Store(int64(latency)) }

func (b *broker) Line() relaytest.Line {
	return relaytest.Line{Requests: &b.proxy.Requests, Answers: &b.proxy.Answers}
}

func (b *broker) Received() (all []relay.Message) {
	b.t.Helper()
	for _, m := range natstest.Drain(b.t, b.js, streamName) {
		r := relay.Message{Destination: m.Subject, Body: m.Data}
		for name, values := range m.Header {
			switch name {
			case headerID:
				r.ID = values[0]
			case headerContentType:
				r.ContentType = values[0]
			case "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit":
			default:
				r.Headers = append(r.Headers, relay.Header{Name: name, Value: values[0]})
			}
		}
		r.Key = m.Header.Get("ce-partitionkey")
		r.Position, _ = strconv.ParseInt(cmp.Or(m.Header.Get("ce-sequence"), "0"), 10, 64)
		all = append(all, r)
	}
	return all
}

func (b *broker) Limit(messages int) (free func()) {
	b.t.Helper()
	set := func(limit int64, discard jetstream.DiscardPolicy) {
		b.t.Helper()
		stream, err := b.js.Stream(b.t.Context(), streamName)
		if err != nil {
			b.t.Fatal(err)
		}
		config := stream.CachedInfo().Config
		config.MaxMsgs, config.Discard = limit, discard
		if _, err := b.js.UpdateStream(b.t.Context(), config); err != nil {
			b.t.Fatal(err)
		}
	}
	set(int64(messages), jetstream.DiscardNew)
	return func() { set(-1, jetstream.DiscardNew) }
}

func (b *broker) create() {
	b.t.Helper()
	if _, err := b.js.CreateStream(b.t.Context(), b.stream); err != nil {
		b.t.Fatal(err)
	}
}

func (b *broker) Delete() (create func()) {
	b.t.Helper()
	if err := b.js.DeleteStream(b.t.Context(), streamName); err != nil {
		b.t.Fatal(err)
	}
	return b.create
}

func (b *broker) Revoke() (restore func()) {
	b.Reload(users(`{ user: other, password: other }`))
	return func() { b.Reload(users(user)) }
}

// wait waits until JetStream answers.
func (b *broker) Restart() {
	b.t.Helper()
	b.Server.Restart()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if _, err := b.js.Stream(ctx, streamName); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.t.Error("JetStream does not come back")
}
