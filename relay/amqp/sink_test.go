package amqp

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/posthaste-dev/posthaste/internal/brokertest"
	"github.com/posthaste-dev/posthaste/relay"
)

func TestOnAServer(t *testing.T) {
	t.Parallel()
	server := brokertest.StartRabbitMQ(t, password, largest)
	for name, test := range map[string]func(*testing.T, *broker){
		"MissingExchange":            missingExchange,
		"ChannelClosedUnderSeveral":  channelClosedUnderSeveral,
		"Blocked":                    blocked,
		"Pipelined":                  pipelined,
		"HeadersTooLarge":            headersTooLarge,
		"CloudEvents":                cloudEvents,
		"Check":                      check,
		"DefaultExchange":            defaultExchange,
		"NextOfAKeyWaits":            nextOfAKeyWaits,
		"MoreRoomWhileAKeyIsRefused": moreRoom,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t, server, amqp.QueueTypeQuorum)) })
	}
}

func (b *broker) sink(config Config) *Sink {
	b.t.Helper()
	s := b.open(config)
	b.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.t.Error(err)
		}
	})
	return s
}

// messages returns so many messages to a destination, of keys in turns.
func messages(n, keys int, destination string) []relay.Message {
	all := make([]relay.Message, n)
	for i := range all {
		all[i] = relay.Message{ID: fmt.Sprint("m", i), Key: fmt.Sprint("k", i%keys), Destination: destination, Body: []byte("{}")}
	}
	return all
}

// outcomes counts them by their codes.
func outcomes(errs []error) map[string]int {
	all := map[string]int{}
	for _, err := range errs {
		all[code(err)]++
	}
	return all
}

func code(err error) string {
	if err == nil {
		return "stored"
	}
	if errors.Is(err, relay.ErrNotTried) {
		return "not tried"
	}
	if refused, ok := errors.AsType[*relay.RefusedError](err); ok {
		return "refused " + refused.Code
	}
	if unavailable, ok := errors.AsType[*relay.UnavailableError](err); ok {
		return "unavailable " + unavailable.Code
	}
	return "unknown"
}

func expect(t *testing.T, what string, errs []error, want map[string]int) {
	t.Helper()
	if diff := cmp.Diff(want, outcomes(errs)); diff != "" {
		t.Errorf("%s (-want +got):\n%s\n%v", what, diff, errors.Join(errs...))
	}
}

func missingExchange(t *testing.T, b *broker) {
	all := messages(20, 10, b.Destination())
	all[3].Destination, all[4].Destination = "events-none/a", "events-none/b"
	errs := b.sink(b.config()).Publish(t.Context(), all)
	expect(t, "two of twenty go to an exchange that is missing", errs, map[string]int{
		"stored": 16, "unavailable " + relay.CodeNoDestination: 2, "not tried": 2,
	})
	if client, ok := errors.AsType[*amqp.Error](errs[3]); !ok || client.Code != amqp.NotFound {
		t.Errorf("the client's error is lost: %v", errs[3])
	}
}

// channelClosedUnderSeveral deletes an exchange to which many are under way.
func channelClosedUnderSeveral(t *testing.T, b *broker) {
	s := b.sink(b.config())
	other := b.name + "-deleted"
	b.admin(func(ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare(other, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
			return err
		}
		return ch.QueueBind(b.name, "#", other, false, nil)
	})
	all := messages(200, 100, b.Destination())
	for i := range all {
		if i%4 == 1 {
			all[i].Destination = other + "/x"
		}
	}
	expect(t, "while there are both", s.Publish(t.Context(), all), map[string]int{"stored": 200})
	b.admin(func(ch *amqp.Channel) error { return ch.ExchangeDelete(other, false, false) })
	first := outcomes(s.Publish(t.Context(), all))
	if first["unknown"] == 0 || first["refused "+relay.CodeRefused] > 0 {
		t.Errorf("outcomes of a channel that was closed under many: %v", first)
	}
	// Keys are of one destination here.
	expect(t, "one by one", s.Publish(t.Context(), all), map[string]int{
		"stored": 150, "unavailable " + relay.CodeNoDestination: 25, "not tried": 25,
	})
	expect(t, "and together again", s.Publish(t.Context(), all), map[string]int{
		"stored": 150, "unavailable " + relay.CodeNoDestination: 25, "not tried": 25,
	})
}

// blocked raises the alarm of a server that is short of memory.
func blocked(t *testing.T, b *broker) {
	s := b.sink(b.config())
	all := messages(100, 100, b.Destination())
	expect(t, "before", s.Publish(t.Context(), all[:50]), map[string]int{"stored": 50})
	b.Ctl("set_vm_memory_high_watermark", "0.00001")
	defer b.Ctl("set_vm_memory_high_watermark", "0.4")
	began := time.Now()
	errs := s.Publish(t.Context(), all[50:])
	if got := outcomes(errs); got["unavailable "+relay.CodeUnavailable] == 0 || got["unavailable "+relay.CodeUnavailable]+got["not tried"]+got["stored"] != 50 {
		t.Fatalf("outcomes of a server that takes nothing: %v, %v", got, errs[49])
	}
	for range 3 {
		again := s.Publish(t.Context(), all[50:])
		expect(t, "meanwhile", again, map[string]int{"unavailable " + relay.CodeUnavailable: 1, "not tried": 49})
		if !strings.Contains(again[0].Error(), "blocked") {
			t.Errorf("the error does not say that we are blocked: %v", again[0])
		}
	}
	if err := s.Probe(t.Context()); code(err) != "unavailable "+relay.CodeUnavailable {
		t.Errorf("Probe: %v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s to see that nothing is taken", took)
	}
	b.Ctl("set_vm_memory_high_watermark", "0.4")
	for s.Probe(t.Context()) != nil {
		time.Sleep(20 * time.Millisecond)
	}
	expect(t, "afterwards", s.Publish(t.Context(), all[50:]), map[string]int{"stored": 50})
	got := b.Received()
	different := map[string]bool{}
	for _, m := range got {
		different[m.ID] = true
	}
	if len(different) != 100 || len(got) > 150 {
		t.Errorf("%d different messages in %d, want 100 in at most 150", len(different), len(got))
	}
}

// pipelined has one key, whose messages are under way together.
func pipelined(t *testing.T, b *broker) {
	config := b.config()
	config.Pipelined = true
	all := messages(5000, 1, b.Destination())
	expect(t, "one key", b.sink(config).Publish(t.Context(), all), map[string]int{"stored": 5000})
	for i, m := range b.Received() {
		if m.ID != all[i].ID {
			t.Fatalf("%s is stored as number %d", m.ID, i)
		}
	}
	// What is stored behind a message that was not is sent again.
	all = messages(50, 1, b.Destination())
	all[20].Destination = b.Missing()
	expect(t, "a message in the middle that cannot be routed", b.sink(config).Publish(t.Context(), all), map[string]int{
		"stored": 20, "unavailable " + relay.CodeNoDestination: 1, "not tried": 29,
	})
}

// nextOfAKeyWaits looks at what is under way: of a key one at most.
func nextOfAKeyWaits(t *testing.T, b *broker) {
	all := messages(50, 1, b.Destination())
	all[20].Destination = b.Missing()
	expect(t, "a message in the middle that cannot be routed", b.sink(b.config()).Publish(t.Context(), all), map[string]int{
		"stored": 20, "unavailable " + relay.CodeNoDestination: 1, "not tried": 29,
	})
	if got := len(b.Received()); got != 20 {
		t.Errorf("%d messages are stored, want 20: none behind the one that was not", got)
	}
}

// moreRoom has a queue that is full, and room in it while the batch is under way.
func moreRoom(t *testing.T, b *broker) {
	b.Limit(51) // of a quorum queue: 1
	s := b.sink(b.config())
	all := messages(300, 1, b.Destination())
	stop := make(chan struct{})
	consumed := make(chan []string)
	go func() {
		var ids []string
		b.admin(func(ch *amqp.Channel) error {
			for {
				select {
				case <-stop:
					consumed <- ids
					return nil
				default:
				}
				if d, ok, err := ch.Get(b.name, true); err != nil {
					return err
				} else if ok {
					ids = append(ids, d.MessageId)
					time.Sleep(5 * time.Millisecond) // we are faster
				}
			}
		})
	}()
	rejected := 0
	for rest := all; len(rest) > 0; {
		errs := s.Publish(t.Context(), rest)
		n := outcomes(errs)["stored"]
		rejected += outcomes(errs)["unavailable "+relay.CodeFull]
		rest = rest[n:]
	}
	time.Sleep(100 * time.Millisecond)
	close(stop)
	ids := <-consumed
	for i, id := range ids {
		if id != all[i].ID {
			t.Fatalf("%s came as number %d", id, i)
		}
	}
	if rejected == 0 || len(ids) < 290 {
		t.Errorf("%d were rejected, %d came", rejected, len(ids))
	}
}

func headersTooLarge(t *testing.T, b *broker) {
	all := messages(10, 10, b.Destination())
	for i := range 20 {
		all[4].Headers = append(all[4].Headers, relay.Header{Name: fmt.Sprint("h", i), Value: strings.Repeat("x", 6300)})
		all[5].Headers = append(all[5].Headers, relay.Header{Name: fmt.Sprint("h", i), Value: strings.Repeat("x", 6900)})
	}
	s := b.sink(b.config())
	errs := s.Publish(t.Context(), all)
	expect(t, "one has 138 kB of headers", errs, map[string]int{"stored": 9, "refused " + relay.CodeTooLarge: 1})
}

func cloudEvents(t *testing.T, b *broker) {
	m := messages(1, 1, b.Destination())[0]
	m.At = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m.ContentType = "application/json"
	m.Headers = []relay.Header{
		{Name: "ce-id", Value: "m0"},
		{Name: "ce-specversion", Value: "1.0"},
		{Name: "traceparent", Value: "00-x"},
		{Name: "cloudEvents:id", Value: "forged"},
	}
	expect(t, "an event", b.sink(b.config()).Publish(t.Context(), []relay.Message{m}), map[string]int{"stored": 1})
	b.admin(func(ch *amqp.Channel) error {
		d, _, err := ch.Get(b.name, true)
		delete(d.Headers, "x-delivery-count") // the queue's
		want := amqp.Table{"cloudEvents:id": "m0", "cloudEvents:specversion": "1.0", "traceparent": "00-x"}
		if diff := cmp.Diff(want, d.Headers); diff != "" {
			t.Errorf("headers (-want +got):\n%s", diff)
		}
		if d.MessageId != "m0" || d.ContentType != "application/json" || !d.Timestamp.Equal(m.At) || d.DeliveryMode != amqp.Persistent {
			t.Errorf("properties: %+v", d)
		}
		return err
	})
}

func defaultExchange(t *testing.T, b *broker) {
	errs := b.sink(b.config()).Publish(t.Context(), messages(3, 3, "/"+b.name))
	expect(t, "to a queue by its name", errs, map[string]int{"stored": 3})
	errs = b.sink(b.config()).Publish(t.Context(), messages(1, 1, "no-slash"))
	expect(t, "to no destination", errs, map[string]int{"refused " + relay.CodeBadDestination: 1})
}

func check(t *testing.T, b *broker) {
	findings, err := b.sink(b.config()).Check(t.Context(), []string{b.Destination(), b.Destination() + "x", "events-none/x", "/" + b.name, "/none", "bad", "*/x"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		got = append(got, string(f.Severity)+": "+f.What)
		if f.Remedy == "" {
			t.Errorf("no remedy: %v", f)
		}
	}
	want := []string{
		`problem: there is no exchange "events-none"`,
		`note: queue "` + b.name + `" has no consumer, and 0 messages`,
		`problem: there is no queue "none"`,
		`problem: destination "bad": want an exchange, / and a routing key, such as /queue or events/order.paid`,
		"note: not checked, because events fill in parts of their names: */x",
		"note: no client can see of what type the queues behind an exchange are, nor whether they drop, reject or dead-letter messages",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestConfigReportsEveryMistakeAndNoSecret(t *testing.T) {
	t.Parallel()
	_, err := Open(Config{
		URLs: []string{"amqp://joe:s3cret@host", "http://host", "amqp://host?heartbeat=1", "amqps://host:x", "amqp://host"}, Password: "s3cret", PasswordFile: "f", KeyFile: "k",
	})
	if err == nil || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "joe") {
		t.Errorf("%v", err)
	}
	for _, want := range []string{
		"URLs[0] has credentials", "URLs[1] is not", "URLs[2] has parameters", "URLs[3]", "neither User nor CertificateFile", "without User",
		"both Password and PasswordFile", "go together", "certificates are given, and URLs[4] is not amqps",
	} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}
