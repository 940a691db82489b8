package redis

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// Headers of a producer that are spelled as ours do not take the place of ours.
func TestAFieldComesOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range []relay.CloudEvents{relay.CloudEventsBinary, relay.CloudEventsStructured, relay.CloudEventsOff} {
		mapper, err := relay.NewMapper(relay.Route{Destination: stream, CloudEvents: mode}, "/shop")
		if err != nil {
			t.Fatal(err)
		}
		m, err := mapper.Message(&relay.Event{ID: outbox.NewID(), Topic: "order.paid", At: time.Now(), ContentType: "text/plain", Headers: map[string]string{
			"ce_id": "x", "ce_source": "y", "ce-own": "1", "ce_own": "2", "id": "3", "header.id": "4",
		}})
		if err != nil {
			t.Fatal(err)
		}
		command, _, err := encode(&m, true, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		values := map[any]any{}
		for i := 3; i < len(command); i += 2 { // behind xadd, the stream and *
			if was, there := values[command[i]]; there {
				t.Errorf("%s: field %v is %v and %v", mode, command[i], was, command[i+1])
			}
			values[command[i]] = command[i+1]
		}
		if id := values["ce_id"]; values["id"] != m.ID || mode == relay.CloudEventsBinary && id != m.ID {
			t.Errorf("%s: the fields are %v, want the ID %s", mode, values, m.ID)
		}
	}
}
