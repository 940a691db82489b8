package access

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// ask returns the one value of a query.
func ask[T any](t *testing.T, db *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// wantRefused checks that an authenticator refuses a bearer, and as one that is
// not good rather than one that could not be judged.
func wantRefused(t *testing.T, a Authenticator, what, bearer string) {
	t.Helper()
	if p, err := a.Authenticate(t.Context(), bearer); !errors.Is(err, ErrUnauthenticated) || p.Name != "" || len(p.Capabilities) > 0 {
		t.Errorf("%s: got %v, %v; want it refused", what, p, err)
	}
}

func wantAccepted(t *testing.T, a Authenticator, what, bearer string) Principal {
	t.Helper()
	p, err := a.Authenticate(context.WithoutCancel(t.Context()), bearer)
	if err != nil {
		t.Errorf("%s: %v, want it accepted", what, err)
	}
	return p
}
