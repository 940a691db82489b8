package presence

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/natstest"
	relaynats "github.com/posthaste-dev/posthaste/relay/nats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines is a log that counts.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(b))
	return len(b), nil
}

func (l *lines) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func start(t *testing.T, url string, log *lines, worker dispatcher.Presence) (stop func()) {
	t.Helper()
	r, err := New(Config{
		NATS: relaynats.Config{URLs: []string{url}}, SubjectPrefix: "trellis.jobs", Logger: slog.New(slog.NewTextHandler(log, nil)), interval: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Report(worker)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(stop)
	return stop
}

func next(t *testing.T, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := sub.NextMsg(20 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Each queue and kind has a heartbeat, field for field as the seed has it, again and again until the process stops. A
// stream that keeps the last of each subject has one for each.
func TestHeartbeats(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{})
	js := server.Connect()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "WORKERS", Subjects: []string{"trellis.jobs.workers.>"}, MaxMsgsPerSubject: 1, MaxAge: 30 * time.Second, Storage: jetstream.MemoryStorage,
	}); err != nil {
		t.Fatal(err)
	}
	sub, err := js.Conn().SubscribeSync("trellis.jobs.workers.>")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now().Add(-time.Second)
	stop := start(t, server.URL, &lines{}, dispatcher.Presence{
		Worker: "host.example-7-ab", Version: "v1", Queues: map[string]int{"default": 64, "post.eu": 8}, Kinds: []string{"bill", "mail.send"},
	})
	seen := map[string]int{}
	for range 40 {
		m := next(t, sub)
		seen[m.Subject]++
		var beat map[string]any
		if err := json.Unmarshal(m.Data, &beat); err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, beat["timestamp"].(string))
		if err != nil || at.Before(began) || at.After(time.Now()) {
			t.Errorf("the time is %v, %v", beat["timestamp"], err)
		}
		delete(beat, "timestamp")
		if m.Subject != "trellis.jobs.workers.post_eu.mail_send.host_example-7-ab.heartbeat" {
			continue
		}
		got, _ := json.Marshal(beat)
		if want := `{"concurrency":8,"instanceId":"host.example-7-ab","jobType":"mail.send","service":"post.eu","version":"v1"}`; string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if len(seen) != 4 {
		t.Errorf("got %v", seen)
	}
	stop()
	for {
		if _, err := sub.NextMsg(500 * time.Millisecond); err != nil {
			break
		}
	}
	if _, err := sub.NextMsg(300 * time.Millisecond); err == nil {
		t.Error("a heartbeat after the end")
	}
	if kept := natstest.Drain(t, js, "WORKERS"); len(kept) != 4 {
		t.Errorf("the stream keeps %d", len(kept))
	}
}

// A server that is away, or stands still, costs one line in ten seconds, and heartbeats go on when it is back.
func TestTheServerIsAway(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{})
	server.Kill()
	log := &lines{}
	stop := start(t, server.URL, log, dispatcher.Presence{Worker: "w", Queues: map[string]int{"default": 64}, Kinds: []string{"mail"}})
	time.Sleep(2 * time.Second)
	if n := log.count("no connection to NATS"); n != 1 {
		t.Errorf("%d lines in two seconds, want one: %q", n, log.all)
	}
	server.Restart()
	sub, err := server.Connect().Conn().SubscribeSync("trellis.jobs.workers.default.mail.w.heartbeat")
	if err != nil {
		t.Fatal(err)
	}
	next(t, sub)
	server.Stop()
	began := time.Now()
	stop()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("a stop beside a server that stands still took %s", took)
	}
	server.Continue()
}

// A process that runs no jobs has no connection.
func TestWithoutWorkersThereIsNothing(t *testing.T) {
	t.Parallel()
	log := &lines{}
	stop := start(t, "nats://127.0.0.1:1", log, dispatcher.Presence{})
	time.Sleep(200 * time.Millisecond)
	stop()
	if len(log.all) > 0 {
		t.Errorf("the log has %q", log.all)
	}
	if _, err := New(Config{SubjectPrefix: "a.*"}); err == nil || !strings.Contains(err.Error(), "URLs is empty") {
		t.Errorf("New = %v", err)
	}
}

// The heartbeat that docs/operate/nats.md shows is one of ours: the same members in the same order, and no other.
func TestThePageShowsAHeartbeat(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/operate/nats.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?m)^<!-- run by relay/nats/presence/presence_test.go -->\n```json\n((?s:.*?))^```$").FindSubmatch(page)
	if shown == nil {
		t.Fatal("docs/operate/nats.md shows no heartbeat")
	}
	var beat Heartbeat
	if err := json.Unmarshal(shown[1], &beat); err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(beat)
	var got bytes.Buffer
	if err := json.Compact(&got, shown[1]); err != nil || got.String() != string(want) {
		t.Errorf("docs/operate/nats.md shows %s, a heartbeat is %s (%v)", got.String(), want, err)
	}
}
