package main

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestTokensCreateListRevoke(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	e := env{"DATABASE_URL": pool.Config().ConnString()}
	tenant := outbox.NewID()
	r := posthaste(t, e, "", "tokens", "create", "shop", "-c", "jobs.enqueue,jobs.read", "--tenant", tenant.String(), "--by", "ada")
	bearer := strings.TrimSuffix(r.out, "\n")
	if r.code != exitOK || strings.ContainsAny(bearer, " \n") || strings.Contains(r.errOut, bearer[20:]) || !strings.Contains(r.errOut, bearer[3:19]) {
		t.Fatalf("got %+v, want the token alone on stdout and its id on stderr", r)
	}
	who, err := access.NewTokens(pool, access.TokensConfig{}).Authenticate(t.Context(), bearer)
	if err != nil || who.Name != "shop" || who.Tenant != tenant || who.AllTenants || !who.Can(access.JobsRead) || who.Can(access.AdminMutate) {
		t.Errorf("it authenticates as %+v, %v", who, err)
	}

	list := func() map[string]any {
		out := ok(t, e, "tokens", "list", "-o", "json")
		if strings.Contains(out, bearer[20:]) {
			t.Errorf("the list shows the secret: %s", out)
		}
		var rows []map[string]any
		if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 {
			t.Fatalf("got %s, %v; want one token", out, err)
		}
		return rows[0]
	}
	if row := list(); row["id"] != bearer[3:19] || row["capabilities"] != "jobs.enqueue,jobs.read" || row["created_by"] != "ada" || row["expires_at"] == nil || row["revoked_at"] != nil {
		t.Errorf("got %v, want the token, which expires and is not revoked", row)
	}
	unknown := strings.Repeat("a", 16)
	if r := posthaste(t, e, "", "tokens", "revoke", unknown, bearer[3:19]); r.code != exitFailed || r.out != bearer[3:19]+"\n" || !strings.Contains(r.errOut, "no such token") {
		t.Errorf("got %+v, want the known one revoked and the other named", r)
	}
	if row := list(); row["revoked_at"] == nil {
		t.Errorf("got %v, want it revoked", row)
	}
	if _, err := access.NewTokens(pool, access.TokensConfig{}).Authenticate(t.Context(), bearer); !errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("revoked, it authenticates with %v", err)
	}
}

// A token that nobody saw must not stay good.
func TestATokenThatCannotBePrintedIsRevoked(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	getenv := func(name string) string { return env{"DATABASE_URL": pool.Config().ConnString()}[name] }
	code := run(t.Context(), []string{"posthaste", "tokens", "create", "shop", "-c", "jobs.read"}, getenv, strings.NewReader(""), fullDisk{}, io.Discard)
	var good int
	err := pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox.tokens WHERE revoked_at IS NULL`).Scan(&good)
	if code != exitFailed || err != nil || good != 0 {
		t.Errorf("exit status %d, %d good tokens, %v; want 1 and none", code, good, err)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }
