package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	redisgo "github.com/gomodule/redigo/redis"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqpgo "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/bench"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/amqp"
	"github.com/posthaste-dev/posthaste/relay/kafka"
	"github.com/posthaste-dev/posthaste/relay/nats"
	"github.com/posthaste-dev/posthaste/relay/redis"
)

// These name the benchmark's own destination at a broker, which it creates and deletes.
const (
	benchStream = "POSTHASTE_BENCH"
	benchTopic  = "posthaste-bench"
)

// benchBroker creates a destination of the benchmark's own at a broker, and a sink that publishes there.
type benchBroker func(ctx context.Context, at *url.URL, o *bench.Options) (end func(context.Context), err error)

// benchBrokers are the kinds of sinks. A client cannot see whether a NATS server always syncs, so that is a kind of its
// own: the name says what is measured.
var benchBrokers = map[string]benchBroker{
	"nats": benchNATS, "nats-sync-always": benchNATS, "kafka": benchKafka, "amqp": benchAMQP, "redis": benchRedis,
}

// benchSink makes the sink that the flags name.
func benchSink(ctx context.Context, c *cli.Command, o *bench.Options) (end func(), err error) {
	kind := c.String("sink")
	if kind == "null" {
		return func() {}, nil
	}
	open, known := benchBrokers[kind]
	if !known {
		return nil, fmt.Errorf("--sink is %q, want null, nats, nats-sync-always, kafka, amqp or redis", kind)
	}
	at, err := url.Parse(c.String("broker"))
	if err != nil || at.Host == "" {
		return nil, fmt.Errorf("--sink %s needs --broker URL", kind)
	}
	remove, err := open(ctx, at, o)
	if err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		remove(ctx)
	}, nil
}

// take returns a function that keeps a sink, or removes what was created for it.
func take[S relay.Sink](ctx context.Context, o *bench.Options,
	remove func(context.Context),
) func(S, error) (func(context.Context), error) {
	return func(sink S, err error) (func(context.Context), error) {
		if err != nil {
			remove(ctx)
			return nil, err
		}
		o.Sink = sink
		return remove, nil
	}
}

func benchNATS(ctx context.Context, at *url.URL, o *bench.Options) (func(context.Context), error) {
	conn, err := natsgo.Connect(at.String(), natsgo.Timeout(5*time.Second))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err == nil {
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: benchStream, Subjects: []string{"posthaste.bench.>"}, AllowAtomicPublish: true,
			AllowBatchPublish: true,
		})
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("make stream %s: %w", benchStream, err)
	}
	o.Destination = "posthaste.bench.{topic}.{key|token}"
	remove := func(ctx context.Context) {
		_ = js.DeleteStream(ctx, benchStream) // the server has gone
		conn.Close()
	}
	return take[*nats.Sink](ctx, o, remove)(nats.Open(nats.Config{URLs: []string{at.String()}, Name: benchTopic}))
}

func benchKafka(ctx context.Context, at *url.URL, o *bench.Options) (func(context.Context), error) {
	config := kafka.Config{Brokers: []string{at.Host}, Name: benchTopic}
	options := []kgo.Opt{kgo.SeedBrokers(at.Host)}
	if at.User != nil {
		config.Mechanism, config.User = "SCRAM-SHA-256", at.User.Username()
		config.Password, _ = at.User.Password()
		options = append(options, kgo.SASL(scram.Auth{User: config.User, Pass: config.Password}.AsSha256Mechanism()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, 4, 1, nil, benchTopic); err != nil {
		client.Close()
		return nil, fmt.Errorf("make topic %s: %w", benchTopic, err)
	}
	o.Destination = benchTopic
	remove := func(ctx context.Context) {
		_, _ = admin.DeleteTopic(ctx, benchTopic) // the broker has gone
		client.Close()
	}
	return take[*kafka.Sink](ctx, o, remove)(kafka.Open(config))
}

// benchAMQP publishes to a quorum queue, and pipelines if there are few keys: otherwise a key waits for each confirm.
func benchAMQP(ctx context.Context, at *url.URL, o *bench.Options) (func(context.Context), error) {
	conn, err := amqpgo.Dial(at.String())
	if err != nil {
		return nil, errors.New("no connection to RabbitMQ") // the client's error may contain the password
	}
	channel, err := conn.Channel()
	if err == nil {
		_, err = channel.QueueDeclare(benchTopic, true, false, false, false,
			amqpgo.Table{amqpgo.QueueTypeArg: amqpgo.QueueTypeQuorum})
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("make queue %s: %w", benchTopic, err)
	}
	o.Destination = "/" + benchTopic
	config := amqp.Config{Name: benchTopic, User: at.User.Username(), Pipelined: o.Keys != 0 && o.Keys < 100}
	config.Password, _ = at.User.Password()
	bare := *at
	bare.User = nil
	config.URLs = []string{bare.String()}
	remove := func(context.Context) {
		_, _ = channel.QueueDelete(benchTopic, false, false, false) // the server has gone
		_ = conn.Close()
	}
	return take[*amqp.Sink](ctx, o, remove)(amqp.Open(config))
}

func benchRedis(ctx context.Context, at *url.URL, o *bench.Options) (func(context.Context), error) {
	client, err := redisgo.DialURLContext(ctx, at.String())
	if err != nil {
		return nil, fmt.Errorf("connect to the broker: %w", err)
	}
	if _, err := client.Do("XGROUP", "CREATE", benchTopic, "bench", "0", "MKSTREAM"); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("make stream %s: %w", benchTopic, err)
	}
	o.Destination = benchTopic
	config := redis.Config{Name: benchTopic}
	if at.User != nil {
		config.User = at.User.Username()
		config.Password, _ = at.User.Password()
	}
	bare := *at
	bare.User = nil
	config.URL = bare.String()
	remove := func(context.Context) {
		_, _ = client.Do("DEL", benchTopic) // the server has gone
		_ = client.Close()
	}
	return take[*redis.Sink](ctx, o, remove)(redis.Open(config))
}
