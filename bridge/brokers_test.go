package bridge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	gonats "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/internal/brokertest"
	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/relay/kafka"
	"github.com/posthaste-dev/posthaste/relay/nats"
)

// processVariable makes this test binary a bridge that can be killed.
const processVariable = "POSTHASTE_TEST_BRIDGE"

// spec is what a bridge in a process of its own does.
type spec struct {
	Database, NATS, Kafka string
}

const (
	stream = "ORDERS"
	topic  = "events-orders"
)

func (s spec) source() (bridge.Source, error) {
	if s.NATS != "" {
		return nats.OpenSource(nats.Config{URLs: []string{s.NATS}}, nats.SourceConfig{Stream: stream, Consumer: "posthaste", Ordered: true})
	}
	return kafka.OpenSource(kafka.Config{Brokers: []string{s.Kafka}, Mechanism: "SCRAM-SHA-256", User: "admin", Password: "admin"},
		kafka.SourceConfig{Topic: topic, Group: "posthaste"})
}

func process(text string) (exit int) {
	var s spec
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = s.run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func (s spec) run(ctx context.Context) error {
	source, err := s.source()
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, s.Database)
	if err != nil {
		return err
	}
	b, err := bridge.New(pool, bridge.Config{
		Bridges: []bridge.BridgeConfig{{Name: "orders", Source: source, Kind: "order.received", Ordered: true}},
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	return b.Run(ctx)
}

// broker is one that can be killed, and what a producer does.
type broker struct {
	spec
	kill, restart func()
	publish       func(ctx context.Context, n int) error // an order, again after an error
}

const keys = 20

func startNATS(t *testing.T) broker {
	s := natstest.Start(t, natstest.Options{SyncAlways: true})
	js := s.Connect()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{"orders.>"}})
	if err != nil {
		t.Fatal(err)
	}
	return broker{spec{NATS: s.URL}, s.Kill, s.Restart, func(ctx context.Context, n int) error {
		m := gonats.NewMsg("orders.new")
		m.Data = fmt.Appendf(nil, `{"order": %d}`, n)
		m.Header.Set("Nats-Msg-Id", fmt.Sprint("order-", n))
		m.Header.Set("ce-partitionkey", fmt.Sprint("customer-", n%keys))
		_, err := js.PublishMsg(ctx, m)
		return err
	}}
}

func startKafka(t *testing.T) broker {
	s := brokertest.StartKafka(t, "password", func(address string) string { return address })
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Address), kgo.SASL(scram.Auth{User: "admin", Pass: "admin"}.AsSha256Mechanism()),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.RecordDeliveryTimeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 3, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	return broker{spec{Kafka: s.Address}, s.Kill, s.Restart, func(ctx context.Context, n int) error {
		return client.ProduceSync(ctx, &kgo.Record{
			Topic: topic, Key: fmt.Append(nil, "customer-", n%keys), Value: fmt.Appendf(nil, `{"order": %d}`, n),
			Headers: []kgo.RecordHeader{{Key: "ce_id", Value: fmt.Append(nil, "order-", n)}, {Key: "ce_source", Value: []byte("shop")}},
		}).FirstErr()
	}}
}

// Broker and bridge are killed at any moment, by SIGKILL, while orders are published. Each order is one job, and the
// jobs of a customer are in line in the order in which they were published.
func TestEachMessageIsOneJob(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) broker{"NATS": startNATS, "Kafka": startKafka} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			b := start(t)
			b.Database = db.Config().ConnString()
			log := filepath.Join(t.TempDir(), "log")
			text, err := json.Marshal(b.spec)
			if err != nil {
				t.Fatal(err)
			}
			begin := func() *child.Process {
				p, err := child.Start("bridge", log, os.Args[0], []string{processVariable + "=" + string(text)}, nil)
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			bridge := begin()
			defer func() {
				_ = bridge.Kill9()
				if out, _ := os.ReadFile(log); t.Failed() {
					t.Logf("%s", out[max(0, len(out)-6000):])
				}
			}()
			const fewest, most, enoughKills = 300, 1500, 8 // how many orders
			orders, published := 0, make(chan struct{})
			var kills atomic.Int64
			go func() {
				defer close(published)
				// What was not acknowledged may be stored: the last order is one that was.
				for more := true; more && t.Context().Err() == nil; {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					if err := b.publish(ctx, orders); err == nil {
						orders++
						more = orders < fewest || orders < most && kills.Load() < enoughKills
					}
					cancel()
					time.Sleep(rand.N(8 * time.Millisecond))
				}
			}()
			for open := true; open; {
				select {
				case <-published:
					open = false
				case <-time.After(700*time.Millisecond + rand.N(time.Second)):
					if kills.Add(1)%2 == 0 {
						b.kill()
						time.Sleep(rand.N(200 * time.Millisecond))
						b.restart()
					} else {
						if err := bridge.Kill9(); err != nil {
							t.Error(err)
						}
						// A bridge that was killed has its lease for ten seconds, as the one of a process that hangs.
						exec(t, db, `UPDATE outbox.inbox_positions SET lease_expires_at = now()`)
						bridge = begin()
					}
				}
			}
			count := func() int { return ask[int](t, db, `SELECT count(DISTINCT payload) FROM outbox.jobs`) }
			await(t, "each order is a job", 90*time.Second, func() bool { return count() == orders })
			if n := jobs(t, db); n != orders || kills.Load() < 4 {
				t.Errorf("%d jobs of %d orders after %d kills", n, orders, kills.Load())
			}
			if n := ask[int](t, db, `SELECT count(*) FROM (
					SELECT order_id < lag(order_id) OVER (PARTITION BY key ORDER BY line_position) AS overtaken
					FROM (SELECT key, line_position, (convert_from(payload, 'UTF8')::json ->> 'order')::int AS order_id FROM outbox.jobs) AS j
				) AS line WHERE overtaken`); n != 0 {
				t.Errorf("%d orders have overtaken another of the same customer", n)
			}
			// In the order in which they were stored, too.
			if n := ask[int](t, db, `SELECT count(*) FROM (
					SELECT line_position < lag(line_position) OVER (PARTITION BY key ORDER BY created_at, id) AS overtaken FROM outbox.jobs
				) AS stored WHERE overtaken`); n != 0 {
				t.Errorf("%d jobs were stored after a later one of the same customer", n)
			}
			t.Logf("%d kills, %d orders", kills.Load(), orders)
		})
	}
}

// A source knows how many messages are behind those that it has returned.
func TestTheLagOfASource(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) broker{"NATS": startNATS, "Kafka": startKafka} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			for n := range 3 {
				if err := b.publish(t.Context(), n*keys); err != nil { // of one customer, and so in one partition
					t.Fatal(err)
				}
			}
			s, err := b.source()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			lag := s.(bridge.Lagging).Lag
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			for _, want := range []int64{2, 1, 0} {
				messages, err := s.Fetch(ctx, 1)
				for err == nil && len(messages) == 0 && ctx.Err() == nil {
					messages, err = s.Fetch(ctx, 1)
				}
				if err != nil || len(messages) != 1 || lag() != want {
					t.Fatalf("%d messages, %v, and %d behind them, want %d", len(messages), err, lag(), want)
				}
			}
		})
	}
}

// Messages without an ID are told apart by the stream that they are in: one that is made again counts from 1.
func TestAStreamThatIsMadeAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := natstest.Start(t, natstest.Options{})
	js := s.Connect()
	for round := range 2 {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{"orders.>"}}); err != nil {
			t.Fatal(err)
		}
		source, err := nats.OpenSource(nats.Config{URLs: []string{s.URL}}, nats.SourceConfig{Stream: stream, Consumer: "posthaste"})
		if err != nil {
			t.Fatal(err)
		}
		_, stop := start(t, db, bridge.BridgeConfig{Source: source})
		for range 3 {
			if _, err := js.Publish(t.Context(), "orders.new", []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
		await(t, "three more jobs", 20*time.Second, func() bool { return jobs(t, db) == 3*(round+1) })
		stop()
		if err := js.DeleteStream(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
	}
}

// A bridge that stops gives back what it has, and the next one has it at once.
func TestABridgeThatStopsLeavesNothingHalfDone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	b := startNATS(t)
	source := func() bridge.Source {
		s, err := b.source()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const orders = 600
	for n := range orders {
		if err := b.publish(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	// A busy machine has a bridge that is given more time for each one that came to nothing.
	const least, most = 20 * time.Millisecond, 30 * time.Second
	began, pause, had := time.Now(), least, 0
	for had < orders {
		_, stop := start(t, db, bridge.BridgeConfig{Source: source(), Ordered: true})
		time.Sleep(pause + rand.N(100*time.Millisecond))
		stop()
		wantNoOwner(t, db)
		now := jobs(t, db)
		if n := ask[int](t, db, `SELECT count(DISTINCT payload) FROM outbox.jobs`); n != now {
			t.Fatalf("%d jobs of %d orders", now, n)
		}
		if pause = min(2*pause, most); now > had {
			pause = least
		}
		if had = now; time.Since(began) > 5*time.Minute {
			t.Fatalf("%d jobs in five minutes", had)
		}
	}
}

// What a source has fetched, and what has arrived beside that, comes again at once, however long AckWait is.
func TestASourceGivesBackWhatItHas(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.Options{})
	js := s.Connect()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	config := jetstream.ConsumerConfig{Durable: "posthaste", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour, MaxDeliver: -1, MaxAckPending: 2000}
	if _, err := js.CreateConsumer(t.Context(), stream, config); err != nil {
		t.Fatal(err)
	}
	const orders = 300
	for range orders {
		if _, err := js.Publish(t.Context(), "orders.new", []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	for _, ordered := range []bool{false, true} {
		source, err := nats.OpenSource(nats.Config{URLs: []string{s.URL}}, nats.SourceConfig{Stream: stream, Consumer: "posthaste", Ordered: ordered})
		if err != nil {
			t.Fatal(err)
		}
		defer source.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range 2 {
			got := map[int64]bool{}
			for len(got) < orders && ctx.Err() == nil {
				messages, err := source.Fetch(ctx, orders)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range messages {
					got[m.Position] = true
				}
			}
			if len(got) < orders {
				t.Fatalf("ordered = %t: %d of %d messages came again", ordered, len(got), orders)
			}
			source.Release()
			if _, err := source.Fetch(ctx, orders); err != nil { // some, and others are on their way
				t.Fatal(err)
			}
			source.Release()
		}
	}
}

func TestAConsumerThatWouldLoseMessagesIsRefused(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.Options{})
	js := s.Connect()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	onlyNew := []string{"orders.new"}
	for want, c := range map[string]struct {
		config   jetstream.ConsumerConfig
		subjects []string
	}{
		"its ack_policy is none":                               {jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy}, onlyNew},
		"its ack_policy is all":                                {jetstream.ConsumerConfig{AckPolicy: jetstream.AckAllPolicy}, onlyNew},
		"it has headers_only":                                  {jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, HeadersOnly: true}, onlyNew},
		"its max_deliver is 5":                                 {jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 5}, onlyNew},
		"its max_ack_pending is -1":                            {jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: -1}, onlyNew},
		`its subjects are ["orders.eu"], want ["orders.new"]`:  {jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: "orders.eu"}, onlyNew},
		`its subjects are [], want ["orders.new"]`:             {jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy}, onlyNew},
		`its subjects are ["orders.us"], and the bridge names`: {jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: "orders.us"}, nil},
		`its subjects are ["orders.a" "orders.b"], and the br`: {jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, FilterSubjects: []string{"orders.a", "orders.b"}}, nil},
	} {
		config := c.config
		config.Durable = "posthaste"
		if _, err := js.CreateConsumer(t.Context(), stream, config); err != nil {
			t.Fatal(err)
		}
		source, err := nats.OpenSource(nats.Config{URLs: []string{s.URL}}, nats.SourceConfig{Stream: stream, Consumer: "posthaste", Subjects: c.subjects, Ordered: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := source.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that says %q", err, want)
		}
		_ = source.Close()
		if err := js.DeleteConsumer(t.Context(), stream, "posthaste"); err != nil {
			t.Fatal(err)
		}
	}
	source, err := nats.OpenSource(nats.Config{URLs: []string{s.URL}}, nats.SourceConfig{Stream: "NONE", Consumer: "posthaste"})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	if err := source.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "stream NONE") {
		t.Errorf("%v, want an error that names the stream", err)
	}
}

// A broker that is away, or answers nothing, does not keep a bridge from stopping.
func TestABridgeStopsWhileItsBrokerIsAway(t *testing.T) {
	t.Parallel()
	for name, start1 := range map[string]func(*testing.T) broker{"NATS": startNATS, "Kafka": startKafka} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			b := start1(t)
			source, err := b.source()
			if err != nil {
				t.Fatal(err)
			}
			log, stop := start(t, db, bridge.BridgeConfig{Source: source, Ordered: true})
			if err := b.publish(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			await(t, "a job", 30*time.Second, func() bool { return jobs(t, db) == 1 })
			b.kill()
			await(t, "it says so", 20*time.Second, func() bool { return strings.Contains(log.String(), "messages are not made jobs") })
			time.Sleep(5 * time.Second)
			if lines := strings.Count(log.String(), "level=WARN"); lines > 2 {
				t.Errorf("%d lines in five seconds:\n%s", lines, log)
			}
			began := time.Now()
			stop()
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it has taken %s to stop", took)
			}
		})
	}
}

// The same for a topic: its ID tells it from the one before.
func TestATopicThatIsMadeAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	b := startKafka(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Kafka), kgo.SASL(scram.Auth{User: "admin", Pass: "admin"}.AsSha256Mechanism()), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	for round := range 2 {
		for n := range 3 {
			r := &kgo.Record{Topic: topic, Key: fmt.Append(nil, n), Value: []byte("{}")}
			if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		source, err := b.source()
		if err != nil {
			t.Fatal(err)
		}
		log, stop := start(t, db, bridge.BridgeConfig{Source: source})
		await(t, "three more jobs "+log.String(), 20*time.Second, func() bool { return jobs(t, db) == 3*(round+1) })
		stop()
		if _, err := admin.DeleteTopics(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
		// As Kafka does when a topic is deleted.
		if _, err := admin.DeleteGroups(t.Context(), "posthaste"); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.CreateTopic(t.Context(), 3, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
		client.PurgeTopicsFromClient(topic)
	}
}
