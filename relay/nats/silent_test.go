package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/relay"
)

// Nobody answers questions about a stream, as in a cluster without a leader for them; messages are acknowledged. The
// settings of before are used, on the same connection, and an answer that comes late is not taken for a message's.
func TestAStreamIsPublishedToWhileNobodyAnswersQuestions(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{Config: `
		accounts: { A: { jetstream: enabled, users: [ { user: admin, password: admin } ] }, B: { users: [ { user: b, password: b } ] } }`})
	leader, err := nats.Connect(server.URL, nats.UserInfo("b", "b"))
	if err != nil {
		t.Fatal(err)
	}
	defer leader.Close()
	var asked []*nats.Msg
	all := make(chan *nats.Msg, 9) // one goroutine answers both
	for _, subject := range []string{"$JS.API.>", "events.>"} {
		if _, err := leader.ChanSubscribe(subject, all); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	defer func() { close(all); <-done }()
	defer leader.Close()
	go func() {
		defer close(done)
		for m := range all {
			if m.Subject != "events.a" {
				asked = append(asked, m)
				continue
			}
			for _, late := range asked {
				_ = late.Respond([]byte(`{"error":{"code":503}}`))
			}
			_ = m.Respond([]byte(`{"stream":"S","seq":1}`))
		}
	}()
	if err := leader.Flush(); err != nil {
		t.Fatal(err)
	}
	s := connectedSink(t, Config{URLs: []string{server.URL}, User: "b", Password: "b"})
	c, err := s.connected(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.streams = streams{{name: "S", config: jetstream.StreamConfig{Name: "S", Subjects: []string{"events.>"}}}}
	if err := s.Publish(t.Context(), messagesTo("events.a", 1, 1, 1))[0]; err != nil {
		t.Errorf("the message: %v", err)
	}
	if s.conn != c || !c.alive() {
		t.Error("the connection was given up")
	}
}

// A stopped server keeps its connection and reads nothing, so a large run fills the buffers and a write blocks. Publish
// returns soon after its time is over all the same.
func TestPublishEndsDuringAWrite(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{})
	if _, err := server.Connect().CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"events.>"}}); err != nil {
		t.Fatal(err)
	}
	s := connectedSink(t, Config{URLs: []string{server.URL}})
	if err := s.Publish(t.Context(), messagesTo("events.a", 1, 1, 1))[0]; err != nil {
		t.Fatal(err)
	}
	server.Stop()
	defer server.Continue()
	batch := messagesTo("events.a", 2, 64, 64)
	for i := range batch {
		batch[i].Body = make([]byte, 64<<10)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	outcomes := s.Publish(ctx, batch)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	if _, isAway := errors.AsType[*relay.UnavailableError](outcomes[0]); slices.Contains(outcomes, nil) || isAway {
		t.Errorf("the outcomes are %v, want the first to be unknown, so that the next batch is smaller", outcomes)
	}
}

// Nobody answers questions about streams, and none is known: one question is asked, and not one for each subject, which
// would take the time of the batch.
func TestABatchAsksASilentServerOnce(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{})
	s := connectedSink(t, Config{URLs: []string{server.URL}})
	if err := s.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	defer server.Continue()
	batch := messagesTo("", 1, 10, 10)
	for i := range batch {
		batch[i].Destination = fmt.Sprintf("events.%d", i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	began := time.Now()
	outcomes := s.Publish(ctx, batch)
	if took := time.Since(began); took > 2*questionTimeout {
		t.Errorf("it took %v", took)
	}
	for _, err := range outcomes {
		if _, isAway := errors.AsType[*relay.UnavailableError](err); !isAway {
			t.Errorf("the outcome is %v, want the sink away: nothing was sent", err)
		}
	}
}
