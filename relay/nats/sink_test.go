package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/relay"
)

func connectedSink(t *testing.T, config Config) *Sink {
	t.Helper()
	s, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func messagesTo(subject string, from, n, keys int) (all []relay.Message) {
	for i := range n {
		all = append(all, relay.Message{
			ID: fmt.Sprintf("id-%d", from+i), Destination: subject, Key: fmt.Sprintf("key-%d", i%keys), Body: []byte("hello"),
		})
	}
	return all
}

func accepted(t *testing.T, outcomes []error) {
	t.Helper()
	for i, err := range outcomes {
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

// How a stream gets its messages follows from its settings and from how fast it acknowledges. The number of answers
// shows it: one for each message, or a few for all.
func TestTheWayFollowsFromTheStream(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		always bool
		config jetstream.StreamConfig
		want   mode // -1: the machine decides
	}{
		"neither":             {false, jetstream.StreamConfig{}, byWindow},
		"fast ingest":         {false, jetstream.StreamConfig{AllowBatchPublish: true}, byFastIngest},
		"atomic":              {false, jetstream.StreamConfig{AllowAtomicPublish: true}, byAtomicBatch},
		"both, and fsyncs":    {true, jetstream.StreamConfig{AllowAtomicPublish: true, AllowBatchPublish: true}, -1},
		"both, but in memory": {false, jetstream.StreamConfig{AllowAtomicPublish: true, AllowBatchPublish: true, Storage: jetstream.MemoryStorage}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := natstest.Start(t, natstest.Options{SyncAlways: test.always})
			js := server.Connect()
			test.config.Name, test.config.Subjects, test.config.MaxMsgSize = streamName, []string{"events.>"}, 10_000
			if _, err := js.CreateStream(t.Context(), test.config); err != nil {
				t.Fatal(err)
			}
			s := connectedSink(t, Config{URLs: []string{server.URL}})
			accepted(t, s.Publish(t.Context(), messagesTo("events.a", 0, 100, 1)))
			way := s.streams[0].mode(1000)
			if way != test.want && test.want >= 0 {
				t.Errorf("mode %d, want %d; a message took %s to be acknowledged, of which %s are the way", way, test.want, s.streams[0].acked, s.streams[0].way)
			}
			before := s.conn.nc.Stats().InMsgs
			all := messagesTo("events.a", 100, 1000, 10)
			all[300].Body = make([]byte, 20_000) // which an atomic batch does not survive, and the others do
			outcomes := s.Publish(t.Context(), all)
			answers := s.conn.nc.Stats().InMsgs - before
			if got := len(natstest.Drain(t, js, streamName)); got != 100+1000-70 {
				t.Errorf("%d messages are stored", got)
			}
			if refused, ok := errors.AsType[*relay.RefusedError](outcomes[300]); !ok || refused.Code != relay.CodeTooLarge {
				t.Errorf("what is too large: %v", outcomes[300])
			}
			if few := answers < 800 && answers > 0; few != (way == byFastIngest) {
				t.Errorf("mode %d got %d answers to a batch with a message that is too large", way, answers)
			}
			before = s.conn.nc.Stats().InMsgs
			accepted(t, s.Publish(t.Context(), messagesTo("events.a", 2000, 1000, 10)))
			if answers := s.conn.nc.Stats().InMsgs - before; (answers < 20) != (way != byWindow) {
				t.Errorf("mode %d got %d answers to a batch", way, answers)
			}
		})
	}
}

// Which of two ways is taken depends on the shortest samples.
func TestTheWayFollowsFromTheAcknowledgements(t *testing.T) {
	t.Parallel()
	both := jetstream.StreamConfig{AllowAtomicPublish: true, AllowBatchPublish: true}
	const us = time.Microsecond
	for name, test := range map[string]struct {
		config  jetstream.StreamConfig
		samples [][2]time.Duration // until the acknowledgement, and the way there and back; then the last again
		want    mode
	}{
		"an fsync":                       {both, [][2]time.Duration{{900 * us, 300 * us}, {300 * us, 90 * us}, {250 * us, 40 * us}}, byAtomicBatch},
		"none":                           {both, [][2]time.Duration{{900 * us, 300 * us}, {100 * us, 900 * us}, {95 * us, 45 * us}}, byFastIngest},
		"none, on a busy machine":        {both, [][2]time.Duration{{100 * us, 50 * us}, {90_000 * us, 100 * us}}, byFastIngest},
		"none, and a long way":           {both, [][2]time.Duration{{80_100 * us, 80_000 * us}}, byFastIngest},
		"not yet known":                  {both, nil, byFastIngest},
		"not yet known, and atomic only": {jetstream.StreamConfig{AllowAtomicPublish: true}, nil, byWindow},
	} {
		s := &stream{config: test.config}
		for n := 0; len(test.samples) > 0 && s.undecided(); n++ {
			sample := test.samples[min(n, len(test.samples)-1)]
			s.measured(sample[0], sample[1])
		}
		if got := s.mode(1000); got != test.want {
			t.Errorf("%s: mode %d, want %d: %s, of which %s are the way", name, got, test.want, s.acked, s.way)
		}
	}
}

// A line so slow that a batch takes longer than it may: it goes in smaller runs. How long that takes does not matter: a
// batch is 26 packets of the proxy, of 50 ms each, so that it never comes through within a second, whatever the machine
// does; and what comes twice after minutes is still a repeat.
func TestASlowLine(t *testing.T) {
	t.Parallel()
	b := open(t, jetstream.StreamConfig{AllowAtomicPublish: true, Duplicates: time.Hour})
	s := connectedSink(t, Config{URLs: []string{b.url}, User: "relay", PasswordFile: b.file})
	accepted(t, s.Publish(t.Context(), messagesTo("events.a", 0, 100, 1)))
	s.runBytes = 1 << 20          // as after a while: it need not come down from the highest
	b.Slow(50 * time.Millisecond) // for 32 kB
	rest := messagesTo("events.a", 100, 200, 1)
	for i := range rest {
		rest[i].Body = make([]byte, 4000)
	}
	rounds := 0
	for ; len(rest) > 0 && rounds < 300; rounds++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		var again []relay.Message
		for i, err := range s.Publish(ctx, rest) {
			if err != nil {
				again = append(again, rest[i])
			}
		}
		cancel()
		b.proxy.CutAll() // or what is on the way of this batch comes through in the next
		rest = again
	}
	b.Slow(0)
	if got := len(b.Received()); got != 300 || rounds < 2 {
		t.Errorf("%d messages are stored, and %d are left, after %d rounds", got, len(rest), rounds)
	}
	t.Logf("%d rounds", rounds)
}

// Messages of one key that go to two streams go one after the other.
func TestAKeyInTwoStreams(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{})
	js := server.Connect()
	for _, name := range []string{"A", "B"} {
		config := jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, AllowBatchPublish: true, MaxMsgSize: 1000}
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	all := messagesTo("A.x", 0, 200, 10)
	for i := range all {
		if i%20 > 10 || i == 100 {
			all[i].Destination = "B.x"
		}
	}
	all[100].Body = make([]byte, 2000) // to B, and its key goes on in A
	s := connectedSink(t, Config{URLs: []string{server.URL}})
	outcomes := s.Publish(t.Context(), all)
	for i, err := range outcomes {
		if want := i >= 100 && i%10 == 0; (err != nil) != want {
			t.Errorf("%d: %v", i, err)
		}
	}
	if got := len(natstest.Drain(t, js, "A")) + len(natstest.Drain(t, js, "B")); got != 200-10 {
		t.Errorf("%d messages are stored", got)
	}
}

// A stream's settings may change while we are connected.
func TestSettingsThatChange(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{})
	js := server.Connect()
	config := jetstream.StreamConfig{Name: streamName, Subjects: []string{"events.>"}, AllowBatchPublish: true, AllowAtomicPublish: true}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s := connectedSink(t, Config{URLs: []string{server.URL}})
	accepted(t, s.Publish(t.Context(), messagesTo("events.a", 0, 500, 3)))
	config.AllowBatchPublish, config.AllowAtomicPublish = false, false
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	accepted(t, s.Publish(t.Context(), messagesTo("events.a", 500, 500, 3)))
	if err := js.DeleteStream(t.Context(), streamName); err != nil {
		t.Fatal(err)
	}
	outcomes := s.Publish(t.Context(), messagesTo("events.a", 1000, 10, 3))
	if unavailable, ok := errors.AsType[*relay.UnavailableError](outcomes[0]); !ok || unavailable.Code != relay.CodeNoDestination {
		t.Errorf("without the stream: %v", outcomes[0])
	}
	if !errors.Is(outcomes[0], jetstream.ErrNoStreamResponse) {
		t.Errorf("it is no longer the client's error: %v", outcomes[0])
	}
	config.Subjects = []string{"events.a"}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	accepted(t, s.Publish(t.Context(), messagesTo("events.a", 1000, 10, 3)))
}

// A server whose answers cannot be trusted: out of order, twice, for messages that were never sent, garbage. A user
// without the right to ask about streams publishes to any that answers.
func TestAnswersThatCannotBeTrusted(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{Config: `
		accounts: { A: { jetstream: enabled, users: [
			{ user: admin, password: admin },
			{ user: relay, password: relay, permissions: { publish: { deny: ["$JS.>"] } } } ] } }`})
	impostor := server.Connect(nats.UserInfo("admin", "admin")).Conn()
	var held []*nats.Msg
	ok := []byte(`{"stream":"X","seq":1}`)
	_, err := impostor.Subscribe("evil.>", func(m *nats.Msg) {
		answer := func(text string) { _ = impostor.Publish(m.Reply, []byte(text)) }
		switch m.Subject {
		case "evil.order": // all at the end, the last first, each of them twice
			if held = append(held, m); len(held) == 100 {
				for _, m := range slices.Backward(held) {
					_ = impostor.Publish(m.Reply, ok)
					_ = impostor.Publish(m.Reply, ok)
				}
			}
		case "evil.unsent":
			base := m.Reply[:strings.LastIndexByte(m.Reply, '.')]
			for _, n := range []string{"99", "-1", "1e3", "", "0.0", "99999999999999999999"} {
				_ = impostor.Publish(base+"."+n, ok)
			}
		case "evil.garbage":
			answer("\x00{{")
		case "evil.empty":
			answer("{}")
		case "evil.typed":
			answer(`{"type":"ack","seq":1000,"msgs":1}`)
		case "evil.null":
			answer("null")
		case "evil.error":
			answer(`{"error":{"code":400,"err_code":1,"description":"no"}}`)
		case "evil.nack":
			answer(`{"stream":"X","seq":1}`)
			answer(`{"error":{"code":503,"err_code":10077,"description":"full"}}`)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := impostor.Flush(); err != nil {
		t.Fatal(err)
	}
	s := connectedSink(t, Config{URLs: []string{server.URL}, User: "relay", Password: "relay"})
	accepted(t, s.Publish(t.Context(), messagesTo("evil.order", 0, 100, 100)))
	for subject, want := range map[string]string{
		"evil.unsent": "unknown", "evil.garbage": "unknown", "evil.empty": "unknown", "evil.typed": "unknown", "evil.null": "unknown",
		"evil.error": "refused", "evil.nack": "stored",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := s.Publish(ctx, messagesTo(subject, 0, 1, 1))[0]
		cancel()
		_, refused := errors.AsType[*relay.RefusedError](err)
		_, unavailable := errors.AsType[*relay.UnavailableError](err)
		got := "unknown"
		switch {
		case err == nil:
			got = "stored"
		case refused:
			got = "refused"
		case unavailable, errors.Is(err, relay.ErrNotTried):
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s (%v), want %s", subject, got, err, want)
		}
	}
}

// A stream that is sealed takes nothing, which says nothing of a message.
func TestAStreamThatIsSealed(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]jetstream.StreamConfig{
		"window":      {},
		"fast ingest": {AllowBatchPublish: true},
		"atomic":      {AllowAtomicPublish: true},
	} {
		b := open(t, config)
		s := b.Sink()
		t.Cleanup(func() { _ = s.Close() })
		accepted(t, s.Publish(t.Context(), messagesTo("events.a", 0, 10, 5)))
		stream, err := b.js.Stream(t.Context(), streamName)
		if err != nil {
			t.Fatal(err)
		}
		config = stream.CachedInfo().Config
		config.Sealed = true
		if _, err := b.js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		for i, err := range s.Publish(t.Context(), messagesTo("events.a", 10, 10, 5)) {
			unavailable, ok := errors.AsType[*relay.UnavailableError](err)
			switch {
			case errors.Is(err, relay.ErrNotTried) && i > 0:
			case !ok || unavailable.Code != relay.CodeNoLeader || !isCode(err, sealed):
				t.Errorf("%s: message %d: %v", name, i, err)
			}
		}
		if got := len(b.Received()); got != 10 {
			t.Errorf("%s: %d messages are stored, want 10", name, got)
		}
	}
}

func TestSubjectsThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{
		"", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nPUB b 0\r\n", "a\x00", "*", "a.*", "a.>", ">", "$JS.API.STREAM.DELETE.EVENTS",
		"$SYS.REQ", "_INBOX.x", strings.Repeat("a", 4000),
	} {
		_, err := encode(&relay.Message{Destination: subject})
		if refused, ok := errors.AsType[*relay.RefusedError](err); !ok || refused.Code != relay.CodeBadDestination {
			t.Errorf("%q: %v", subject, err)
		}
	}
	for _, subject := range []string{"a", "a.b-c_d.é", "a.b>c", "a.*b", "events.$x", strings.Repeat("a", 3000)} {
		if _, err := encode(&relay.Message{Destination: subject}); err != nil {
			t.Errorf("%q: %v", subject, err)
		}
	}
	for _, name := range []string{"Nats-Rollup", "nats-expected-last-sequence", "NATS-TTL", "Nats-Msg-Id", "Nats-"} {
		_, err := encode(&relay.Message{Destination: "a", Headers: []relay.Header{{Name: name, Value: "all"}}})
		if refused, ok := errors.AsType[*relay.RefusedError](err); !ok || refused.Code != relay.CodeRefused {
			t.Errorf("header %q: %v", name, err)
		}
	}
	for _, value := range []string{"a\r\nNats-Rollup: all", "a\nb", "a\rb", "a\x00"} {
		_, err := encode(&relay.Message{Destination: "a", Headers: []relay.Header{{Name: "x", Value: value}}})
		if refused, ok := errors.AsType[*relay.RefusedError](err); !ok || refused.Code != relay.CodeRefused {
			t.Errorf("value %q: %v", value, err)
		}
	}
}

func TestAttributesAreWrittenAsTheBindingSays(t *testing.T) {
	t.Parallel()
	m, err := encode(&relay.Message{Destination: "a", ContentType: "text/plain; charset=utf-8", Headers: []relay.Header{
		{Name: "ce-specversion", Value: "1.0"},
		{Name: "ce-subject", Value: "Euro € 😀"}, // the binding's example
		{Name: "ce-partitionkey", Value: "100% \"sure\"\r\nx: y"},
		{Name: "ce-source", Value: "/shop/orders"},
		{Name: "other", Value: "Euro € 100%"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"ce-subject": "Euro%20%E2%82%AC%20%F0%9F%98%80", "ce-partitionkey": "100%25%20%22sure%22%0D%0Ax:%20y", "ce-source": "/shop/orders",
		"other": "Euro € 100%", "Content-Type": "text/plain; charset=utf-8", "ce-datacontenttype": "text/plain;%20charset=utf-8",
	} {
		if got := m.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	m, err = encode(&relay.Message{Destination: "a", ContentType: "application/cloudevents+json"})
	if err != nil || len(m.Header) != 1 || m.Header.Get("Content-Type") != "application/cloudevents+json" {
		t.Errorf("headers of an event in the structured mode: %v, %v", m.Header, err)
	}
}

func TestFiltersOfSubjects(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		filter, subject string
		want            bool
	}{
		{"a", "a", true},
		{"a", "b", false},
		{"a", "a.b", false},
		{"a.b", "a", false},
		{"a.*", "a.b", true},
		{"a.*", "a.b.c", false},
		{"a.*.c", "a.b.c", true},
		{"*", "a", true},
		{">", "a.b", true},
		{"a.>", "a.b.c", true},
		{"a.>", "a", false},
		{"a.b", "a.bc", false},
	} {
		if got := matches(test.filter, test.subject); got != test.want {
			t.Errorf("%s matches %s: %t", test.filter, test.subject, got)
		}
	}
}

func TestConfigurationsThatCannotBe(t *testing.T) {
	t.Parallel()
	urls := []string{"nats://127.0.0.1:4222"}
	for name, config := range map[string]Config{
		"URLs is empty":       {},
		"is not a URL":        {URLs: []string{"nats://user:hunter%2@host"}},
		"is not a URL such":   {URLs: []string{"localhost"}},
		"has credentials":     {URLs: []string{"nats://user:hunter2@host"}},
		"more than one of":    {URLs: urls, User: "a", Token: "hunter2"},
		"without User":        {URLs: urls, Password: "hunter2"},
		"by its file":         {URLs: urls, User: "a", Password: "hunter2", PasswordFile: "b"},
		"and KeyFile go toge": {URLs: urls, KeyFile: "a"},
	} {
		_, err := Open(config)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want %q in it", err, name)
		}
		if err != nil && strings.Contains(err.Error(), "hunter") {
			t.Errorf("the error has a secret in it: %v", err)
		}
	}
}

func TestCheckSaysWhatLosesMessages(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{})
	js := server.Connect()
	for name, config := range map[string]jetstream.StreamConfig{
		"GOOD": {AllowBatchPublish: true},
		"POOR": {
			NoAck: true, MaxMsgs: 10, MaxAge: time.Hour, Duplicates: time.Second, Storage: jetstream.MemoryStorage, Discard: jetstream.DiscardOld,
		},
		"ASYNC": {PersistMode: jetstream.AsyncPersistMode},
		"EAGER": {AllowBatchPublish: true, Retention: jetstream.InterestPolicy},
		"QUEUE": {AllowBatchPublish: true, Retention: jetstream.WorkQueuePolicy},
	} {
		config.Name, config.Subjects = name, []string{strings.ToLower(name) + ".>"}
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	s := connectedSink(t, Config{URLs: []string{server.URL}})
	for destination, want := range map[string][]string{
		"good.*":    {"note: stream GOOD: it has one replica", "note: unless the server has sync_interval"},
		"missing.x": {"problem: no stream takes missing.x"},
		"poor.x": {
			"problem: stream POOR: no_ack", "warning: stream POOR: discard is old", "warning: stream POOR: max_age is 1h",
			"warning: stream POOR: duplicate_window is 1s", "warning: stream POOR: its storage is memory", "note: stream POOR: it has one",
			"note: stream POOR: it allows neither",
		},
		"eager.x": {"problem: stream EAGER: retention is interest, and it has no consumer", "note: stream EAGER: it has one", "note: unless"},
		"queue.x": {"note: stream QUEUE: retention is workqueue", "note: stream QUEUE: it has one", "note: unless"},
		"async.x": {
			"warning: stream ASYNC: persist_mode is async", "note: stream ASYNC: it has one", "note: stream ASYNC: it allows neither",
			"note: unless",
		},
	} {
		findings, err := s.Check(t.Context(), []string{destination})
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range findings {
			got := string(f.Severity) + ": " + f.What
			if i >= len(want) || !strings.HasPrefix(got, want[i]) || f.Remedy == "" {
				t.Errorf("%s: finding %q, want %q", destination, got, want[min(i, len(want)-1)])
			}
		}
		if len(findings) != len(want) {
			t.Errorf("%s: %d findings, want %d: %v", destination, len(findings), len(want), findings)
		}
	}
	if all := (&stream{name: "EAGER", config: jetstream.StreamConfig{Retention: jetstream.InterestPolicy, Duplicates: time.Hour}, consumers: 1}).findings(); all[0].Severity != relay.SeverityWarning {
		t.Errorf("interest of a consumer: %v", all)
	}
	if outcome := s.Publish(t.Context(), messagesTo("poor.x", 0, 1, 1))[0]; outcome == nil || !strings.Contains(outcome.Error(), "no_ack") {
		t.Errorf("a message to a stream that acknowledges nothing: %v", outcome)
	}
}

func TestLimitsAreTheServers(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{Config: "max_payload: 5000"})
	js := server.Connect()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: streamName, Subjects: []string{"events.>"}}); err != nil {
		t.Fatal(err)
	}
	s := connectedSink(t, Config{URLs: []string{server.URL}})
	if err := s.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := messagesTo("events.a", 0, 2, 1)
	all[0].Body = make([]byte, 5000)
	outcomes := s.Publish(t.Context(), all)
	if refused, ok := errors.AsType[*relay.RefusedError](outcomes[0]); !ok || refused.Code != relay.CodeTooLarge {
		t.Errorf("a message above max_payload: %v", outcomes[0])
	}
	if !errors.Is(outcomes[1], relay.ErrNotTried) {
		t.Errorf("the next of its key: %v", outcomes[1])
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		`{"stream":"X","seq":1}`, `{"stream":"X","seq":1,"duplicate":true}`, `{"error":{"code":503,"err_code":10077}}`, "null", "", "[]",
		`{"type":"ack","seq":5,"msgs":10}`, `{"type":"err","seq":5,"error":{"code":400}}`, `{"stream":"X","seq":1,"batch":"b","count":5}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := parse(&nats.Msg{Data: text})
		var valid struct {
			Stream string
			Error  json.RawMessage
		}
		if err == nil && a.Type == "" && (json.Unmarshal(text, &valid) != nil || valid.Stream == "") {
			t.Errorf("%q is taken for an acknowledgement", text)
		}
	})
}

// FuzzIngest gives a run of fast ingest two answers of any kind: it never takes more messages for stored than it has
// sent, and settles no message after one that it leaves.
func FuzzIngest(f *testing.F) {
	f.Add("500.fail.3.1.$FI", `{"type":"ack","seq":3,"msgs":10}`, "500.fail.10.2.$FI", `{"stream":"X","seq":9,"batch":"b","count":5}`)
	f.Add("500.fail.3.1.$FI", `{"type":"err","seq":3,"error":{"code":400,"err_code":10054}}`, "500.fail.3.1.$FI", `{"stream":"X","seq":9,"count":2}`)
	f.Add("500.fail.1.0.$FI", `{"stream":"X","seq":9,"duplicate":true,"count":1}`, "", "")
	f.Add("500.fail.1.0.$FI", `{"error":{"code":400,"err_code":10205}}`, "500.fail.11.3.$FI", `{"error":{"code":400,"err_code":10208}}`)
	f.Add("500.fail.-1.0.$FI", `{"type":"ack","seq":-5}`, "500.fail.99.1.$FI", `{"stream":"X","count":99}`)
	f.Fuzz(func(t *testing.T, to, text, to2, text2 string) {
		p := &publication{
			sink: &Sink{}, batch: messagesTo("a", 0, 10, 10), outcomes: make([]error, 10), failed: map[string]bool{}, forbidden: map[string]error{},
		}
		for i := range p.outcomes {
			p.outcomes[i] = relay.ErrNotTried
		}
		run := &ingest{
			publication: p, stream: &stream{}, run: []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, sent: 8, ending: "b", refusals: map[int]error{},
		}
		run.answered(event{to: to, answer: &nats.Msg{Data: []byte(text)}})
		run.answered(event{to: to2, answer: &nats.Msg{Data: []byte(text2)}})
		left, _ := run.conclude()
		for i, err := range p.outcomes {
			if err == nil && (i >= run.stored || i >= 8 || slices.Contains(left, i)) {
				t.Errorf("message %d is taken for stored, of %d, and %v are left", i, run.stored, left)
			}
		}
	})
}

// The first messages of a run, or all, go to forbidden subjects. The server has no run then, and says nothing about it.
func TestARunThatBeginsWithForbiddenSubjects(t *testing.T) {
	t.Parallel()
	b := open(t, jetstream.StreamConfig{AllowBatchPublish: true})
	s := b.Sink().(*Sink)
	defer s.Close()
	for _, allowed := range []int{10, 0} {
		var all []relay.Message
		for _, subject := range []string{"events.forbidden.a", "events.forbidden.b", "events.forbidden.c"} {
			all = append(all, messagesTo(subject, allowed+len(all), 2, 2)...)
		}
		all = append(all, messagesTo("events.a", 100, allowed, max(allowed, 1))...)
		for i := range all {
			all[i].Key = ""
		}
		start := time.Now()
		for i, err := range s.Publish(t.Context(), all) {
			if _, refused := errors.AsType[*relay.RefusedError](err); refused != (i < 6) || !refused && err != nil {
				t.Errorf("of %d that are allowed, %s: %v", allowed, all[i].Destination, err)
			}
		}
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("of %d that are allowed: after %s", allowed, took)
		}
	}
}

// A destination that can never be a subject is a mistake in the route.
func TestDestinationsThatAreNoSubjects(t *testing.T) {
	s, err := Open(Config{URLs: []string{"nats://localhost:4222"}})
	if err != nil {
		t.Fatal(err)
	}
	for destination, valid := range map[string]bool{
		"": true, "shop.{topic}": true, "shop.{tenant}.{key|token}": true,
		"shop..{topic}": false, "shop.{topic}.": false, "$X.{topic}": false, "shop.>": false, "shop {topic}": false,
	} {
		if err := s.CheckRoute(relay.Route{Topics: []string{"order.*"}, Destination: destination}); (err == nil) != valid {
			t.Errorf("%q: %v", destination, err)
		}
	}
}
