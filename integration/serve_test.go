package integration

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

// delivery is a request to a hook.
type delivery struct {
	job     string
	attempt int
	epoch   int64
	body    string
}

// hook is a receiver of webhooks that keeps a ledger of its own.
type hook struct {
	url    string
	mu     sync.Mutex
	calls  []delivery
	answer func(d delivery, calls int) int // returns a status; calls counts the job's deliveries
}

func (s *story) newHook(answer func(d delivery, calls int) int) *hook {
	h := &hook{answer: answer}
	server := httptest.NewServer(h)
	s.Cleanup(server.Close)
	h.url = server.URL
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	d := delivery{job: r.Header.Get("Idempotency-Key"), body: string(body)}
	d.attempt, _ = strconv.Atoi(r.Header.Get("Posthaste-Attempt"))
	d.epoch, _ = strconv.ParseInt(r.Header.Get("Posthaste-Epoch"), 10, 64)
	h.mu.Lock()
	h.calls = append(h.calls, d)
	h.mu.Unlock()
	w.WriteHeader(h.answer(d, len(h.of(d.job))))
}

// of returns the deliveries of a job.
func (h *hook) of(job string) (found []delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.calls {
		if d.job == job {
			found = append(found, d)
		}
	}
	return found
}

func (s *story) parse(id string) outbox.ID {
	s.Helper()
	parsed, err := outbox.ParseID(id)
	if err != nil {
		s.Fatal(err)
	}
	return parsed
}

// The real binary, end to end: `posthaste enqueue` stores a job, and `posthaste serve` wakes and posts its payload
// unchanged. A receiver that answers 500 gets the job again, one that answers 410 does not, and `posthaste jobs` shows
// why.
func TestServeDeliversByWebhook(t *testing.T) {
	s := newStory(t)
	h := s.newHook(func(d delivery, calls int) int {
		switch {
		case strings.Contains(d.body, "gone"):
			return http.StatusGone
		case strings.Contains(d.body, "flaky") && calls == 1:
			return http.StatusInternalServerError
		}
		return http.StatusNoContent
	})
	s.serve("a", "OUTBOX_WEBHOOKS=greet="+h.url).ready()
	post := func(payload string) outbox.ID {
		return s.parse(posthaste(t, s.url, nil, "enqueue", "greet", payload))
	}

	happy, flaky, gone := post(`{"name": "Ada"}`), post(`{"name": "flaky"}`), post(`{"name": "gone"}`)
	s.awaitStatus(happy, outbox.Succeeded)
	if got := h.of(happy.String()); len(got) != 1 || got[0].body != `{"name": "Ada"}` || got[0].attempt != 1 {
		t.Errorf("the hook got %+v, want the payload once, as it was given", got)
	}
	if got := s.awaitStatus(flaky, outbox.Succeeded); got.Attempt != 2 || len(h.of(flaky.String())) != 2 {
		t.Errorf("after a 500 the job is %+v with %d calls, want two attempts", got, len(h.of(flaky.String())))
	}
	s.awaitStatus(gone, outbox.Failed)
	if calls := len(h.of(gone.String())); calls != 1 {
		t.Errorf("a receiver that is gone was called %d times", calls)
	}
	if shown := posthaste(t, s.url, nil, "jobs", "show", gone.String()); !strings.Contains(shown, "http_410") {
		t.Errorf("posthaste jobs show does not tell why the job failed:\n%s", shown)
	}
}

// The real binary dies by kill -9 while a receiver takes its time: another one posts the job again, under a higher
// epoch, and the response to the first is lost.
func TestServeIsKilledAndAnotherTakesOver(t *testing.T) {
	s := newStory(t)
	release := make(chan struct{})
	defer close(release)
	h := s.newHook(func(_ delivery, calls int) int {
		if calls == 1 {
			<-release
		}
		return http.StatusOK
	})
	env := []string{"OUTBOX_WEBHOOKS=greet=" + h.url, "OUTBOX_LEASE_TTL=5s"}
	a := s.serve("a", env...).ready()
	id := s.parse(posthaste(t, s.url, nil, "enqueue", "greet"))
	s.await("the first delivery", func() bool { return len(h.of(id.String())) == 1 })
	s.serve("b", env...).ready()
	a.kill9()
	s.exec(`CREATE TABLE leases AS SELECT id, lease_expires_at FROM outbox.jobs WHERE epoch = 1`)

	if got := s.awaitStatus(id, outbox.Succeeded); got.Attempt != 2 || got.LostLeases != 1 {
		t.Errorf("got %+v, want attempt 2 and one lost lease", got)
	}
	// Not earlier: the dead process could have been alive.
	if n := s.count(`SELECT count(*) FROM outbox.history JOIN leases USING (id) WHERE history.started_at >= leases.lease_expires_at`); n != 1 {
		t.Error("the job was run again before its lease had lapsed")
	}
	if calls := h.of(id.String()); len(calls) != 2 || calls[1].epoch <= calls[0].epoch {
		t.Errorf("the hook got %+v, want two calls, the second under a higher epoch", calls)
	}
}

// The switches of docs/operate/rollout.md, in its order, each off and on: dispatch off claims nothing, listen off finds
// jobs by polling and has no LISTEN, listen on wakes although it polls only every five minutes, notify off sends
// nothing.
func TestRolloutSwitches(t *testing.T) {
	s := newStory(t)
	h := s.newHook(func(delivery, int) int { return http.StatusOK })
	webhook := "OUTBOX_WEBHOOKS=greet=" + h.url

	// 1. Producers.
	if n := s.notifications(func() { posthaste(t, s.url, []string{"OUTBOX_NOTIFY=off"}, "enqueue", "greet") }); n != 0 {
		t.Errorf("OUTBOX_NOTIFY=off sent %d notifications", n)
	}
	idle := s.serve("dispatch-off", webhook, "OUTBOX_DISPATCH=off", "OUTBOX_POLL_INTERVAL=100ms")
	idle.awaitReadyz(http.StatusOK, "ready", "dispatcher", "off")
	posthaste(t, s.url, nil, "enqueue", "greet") // with a notification, too
	time.Sleep(3 * time.Second)                  // thirty polls, if it polled
	if n := s.count(`SELECT count(*) FROM outbox.open_jobs WHERE status = 'pending' AND attempt = 0`); n != 2 {
		t.Errorf("%d of 2 jobs are untouched with OUTBOX_DISPATCH=off", n)
	}
	s.stop(idle)

	// 2. Dispatch by polling.
	polls := s.serve("listen-off", webhook, "OUTBOX_LISTEN=off", "OUTBOX_POLL_INTERVAL=200ms")
	polls.awaitReadyz(http.StatusOK, "ready", "listener", "off")
	s.awaitClosed(2)
	posthaste(t, s.url, []string{"OUTBOX_NOTIFY=off"}, "enqueue", "greet")
	s.awaitClosed(3)
	if n := s.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%-listener'`); n != 0 {
		t.Errorf("OUTBOX_LISTEN=off has %d listeners", n)
	}
	s.stop(polls)

	// 3. Wake-ups, and 4. rare polls.
	s.serve("listen-on", webhook).ready()
	for i, mode := range []string{"transactional", "coalesced"} {
		if n := s.notifications(func() { posthaste(t, s.url, []string{"OUTBOX_NOTIFY=" + mode}, "enqueue", "greet") }); n != 1 {
			t.Errorf("OUTBOX_NOTIFY=%s sent %d notifications, want 1", mode, n)
		}
		s.awaitClosed(4 + i)
	}
}

// stop terminates a process and checks its exit status.
func (s *story) stop(p *process) {
	s.Helper()
	p.terminate()
	if code := p.exit(patience); code != 0 {
		s.Errorf("%s: exit status %d, want 0", p.Name, code)
	}
}

// notifications returns how many notifications act sends. A notification of its own marks the end.
func (s *story) notifications(act func()) (n int) {
	s.Helper()
	conn, err := pgx.Connect(s.Context(), s.url)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = conn.Close(background) }()
	for _, channel := range []string{"outbox_jobs", "end_of_act"} {
		if _, err := conn.Exec(s.Context(), "LISTEN "+channel); err != nil {
			s.Fatal(err)
		}
	}
	act()
	s.exec(`NOTIFY end_of_act`)
	for {
		got, err := conn.WaitForNotification(s.Context())
		switch {
		case err != nil:
			s.Fatal(err)
		case got.Channel == "end_of_act":
			return n
		}
		n++
	}
}
