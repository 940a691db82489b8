package main

import (
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestPublishStoresWhatWasAsked(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	e := env{"DATABASE_URL": pool.Config().ConnString()}
	const id = "00000000-0000-0000-0000-00000000000e"
	r := posthaste(t, e, "\x00bytes", "publish", "order.paid", "-", "--content-type", "application/x-odd", "--key", "order-7", "--serial",
		"--header", "user=a,b=c", "--header", "x=y", "--tenant", "00000000-0000-0000-0000-000000000009", "--id", id)
	if r.code != exitOK || strings.TrimSpace(r.out) != id {
		t.Fatalf("got %+v", r)
	}
	if !strings.Contains(r.errOut, "there is no sink") {
		t.Errorf("it said %q, want a note that nobody reads the event", r.errOut)
	}
	stored := func(id string) (row string) {
		err := pool.QueryRow(t.Context(), `SELECT concat_ws('|', topic, key, content_type, headers, encode(payload, 'escape'), tenant_id) FROM outbox.events WHERE id = $1`,
			strings.TrimSpace(id)).Scan(&row)
		if err != nil {
			t.Fatal(err)
		}
		return row
	}
	if got, want := stored(id), `order.paid|order-7|application/x-odd|{"x": "y", "user": "a,b=c"}|\000bytes|00000000-0000-0000-0000-000000000009`; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got, want := stored(ok(t, e, "publish", "order.paid")), `order.paid|application/json|{}|00000000-0000-0000-0000-000000000001`; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for want, args := range map[string][]string{
		"PAYLOAD is not valid JSON":             {"order.paid", `{"a":`},
		`TOPIC is "a b"`:                        {"a b"},
		"PAYLOAD is empty":                      {"order.paid", ""},
		`--header is "x": want NAME=VALUE`:      {"order.paid", "--header", "x"},
		"--serial is set, but --key is empty":   {"order.paid", "--serial"},
		"--key is 513 bytes long, want at most": {"order.paid", "--key", strings.Repeat("k", 513)},
		"--id: parse id":                        {"order.paid", "--id", "7"},
		"--tenant is empty":                     {"order.paid", "--tenant", ""},
		"usage: posthaste publish TOPIC":        {},
		"--content-type is 129 bytes long":      {"order.paid", "--content-type", strings.Repeat("c", 129)},
	} {
		if r := posthaste(t, e, "", append([]string{"publish"}, args...)...); r.code != exitUsage || !strings.Contains(r.errOut, want) {
			t.Errorf("publish %q: %+v, want exit status 2 and %q", args, r, want)
		}
	}
}
