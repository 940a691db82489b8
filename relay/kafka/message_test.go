package kafka

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// Headers of a producer that are spelled as ours do not take the place of ours: consumers and bridges would take two
// events for one.
func TestAProducerDoesNotNameItsMessages(t *testing.T) {
	t.Parallel()
	for _, mode := range []relay.CloudEvents{relay.CloudEventsBinary, relay.CloudEventsStructured, relay.CloudEventsOff} {
		mapper, err := relay.NewMapper(relay.Route{Destination: topic, CloudEvents: mode}, "/shop")
		if err != nil {
			t.Fatal(err)
		}
		ids := map[string]bool{}
		for range 2 {
			e := &relay.Event{ID: outbox.NewID(), Topic: "order.paid", At: time.Now(), ContentType: "text/plain", Headers: map[string]string{
				"ce_id": "x", "ce_source": "y", "posthaste-id": "z", "content-type": "text/html",
			}}
			m, err := mapper.Message(e)
			if err != nil {
				t.Fatal(err)
			}
			r, _ := encode(&m)
			got := message(r, [16]byte{})
			ids[got.ID] = true
			want := map[relay.CloudEvents]string{relay.CloudEventsBinary: "/shop/" + m.ID}[mode]
			if want == "" {
				want = m.ID
			}
			if got.ID != want || got.ContentType != m.ContentType {
				t.Errorf("%s: it is %+v, want the ID %s", mode, got, want)
			}
			if again := repeated(got.Headers); again != "" {
				t.Errorf("%s: header %s comes twice", mode, again)
			}
		}
		if len(ids) != 2 {
			t.Errorf("%s: two events have the IDs %v", mode, ids)
		}
	}
}

// repeated returns the name of a header that is there more than once, "" if none is.
func repeated(headers []bridge.Header) string {
	seen := map[string]bool{}
	for _, h := range headers {
		if seen[h.Name] {
			return h.Name
		}
		seen[h.Name] = true
	}
	return ""
}

// What was published with two IDs has the first.
func TestTheFirstIDIsTaken(t *testing.T) {
	t.Parallel()
	m := relay.Message{ID: "1", Headers: []relay.Header{{Name: "ce-id", Value: "1"}, {Name: "ce-source", Value: "/shop"}}}
	r, _ := encode(&m)
	r.Headers = append(r.Headers, r.Headers[0], r.Headers[1])
	r.Headers[2].Value, r.Headers[3].Value = []byte("x"), []byte("y")
	if got := message(r, [16]byte{}).ID; got != "/shop/1" {
		t.Errorf("the ID is %s", got)
	}
}
