package nats

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// delivered is a message as the server delivers it.
type delivered struct {
	jetstream.Msg
	stream, consumer uint64
	header           nats.Header
}

func (d delivered) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Stream: d.stream, Consumer: d.consumer}}, nil
}

func (d delivered) Headers() nats.Header { return d.header }
func (d delivered) Subject() string      { return "orders.new" }
func (d delivered) Data() []byte         { return nil }

// An ordered source returns what others had before what is newer; each of these is the number in the stream, and the
// number of the delivery.
func TestNewerMessagesWaitForThoseThatOthersHad(t *testing.T) {
	t.Parallel()
	type in struct{ stream, delivery uint64 }
	for name, test := range map[string]struct {
		outstanding      int
		newest, delivery uint64
		come             [][]in
		want             [][]uint64
	}{
		"nothing is outstanding": {0, 3, 3, [][]in{{{4, 4}, {5, 5}}, {{6, 6}}}, [][]uint64{{4, 5}, {6}}},
		"two are":                {2, 3, 3, [][]in{{{4, 4}, {5, 5}}, {{2, 6}}, {{3, 7}, {6, 8}}}, [][]uint64{{}, {2}, {3, 4, 5, 6}}},
		"one of them twice":      {2, 3, 3, [][]in{{{4, 4}, {2, 5}}, {{2, 6}}, {{3, 7}}}, [][]uint64{{2}, {2}, {3, 4}}},
		"one was delivered to a connection that has ended": {
			0, 3, 3, [][]in{{{5, 5}}, {{6, 6}}, {{4, 7}}, {{7, 8}}}, [][]uint64{{}, {}, {4, 5, 6}, {7}},
		},
		"and one later": {0, 3, 3, [][]in{{{4, 4}}, {{6, 6}}, {{5, 7}}}, [][]uint64{{4}, {}, {5, 6}}},
	} {
		t.Run(name, func(t *testing.T) {
			info := &jetstream.ConsumerInfo{NumAckPending: test.outstanding, Config: jetstream.ConsumerConfig{AckWait: time.Hour}}
			info.Delivered.Stream, info.Delivered.Consumer = test.newest, test.delivery
			r := newReturning(info)
			for i, batch := range test.come {
				var messages []jetstream.Msg
				for _, m := range batch {
					messages = append(messages, delivered{stream: m.stream, consumer: m.delivery})
				}
				got := []uint64{}
				for _, m := range r.pass(messages) {
					got = append(got, m.(delivered).stream)
				}
				if !slices.Equal(got, test.want[i]) {
					t.Errorf("batch %d: %v, want %v", i, got, test.want[i])
				}
			}
		})
	}
}

// What was acknowledged after all never comes.
func TestNewerMessagesWaitForAckWaitAtMost(t *testing.T) {
	t.Parallel()
	r := newReturning(&jetstream.ConsumerInfo{NumAckPending: 1, Config: jetstream.ConsumerConfig{AckWait: 50 * time.Millisecond}})
	if got := r.pass([]jetstream.Msg{delivered{stream: 1, consumer: 1}}); len(got) != 0 || r.released() {
		t.Errorf("%d messages at once, want none", len(got))
	}
	time.Sleep(60 * time.Millisecond)
	if !r.released() {
		t.Error("after AckWait the newer one is not released")
	}
	if got := r.pass(nil); len(got) != 1 {
		t.Errorf("after AckWait %d messages, want 1", len(got))
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
