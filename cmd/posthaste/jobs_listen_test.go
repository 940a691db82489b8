package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// tailFor runs jobs tail until it is stopped, or the test ends.
func tailFor(t *testing.T, e env, args ...string) (out, said *lockedBuffer, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, said = new(lockedBuffer), new(lockedBuffer)
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"posthaste", "jobs", "tail", "-o", "json"}, args...), func(name string) string { return e[name] }, strings.NewReader(""), out, said)
	}()
	stop = sync.OnceValue(func() int { cancel(); return <-ended })
	t.Cleanup(func() { stop() })
	return out, said, stop
}

// change is a line of jobs tail.
type change struct {
	ID, Status, Kind, Queue string
	From, Tenant            *string
	MaxAttempts             *int `json:"max_attempts"`
}

func changes(t *testing.T, out *lockedBuffer) (all []change) {
	t.Helper()
	for line := range strings.Lines(out.String()) {
		var c change
		if !strings.HasSuffix(line, "\n") {
			break // half of it
		}
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, c)
	}
	return all
}

// awaitChange waits until a change was printed, having something done again and again.
func awaitChange(t *testing.T, out *lockedBuffer, what func(change) bool, again func()) change {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for _, c := range changes(t, out) {
			if what(c) {
				return c
			}
		}
		if again != nil {
			again()
		}
	}
	t.Fatalf("waited in vain; it printed\n%s", out)
	return change{}
}

func TestTailReadsTheStreamOfTheAPI(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	o := operator.New(db)
	old := store(t, db, "old")
	out, said, stop := tailFor(t, through)
	// Wait until it has begun.
	awaitChange(t, out, func(c change) bool { return c.Kind == "first" }, func() { store(t, db, "first") })
	id := store(t, db, "greet")
	awaitChange(t, out, func(c change) bool { return c.ID == id.String() && c.Status == "pending" }, nil)
	for _, job := range []outbox.ID{id, old} {
		if _, err := o.Cancel(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
	c := awaitChange(t, out, func(c change) bool { return c.ID == id.String() && c.Status == "cancelled" }, nil)
	if c.From == nil || *c.From != "pending" || c.MaxAttempts != nil || c.Tenant == nil || *c.Tenant != outbox.RootTenant.String() {
		t.Errorf("told %+v", c)
	}
	c = awaitChange(t, out, func(c change) bool { return c.ID == old.String() }, nil)
	if c.From != nil || c.Status != "cancelled" {
		t.Errorf("told %+v, want that it was cancelled, from a status that nobody knows", c)
	}
	if code := stop(); code != exitOK || said.String() != "" {
		t.Errorf("exit status %d, and it said %q", code, said)
	}
	times := map[change]int{}
	for _, c := range changes(t, out) {
		c.From, c.Tenant = nil, nil
		if times[c]++; times[c] > 1 {
			t.Errorf("told twice: %+v", c)
		}
	}

	// The same filters, either way.
	for name, e := range map[string]env{"directly": direct, "through the API": through} {
		named := store(t, db, "named")
		out, _, stop := tailFor(t, e, "--kind", "filtered", "--status", "cancelled,dead", "--tenant", outbox.RootTenant.String(), "--queue", "default")
		byID, _, stopByID := tailFor(t, e, "--job", named.String()+","+outbox.NewID().String())
		cancel := func() {
			for _, kind := range []string{"filtered", "other"} {
				if _, err := o.Cancel(t.Context(), store(t, db, kind)); err != nil {
					t.Fatal(err)
				}
			}
		}
		awaitChange(t, out, func(change) bool { return true }, cancel)
		cancel()
		awaitChange(t, byID, func(c change) bool { return c.Status == "retrying" }, func() {
			sqlExec(t, db, claimSQL, "named")
			sqlExec(t, db, failSQL, "named")
		})
		stop()
		stopByID()
		for _, c := range changes(t, out) {
			if c.Kind != "filtered" || c.Status != "cancelled" {
				t.Errorf("%s: told %+v", name, c)
			}
		}
		for _, c := range changes(t, byID) {
			if c.ID != named.String() {
				t.Errorf("%s: told %+v, want of %s only", name, c, named)
			}
		}
	}
}

func TestTailWithoutTheCapability(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	through["OUTBOX_API_TOKEN"] = strings.TrimSpace(ok(t, direct, "tokens", "create", "reader", "-c", "jobs.read"))
	out, said, stop := tailFor(t, through, "--interval", "20ms")
	awaitChange(t, out, func(c change) bool { return c.Kind == "greet" }, func() { store(t, db, "greet") })
	if code := stop(); code != exitOK || !strings.Contains(said.String(), "admin.stream") {
		t.Errorf("exit status %d, and it said %q", code, said)
	}
	for want, args := range map[string][]string{
		"The token belongs to another tenant": {"--tenant", outbox.NewID().String()},
		"--job: ":                             {"--job", "x"},
		"no such filter":                      {"--tenant", outbox.NewID().String(), "--key", "k"},
		"want at most 100":                    {"--job", strings.Repeat(outbox.NewID().String()+",", 100) + outbox.NewID().String()},
	} {
		through["OUTBOX_API_TOKEN"] = strings.TrimSpace(ok(t, direct, "tokens", "create", "x", "-c", "jobs.read,admin.stream"))
		if r := posthaste(t, through, "", append([]string{"jobs", "tail"}, args...)...); r.code == exitOK || !strings.Contains(r.errOut, want) {
			t.Errorf("%v: %+v, want it to say %q", args, r, want)
		}
	}
	through["OUTBOX_API_URL"] = "http://127.0.0.1:1"
	if r := posthaste(t, through, "", "jobs", "tail"); r.code != exitFailed || !strings.Contains(r.errOut, "127.0.0.1:1") {
		t.Errorf("with nobody there: %+v", r)
	}
}

// restarted is an API that can be away, at an address that stays.
type restarted struct {
	t       *testing.T
	db      *pgxpool.Pool
	address string
	server  *http.Server
	ended   chan error
}

func (r *restarted) start() {
	r.t.Helper()
	handler, err := api.New(api.Config{Pool: r.db, Authenticator: access.NewTokens(r.db, access.TokensConfig{}), Producer: outbox.NewProducer(r.db, outbox.NotifyOff)})
	if err != nil {
		r.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.address = listener.Addr().String()
	r.server, r.ended = &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}, make(chan error, 1)
	go func(server *http.Server, ended chan error) { ended <- server.Serve(listener) }(r.server, r.ended)
}

func (r *restarted) stop() { _ = r.server.Close(); <-r.ended }

// What changes while the API is away is printed when it is back, once, and nothing
// of before again.
func TestTailGoesOnWhenTheAPIIsBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := &restarted{t: t, db: db, address: "127.0.0.1:0"}
	r.start()
	defer func() { r.stop() }()
	out, said, stop := tailFor(t, env{"OUTBOX_API_URL": "http://" + r.address, "OUTBOX_API_TOKEN": newToken(t, env{"DATABASE_URL": db.Config().ConnString()})})
	awaitChange(t, out, func(c change) bool { return c.Kind == "first" }, func() { store(t, db, "first") })
	r.stop()
	meanwhile := store(t, db, "meanwhile")
	awaitText(t, "; trying again", said.String)
	r.start()
	awaitChange(t, out, func(c change) bool { return c.ID == meanwhile.String() }, nil)
	awaitText(t, "the API is back", said.String)
	afterwards := store(t, db, "afterwards")
	awaitChange(t, out, func(c change) bool { return c.ID == afterwards.String() }, nil)
	stop()
	if text := said.String(); strings.Contains(text, "left out") || strings.Count(text, "\n") != 2 {
		t.Errorf("it said %s", text)
	}
	printed := map[string]bool{}
	for _, c := range changes(t, out) {
		if printed[c.ID] {
			t.Errorf("told twice: %+v", c)
		}
		printed[c.ID] = true
	}
}

// A resync is printed; a state that is sent again, or is older than what was
// printed, is not.
func TestTailOfEventsThatComeAgain(t *testing.T) {
	t.Parallel()
	id := outbox.NewID().String()
	job := func(status, epoch string) string {
		return `event: job` + "\n" + `data: {"id":"` + id + `","kind":"k","queue":"q","status":"` + status + `","epoch":` + epoch + `,"attempt":1}` + "\n\n"
	}
	served := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if served++; served > 1 {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte("retry: 1\nid: 1\n\n" + job("pending", "0") + job("running", "1") + job("pending", "0") + job("running", "1") + "event: resync\nid: 2\ndata: {}\n\n" + job("succeeded", "1")))
	}))
	defer server.Close()
	r := posthaste(t, env{"OUTBOX_API_URL": server.URL}, "", "jobs", "tail")
	if r.code != exitOK || strings.Count(r.errOut, "changes may have been left out") != 1 {
		t.Errorf("%+v", r)
	}
	var steps []string
	for line := range strings.Lines(r.out) {
		if _, rest, ok := strings.Cut(line, id); ok {
			before, _, _ := strings.Cut(rest, "k in q")
			steps = append(steps, strings.TrimSpace(before))
		}
	}
	if got := strings.Join(steps, "; "); got != "→ pending; pending → running; running → succeeded" {
		t.Errorf("told %q", got)
	}
	known := remembered{most: 2}
	for i := range 100 {
		if _, was := known.replace(string(rune('a'+i%26))+string(rune('a'+i)), mark{outbox.Pending, 0}); was || len(known.newer)+len(known.older) > 4 {
			t.Fatalf("after %d: known %t, %d and %d are remembered", i, was, len(known.newer), len(known.older))
		}
	}
}
