package relaytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/relay"
)

// testCase is a promise of every sink.
type testCase struct {
	name string
	run  func(ctx context.Context, t *testing.T, b Broker)
}

// suite lists all test cases. docs/architecture.md says which case of the relay's design each proves.
var suite = []testCase{
	{"ByteForByte", byteForByte},
	{"HeadersThatCannotBe", headersThatCannotBe},
	{"Refused", refused},
	{"NoDestination", noDestination},
	{"Forbidden", forbidden},
	{"Again", again},
	{"Killed", killed},
	{"Stopped", stopped},
	{"Cut", cut},
	{"Slow", slow},
	{"Full", full},
	{"Revoked", revoked},
	{"Away", away},
	{"MadeAnew", madeAnew},
	{"Cancelled", cancelled},
}

// Run runs the suite. Each test gets a broker of its own from open, which is closed with the test.
func Run(t *testing.T, open func(t *testing.T) Broker) {
	for _, test := range suite {
		t.Run(test.name, func(t *testing.T) {
			// RabbitMQ may take a minute to start, again and again.
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
			defer cancel()
			test.run(ctx, t, open(t))
		})
	}
}

// byteForByte publishes everything that messages may contain.
func byteForByte(ctx context.Context, t *testing.T, b Broker) {
	all := batch(b, 10_000, 100)
	for i := range all {
		all[i].Body = bytes.Repeat([]byte{byte(i), 0, 0xff, '\r', '\n'}, i%50)
	}
	all[7].Body, all[7].ContentType = nil, ""
	all[8].Body = bytes.Repeat([]byte{'x'}, b.Largest()-1024)
	for i := range 200 {
		all[9].Headers = append(all[9].Headers,
			relay.Header{Name: fmt.Sprintf("x-%d", i), Value: fmt.Sprintf("ünïcode %d ☃", i)})
	}
	all[10].Headers = append(all[10].Headers, relay.Header{Name: "empty", Value: ""},
		relay.Header{Name: "MiXed-Case", Value: "a: b, c=d"})
	for i := range 30 {
		all[20+i].Key = ""
	}
	s := sink(t, b)
	for from := 0; from < len(all); from += 1000 {
		for i, err := range publish(ctx, t, b, s, all[from:from+1000]) {
			if err != nil {
				t.Fatalf("%s: %v", all[from+i].ID, err)
			}
		}
	}
	got := b.Received()
	inOrder(t, got, all)
	if len(got) != len(all) {
		t.Errorf("the destination has %d messages, want %d", len(got), len(all))
	}
	byID := map[string]relay.Message{}
	for _, m := range got {
		byID[m.ID] = m
	}
	for i := range all {
		published, stored := comparable(b, all[i]), comparable(b, byID[all[i].ID])
		if reflect.DeepEqual(published, stored) { // cmp.Diff takes a millisecond even where nothing differs
			continue
		}
		if diff := cmp.Diff(published, stored); diff != "" {
			t.Fatalf("%s was stored as another (-published +stored):\n%s", all[i].ID, diff)
		}
	}
}

// comparable returns a message without what brokers do not store, and with its headers in one order.
func comparable(b Broker, m relay.Message) relay.Message {
	m.Key, m.Position, m.At = "", 0, time.Time{}
	if f, ok := b.(interface{ FoldsNames() bool }); ok && f.FoldsNames() { // as HTTP does with header names
		m.Headers = slices.Clone(m.Headers)
		for i := range m.Headers {
			m.Headers[i].Name = strings.ToLower(m.Headers[i].Name)
		}
	}
	m.Headers = slices.SortedFunc(slices.Values(m.Headers), func(a, b relay.Header) int {
		return strings.Compare(a.Name, b.Name)
	})
	if len(m.Body) == 0 {
		m.Body = nil
	}
	return m
}

// headersThatCannotBe checks that such headers are refused, or stored as one message with the headers in another form.
// No sink may store a second message.
func headersThatCannotBe(ctx context.Context, t *testing.T, b Broker) {
	s := sink(t, b)
	stored := 0
	for i, h := range []relay.Header{
		{Name: "x", Value: "a\r\nb: c"},
		{Name: "x", Value: "a\r\n\r\nPUB other 5\r\nhello\r\n"},
		{Name: "x", Value: "a\nb"},
		{Name: "x", Value: "a\x00b"},
		{Name: "a\r\nb", Value: "c"},
		{Name: "", Value: "c"},
		{Name: "a b:", Value: "c"},
	} {
		m := message(b, i, "k")
		m.Headers = []relay.Header{h}
		err := publish(ctx, t, b, s, []relay.Message{m})[0]
		switch got := outcome(err); {
		case got == "stored":
			stored++
		case !strings.HasPrefix(got, "refused "):
			t.Errorf("%q: %s (%v)", h, got, err)
		}
	}
	if got := b.Received(); len(got) != stored {
		t.Errorf("the destination has %d messages, want %d", len(got), stored)
	}
}

// refused publishes a message that is too large in the middle of a batch, with others of its key behind it.
func refused(ctx context.Context, t *testing.T, b Broker) {
	all := batch(b, 1000, 40)
	const at = 500
	all[at].Body = make([]byte, b.Largest()+1)
	outcomes := publish(ctx, t, b, sink(t, b), all)
	var want []relay.Message
	for i, m := range all {
		expected := "stored"
		if i == at {
			expected = "refused " + relay.CodeTooLarge
		} else if i > at && m.Key == all[at].Key {
			expected = "not tried"
		}
		if got := outcome(outcomes[i]); got != expected {
			t.Errorf("%d: %s (%v), want %s", i, got, outcomes[i], expected)
		}
		if expected == "stored" {
			want = append(want, m)
		}
	}
	got := b.Received()
	if repeats := inOrder(t, got, want); repeats > 0 {
		t.Errorf("%d messages are stored twice", repeats)
	}
}

// noDestination publishes to a missing destination alongside an existing one.
func noDestination(ctx context.Context, t *testing.T, b Broker) {
	all := batch(b, 300, 30)
	var want []relay.Message
	for i := range all {
		if i%30 == 3 || i%30 == 5 && i > 150 { // one key exists at first
			all[i].Destination = b.Missing()
			all[i].Position = -1
		} else {
			want = append(want, all[i])
		}
	}
	outcomes := publish(ctx, t, b, sink(t, b), all)
	if got := outcome(outcomes[3]); got != "unavailable "+relay.CodeNoDestination {
		t.Errorf("%s (%v)", got, outcomes[3])
	}
	for i, m := range all {
		if got := outcome(outcomes[i]); (got == "stored") != (m.Position > 0) {
			t.Errorf("%d, to %s: %s (%v)", i, m.Destination, got, outcomes[i])
		}
	}
	inOrder(t, b.Received(), want)
}

// forbidden publishes to a destination for which the sink has no permission.
func forbidden(ctx context.Context, t *testing.T, b Broker) {
	all := batch(b, 300, 30)
	var want []relay.Message
	for i := range all {
		if i%30 == 3 && i > 60 {
			all[i].Destination = b.Forbidden()
		} else if i%30 != 7 || i < 150 {
			want = append(want, all[i])
		}
	}
	all[157].Destination = b.Forbidden() // and its key goes on elsewhere
	s := sink(t, b)
	start := time.Now()
	outcomes := publish(ctx, t, b, s, all)
	took := time.Since(start)
	for _, i := range []int{63, 157} {
		if got := outcome(outcomes[i]); got != "refused "+relay.CodeForbidden {
			t.Errorf("%d: %s (%v)", i, got, outcomes[i])
		}
	}
	allowed := batch(b, 2*len(all), 30)[len(all):]
	start = time.Now()
	for i, err := range publish(ctx, t, b, s, allowed) {
		if err != nil {
			t.Errorf("%s: %v", allowed[i].ID, err)
		}
	}
	// Sinks wait for an answer for five seconds.
	if alike := time.Since(start); took > 4*time.Second+3*alike {
		t.Errorf("it took %s, and as many to a destination that is allowed %s: a timeout, and no answer", took, alike)
	}
	want = append(want, allowed...)
	t.Logf("%v", count(outcomes))

	// The first one of a batch, and all of one.
	first, all := batch(b, 930, 30)[900:], batch(b, 960, 30)[930:]
	first[0].Destination = b.Forbidden()
	for i := range all {
		all[i].Destination = b.Forbidden()
	}
	start = time.Now()
	for _, part := range [][]relay.Message{first, all} {
		for i, err := range publish(ctx, t, b, s, part) {
			wanted := "stored"
			if part[i].Destination == b.Forbidden() {
				wanted = "refused " + relay.CodeForbidden
			}
			if got := outcome(err); got != wanted {
				t.Errorf("%s: %s (%v), want %s", part[i].ID, got, err, wanted)
			}
		}
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("it took %s: a timeout, and no answer", took)
	}
	inOrder(t, b.Received(), append(want, first[1:]...))
}

// again publishes a batch twice, as after a crash before the cursor has moved, and then one that begins with half of
// it.
func again(ctx context.Context, t *testing.T, b Broker) {
	all := batch(b, 1500, 50)
	s := sink(t, b)
	for _, part := range [][]relay.Message{all[:1000], all[:1000], all[500:], all} {
		for i, err := range publish(ctx, t, b, s, part) {
			if err != nil {
				t.Fatalf("%s: %v", part[i].ID, err)
			}
		}
	}
	repeats := inOrder(t, b.Received(), all)
	if want := 3000; repeats != want && !b.Deduplicates() || repeats != 0 && b.Deduplicates() {
		t.Errorf("%d repeats, the broker drops them: %t", repeats, b.Deduplicates())
	}
}

// killed kills the broker during publishing and starts it again: five times, or as often as the broker asks, and
// further until a kill has hit a batch.
func killed(ctx context.Context, t *testing.T, b Broker) {
	rounds := 5
	if k, ok := b.(interface{ Kills() int }); ok {
		rounds = k.Kills()
	}
	if testing.Short() {
		rounds = min(rounds, 2)
	}
	const size, each, most = 500, 6000, 10
	all := batch(b, each*most, 50)
	s := sink(t, b)
	again, done := 0, 0
	for round := 0; round < rounds || again == 0 && round < most; round++ {
		var broken sync.WaitGroup
		broken.Go(func() {
			time.Sleep(time.Duration(20+37*round) * time.Millisecond)
			b.Kill()
			b.Restart()
		})
		again += deliver(ctx, t, b, s, all[round*each:(round+1)*each], size)
		broken.Wait()
		await(ctx, t, s)
		done += each
	}
	if again == 0 {
		t.Error("no batch was broken off")
	}
	repeats := inOrder(t, b.Received(), all[:done])
	if repeats > again*size || b.Deduplicates() && repeats > 0 {
		t.Errorf("%d repeats after %d batches that were broken off", repeats, again)
	}
	t.Logf("%d batches were broken off, %d repeats", again, repeats)
}

// stopped stops the broker, which keeps its connections, during publishing.
func stopped(ctx context.Context, t *testing.T, b Broker) {
	all := batch(b, 3_000, 50)
	s := sink(t, b)
	for _, err := range publish(ctx, t, b, s, all[:100]) {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.Stop()
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	var outcomes []error
	returns(t, func() { outcomes = s.Publish(short, all[100:1100]) })
	checkOutcomes(t, b, all[100:1100], outcomes)
	if n := count(outcomes); n["stored"] > 0 || n["unknown"] == 0 {
		t.Errorf("outcomes of a broker that stands still: %v", n)
	}
	if err := s.Probe(short); err == nil {
		t.Error("Probe returned nil of a broker that stands still")
	}
	b.Continue()
	await(ctx, t, s)
	deliver(ctx, t, b, s, all[100:], 1000)
	if repeats := inOrder(t, b.Received(), all); b.Deduplicates() && repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
}

// cut withholds requests, answers, and both: messages that were sent and not answered may be stored, and are published
// again with the same ID.
func cut(ctx context.Context, t *testing.T, b Broker) {
	const size = 300
	all := batch(b, 3*size, 50)
	s := sink(t, b)
	line := b.Line()
	for n, direction := range []struct {
		name   string
		valves []Valve
	}{
		{"requests", []Valve{line.Requests}},
		{"answers", []Valve{line.Answers}},
		{"both", []Valve{line.Requests, line.Answers}},
	} {
		part := all[n*size : (n+1)*size]
		deliver(ctx, t, b, s, part[:50], 50)
		stored := len(b.Received())
		for _, v := range direction.valves {
			v.Shut()
		}
		short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		var got []error
		returns(t, func() { got = s.Publish(short, part[50:]) })
		cancel()
		checkOutcomes(t, b, part[50:], got)
		outcomes := count(got)
		if outcomes["unknown"] == 0 || outcomes["unknown"]+outcomes["not tried"] != size-50 {
			t.Errorf("%s: outcomes of a line that is cut: %v", direction.name, outcomes)
		}
		for _, v := range direction.valves {
			v.Open()
		}
		asks, ok := b.(interface{ AsksFirst() bool })
		if direction.name == "answers" && len(b.Received()) == stored && !(ok && asks.AsksFirst()) {
			t.Error("nothing was stored of what was not answered")
		}
		await(ctx, t, s)
		deliver(ctx, t, b, s, part[50:], size)
	}
	repeats := inOrder(t, b.Received(), all)
	if repeats > 3*size || b.Deduplicates() && repeats > 0 {
		t.Errorf("%d repeats of %d messages", repeats, len(all))
	}
}

// slow delays every packet.
func slow(ctx context.Context, t *testing.T, b Broker) {
	all := batch(b, 300, 300)
	for i := range all {
		all[i].Body = make([]byte, 1000) // ten to twelve packets: a second, of the five that sinks wait for an answer
	}
	s := sink(t, b)
	await(ctx, t, s)
	b.Slow(100 * time.Millisecond)
	for i, err := range publish(ctx, t, b, s, all) {
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	b.Slow(0)
	if repeats := inOrder(t, b.Received(), all); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
}

// full makes the destination accept half of a batch, and later the rest.
func full(ctx context.Context, t *testing.T, b Broker) {
	all := batch(b, 1000, 20)
	s := sink(t, b)
	free := b.Limit(300)
	outcomes := publish(ctx, t, b, s, all)
	n := count(outcomes)
	if n["stored"] > 300 || n["unavailable "+relay.CodeFull] == 0 ||
		n["stored"]+n["not tried"]+n["unavailable "+relay.CodeFull] != len(all) {
		t.Errorf("outcomes of a destination that has become full: %v", n)
	}
	stored := len(b.Received())
	if stored != n["stored"] {
		t.Errorf("%d are stored, and %d were said to be", stored, n["stored"])
	}
	again := publish(ctx, t, b, s, all[999:])
	if got := outcome(again[0]); got != "unavailable "+relay.CodeFull {
		t.Errorf("a message to a full destination: %s (%v)", got, again[0])
	}
	free()
	var rest []relay.Message
	for i, err := range outcomes {
		if err != nil {
			rest = append(rest, all[i])
		}
	}
	deliver(ctx, t, b, s, rest, 1000)
	if repeats := inOrder(t, b.Received(), all); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
}

// revoked revokes the sink's credentials while it is connected, and then restores them.
func revoked(ctx context.Context, t *testing.T, b Broker) {
	all := batch(b, 400, 20)
	s := sink(t, b)
	deliver(ctx, t, b, s, all[:100], 100)
	restore := b.Revoke()
	var outcomes []error
	for range 500 { // it may take a moment
		outcomes = publish(ctx, t, b, s, all[100:200])
		if outcome(outcomes[0]) == "unavailable "+relay.CodeForbidden {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if got := outcome(outcomes[0]); got != "unavailable "+relay.CodeForbidden {
		t.Errorf("without credentials: %s (%v)", got, outcomes[0])
	}
	err := s.Probe(ctx)
	if err == nil {
		t.Error("Probe returned nil without credentials")
	}
	for _, secret := range b.Secrets() {
		if strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("the error of Probe has a secret in it: %v", err)
		}
	}
	restore()
	await(ctx, t, s)
	deliver(ctx, t, b, s, all[100:], 100)
	inOrder(t, b.Received(), all)
}

// away publishes to a broker that is not running.
func away(ctx context.Context, t *testing.T, b Broker) {
	b.Kill()
	s := sink(t, b)
	all := batch(b, 10, 5)
	outcomes := publish(ctx, t, b, s, all)
	want := map[string]int{"unavailable " + relay.CodeUnavailable: 1, "not tried": 9}
	if got := count(outcomes); !maps.Equal(got, want) {
		t.Errorf("outcomes %v, want %v: %v", got, want, outcomes[0])
	}
	unavailable, ok := errors.AsType[*relay.UnavailableError](s.Probe(ctx))
	if !ok || unavailable.Code != relay.CodeUnavailable {
		t.Errorf("Probe: %v", unavailable)
	}
	b.Restart()
	await(ctx, t, s)
	deliver(ctx, t, b, s, all, 10)
	inOrder(t, b.Received(), all)
}

// madeAnew deletes the destination and creates it again: at once, and after it was missed. Its messages go on.
func madeAnew(ctx context.Context, t *testing.T, b Broker) {
	d, ok := b.(interface{ Delete() (create func()) })
	if !ok {
		t.Skip("the broker's destinations are not created")
	}
	s := sink(t, b)
	all := batch(b, 500, 20)
	deliver(ctx, t, b, s, all[:100], 100)
	d.Delete()()
	deliver(ctx, t, b, s, all[100:200], 100)
	create := d.Delete()
	var missing []error
	for range 3 { // RabbitMQ closes the channel at first, and does not say because of which message
		if missing = publish(ctx, t, b, s, all[200:300]); outcome(missing[0]) != "unknown" {
			break
		}
	}
	for i, err := range missing {
		if got := outcome(err); got != "unavailable "+relay.CodeNoDestination && got != "not tried" || i == 0 && err == nil {
			t.Errorf("%d: %s (%v)", i, got, err)
		}
	}
	create()
	short, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	deliver(short, t, b, s, all[200:], 100)
	// A NATS server that is asked for the stream at once may find files of the deleted one.
	got := slices.DeleteFunc(b.Received(), func(m relay.Message) bool { return m.Position <= 200 })
	inOrder(t, got, all[200:])
}

// cancelled publishes with a context that has ended.
func cancelled(ctx context.Context, t *testing.T, b Broker) {
	s := sink(t, b)
	await(ctx, t, s)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	all := batch(b, 100, 10)
	if n := count(publish(ended, t, b, s, all)); n["not tried"] < len(all) {
		t.Errorf("outcomes: %v", n)
	}
	deliver(ctx, t, b, s, all, 100)
	if repeats := inOrder(t, b.Received(), all); b.Deduplicates() && repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
}
