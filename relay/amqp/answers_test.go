package amqp

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/posthaste-dev/posthaste/relay"
)

// underWay returns a publication of which three messages were sent and none is answered.
func underWay() *publication {
	p := &publication{
		sink: &Sink{}, conn: &conn{sent: map[string]bool{}}, lines: map[string]*line{}, refusing: map[refusal]error{},
		channel: &channel{confirms: make(chan amqp.Confirmation, 9), returns: make(chan amqp.Return, 9), published: 3},
	}
	for i := range 3 {
		p.batch = append(p.batch, relay.Message{ID: fmt.Sprint("m", i), Destination: "events/a"})
		p.outcomes = append(p.outcomes, relay.ErrNotTried)
		p.underWay = append(p.underWay, sent{of: i, tag: uint64(i + 1), exchange: "events", key: "a"})
	}
	return p
}

// A message is stored when its own number is confirmed, and nothing was returned that could be it.
func TestAnswersThatCannotBeTrusted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func(p *publication)
		stored int
	}{
		"in their order": {func(p *publication) {
			for n := range uint64(3) {
				p.confirmed(amqp.Confirmation{DeliveryTag: n + 1, Ack: true})
			}
		}, 3},
		"the second first": {func(p *publication) { p.confirmed(amqp.Confirmation{DeliveryTag: 2, Ack: true}) }, 0},
		"the first twice": {func(p *publication) {
			p.confirmed(amqp.Confirmation{DeliveryTag: 1, Ack: true})
			p.confirmed(amqp.Confirmation{DeliveryTag: 1, Ack: true})
		}, 1},
		"one that was never sent": {func(p *publication) { p.confirmed(amqp.Confirmation{DeliveryTag: 9, Ack: true}) }, 0},
		"another is returned, and they are confirmed": {func(p *publication) {
			p.channel.returns <- amqp.Return{MessageId: "other", Exchange: "events", RoutingKey: "a"}
			p.confirmed(amqp.Confirmation{DeliveryTag: 1, Ack: true})
		}, 0},
		"more than were sent": {func(p *publication) {
			for n := range uint64(4) {
				p.channel.confirms <- amqp.Confirmation{DeliveryTag: n + 1, Ack: true}
			}
			p.head = &head{of: 0}
			p.send()
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := underWay()
			c.answer(p)
			stored := 0
			for _, err := range p.outcomes {
				if err == nil {
					stored++
				}
			}
			if stored != c.stored || stored < 3 && (len(p.underWay) > 0 || p.conn.stale == false) {
				t.Errorf("%d are taken for stored, want %d; stale %t: %v", stored, c.stored, p.conn.stale, p.outcomes)
			}
		})
	}
}
