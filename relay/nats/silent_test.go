package nats

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
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
