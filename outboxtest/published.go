package outboxtest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

// RequirePublished fails the test unless the transaction has published an event with this topic and payload, and with
// the fields that are set in the options: Key, Headers (the event must have these among others), Tenant and ID. It
// returns the ID of the first such event. db is a [DB], or any pgx.Tx. The failure shows what was published instead.
func RequirePublished[E outbox.Event](t testing.TB, db outbox.DB, want E, opts ...outbox.EventOptions) outbox.ID {
	t.Helper()
	if len(opts) > 1 {
		t.Fatalf("RequirePublished takes the options of one event, got %d", len(opts))
	}
	var o outbox.EventOptions
	if len(opts) == 1 {
		o = opts[0]
	}
	wanted := wantedEvent(t, want, o)
	stored, err := storedEvents(context.Background(), db)
	if err != nil {
		t.Fatal(err)
	}
	var others []storedEvent
	var b strings.Builder
	for _, e := range stored {
		if e.topic != want.Topic() {
			others = append(others, e)
			continue
		}
		got := e.lines(o)
		if slices.Equal(wanted, got) {
			return e.id
		}
		fmt.Fprintf(&b, "  %s:\n%s", e.topic, diff(wanted, got))
	}
	if b.Len() > 0 {
		t.Fatalf("no event of topic %s is the wanted one (-want +published):\n%s", want.Topic(), b.String())
	}
	for _, e := range others {
		fmt.Fprintf(&b, "  %s: %s\n", e.topic, oneLine(e.contentType, e.payload))
	}
	t.Fatalf("no event of topic %s was published; in this transaction there are:\n%s", want.Topic(),
		cmp.Or(b.String(), "  no events\n"))
	panic("unreachable")
}

// RequireNotPublished fails the test if the transaction has published an event of this topic.
func RequireNotPublished(t testing.TB, db outbox.DB, topic string) {
	t.Helper()
	stored, err := storedEvents(context.Background(), db)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range stored {
		if e.topic == topic {
			t.Fatalf("an event of topic %s was published, and should not have been: %s", topic,
				oneLine(e.contentType, e.payload))
		}
	}
}

func wantedEvent(t testing.TB, event outbox.Event, o outbox.EventOptions) []string {
	t.Helper()
	content := plain(t, "event", event)
	wanted := storedEvent{
		contentType: content.Type, payload: content.Bytes, key: o.Key, headers: o.Headers,
		tenant: o.Tenant, id: o.ID,
	}
	return wanted.lines(o)
}

// storedEvent is a row of outbox.events.
type storedEvent struct {
	id, tenant  outbox.ID
	topic, key  string
	contentType string
	payload     []byte
	headers     map[string]string
}

// lines returns the payload and the options that are set.
func (e storedEvent) lines(o outbox.EventOptions) []string {
	lines := spelled(e.contentType, e.payload)
	if o.Key != "" {
		lines = append(lines, "Key: "+e.key)
	}
	if !o.Tenant.IsZero() {
		lines = append(lines, "Tenant: "+e.tenant.String())
	}
	if !o.ID.IsZero() {
		lines = append(lines, "ID: "+e.id.String())
	}
	for _, name := range slices.Sorted(maps.Keys(o.Headers)) {
		lines = append(lines, fmt.Sprintf("Headers[%q]: %s", name, e.headers[name]))
	}
	return lines
}

// storedEvents returns the events that the transaction has published, in order.
func storedEvents(ctx context.Context, db outbox.DB) ([]storedEvent, error) {
	rows, err := db.Query(ctx, `
		SELECT id, tenant_id, topic, coalesce(key, ''), content_type, payload, coalesce(headers, '{}')::text
		FROM outbox.events
		WHERE `+ours("events")+`
		ORDER BY position`)
	if err != nil {
		return nil, fmt.Errorf("look for events: %w", err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e storedEvent, err error) {
		var headers string
		err = row.Scan((*[16]byte)(&e.id), (*[16]byte)(&e.tenant), &e.topic, &e.key, &e.contentType, &e.payload,
			&headers)
		if err == nil {
			_ = json.Unmarshal([]byte(headers), &e.headers)
		}
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for events: %w", err)
	}
	return events, nil
}
