package cetest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/webhook"
)

var events = map[string]relay.Event{
	"plain":            {Topic: "order.paid", Key: "order-7", ContentType: "application/json", Payload: []byte(`{ "n": 7.0,  "text": "<b>" }`)},
	"a key of Unicode": {Topic: "order.paid", Key: "Euro € 😀 \"100%\"", ContentType: "application/json", Payload: []byte(`[1]`)},
	"no key":           {Topic: "order.paid", ContentType: "application/json; charset=utf-8", Payload: []byte(`null`)},
	"bytes":            {Topic: "photo.taken", Key: "a b", ContentType: "image/png", Payload: []byte{0x89, 0, 0xff, '\r', '\n'}},
	"text":             {Topic: "note", Key: "k", ContentType: "text/plain", Payload: []byte("ünïcode")},
	"not UTF-8":        {Topic: "odd", Key: "k", ContentType: "application/json", Payload: []byte("\"\xff\"")},
	"with trace": {Topic: "order.paid", Key: "k", ContentType: "application/json", Payload: []byte(`{}`), Headers: map[string]string{
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "user": "ada",
	}},
}

// Whatever an event contains, the SDK reads the same from the request of a webhook, in either mode.
func TestTheSDKReadsWebhooks(t *testing.T) {
	var got *event.Event
	var readErr error
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		got, readErr = cehttp.NewEventFromHTTPRequest(r)
	}))
	defer server.Close()
	sink, err := webhook.Open(webhook.SinkConfig{URL: server.URL, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	for name, e := range events {
		for _, mode := range []relay.CloudEvents{relay.CloudEventsBinary, relay.CloudEventsStructured} {
			t.Run(name+" "+string(mode), func(t *testing.T) {
				e, m := message(t, e, mode)
				if err := sink.Publish(t.Context(), []relay.Message{m})[0]; err != nil {
					t.Fatal(err)
				}
				if readErr != nil {
					t.Fatal(readErr)
				}
				if mode == relay.CloudEventsBinary {
					// The binding wants values percent-encoded, and the SDK leaves them so.
					decode(t, got)
				}
				compare(t, got, e)
			})
		}
	}
}

// The JSON format alone, which every broker carries in the structured mode.
func TestTheSDKReadsTheJSONFormat(t *testing.T) {
	for name, e := range events {
		t.Run(name, func(t *testing.T) {
			e, m := message(t, e, relay.CloudEventsStructured)
			var got event.Event
			if err := json.Unmarshal(m.Body, &got); err != nil {
				t.Fatalf("%v\n%s", err, m.Body)
			}
			compare(t, &got, e)
		})
	}
}

func message(t *testing.T, e relay.Event, mode relay.CloudEvents) (relay.Event, relay.Message) {
	t.Helper()
	e.ID, e.Tenant, e.Position, e.At = outbox.NewID(), outbox.RootTenant, 42, time.Date(2026, 11, 26, 12, 0, 0, 123456000, time.UTC)
	mapper, err := relay.NewMapper(relay.Route{Destination: "/", CloudEvents: mode}, "posthaste/shop")
	if err != nil {
		t.Fatal(err)
	}
	m, err := mapper.Message(&e)
	if err != nil {
		t.Fatal(err)
	}
	return e, m
}

func decode(t *testing.T, e *event.Event) {
	t.Helper()
	plain := func(text string) string {
		text, err := url.PathUnescape(text)
		if err != nil {
			t.Error(err)
		}
		return text
	}
	e.SetSubject(plain(e.Subject()))
	e.SetDataContentType(plain(e.DataContentType()))
	if key, ok := e.Extensions()["partitionkey"].(string); ok {
		e.SetExtension("partitionkey", plain(key))
	}
}

func compare(t *testing.T, got *event.Event, want relay.Event) {
	t.Helper()
	if err := got.Validate(); err != nil {
		t.Errorf("it is not valid: %v", err)
	}
	if got.ID() != want.ID.String() || got.Type() != want.Topic || got.Source() != "posthaste/shop" || got.Subject() != want.Key ||
		!got.Time().Equal(want.At) || got.DataContentType() != want.ContentType || got.SpecVersion() != "1.0" {
		t.Errorf("read as %s", got)
	}
	if !bytes.Equal(got.Data(), want.Payload) {
		t.Errorf("the data is %q, want %q", got.Data(), want.Payload)
	}
	extensions := map[string]string{"sequence": "00000000000000000042"}
	if want.Key != "" {
		extensions["partitionkey"] = want.Key
	}
	for name, value := range extensions {
		if got.Extensions()[name] != value {
			t.Errorf("extension %s is %v, want %q", name, got.Extensions()[name], value)
		}
	}
}
