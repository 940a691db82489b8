package cetest

import (
	"testing"

	azure "github.com/Azure/go-amqp"
	"github.com/IBM/sarama"
	ceamqp "github.com/cloudevents/sdk-go/protocol/amqp/v2"
	cekafka "github.com/cloudevents/sdk-go/protocol/kafka_sarama/v2"
	cenats "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqpgo "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/posthaste-dev/posthaste/internal/brokertest"
	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/amqp"
	"github.com/posthaste-dev/posthaste/relay/kafka"
	"github.com/posthaste-dev/posthaste/relay/nats"
)

const (
	place    = "events"
	password = "a-secret-password"
)

// Whatever an event contains, the SDK reads the same from what a NATS server has stored, in either mode.
func TestTheSDKReadsNATS(t *testing.T) {
	server := natstest.Start(t, natstest.Options{})
	js := server.Connect()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: place, Subjects: []string{place}}); err != nil {
		t.Fatal(err)
	}
	sink, err := nats.Open(nats.Config{URLs: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	readStored(t, sink, place, func() binding.Message {
		all := natstest.Drain(t, js, place)
		last := all[len(all)-1]
		return cenats.NewMessage(&natsgo.Msg{Subject: last.Subject, Header: last.Header, Data: last.Data})
	}, true)
}

// The same with what kfake has stored.
func TestTheSDKReadsKafka(t *testing.T) {
	server := brokertest.StartKafka(t, password, func(address string) string { return address })
	client, err := kgo.NewClient(kgo.SeedBrokers(server.Address), kgo.SASL(scram.Auth{User: "admin", Pass: "admin"}.AsSha256Mechanism()), kgo.ConsumeTopics(place))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, place); err != nil {
		t.Fatal(err)
	}
	sink, err := kafka.Open(kafka.Config{Brokers: []string{server.Address}, Mechanism: "SCRAM-SHA-256", User: "relay", Password: password})
	if err != nil {
		t.Fatal(err)
	}
	readStored(t, sink, place, func() binding.Message {
		fetched := client.PollFetches(t.Context())
		if err := fetched.Err(); err != nil {
			t.Fatal(err)
		}
		r := fetched.Records()[0]
		m := &sarama.ConsumerMessage{Topic: r.Topic, Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, &sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
		}
		return cekafka.NewMessageFromConsumerMessage(m)
	}, false)
}

// The same with what RabbitMQ has stored. The SDK implements the binding of AMQP 1.0, whose application properties
// RabbitMQ makes of headers.
func TestTheSDKReadsRabbitMQ(t *testing.T) {
	server := brokertest.StartRabbitMQ(t, password, 1<<20)
	conn, err := amqpgo.Dial("amqp://admin:admin@" + server.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(place, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	sink, err := amqp.Open(amqp.Config{URLs: []string{"amqp://" + server.Address}, User: "relay", Password: password})
	if err != nil {
		t.Fatal(err)
	}
	readStored(t, sink, "/"+place, func() binding.Message {
		d, ok, err := ch.Get(place, true)
		if err != nil || !ok {
			t.Fatalf("nothing is in the queue: %v", err)
		}
		return ceamqp.NewMessage(&azure.Message{
			Properties: &azure.MessageProperties{ContentType: &d.ContentType}, ApplicationProperties: d.Headers, Data: [][]byte{d.Body},
		}, nil)
	}, false)
}

// readStored publishes each event in both modes, and compares it with what the SDK reads from the broker's last
// message. The SDK leaves attribute values percent-encoded, as the binding requires them.
func readStored(t *testing.T, sink relay.Sink, destination string, last func() binding.Message, encoded bool) {
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	})
	for name, e := range events {
		for _, mode := range []relay.CloudEvents{relay.CloudEventsBinary, relay.CloudEventsStructured} {
			t.Run(name+" "+string(mode), func(t *testing.T) {
				e, m := message(t, e, mode)
				m.Destination = destination
				if err := sink.Publish(t.Context(), []relay.Message{m})[0]; err != nil {
					t.Fatal(err)
				}
				stored := last()
				if want := map[relay.CloudEvents]binding.Encoding{relay.CloudEventsBinary: binding.EncodingBinary, relay.CloudEventsStructured: binding.EncodingStructured}[mode]; stored.ReadEncoding() != want {
					t.Errorf("it is in the mode %s, want %s", stored.ReadEncoding(), want)
				}
				got, err := binding.ToEvent(t.Context(), stored)
				if err != nil {
					t.Fatal(err)
				}
				if encoded && mode == relay.CloudEventsBinary {
					decode(t, got)
				}
				compare(t, got, e)
			})
		}
	}
}
