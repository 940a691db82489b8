package main

import (
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestTheAuditIsVerified(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	e := env{"DATABASE_URL": pool.Config().ConnString()}
	ok(t, e, "queues", "pause", "mail")
	ok(t, e, "queues", "resume", "mail")
	first := rows(t, e, "audit", "verify")
	if len(first) != 1 || first[0]["acts"] != 2.0 || first[0]["broken"] != 0.0 || !strings.HasPrefix(first[0]["head"].(string), "2:") {
		t.Fatalf("got %v, want two acts", first)
	}
	noted := first[0]["head"].(string)
	ok(t, e, "queues", "pause", "mail")
	if again := rows(t, e, "audit", "verify", "--from", noted); again[0]["acts"] != 3.0 || again[0]["head"] == noted {
		t.Errorf("got %v from %s, want three acts and a new head", again, noted)
	}
	if out := ok(t, e, "audit", "--actor", "nobody"); strings.Contains(out, "queue.pause") {
		t.Errorf("the listing is another command, and says\n%s", out)
	}

	if _, err := pool.Exec(t.Context(), `UPDATE outbox.audit SET actor = 'somebody else' WHERE act = 'queue.resume'`); err != nil {
		t.Fatal(err)
	}
	r := posthaste(t, e, "", "audit", "verify", "--from", noted)
	if r.code != exitFailed || !strings.Contains(r.errOut, "1 broken\nposthaste: link 2: act 2: the act or its link was changed") || !strings.Contains(r.out, "3:") {
		t.Errorf("of an edited act: %+v, want exit status 1 and the act's id", r)
	}

	e["OUTBOX_API_URL"], e["OUTBOX_API_TOKEN"] = "http://127.0.0.1:1", "ph_x_y"
	if r := posthaste(t, e, "", "audit", "verify"); r.code != exitUsage || !strings.Contains(r.errOut, notThroughAPI) {
		t.Errorf("through the API: %+v, want exit status 2 and why", r)
	}
}
