package amqp

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/posthaste-dev/posthaste/internal/brokertest"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/relaytest"
)

const (
	password = "a-secret-password"
	largest  = 200_000
)

// A server takes ten seconds to start, so tests share one; each has an exchange and a queue of its own.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{amqp.QueueTypeQuorum, amqp.QueueTypeClassic} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := brokertest.StartRabbitMQ(t, password, largest)
			relaytest.Run(t, func(t *testing.T) relaytest.Broker { return open(t, server, kind) })
		})
	}
}

// broker is an exchange with a queue, and a proxy in front of the server.
type broker struct {
	*brokertest.RabbitMQ
	t     testing.TB
	proxy *fault.Proxy
	url   string // by way of the proxy
	file  string // with the password
	name  string // of the exchange and of the queue
	kind  string // of the queue
}

var opened atomic.Int64

func open(t testing.TB, server *brokertest.RabbitMQ, kind string) *broker {
	t.Helper()
	b := &broker{RabbitMQ: server, t: t, kind: kind, name: fmt.Sprintf("events-%d", opened.Add(1)), file: filepath.Join(t.TempDir(), "password")}
	if err := os.WriteFile(b.file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.create()
	if name := filepath.Base(t.Name()); name == "Killed" || name == "Away" {
		// On one node of RabbitMQ 3.10 that is killed again and again a quorum queue may have no leader for minutes.
		if kind == amqp.QueueTypeQuorum && os.Getenv("POSTHASTE_QUORUM") == "" {
			t.Skip("quorum queues of a server that is killed are for make test-quorum")
		}
		server.Ctl("eval", "mnesia:sync_log().") // a server that is killed now would have forgotten them
	}
	var err error
	if b.proxy, b.url, err = fault.NewProxy("amqp://" + server.Address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.proxy.Close)
	return b
}

func (b *broker) create() {
	b.t.Helper()
	b.admin(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(b.name, true, false, false, false, amqp.Table{amqp.QueueTypeArg: b.kind})
		for _, exchange := range []string{b.name, "forbidden"} {
			err = cmp.Or(err, ch.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil))
		}
		return cmp.Or(err, ch.QueueBind(b.name, "order.*", b.name, false, nil))
	})
}

func (b *broker) Delete() (create func()) {
	b.t.Helper()
	b.admin(func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(b.name, false, false, false)
		return cmp.Or(err, ch.ExchangeDelete(b.name, false, false))
	})
	return b.create
}

// Restart waits until the queue has a leader, too. One is elected when there is quiet for a moment, and the suite tries
// again at once.
func (b *broker) Restart() {
	b.t.Helper()
	b.RabbitMQ.Restart()
	var err error
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(500 * time.Millisecond) {
		err = b.try(func(ch *amqp.Channel) error {
			_, _, err := ch.Get(b.name, false)
			return err
		})
		if err == nil {
			return
		}
	}
	b.t.Errorf("the queue does not come back: %v", err)
}

// Kills returns how often the server is killed, which takes long to start: in make test-quorum it shows what it does
// then.
func (b *broker) Kills() int {
	if b.kind == amqp.QueueTypeQuorum {
		return 5
	}
	return 2
}

// admin does something as somebody who may do everything.
func (b *broker) admin(do func(ch *amqp.Channel) error) {
	b.t.Helper()
	if err := b.try(do); err != nil {
		b.t.Fatal(err)
	}
}

func (b *broker) try(do func(ch *amqp.Channel) error) error {
	conn, err := amqp.Dial("amqp://admin:admin@" + b.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return do(ch)
}

func (b *broker) config() Config {
	return Config{URLs: []string{b.url}, Name: b.t.Name(), User: "relay", PasswordFile: b.file}
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

func (b *broker) Destination() string { return b.name + "/order.paid" }
func (b *broker) Missing() string     { return b.name + "/elsewhere" }
func (b *broker) Forbidden() string   { return "forbidden/order.paid" }
func (b *broker) Largest() int        { return largest }
func (b *broker) Deduplicates() bool  { return false }
func (b *broker) Secrets() []string   { return []string{password} }

func (b *broker) Slow(latency time.Duration) { b.proxy.Latency.Store(int64(latency)) }

func (b *broker) Line() relaytest.Line {
	return relaytest.Line{Requests: &b.proxy.Requests, Answers: &b.proxy.Answers}
}

// Received takes what is in the queue, and gives it back.
func (b *broker) Received() (all []relay.Message) {
	b.t.Helper()
	b.admin(func(ch *amqp.Channel) error {
		if err := ch.Qos(65535, 0, false); err != nil { // a quorum queue gives 2000 otherwise
			return err
		}
		q, err := ch.QueueDeclarePassive(b.name, true, false, false, false, nil)
		if err != nil {
			return err
		}
		deliveries, err := ch.Consume(b.name, "", false, true, false, false, nil)
		if err != nil {
			return err
		}
		for {
			patience := 100 * time.Millisecond
			if len(all) < q.Messages {
				patience = time.Minute
			}
			select {
			case d, ok := <-deliveries:
				if !ok {
					return amqp.ErrClosed
				}
				all = append(all, received(d))
			case <-time.After(patience):
				left, err := ch.QueueDeclarePassive(b.name, true, false, false, false, nil)
				if err != nil || len(all) < q.Messages || left.Messages == 0 {
					return err
				}
			}
		}
	})
	return all
}

func received(d amqp.Delivery) relay.Message {
	m := relay.Message{ID: d.MessageId, Destination: d.Exchange + "/" + d.RoutingKey, ContentType: d.ContentType, Body: d.Body, At: d.Timestamp}
	for name, value := range d.Headers {
		if name == "x-delivery-count" { // the queue's
			continue
		}
		if attribute, ok := strings.CutPrefix(name, "cloudEvents:"); ok {
			name = "ce-" + attribute
		}
		text, _ := value.(string)
		m.Headers = append(m.Headers, relay.Header{Name: name, Value: text})
		switch name {
		case "ce-partitionkey":
			m.Key = text
		case "ce-sequence":
			m.Position, _ = strconv.ParseInt(text, 10, 64)
		}
	}
	return m
}

func (b *broker) Limit(messages int) (free func()) {
	if b.kind == amqp.QueueTypeQuorum {
		messages -= 50 // such a queue tells the channel that it is full, which has sent some more by then
	}
	b.Ctl("set_policy", "--apply-to", "queues", b.name, "^"+b.name+"$", fmt.Sprintf(`{"max-length":%d,"overflow":"reject-publish"}`, messages))
	return func() { b.Ctl("clear_policy", b.name) }
}

func (b *broker) Revoke() (restore func()) {
	b.Ctl("change_password", "relay", "another")
	b.Ctl("close_all_user_connections", "relay", "the password has changed")
	return func() { b.Ctl("change_password", "relay", password) }
}
