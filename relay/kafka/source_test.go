package kafka

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/relay"
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

// What a commit that has failed was for is committed before more is fetched: in a partition in which nothing more
// comes, no other commit is for it. Another client would fetch the same again, in a group that begins anew.
func TestACommitThatFailsIsNotForgotten(t *testing.T) {
	t.Parallel()
	s, err := OpenSource(Config{Brokers: []string{"127.0.0.1:1"}}, SourceConfig{Topic: topic, Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.connected(); err != nil {
		t.Fatal(err)
	}
	s.returned = []*kgo.Record{{Topic: topic}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	first := s.client
	if err := s.Ack(ctx); err == nil || s.client != first {
		t.Errorf("the commit: %v; the client is kept: %t", err, s.client == first)
	}
	if _, err := s.Fetch(ctx, 1); err == nil || !strings.Contains(err.Error(), "commit offsets of group g") || len(s.acked) != 1 || s.client != first {
		t.Errorf("the next Fetch: %v; of %d records; the client is kept: %t", err, len(s.acked), s.client == first)
	}
	if s.Release(); s.acked != nil {
		t.Error("what is given back is committed")
	}
}

// A broker that is stopped keeps its connections and answers nothing. The source gives its client up soon all the same.
func TestAStoppedBrokerDoesNotHoldASource(t *testing.T) {
	t.Parallel()
	b := start(t)
	config := b.config()
	config.User, config.PasswordFile = "admin", filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(config.PasswordFile, []byte("admin"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := OpenSource(config, SourceConfig{Topic: topic, Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	if outcomes := b.Sink().Publish(t.Context(), []relay.Message{{ID: "1", Destination: topic}}); outcomes[0] != nil {
		t.Fatal(outcomes[0])
	}
	if got, err := s.Fetch(t.Context(), 10); err != nil || len(got) != 1 {
		t.Fatalf("got %v, %v", got, err)
	}
	b.Stop()
	defer b.Continue()
	began := time.Now()
	s.Release()
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A look whether a source can be fetched from takes nothing from the bridge that does: the group stays as it is.
func TestAProbeDoesNotJoinTheGroup(t *testing.T) {
	t.Parallel()
	b := start(t)
	config := b.config()
	config.User, config.Password, config.PasswordFile = "admin", "admin", ""
	running, err := OpenSource(config, SourceConfig{Topic: topic, Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	sink := b.Sink()
	defer sink.Close()
	fetch := func(id string) {
		t.Helper()
		if outcomes := sink.Publish(t.Context(), []relay.Message{{ID: id, Destination: topic}}); outcomes[0] != nil {
			t.Fatal(outcomes[0])
		}
		if got, err := running.Fetch(t.Context(), 10); err != nil || len(got) != 1 || got[0].ID != id {
			t.Fatalf("got %v, %v, want message %s", got, err, id)
		}
		if err := running.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	fetch("1")
	member, generation := running.client.GroupMetadata()
	probed, err := OpenSource(config, SourceConfig{Topic: topic, Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	defer probed.Close()
	for began := time.Now(); time.Since(began) < 4*time.Second; { // a member learns of others within three
		time.Sleep(100 * time.Millisecond)
		if err := probed.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	fetch("2")
	if m, g := running.client.GroupMetadata(); m != member || g != generation {
		t.Errorf("member %s of generation %d, before %s of %d", m, g, member, generation)
	}
}

// A topic that does not exist, or not any more, is an error, and not a topic without messages. Once it is created, its
// messages come.
func TestATopicThatDoesNotExistIsAnError(t *testing.T) {
	t.Parallel()
	b := start(t)
	config := b.config()
	config.User, config.Password, config.PasswordFile = "admin", "admin", ""
	s, err := OpenSource(config, SourceConfig{Topic: topic, Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// A bridge gives a Fetch five seconds, and its owner's lease ten.
	fetch := func(until func(got []bridge.Message, err error) bool) {
		t.Helper()
		for ctx.Err() == nil {
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			got, err := s.Fetch(short, 10)
			cancel()
			if until(got, err) {
				return
			}
		}
		t.Fatal("in vain")
	}
	sink := b.Sink()
	defer sink.Close()
	create := func() {}
	for _, id := range []string{"1", "2"} {
		create()
		if err := s.Probe(ctx); err != nil {
			t.Errorf("Probe of the topic: %v", err)
		}
		for {
			outcomes := sink.Publish(ctx, []relay.Message{{ID: id, Destination: topic}})
			if outcomes[0] == nil {
				break
			}
		}
		fetch(func(got []bridge.Message, err error) bool { return len(got) == 1 && got[0].ID == id })
		create = b.Delete()
		if err := s.Probe(ctx); !errors.Is(err, kerr.UnknownTopicOrPartition) {
			t.Errorf("Probe of no topic: %v", err)
		}
		fetch(func(got []bridge.Message, err error) bool { return errors.Is(err, kerr.UnknownTopicOrPartition) })
	}
}

// A broker whose disk has failed answers so at once, each time, for hours. A Fetch waits for records all the same: each
// of a bridge's is a commit in the database.
func TestAnErrorThatPassesDoesNotEndAFetch(t *testing.T) {
	t.Parallel()
	b := start(t)
	config := b.config()
	config.User, config.Password, config.PasswordFile = "admin", "admin", ""
	s, err := OpenSource(config, SourceConfig{Topic: topic, Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sink := b.Sink()
	defer sink.Close()
	publish := func(id string) {
		t.Helper()
		if outcomes := sink.Publish(t.Context(), []relay.Message{{ID: id, Destination: topic}}); outcomes[0] != nil {
			t.Fatal(outcomes[0])
		}
	}
	fetch := func(id string) {
		t.Helper()
		if got, err := s.Fetch(t.Context(), 10); err != nil || len(got) != 1 || got[0].ID != id {
			t.Fatalf("got %v, %v, want message %s", got, err, id)
		}
	}
	publish("1")
	fetch("1")
	publish("2")
	for s.client.BufferedFetchRecords() == 0 { // with which the request that waits at the broker is answered
		time.Sleep(10 * time.Millisecond)
	}
	repair := b.Unreadable()
	fetch("2")
	publish("3")
	const lasts = 2 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var answers atomic.Int64
	defer b.proxy.Stall(func() time.Duration {
		answers.Add(1)
		return 0
	})()
	fetches := 0
	for ctx.Err() == nil {
		if got, err := s.Fetch(ctx, 10); err != nil || len(got) > 0 {
			t.Fatalf("got %v, %v", got, err)
		}
		fetches++
	}
	if n := answers.Load(); fetches > 1 || n > 100 {
		t.Errorf("%d Fetches in %s, and %d answers of the broker; want one, and 100 at most", fetches, lasts, n)
	}
	repair()
	fetch("3")
}
