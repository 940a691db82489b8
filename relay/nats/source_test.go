package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/relay"
)

// delivered returns a message as the server delivers it: its number in the stream, the number of the delivery, and how
// often it was delivered.
func delivered(stream, consumer, times uint64, header nats.Header) *nats.Msg {
	return &nats.Msg{
		Subject: "orders.new", Header: header, Sub: &nats.Subscription{},
		Reply: fmt.Sprintf("$JS.ACK.S.posthaste.%d.%d.%d.1764500000000000000.0", times, stream, consumer),
	}
}

// An ordered source returns messages in the order of the stream, however those that others had come again. Each of
// these is the number in the stream, and the number of the delivery; again is one that was delivered before.
func TestMessagesAreReturnedInTheOrderOfTheStream(t *testing.T) {
	t.Parallel()
	first := func(stream, delivery uint64) *nats.Msg { return delivered(stream, delivery, 1, nil) }
	again := func(stream, delivery uint64) *nats.Msg { return delivered(stream, delivery, 2, nil) }
	type in = []*nats.Msg
	for name, test := range map[string]struct {
		outstanding int
		come        []in
		want        [][]uint64
	}{
		"nothing is outstanding": {0, []in{{first(4, 4), first(5, 5)}, {first(6, 6)}}, [][]uint64{{4, 5}, {6}}},
		"two are":                {2, []in{{first(4, 4), first(5, 5)}, {again(2, 6)}, {again(3, 7), first(6, 8)}}, [][]uint64{{}, {}, {2, 3, 4, 5, 6}}},
		"the later one first":    {2, []in{{first(4, 4)}, {again(3, 5)}, {again(2, 6)}}, [][]uint64{{}, {}, {2, 3, 4}}},
		"one of them twice":      {2, []in{{first(4, 4), again(2, 5)}, {again(2, 6)}, {again(3, 7)}}, [][]uint64{{}, {}, {2, 3, 4}}},
		"one that we keep comes again": {
			1, []in{{first(4, 4), first(5, 5)}, {again(4, 6)}, {again(2, 7)}}, [][]uint64{{}, {}, {2, 4, 5}},
		},
		"one that we have returned comes again": {
			0, []in{{first(4, 4)}, {first(6, 6)}, {again(4, 7)}, {again(5, 8)}}, [][]uint64{{4}, {}, {}, {4, 5, 6}},
		},
		"one was delivered to a connection that has ended": {
			0, []in{{first(5, 5)}, {first(6, 6)}, {again(4, 7)}, {first(7, 8)}}, [][]uint64{{}, {}, {4, 5, 6}, {7}},
		},
		"and one later": {0, []in{{first(4, 4)}, {first(6, 6)}, {again(5, 7)}}, [][]uint64{{4}, {}, {5, 6}}},
		"two, by turns": {0, []in{{first(5, 5)}, {first(7, 7)}, {again(4, 8)}, {again(6, 9)}}, [][]uint64{{}, {}, {}, {4, 5, 6, 7}}},
		"before one that comes again": {
			1, []in{{again(2, 5), first(5, 6)}, {again(4, 7)}}, [][]uint64{{}, {2, 4, 5}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			info := &jetstream.ConsumerInfo{NumAckPending: test.outstanding, Config: jetstream.ConsumerConfig{AckWait: time.Hour}}
			info.Delivered.Consumer = 3
			r := newReturning(info)
			for i, batch := range test.come {
				got := []uint64{}
				for _, m := range r.pass(batch, 500) {
					got = append(got, position(t, m))
				}
				if !slices.Equal(got, test.want[i]) {
					t.Errorf("batch %d: %v, want %v", i, got, test.want[i])
				}
			}
		})
	}
}

// position returns a message's number in the stream.
func position(t *testing.T, m *nats.Msg) uint64 {
	t.Helper()
	about, err := m.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	return about.Sequence.Stream
}

// A bridge that asks for less than is kept gets that many, in order, and the rest before anything else.
func TestNoMoreMessagesAreReturnedThanAskedFor(t *testing.T) {
	t.Parallel()
	r := newReturning(&jetstream.ConsumerInfo{NumAckPending: 1, Config: jetstream.ConsumerConfig{AckWait: time.Hour}})
	var came []*nats.Msg
	for n := range uint64(5) {
		came = append(came, delivered(n+2, n+1, 1, nil))
	}
	came = append(came, delivered(1, 6, 2, nil))
	var got []uint64
	for _, most := range []int{2, 3, 500} {
		before := len(got)
		for _, m := range r.pass(came, most) {
			got = append(got, position(t, m))
		}
		if n := len(got) - before; n > most {
			t.Errorf("%d messages, want %d at most", n, most)
		}
		if came = nil; len(got) < 6 && !r.released() {
			t.Error("the rest waits for more messages")
		}
	}
	if want := []uint64{1, 2, 3, 4, 5, 6}; !slices.Equal(got, want) {
		t.Errorf("returned %v, want %v", got, want)
	}
}

// What was acknowledged after all never comes. The server is given more than AckWait to send what was not.
func TestOutstandingMessagesAreWaitedForLongerThanAckWait(t *testing.T) {
	t.Parallel()
	const ackWait = time.Minute
	r := newReturning(&jetstream.ConsumerInfo{NumAckPending: 1, Config: jetstream.ConsumerConfig{AckWait: ackWait}})
	if got := r.pass([]*nats.Msg{delivered(2, 1, 1, nil)}, 500); len(got) != 0 || r.released() {
		t.Errorf("%d messages at once, want none", len(got))
	}
	if left := time.Until(r.until) - ackWait; left < time.Second {
		t.Errorf("%s more than AckWait, want seconds", left)
	}
	r.until = time.Now()
	if !r.released() {
		t.Error("after that time the newer one is not released")
	}
	if got := r.pass(nil, 500); len(got) != 1 {
		t.Errorf("after that time %d messages, want 1", len(got))
	}
}

func TestTheIDOfAMessage(t *testing.T) {
	t.Parallel()
	s := &Source{of: SourceConfig{Stream: "S"}, created: time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)}
	for want, header := range map[string]nats.Header{
		"order-1":                {"Nats-Msg-Id": {"order-1"}, "ce-id": {"2"}},
		"shop/2":                 {"ce-id": {"2"}, "ce-source": {"shop"}},
		"2026-11-26T10:00:00Z/9": nil,
	} {
		if m := s.take(delivered(9, 4, 1, header)); m.ID != want || m.Position != 9 || m.Source != "S" || m.Subject != "orders.new" {
			t.Errorf("%v: %+v, want the ID %s", header, m, want)
		}
	}
}

// The binding has attributes percent-encoded, and a job has what they say.
func TestAttributesAreDecoded(t *testing.T) {
	t.Parallel()
	for _, want := range []string{"order 7", "100%", "%20", "caf\u00e9 \u2603", `a "b"`, "order-7"} {
		sent, err := encode(&relay.Message{ID: "1", Destination: "orders.new", ContentType: `text/plain; charset="` + want + `"`, Headers: []relay.Header{
			{Name: "ce-specversion", Value: "1.0"}, {Name: "ce-id", Value: want}, {Name: "ce-source", Value: "/shop"}, {Name: "ce-partitionkey", Value: want},
		}})
		if err != nil {
			t.Fatal(err)
		}
		contentType := sent.Header.Get(headerContentType)
		sent.Header.Del(headerContentType) // others have it among the attributes alone
		sent.Header.Del(headerID)
		got := (&Source{}).take(delivered(1, 1, 1, sent.Header))
		if got.Key != want || got.ContentType != contentType || got.ID != "/shop/"+sent.Header.Get("ce-id") {
			t.Errorf("%q comes as %+v", want, got)
		}
	}
	for raw, want := range map[string]string{"50%": "50%", "50%off": "50%off", "%4": "%4", "%2520": "%20", "%zz%41": "%zzA"} {
		if got := (&Source{}).take(delivered(1, 1, 1, nats.Header{"ce-partitionkey": {raw}})); got.Key != want {
			t.Errorf("%q is the key %q, want %q", raw, got.Key, want)
		}
	}
}

// fetchAll fetches from a source until it has had as many messages, acknowledges each batch, and returns their bodies.
func fetchAll(t *testing.T, s *Source, messages int) (bodies []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for len(bodies) < messages {
		batch, err := s.Fetch(ctx, 100)
		if err == nil {
			err = s.Ack(ctx)
		}
		if err != nil || ctx.Err() != nil {
			t.Fatalf("after %d of %d messages: %v, %v", len(bodies), messages, err, ctx.Err())
		}
		for _, m := range batch {
			bodies = append(bodies, string(m.Body))
		}
	}
	return bodies
}

// source returns a source of the stream S, to which a test publishes.
func source(t *testing.T, ordered bool) (*Source, jetstream.JetStream) {
	t.Helper()
	server := natstest.Start(t, natstest.Options{})
	js := server.Connect()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	s, err := OpenSource(Config{URLs: []string{server.URL}}, SourceConfig{Stream: "S", Consumer: "posthaste", Ordered: ordered})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, js
}

// A note of the server's has no body and a header Status. So may a message have, and clients take it for a note: they
// neither return nor acknowledge it.
func TestAMessageThatLooksLikeANoteOfTheServers(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprint("ordered ", ordered), func(t *testing.T) {
			t.Parallel()
			s, js := source(t, ordered)
			codes := []string{"100", "404", "408", "409", "503", "paid"}
			for _, code := range codes {
				m := &nats.Msg{Subject: "orders.new", Header: nats.Header{"Status": {code}, "Description": {"Batch Completed"}}}
				if _, err := js.PublishMsg(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := js.Publish(t.Context(), "orders.new", []byte("last")); err != nil {
				t.Fatal(err)
			}
			bodies := fetchAll(t, s, len(codes)+1)
			if got := bodies[len(codes)]; got != "last" {
				t.Errorf("the last of %q is %q", bodies, got)
			}
			consumer, err := js.Consumer(t.Context(), "S", "posthaste")
			if err != nil {
				t.Fatal(err)
			}
			if n := consumer.CachedInfo().NumAckPending; n != 0 || len(bodies) != len(codes)+1 {
				t.Errorf("%d messages, of which %d are not acknowledged", len(bodies), n)
			}
		})
	}
	m := relay.Message{ID: "1", Destination: "orders.new", Headers: []relay.Header{{Name: "Status", Value: "paid"}}}
	if _, err := encode(&m); err == nil {
		t.Error("the sink publishes such a message")
	}
	m.Body = []byte("1")
	if _, err := encode(&m); err != nil {
		t.Errorf("one with a body: %v", err)
	}
}

// A request brings no more bytes than it names, and may bring nothing before its end. Neither is a failure.
func TestARequestThatEndsWithANote(t *testing.T) {
	t.Parallel()
	s, js := source(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	for range 2 { // the second finds the first request's end
		if messages, err := s.Fetch(ctx, 100); err != nil || len(messages) > 0 {
			t.Fatalf("%d messages, %v", len(messages), err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
	}
	const large = 40 // MB
	for range large {
		if _, err := js.Publish(t.Context(), "orders.new", make([]byte, 1_000_000)); err != nil {
			t.Fatal(err)
		}
	}
	if got := fetchAll(t, s, large); len(got) != large {
		t.Errorf("%d messages, want %d", len(got), large)
	}
}

// A request that the server ends for another reason is a failure, and so is one that it does not end.
func TestARequestThatFails(t *testing.T) {
	t.Parallel()
	s, js := source(t, false)
	if err := s.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(500*time.Millisecond, func() { _ = js.DeleteConsumer(context.Background(), "S", "posthaste") })
	if _, err := s.Fetch(t.Context(), 100); err == nil || !strings.Contains(err.Error(), "409 Consumer Deleted") {
		t.Errorf("%v, want that the consumer is deleted", err)
	}
	if err := s.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.request = request{came: make(chan *nats.Msg), left: 1, until: time.Now()}
	if _, err := s.Fetch(t.Context(), 100); !errors.Is(err, errSilent) || s.nc != nil {
		t.Errorf("%v, connected: %t", err, s.nc != nil)
	}
}

// A bridge that was paused, by a full queue or a slow database, asks again when its request's time is over. What
// arrived in time is returned, and the connection is kept.
func TestWhatHasArrivedIsNoSilence(t *testing.T) {
	t.Parallel()
	for range 100 {
		came := make(chan *nats.Msg, 1)
		came <- delivered(1, 1, 1, nil)
		s := &Source{request: request{came: came, left: 2, until: time.Now().Add(-time.Minute)}}
		if messages, err := s.arrived(t.Context(), 100); err != nil || len(messages) != 1 {
			t.Fatalf("%d messages, %v", len(messages), err)
		}
	}
}
