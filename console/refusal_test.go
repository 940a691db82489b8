package console_test

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
)

// refuses fails unless the page says these, and under which id its request is in the log.
func (a answer) refuses(status int, sentences ...string) answer {
	a.t.Helper()
	id := a.Header().Get("X-Request-Id")
	if a.is(status).has(append(sentences, "Request "+id)...); len(id) < 10 {
		a.t.Errorf("the request has the id %q", id)
	}
	if !strings.HasPrefix(a.Header().Get("Content-Type"), "text/html") {
		a.t.Errorf("it is no page but %s", a.Header().Get("Content-Type"))
	}
	return a
}

const noID = "01234567-89ab-7def-8123-456789abcdef"

func TestWhatIsNotThereSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for page, sentences := range map[string][]string{
		"nothing":                     {"There is no such page", "leads nowhere in this console"},
		"/evil.example/jobs":          {"There is no such page"},
		"console//evil.example/jobs":  {"There is no such page"},
		"job?id=" + noID:              {"There is no such job", "its transaction has not committed", "belongs to another tenant"},
		"payload?id=" + noID:          {"There is no such job"},
		"job-retry?id=" + noID:        {"There is no such job"},
		"key?queue=q&key=k":           {"There is no such key", "No open job has it"},
		"schedule?name=nightly":       {"There is no such schedule", "It was deleted"},
		"schedule-pause?name=nightly": {"There is no such schedule"},
		"sink?name=nats":              {"There is no such sink", "No relay has ever published"},
		"operation?id=" + noID:        {"There is no such operation", "more than 90 days ago"},
		"undo?entry=99":               {"There is no such act", "trimmed from the audit"},
	} {
		r.get(page).refuses(http.StatusNotFound, sentences...)
	}
}

func TestWhatIsNotAllowedSaysWhy(t *testing.T) {
	r := newRig(t)
	r.as("all+jobs.read").get("queues").refuses(403, "You may not see this", "It needs the capability admin.read", "Ask the person who created it")
	r.as("a").get("workers").refuses(403, "This page concerns all tenants", "a login that sees all tenants")
	r.as("a").post("queue-pause", map[string][]string{"queue": {"mail"}}).refuses(403, "This page concerns all tenants")
	fixed := newRig(t, func(c *console.Config) { c.ReadOnly = true })
	fixed.post("queue-pause", map[string][]string{"queue": {"mail"}}).refuses(403, "Nothing can be changed now", "it was started so")
}

// Postgres is stopped while people look, and started again: what cannot be read says so, what needs no database stays,
// and the pages are back by themselves.
func TestTheDatabaseIsStopped(t *testing.T) {
	t.Parallel()
	server, err := pgtest.StartServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	pool, err := pgxpool.New(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := migrate.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *console.Config) { c.Pool = pool })
	r.get("jobs").is(200)
	if err := server.Kill9(); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); r.get("jobs").Code == 200; { // the server's sessions outlive it by moments
		if time.Since(began) > time.Minute {
			t.Fatal("the pages are still there")
		}
	}
	for _, page := range []string{"jobs", "queues", "letters", "audit", "schedules", "operations", "undo?entry=1"} {
		a := r.get(page).refuses(503, "The database cannot be reached", "Nothing is wrong with the request", "tries again in 4 seconds")
		if a.Header().Get("Refresh") != "4" || a.Header().Get("Retry-After") == "" {
			t.Errorf("/%s does not try again: %v", page, a.Header())
		}
	}
	if a := r.post("queue-pause", map[string][]string{"queue": {"mail"}, "shown": {"on"}}).refuses(503, "The database cannot be reached", "What you have entered is kept", "Try again"); a.Header().Get("Refresh") != "" || a.fieldsOf().Get("queue") != "mail" {
		t.Errorf("an act tries again by itself, or has lost its queue: %v", a.fieldsOf())
	}
	r.get("me").refuses(503, "The database cannot be reached") // nobody knows whether the session was ended
	r.as("").get("login").is(200)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := server.StartAgain(ctx); err != nil {
		t.Fatal(err)
	}
	for r.get("jobs").Code != 200 {
		if ctx.Err() != nil {
			t.Fatal("the pages are not back")
		}
	}
}

// A page waits for a lock that somebody holds. It is given up in time, and meanwhile the next one is refused.
func TestTooManyPagesAndPagesThatTakeTooLong(t *testing.T) {
	r := newRig(t, func(c *console.Config) { c.MaxInFlight, c.Timeout = 1, 2*time.Second })
	next := httptest.NewRequestWithContext(t.Context(), "GET", "/schedules", nil)
	for _, c := range r.cookies() { // before: signing in takes a place, too
		next.AddCookie(c)
	}
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE outbox.jobs`); err != nil {
		t.Fatal(err)
	}
	slow := make(chan answer)
	go func() { slow <- r.get("jobs") }()
	pgtest.AwaitLocks(t, r.db, 1)
	refused := r.send(next).refuses(429, "Too many pages are being made", "Try again in a moment")
	if refused.Header().Get("Retry-After") == "" {
		t.Error("it does not say when")
	}
	(<-slow).refuses(504, "The database took too long", "Ask for less, or try again")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.get("jobs").is(200)
}

// nobodyAnswers is a provider that is away.
type nobodyAnswers struct{}

func (nobodyAnswers) Authenticate(context.Context, string) (access.Principal, error) {
	return access.Principal{}, access.ErrProviderAway
}

// A session ends while somebody writes. What they have sent is on the page that says so, and can be sent again.
func TestWhatWasEnteredSurvivesARefusalThatPasses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sent := url.Values{"queue": {"mail"}, "shown": {"none"}, "running": {"4"}, "starts": {""}, "interval": {""}, "reason": {"why " + evil}}
	kept := r.as("").post("queue-limits", sent).refuses(401, "What you have entered is kept", "Try again", "Sign in, in another tab").hasSource(t, `action="queue-limits" method="post"`, `target="_blank"`).fieldsOf()
	if !maps.EqualFunc(sent, kept, slices.Equal) {
		t.Errorf("the page keeps %v, want %v", kept, sent)
	}
	r.post("queue-limits", kept).is(303)
	many := url.Values{"id": {noID, noID[1:] + "0"}, "while": {"dead@1", "dead@2"}, "reason": {strings.Repeat("x", 20<<10)}}
	if kept := r.as("").post("selected-retry", many).is(401).fieldsOf(); !maps.EqualFunc(many, kept, slices.Equal) {
		t.Error("a large form, or what it has twice, is not kept")
	}
	r.as("").post("queue-limits", url.Values{"strange": {"x"}}).is(401).hasNot("strange", "Try again")
	r.as("a").post("queue-limits", sent).is(403).hasNot("Try again")
	// A token is never shown again.
	away := newRig(t, func(c *console.Config) { c.Authenticator = nobodyAnswers{} }).as("")
	away.post("login", url.Values{"token": {"very-secret"}}).is(503).hasNot("very-secret", "What you have entered")
}

// Anybody may send the form of a login: it is small, or it is refused.
func TestFormsThatNeedNoLoginAreSmall(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("")
	long := strings.Repeat("x", 7<<10)
	r.post("login", url.Values{"token": {long}}).is(http.StatusUnauthorized)
	for _, page := range []string{"login", "settings", "logout"} {
		r.post(page, url.Values{"token": {long + long}}).is(http.StatusRequestEntityTooLarge).has("8.0 KiB")
	}
}
