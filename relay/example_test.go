package relay_test

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

type orderPaid struct {
	Order int `json:"order"`
}

func (orderPaid) Topic() string { return "order.paid" }

// printer is a sink that prints, and accepts everything.
type printer struct{ printed chan struct{} }

func (p printer) Publish(_ context.Context, batch []relay.Message) []error {
	for _, m := range batch {
		fmt.Println(m.Destination, m.Key, string(m.Body))
		p.printed <- struct{}{}
	}
	return make([]error, len(batch)) // nil: the broker has it
}

func (printer) Probe(context.Context) error                              { return nil }
func (printer) Check(context.Context, []string) ([]relay.Finding, error) { return nil, nil }
func (printer) Close() error                                             { return nil }

// How do I publish to a broker that has no sink yet?
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	pool, end := pgtest.Example()
	defer end()
	sink := printer{make(chan struct{}, 1)}
	r, err := relay.New(pool, relay.Config{Sinks: []relay.SinkConfig{{
		Name: "printer", Sink: sink, Routes: []relay.Route{{Topics: []string{"order.*"}, Destination: "shop.{topic}"}},
	}}})
	if err != nil {
		panic(err)
	}
	if _, err := outbox.Publish(ctx, pool, orderPaid{7}, outbox.EventOptions{Key: "order-7"}); err != nil {
		panic(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	<-sink.printed
	stop()
	fmt.Println(<-ended)
	// Output:
	// shop.order.paid order-7 {"order":7}
	// <nil>
}

// How do I follow the log of events without a broker?
func ExampleTail() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	since := time.Now().Add(-time.Minute)
	if _, err := outbox.Publish(ctx, pool, orderPaid{7}, outbox.EventOptions{}); err != nil {
		panic(err)
	}
	for event, err := range relay.Tail(ctx, pool, relay.TailConfig{Since: since}) {
		fmt.Println(event.Topic, string(event.Payload), err)
		break
	}
	// Output: order.paid {"order":7} <nil>
}

// Which topics of a service lead nowhere?
func ExampleCheckTopics() {
	sinks := map[string][]relay.Route{"nats": {{Topics: []string{"order.*"}}}}
	for _, mistake := range relay.CheckTopics([]string{"order.paid", "invoice.sent"}, sinks) {
		fmt.Println(mistake.Index, mistake.Reason)
	}
	// Output: 1 no route has invoice.sent: it would be published nowhere
}

// What does a route turn an event into?
func ExampleNewMapper() {
	mapper, err := relay.NewMapper(relay.Route{Destination: "shop.{topic}.{key|token}"}, "/shop")
	if err != nil {
		panic(err)
	}
	message, err := mapper.Message(&relay.Event{Topic: "order.paid", Key: "order 7", ContentType: "application/json", Payload: []byte(`{"order":7}`)})
	fmt.Println(message.Destination, string(message.Body), err)
	// Output: shop.order.paid.order_7 {"order":7} <nil>
}
