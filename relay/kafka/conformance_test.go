package kafka

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/posthaste-dev/posthaste/internal/brokertest"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/relaytest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", "posthaste-test"} {
		t.Run(cmp.Or(id, "idempotent"), func(t *testing.T) {
			t.Parallel()
			relaytest.Run(t, func(t *testing.T) relaytest.Broker {
				b := start(t)
				b.transactionalID = id
				return b
			})
		})
	}
}

const (
	password = "a-secret-password"
	largest  = 200_000
	topic    = "events"
)

// broker is kfake with a topic, and a proxy in front of it by which all clients come.
type broker struct {
	*brokertest.Kafka
	t     testing.TB
	proxy *fault.Proxy
	front string // the proxy's address
	file  string // with the password

	transactionalID string
}

func start(t testing.TB) *broker {
	t.Helper()
	b := &broker{t: t, file: filepath.Join(t.TempDir(), "password")}
	if err := os.WriteFile(b.file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Kafka = brokertest.StartKafka(t, password, func(address string) string {
		var err error
		if b.proxy, b.front, err = fault.NewProxy("kafka://" + address); err != nil {
			t.Fatal(err)
		}
		b.front = strings.TrimPrefix(b.front, "kafka://")
		t.Cleanup(b.proxy.Close)
		return b.front
	})
	b.create(topic, 3, nil)
	b.create("forbidden", 1, nil)
	return b
}

// admin returns a client of somebody who may do everything.
func (b *broker) admin(options ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(b.front), kgo.SASL(scram.Auth{User: "admin", Pass: "admin"}.AsSha256Mechanism()), kgo.MetadataMinAge(100 * time.Millisecond),
	}, options...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(client.Close)
	return client
}

func (b *broker) create(name string, partitions int32, configs map[string]*string) {
	b.t.Helper()
	if _, err := kadm.NewClient(b.admin()).CreateTopic(b.t.Context(), partitions, 1, configs, name); err != nil {
		b.t.Fatal(err)
	}
}

func (b *broker) config() Config {
	return Config{Brokers: []string{b.front}, Mechanism: "SCRAM-SHA-256", User: "relay", PasswordFile: b.file, MaxBytes: largest, TransactionalID: b.transactionalID}
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

func (b *broker) Destination() string { return topic }
func (b *broker) Missing() string     { return "none" }
func (b *broker) Forbidden() string   { return "forbidden" }
func (b *broker) Largest() int        { return largest }
func (b *broker) Deduplicates() bool  { return false }
func (b *broker) Secrets() []string   { return []string{password} }

func (b *broker) Slow(latency time.Duration) { b.proxy.Latency.Store(int64(latency)) }

// AsksFirst says that nothing is sent before an answer has come: that to the question for a transaction.
func (b *broker) AsksFirst() bool { return b.transactionalID != "" }

func (b *broker) Line() relaytest.Line {
	return relaytest.Line{Requests: &b.proxy.Requests, Answers: &b.proxy.Answers}
}

// Restart starts the server after longer than a client is patient: what is over sooner it bridges, and no batch is
// broken off.
func (b *broker) Restart() {
	time.Sleep(patience + time.Second)
	b.Kafka.Restart()
}

// Received reads the topic's partitions.
func (b *broker) Received() (all []relay.Message) {
	b.t.Helper()
	return b.received(topic)
}

func (b *broker) received(topic string) (all []relay.Message) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ends, err := kadm.NewClient(b.admin()).ListEndOffsets(ctx, topic)
	if err != nil {
		b.t.Fatal(err)
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	var records []*kgo.Record
	consumer := b.admin(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	for len(left) > 0 {
		fetches := consumer.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			b.t.Fatalf("read %s, of which %v is left: %v", topic, left, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			records = append(records, r)
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return committed(records)
}

// committed returns the messages that consumers of what is committed have: those that are in no transaction, and those
// whose transaction has a mark in their partition that it is committed. franz-go is not asked for that: kfake, when it
// has been killed, aborts what was open and writes no mark, so that a client would leave out what follows, too.
func committed(records []*kgo.Record) (all []relay.Message) {
	type transaction struct {
		partition int32
		producer  int64
		epoch     int16
	}
	of := func(r *kgo.Record) transaction { return transaction{r.Partition, r.ProducerID, r.ProducerEpoch} }
	done := map[transaction]bool{}
	for _, r := range records {
		if r.Attrs.IsControl() && len(r.Key) >= 4 && r.Key[3] == 1 { // version, and 0 for an abort or 1 for a commit
			done[of(r)] = true
		}
	}
	for _, r := range records {
		if !r.Attrs.IsControl() && (!r.Attrs.IsTransactional() || done[of(r)]) {
			all = append(all, received(r))
		}
	}
	return all
}

func received(r *kgo.Record) relay.Message {
	m := relay.Message{Destination: r.Topic, Body: r.Value, Key: string(r.Key), At: r.Timestamp}
	for _, h := range r.Headers {
		name, value := h.Key, string(h.Value)
		if attribute, ok := strings.CutPrefix(name, theirs); ok {
			name = "ce-" + attribute
		}
		switch name {
		case headerID:
			m.ID = value
			continue
		case headerContentType:
			m.ContentType = value
			continue
		case "ce-sequence":
			m.Position, _ = strconv.ParseInt(value, 10, 64)
		}
		m.Headers = append(m.Headers, relay.Header{Name: name, Value: value})
	}
	return m
}

func (b *broker) Delete() (create func()) {
	b.t.Helper()
	if _, err := kadm.NewClient(b.admin()).DeleteTopic(b.t.Context(), topic); err != nil {
		b.t.Fatal(err)
	}
	return func() { b.create(topic, 3, nil) }
}

func (b *broker) Revoke() (restore func()) {
	restore = b.Kafka.Revoke()
	b.proxy.CutAll()
	return restore
}
