package console_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A database that takes no writes is looked at as ever; nothing is offered that would fail, and all is by itself as
// before when it takes them again.
func TestADatabaseThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := pgtest.Login(t, db, "outbox_api").Config()
	pgsession.Pin(config) // as the program does
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r := newRig(t, func(c *console.Config) { c.Pool = pool })
	r.db = db
	id := r.evilJob(outbox.RootTenant).String()
	r.exec(`INSERT INTO outbox.queues (queue) VALUES ('mail') ON CONFLICT DO NOTHING`)
	before, err := db.Acquire(t.Context()) // a session that goes on writing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(before.Release)
	set := func(how string) {
		t.Helper()
		if _, err := before.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I `+how+`', current_database()); END $$`); err != nil {
			t.Fatal(err)
		}
		pool.Reset() // the setting is that of sessions to come
		db.Reset()
	}
	set("SET default_transaction_read_only = on")
	for _, row := range console.Table() {
		page := row.Path
		if slices.Contains(row.Params, "id") {
			page += "?id=" + id
		}
		switch {
		case row.Method == http.MethodPost && len(row.Needs) > 0:
			r.post(row.Path, nil).is(403).has("Nothing can be changed now", "default_transaction_read_only")
		case row.Method == http.MethodGet && row.Path != "events":
			if a := r.get(page); a.Code >= 500 {
				t.Errorf("%s: got %d: %s", page, a.Code, a.text())
			}
		}
	}
	r.get("job?id="+id).is(200).has("Read-only: the database has default_transaction_read_only on", "evil.kind")
	if body := r.get("job?id=" + id).Body.String(); strings.Contains(body, `href="job-retry`) || strings.Contains(body, `href="job-dismiss`) {
		t.Error("an act is offered that would fail")
	}
	r.get("me").is(200).has("read-only: the database has default_transaction_read_only on")
	r.post("settings", url.Values{"theme": {"dark"}}).is(303)

	set("RESET default_transaction_read_only")
	r.get("job?id=" + id).is(200).hasNot("Read-only")
	r.confirm("queue-pause", url.Values{"queue": {"mail"}, "reason": {"the relay is down"}}).is(303)
}
