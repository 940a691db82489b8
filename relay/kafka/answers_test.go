package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/posthaste-dev/posthaste/relay"
)

// As many ends as records are not an end of each.
func TestARecordThatEndsTwiceEndsNoOther(t *testing.T) {
	t.Parallel()
	e := &ends{of: []error{errPending, errPending, errPending}, left: 3, done: make(chan struct{})}
	for range 2 {
		e.end(0, nil)
	}
	e.end(1, nil)
	<-e.done
	got := e.known(nil)
	if got[0] != nil || got[1] != nil || got[2] == nil {
		t.Errorf("%v", got)
	}
	if _, known := classify(got[2]); known {
		t.Errorf("%v is known", got[2])
	}
}

// franz-go keeps why it was given no producer ID, and answers it for every record of the same client.
func TestAClientWithoutAProducerIDIsDropped(t *testing.T) {
	t.Parallel()
	for err, want := range map[*kerr.Error]string{
		kerr.ClusterAuthorizationFailed:         "unavailable " + relay.CodeForbidden,
		kerr.TransactionalIDAuthorizationFailed: "unavailable " + relay.CodeForbidden,
		kerr.InvalidTransactionTimeout:          "unknown",
	} {
		c, openErr := kgo.NewClient()
		if openErr != nil {
			t.Fatal(openErr)
		}
		s := &Sink{client: &client{Client: c}}
		p := &publication{sink: s, batch: messages(1, 1, topic, 1), outcomes: make([]error, 1), failed: map[string]bool{}, refusing: map[string]error{}}
		p.end(0, err)
		if got := code(p.outcomes[0]); got != want || !p.over || s.client != nil {
			t.Errorf("%v: %s, want %s; over %t, client kept %t", err, got, want, p.over, s.client != nil)
		}
	}
}
