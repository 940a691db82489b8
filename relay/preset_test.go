package relay

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/lifecycle"
	"github.com/posthaste-dev/posthaste/outbox"
)

func streamed(t *testing.T) *Event {
	t.Helper()
	job, err := outbox.ParseID("01a2175a-3d24-728e-b9f6-e3596a53baf4")
	if err != nil {
		t.Fatal(err)
	}
	return &Event{
		Position: 7, At: time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC), ID: job, Tenant: outbox.RootTenant, Topic: "job.created", Key: job.String(),
		ContentType: "application/json", Headers: map[string]string{"correlation-id": "r-1"},
		Payload: []byte(`{"job":"01a2175a-3d24-728e-b9f6-e3596a53baf4","tenant":"00000000-0000-0000-0000-000000000001","event":"created","n":1,` +
			`"state":"pending","epoch":0,"attempt":0,"queue":"mail","kind":"mail.send","key":"ada","at":"2026-11-26T11:00:00+01:00",` +
			`"max_attempts":25,"priority":0,"run_at":"2026-11-26T11:00:00+01:00","deadline":"2026-11-27T11:00:00+01:00","payload":{"to": "ada"}}`),
	}
}

func mapped(t *testing.T, preset Preset) Message {
	t.Helper()
	r, err := compile(Route{Preset: preset, CloudEvents: CloudEventsOff})
	if err != nil {
		t.Fatal(err)
	}
	if !r.has("job.created") || r.has("order.paid") {
		t.Errorf("the route has topics %v, want those of jobs", r.Topics)
	}
	m, err := messageOf(streamed(t), &r, "posthaste")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPresetPosthaste(t *testing.T) {
	m := mapped(t, PresetPosthaste)
	want := "posthaste.jobs.00000000-0000-0000-0000-000000000001.mail.mail_send.01a2175a-3d24-728e-b9f6-e3596a53baf4.created"
	if m.Destination != want || string(m.Body) != string(streamed(t).Payload) {
		t.Errorf("published to %s: %s; want what is stored, to %s", m.Destination, m.Body, want)
	}
}

// Field by field what JobEventWire of Trellis has.
func TestPresetTrellis(t *testing.T) {
	m := mapped(t, PresetTrellis)
	if want := "trellis.jobs.mail.mail_send.01a2175a-3d24-728e-b9f6-e3596a53baf4.created"; m.Destination != want {
		t.Errorf("published to %s, want %s", m.Destination, want)
	}
	var got, want any
	if err := json.Unmarshal(m.Body, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(`{
		"jobId": "01a2175a-3d24-728e-b9f6-e3596a53baf4",
		"context": {"requestId": "r-1", "traceId": "01a2175a3d24728eb9f6e3596a53baf4", "traceparent": "00-01a2175a3d24728eb9f6e3596a53baf4-b9f6e3596a53baf4-00"},
		"service": "mail", "jobType": "mail.send", "eventType": "created", "state": "pending", "tries": 0,
		"payload": {"to": "ada"}, "deadline": "2026-11-27T10:00:00Z",
		"concurrency": {"key": "ada", "keyHash": "fdee430d40bd57deeac186cd9790033d0f06f909a8806e7ce6e717ab7c7d5029"}, "timestamp": "2026-11-26T10:00:00Z"}`), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("body is\n%s, want\n%v", m.Body, want)
	}
	wantHeaders := []Header{
		{"job-epoch", "0"}, {"job-n", "1"}, {"request-id", "r-1"}, {"traceparent", "00-01a2175a3d24728eb9f6e3596a53baf4-b9f6e3596a53baf4-00"},
	}
	if !slices.Equal(m.Headers, wantHeaders) {
		t.Errorf("headers are %v, want %v", m.Headers, wantHeaders)
	}
	e, err := lifecycle.DecodeTrellis(m.Body, func(name string) string {
		for _, h := range m.Headers {
			if h.Name == name {
				return h.Value
			}
		}
		return ""
	})
	if err != nil || e.N != 1 || e.Queue != "mail" || e.Kind != "mail.send" || string(e.Payload) != `{"to": "ada"}` && string(e.Payload) != `{"to":"ada"}` {
		t.Errorf("decoded as %+v, %v", e, err)
	}
}

// What Debezium's outbox event router makes of the row of the view outbox.debezium_events.
func TestPresetDebezium(t *testing.T) {
	id := outbox.NewID()
	e := func(headers map[string]string) *Event {
		return &Event{
			Position: 7, At: time.Now(), ID: id, Tenant: outbox.RootTenant, Topic: "order", Key: "7", ContentType: "application/json",
			Payload: []byte(`{"cents": 1200}`), Headers: headers, made: new(envelopes),
		}
	}
	r, err := compile(Route{Preset: PresetDebezium})
	if err != nil || !r.has("order") {
		t.Fatal(err, r.Topics)
	}
	replayed := e(nil)
	replayed.replay, replayed.again = "r", true
	for _, tt := range []struct {
		of   *Event
		id   string
		want []Header
	}{
		{e(nil), id.String(), []Header{{"id", id.String()}, {"type", "order"}}},
		{e(map[string]string{"type": "OrderPaid", "Id": "mine", "user": "ada"}), id.String(), []Header{{"id", id.String()}, {"type", "OrderPaid"}, {"user", "ada"}}},
		{replayed, id.String() + "/r", []Header{{HeaderReplay, "r"}, {"id", id.String() + "/r"}, {"type", "order"}}},
	} {
		if _, err := tt.of.envelope(CloudEventsOff, "shop"); err != nil { // as another sink has it
			t.Fatal(err)
		}
		m, err := messageOf(tt.of, &r, "shop")
		if err != nil || m.ID != tt.id || m.Destination != "outbox.event.order" || m.Key != "7" || string(m.Body) != `{"cents": 1200}` || !slices.Equal(m.Headers, tt.want) {
			t.Errorf("%+v, %v; want the headers %v", m, err, tt.want)
		}
	}
}

func TestAPresetThatThereIsNot(t *testing.T) {
	if err := (Route{Preset: "celery"}).Validate(); err == nil || !strings.Contains(err.Error(), `is "celery", want one of ["debezium" "posthaste" "trellis"]`) {
		t.Errorf("got %v", err)
	}
}
