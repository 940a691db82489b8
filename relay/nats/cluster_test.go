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

// The leader of a replicated stream changes while it is published to: by its own will, and because it is killed.
func TestLeaderChanges(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]jetstream.StreamConfig{
		"window":      {},
		"fast ingest": {AllowBatchPublish: true}, // which is not used with replicas
		"atomic":      {AllowAtomicPublish: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			leaderChanges(t, config)
		})
	}
}

func leaderChanges(t *testing.T, config jetstream.StreamConfig) {
	servers := natstest.Cluster(t)
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.URL)
	}
	nc, err := nats.Connect(urls[0]+","+urls[1]+","+urls[2], nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	config.Name, config.Subjects, config.Replicas = streamName, []string{"events.>"}, 3
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s := connectedSink(t, Config{URLs: urls})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		for round := range 3 {
			time.Sleep(300 * time.Millisecond)
			before := leaderOf(ctx, t, js)
			if before == "" {
				return // nobody leads for a minute: publishUntil says what it could not publish
			}
			if round == 2 {
				victim := servers[slices.Index([]string{"n0", "n1", "n2"}, before)]
				victim.Kill()
				defer victim.Restart()
			} else if _, err := nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+streamName, nil, 5*time.Second); err != nil {
				t.Error(err)
			}
			for leaderOf(ctx, t, js) == before {
				if ctx.Err() != nil {
					t.Errorf("%s leads the stream for ever", before)
					return
				}
			}
		}
	}()
	all, again := publishUntil(ctx, t, s, done)
	if s.streams[0].mode(1000) == byFastIngest {
		t.Error("a stream with replicas is published to by fast ingest")
	}
	position := map[string]int{}
	for i, m := range all {
		position[m.ID] = i
	}
	last, got := map[string]int{}, map[string]bool{}
	for _, m := range natstest.Drain(t, js, streamName) {
		id := m.Header.Get(headerID)
		at, known := position[id]
		if key := fmt.Sprint(at % 7); known && !got[id] {
			if at < last[key] {
				t.Errorf("key %s has %d after %d", key, at, last[key])
			}
			last[key] = at
		}
		got[id] = true
	}
	if len(got) != len(all) {
		t.Errorf("%d messages are stored, of %d", len(got), len(all))
	}
	t.Logf("%d messages, %d batches were broken off", len(all), again)
}

// The only server of a stream is down: that is an outage of this stream, and the sink goes on with others.
func TestAStreamWithoutALeaderStopsNoOther(t *testing.T) {
	t.Parallel()
	servers := natstest.Cluster(t)
	js := servers[0].Connect()
	for name, replicas := range map[string]int{streamName: 1, "OTHER": 3} {
		config := jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Replicas: replicas}
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	leader := leaderOf(t.Context(), t, js)
	var urls []string
	for i, s := range servers {
		if leader == fmt.Sprintf("n%d", i) {
			s.Kill()
			defer s.Restart()
		} else {
			urls = append(urls, s.URL)
		}
	}
	s := connectedSink(t, Config{URLs: urls})
	other := messagesTo("OTHER.a", 0, 1, 1)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := s.Publish(t.Context(), other)[0]
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the other stream has no leader again: %v", err)
		}
	}
	for round := range 3 {
		var batch []relay.Message
		for i := range 5 {
			m := messagesTo(fmt.Sprintf("%s.%d", streamName, i), 10*round+i+1, 1, 1)[0]
			m.Key = ""
			batch = append(batch, m)
		}
		outcomes := s.Publish(t.Context(), append(batch, messagesTo("OTHER.a", 100+round, 1, 1)...))
		if err := outcomes[5]; err != nil {
			t.Errorf("a message to the other stream: %v", err)
		}
		for _, err := range outcomes[:5] {
			unavailable, ok := errors.AsType[*relay.UnavailableError](err)
			if !ok || unavailable.Code != relay.CodeNoLeader && unavailable.Code != relay.CodeNoDestination {
				t.Errorf("a message to the stream without a leader: %v", err)
			}
		}
		s.mu.Lock()
		s.streams = nil // as after a minute
		s.mu.Unlock()
	}
}

// leaderOf returns the name of the server that leads the stream, once there is one, or "" when ctx has ended.
func leaderOf(ctx context.Context, t *testing.T, js jetstream.JetStream) string {
	t.Helper()
	for ctx.Err() == nil {
		once, cancel := context.WithTimeout(ctx, time.Second) // while nobody leads there may be no answer
		stream, err := js.Stream(once, streamName)
		cancel()
		if err == nil && stream.CachedInfo().Cluster.Leader != "" {
			return stream.CachedInfo().Cluster.Leader
		}
		time.Sleep(20 * time.Millisecond)
	}
	return ""
}

// publishUntil publishes batches, and what was not accepted again, until done.
func publishUntil(ctx context.Context, t *testing.T, s *Sink, done <-chan struct{}) (all []relay.Message, again int) {
	t.Helper()
	var rest []relay.Message
	var last error
	for more := true; more || len(rest) > 0; {
		select {
		case <-done:
			more = false
		case <-ctx.Done():
			t.Fatalf("%d messages are left: %v", len(rest), last)
		default:
		}
		if len(rest) == 0 {
			for range 490 {
				m := messagesTo("events.a", len(all), 1, 1)[0]
				m.Key = fmt.Sprint(len(all) % 7)
				all, rest = append(all, m), append(rest, m)
			}
		}
		var failed []relay.Message
		for i, err := range s.Publish(ctx, rest) {
			if err != nil {
				failed = append(failed, rest[i])
			}
			if err != nil && !errors.Is(err, relay.ErrNotTried) {
				last = err
			}
		}
		if rest = failed; len(rest) > 0 {
			again++
			time.Sleep(10 * time.Millisecond)
		}
	}
	return all, again
}
