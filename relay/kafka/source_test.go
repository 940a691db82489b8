package kafka

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Where brokers name no topic's ID, a topic that is made anew has the same offsets again, and other times.
func TestARecordsIDIsAnotherInATopicMadeAnew(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, id := range [][16]byte{{}, {1}, {2}} {
		for _, at := range []int64{1, 2} {
			seen[message(&kgo.Record{Topic: topic, Partition: 3, Offset: 4, Timestamp: time.UnixMilli(at)}, id).ID] = true
		}
	}
	if want := "01" + strings.Repeat("0", 30) + "/3/4"; len(seen) != 4 || !seen[want] {
		t.Errorf("got %v, want two without an ID of the topic, and one for each ID, such as %s", seen, want)
	}
}

// What a commit that has failed was for comes again: in a partition in which nothing more comes, no other commit is for
// it.
func TestACommitThatFailsIsNotForgotten(t *testing.T) {
	t.Parallel()
	s, err := OpenSource(Config{Brokers: []string{"127.0.0.1:1"}}, SourceConfig{Topic: topic, Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.connected(); err != nil {
		t.Fatal(err)
	}
	s.uncommitted = []*kgo.Record{{Topic: topic}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Ack(ctx); err == nil || s.client != nil {
		t.Errorf("the commit: %v; the client is kept: %t", err, s.client != nil)
	}
}
