package nats

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/relay"
)

// delivered is a message as the server delivers it.
type delivered struct {
	jetstream.Msg
	stream, consumer, times uint64
	header                  nats.Header
}

func (d delivered) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Stream: d.stream, Consumer: d.consumer}, NumDelivered: d.times}, nil
}

func (d delivered) Headers() nats.Header { return d.header }
func (d delivered) Subject() string      { return "orders.new" }
func (d delivered) Data() []byte         { return nil }

// An ordered source returns messages in the order of the stream, however those that others had come again. Each of
// these is the number in the stream, and the number of the delivery; again is one that was delivered before.
func TestMessagesAreReturnedInTheOrderOfTheStream(t *testing.T) {
	t.Parallel()
	first := func(stream, delivery uint64) jetstream.Msg {
		return delivered{stream: stream, consumer: delivery, times: 1}
	}
	again := func(stream, delivery uint64) jetstream.Msg {
		return delivered{stream: stream, consumer: delivery, times: 2}
	}
	type in = []jetstream.Msg
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
					got = append(got, m.(delivered).stream)
				}
				if !slices.Equal(got, test.want[i]) {
					t.Errorf("batch %d: %v, want %v", i, got, test.want[i])
				}
			}
		})
	}
}

// A bridge that asks for less than is kept gets that many, in order, and the rest before anything else.
func TestNoMoreMessagesAreReturnedThanAskedFor(t *testing.T) {
	t.Parallel()
	r := newReturning(&jetstream.ConsumerInfo{NumAckPending: 1, Config: jetstream.ConsumerConfig{AckWait: time.Hour}})
	var came []jetstream.Msg
	for n := range uint64(5) {
		came = append(came, delivered{stream: n + 2, consumer: n + 1, times: 1})
	}
	came = append(came, delivered{stream: 1, consumer: 6, times: 2})
	var got []uint64
	for _, most := range []int{2, 3, 500} {
		before := len(got)
		for _, m := range r.pass(came, most) {
			got = append(got, m.(delivered).stream)
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
	if got := r.pass([]jetstream.Msg{delivered{stream: 2, consumer: 1, times: 1}}, 500); len(got) != 0 || r.released() {
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
		if m := s.take(delivered{stream: 9, consumer: 4, header: header}); m.ID != want || m.Position != 9 || m.Source != "S" || m.Subject != "orders.new" {
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
		got := (&Source{}).take(delivered{header: sent.Header})
		if got.Key != want || got.ContentType != contentType || got.ID != "/shop/"+sent.Header.Get("ce-id") {
			t.Errorf("%q comes as %+v", want, got)
		}
	}
	for raw, want := range map[string]string{"50%": "50%", "50%off": "50%off", "%4": "%4", "%2520": "%20", "%zz%41": "%zzA"} {
		if got := (&Source{}).take(delivered{header: nats.Header{"ce-partitionkey": {raw}}}); got.Key != want {
			t.Errorf("%q is the key %q, want %q", raw, got.Key, want)
		}
	}
}
