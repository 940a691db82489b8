package main

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Another event of the shop credits nothing, nor does a message that is not the relay's, and neither ends the program.
func TestOnlyOrdersThatWerePaidAreCredited(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Exec(t.Context(), "DROP SCHEMA outbox CASCADE"); err != nil { // the consumer has its own
		t.Fatal(err)
	}
	broker := natstest.Start(t, natstest.Options{})
	js := broker.Connect()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range []struct{ id, subject, data string }{
		{"1", "shop.order.shipped.order-7", `{"order": 7, "customer": "Ada", "cents": 1200}`},
		{"2", "shop.order.paid.order-7", `{"order": 7, "customer": "Ada"`},
		{"3", "shop.order.paid.order-7", `[7]`},
		{"4", "shop.order.paid.order-7", ``},
		{"5", "shop.order.paid.order-7", `{"order": 7}`},
		{"6", "shop.order.paid.order-7", `{"order": 7, "customer": "A\u0000a", "cents": 1200}`},
		{"7", "shop.order.paid.order-7", `{"order": 7, "customer": "Ada", "cents": 12000000000}`},
		{"", "shop.order.paid.order-7", `{"order": 7, "customer": "Ada", "cents": 1200}`},
		{"8", "shop.order.paid.order-7", `{"order": 7, "customer": "Ada", "cents": 1200}`},
		{"9", "shop.order.paid.order-8", `{"order": 8, "customer": "Grace", "cents": 300}`},
	} {
		message := &nats.Msg{Subject: m.subject, Data: []byte(m.data)}
		if m.id != "" {
			message.Header = nats.Header{jetstream.MsgIDHeader: {m.id}}
		}
		if _, err := js.PublishMsg(t.Context(), message); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, db.Config().ConnString(), broker.URL) }()
	for { // until every message has been dealt with
		select {
		case err := <-ended:
			t.Fatalf("the program ended: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		consumer, err := stream.Consumer(ctx, "points")
		if err != nil {
			continue // it is not made yet
		}
		info := consumer.CachedInfo()
		if info.NumPending == 0 && info.NumAckPending == 0 && info.Delivered.Consumer >= 9 {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	rows, _ := db.Query(t.Context(), "SELECT customer, points FROM points ORDER BY customer")
	got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (text string, err error) {
		var customer string
		var points int
		err = row.Scan(&customer, &points)
		return fmt.Sprint(customer, " ", points), err
	})
	if want := []string{"Ada 1200", "Grace 300"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("points %q, %v, want %q", got, err, want)
	}
}
