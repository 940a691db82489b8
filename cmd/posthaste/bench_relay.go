package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/bench"
	"github.com/posthaste-dev/posthaste/relay/nats"
)

// benchStream is ours: it is made for the run, and deleted.
const benchStream = "POSTHASTE_BENCH"

// benchSink makes the sink that the flags name.
func benchSink(ctx context.Context, c *cli.Command, o *bench.Options) (end func(), err error) {
	switch kind := c.String("sink"); {
	case kind == "null":
		return func() {}, nil
	case kind != "nats":
		return nil, fmt.Errorf("--sink is %q, want null or nats", kind)
	case c.String("nats") == "":
		return nil, errors.New("--sink nats: where? want --nats URL")
	}
	conn, err := natsgo.Connect(c.String("nats"), natsgo.Timeout(5*time.Second))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err == nil {
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: benchStream, Subjects: []string{"posthaste.bench.>"}, AllowAtomicPublish: true, AllowBatchPublish: true,
		})
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("make stream %s: %w", benchStream, err)
	}
	end = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = js.DeleteStream(ctx, benchStream) // the server has gone
		conn.Close()
	}
	o.Sink, err = nats.Open(nats.Config{URLs: []string{c.String("nats")}, Name: "posthaste bench"})
	o.Destination = "posthaste.bench.{topic}.{key|token}"
	if err != nil {
		end()
	}
	return end, err
}
