package main

import (
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestWorkersAndDoctor(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := env{"DATABASE_URL": db.Config().ConnString()}
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, seen_at)
		VALUES ('shop-1', 'v1.2.3', '{default,mail}', '{64,3}', '{greet}', true, now()), ('shop-2', 'v1.2.3', '{mail}', '{3}', '{greet}', true, now() - interval '5 minutes')`); err != nil {
		t.Fatal(err)
	}
	got := ok(t, e, "workers", "list", "-o", "csv")
	for _, want := range []string{"shop-1,present,v1.2.3,0,yes,default:64 mail:3,greet,", "shop-2,missing,"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	// The servers of tests do without fsync, which is a problem.
	r := posthaste(t, e, "", "doctor")
	if r.code != exitFailed || !strings.Contains(r.out, "fsync is off") || !strings.Contains(r.out, "shop-2") || !strings.Contains(r.errOut, "1 problem") {
		t.Errorf("exit status %d\n%s%s", r.code, r.out, r.errOut)
	}
}
