package kafka

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
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

// A leader that has waited for its replicas in vain may have stored the record, and says nothing about it.
func TestAnswersOfALeaderWithoutItsReplicasAreOutages(t *testing.T) {
	t.Parallel()
	for _, answer := range []*kerr.Error{kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut} {
		outcome, known := classify(answer)
		if got := code(outcome); got != "unavailable "+relay.CodeNoLeader || known {
			t.Errorf("%v: %s, known %t, want unavailable and perhaps stored", answer, got, known)
		}
	}
	if outcome, known := classify(kerr.NotEnoughReplicas); code(outcome) != "unavailable "+relay.CodeNoLeader || !known {
		t.Errorf("%v: %v, known %t, want unavailable and not stored", kerr.NotEnoughReplicas, outcome, known)
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
		p := &publication{sink: s, batch: messages(1, 1, topic, 1), outcomes: make([]error, 1), failed: map[string]error{}, refusing: map[string]error{}}
		p.end(0, err)
		if got := code(p.outcomes[0]); got != want || !p.over || s.client != nil {
			t.Errorf("%v: %s, want %s; over %t, client kept %t", err, got, want, p.over, s.client != nil)
		}
	}
}

func TestSettingsThatDeleteWhatNobodyHasRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ ms, bytes, want string }{
		{"604800000", "-1", ""},
		{"-1", "", ""},
		{"86400000", "-1", "topic t: retention.ms is 86400000 (24h0m0s): a consumer that is away for longer misses messages"},
		{"9223372036854775807", "1000", "topic t: retention.bytes is 1000: beyond that it deletes messages of a partition that no consumer has read"},
	} {
		all := (&Sink{}).ofSettings(kadm.ResourceConfig{Name: "t", Configs: []kadm.Config{
			{Key: "min.insync.replicas", Value: new("0")}, {Key: "retention.ms", Value: &c.ms}, {Key: "retention.bytes", Value: &c.bytes},
		}}, kadm.TopicDetail{})
		got := ""
		for _, f := range all {
			got += f.What
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c, diff)
		}
	}
}
