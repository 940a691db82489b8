package relay_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/webhook"
)

// receiver is one of webhooks. It records the bodies that it has accepted.
type receiver struct {
	mu     sync.Mutex
	status func(body string) int // what it answers
	bodies []string
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	status := r.status(string(body))
	if status == http.StatusOK {
		r.bodies = append(r.bodies, string(body))
	}
	w.WriteHeader(status)
}

func (r *receiver) answers(status func(body string) int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

func (r *receiver) accepted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(slices.Values(r.bodies))
}

// post runs a relay to a receiver, whose trials in an outage follow each other quickly.
func post(t *testing.T, db *pgxpool.Pool, r *receiver, changes ...func(*relay.Config)) {
	t.Helper()
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	sink, err := webhook.Open(webhook.SinkConfig{URL: server.URL, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err != nil {
		t.Fatal(err)
	}
	start(t, db, sink, func(c *relay.Config) {
		c.Sinks[0].Sink, c.Sinks[0].Routes[0].Destination = sink, "/"
		c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
		for _, change := range changes {
			change(c)
		}
	})
}

// status returns a function that always gives the same answer.
func status(code int) func(string) int { return func(string) int { return code } }

// dead returns how many messages of the sink are dead letters.
func dead(t *testing.T, db *pgxpool.Pool) int {
	t.Helper()
	return ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE kind = 'relay:s' AND status IN ('failed', 'dead')`)
}

// A proxy says that it does not reach the receiver: nothing becomes a job, and a job spends no attempt.
func TestAnOutageBehindAProxySpendsNothing(t *testing.T) {
	t.Parallel()
	db := database(t)
	down := false // from the first request on that it has refused
	r := &receiver{status: func(body string) int {
		switch {
		case down:
			return http.StatusBadGateway
		case body == "held":
			down = true
			return http.StatusBadRequest
		}
		return http.StatusOK
	}}
	post(t, db, r)
	publish(t, db, "t", "held", "held")
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 1 }, func() string { return "a message is held" })
	time.Sleep(300 * time.Millisecond)
	var want []string
	for _, key := range strings.Split("abcdefgh", "") {
		publish(t, db, "t", key, key+"1")
		want = append(want, key+"1")
	}
	time.Sleep(time.Second)
	if held := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); held != 1 || dead(t, db) > 0 {
		t.Errorf("in the outage %d messages are held, want 1, and %d of them are dead letters, want 0", held, dead(t, db))
	}
	r.answers(status(http.StatusOK))
	want = append(want, "held")
	waitFor(t, func() bool { return len(r.accepted()) >= len(want) }, func() string { return strings.Join(r.accepted(), " ") })
	if got := r.accepted(); !slices.Equal(got, want) {
		t.Errorf("%q were accepted, want %q", got, want)
	}
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.jobs`) == 0 }, func() string { return "no job is left" })
}

// A receiver that answers each request by 500 is away: nothing becomes a job, and all of it goes on when the receiver
// does.
func TestAReceiverThatFailsEachRequestIsAway(t *testing.T) {
	t.Parallel()
	db := database(t)
	r := &receiver{status: status(http.StatusInternalServerError)}
	post(t, db, r)
	var want []string
	for _, key := range strings.Split("abcdefgh", "") {
		publish(t, db, "t", key, key+"1", key+"2")
		want = append(want, key+"1", key+"2")
	}
	time.Sleep(1500 * time.Millisecond)
	if held := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); held > 0 {
		t.Errorf("%d messages are held in the outage, %d of them as dead letters", held, dead(t, db))
	}
	r.answers(status(http.StatusOK))
	waitFor(t, func() bool { return len(r.accepted()) >= len(want) }, func() string { return strings.Join(r.accepted(), " ") })
	if got := r.accepted(); !slices.Equal(got, want) {
		t.Errorf("%q were accepted, want %q", got, want)
	}
}

// A message that the receiver answers by 500 while it takes others is held, with those of its key, and nothing else;
// also where a second one is like it.
func TestAMessageThatAReceiverFailsAtIsHeld(t *testing.T) {
	t.Parallel()
	db := database(t)
	r := &receiver{status: func(body string) int {
		if strings.HasPrefix(body, "bad") {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	}}
	post(t, db, r)
	publish(t, db, "t", "a", "bad1", "a2")
	publish(t, db, "t", "b", "bad2", "b2")
	waitFor(t, func() bool {
		publish(t, db, "t", "c", "c")
		return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 4
	}, func() string { return "two keys are held" })
	waitFor(t, func() bool {
		publish(t, db, "t", "c", "c")
		return dead(t, db) == 2
	}, func() string { return "there are two dead letters" })
	if slices.ContainsFunc(r.accepted(), func(body string) bool { return body != "c" }) {
		t.Errorf("%q were accepted, want c only", r.accepted())
	}
}

// A message that takes its receiver longer than the proxy before it waits stops no other key, and under skip none of
// its own key once its attempts are spent.
func TestAMessageThatAProxyDoesNotWaitFor(t *testing.T) {
	t.Parallel()
	for _, onRefused := range []relay.OnRefused{relay.RefusedHold, relay.RefusedSkip} {
		t.Run(string(onRefused), func(t *testing.T) {
			t.Parallel()
			db := database(t)
			r := &receiver{status: func(body string) int {
				if body == "slow" {
					return http.StatusGatewayTimeout
				}
				return http.StatusOK
			}}
			post(t, db, r, func(c *relay.Config) { c.Sinks[0].Routes[0].OnRefused = onRefused })
			publish(t, db, "t", "a", "slow", "a2")
			waitFor(t, func() bool {
				publish(t, db, "t", "b", "b")
				if onRefused == relay.RefusedSkip {
					return slices.Contains(r.accepted(), "a2")
				}
				return ask[bool](t, db, `SELECT count(*) = 2 AND coalesce(max(last_error_code), '') = 'relay_unavailable' FROM outbox.jobs`)
			}, func() string { return "the message was tried again" })
			want := map[relay.OnRefused]int{relay.RefusedSkip: 1}[onRefused]
			if n := dead(t, db); n != want {
				t.Errorf("there are %d dead letters, want %d", n, want)
			}
		})
	}
}
