package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

// greet is the job of most tests.
type greet struct {
	Name string `json:"name"`
}

func (greet) Kind() string { return "greet" }

// begin starts a transaction that is rolled back when the test ends without its end.
func begin(t *testing.T, db *pgxpool.Pool, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func exec(t *testing.T, db DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// ask returns the one value of a query.
func ask[T any](t *testing.T, db DB, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func countJobs(t *testing.T, db DB) int {
	t.Helper()
	return ask[int](t, db, `SELECT count(*) FROM outbox.jobs`)
}

// stored returns a job's row without what differs from run to run. due_in is what run_at is after created_at.
func stored(t *testing.T, db DB, id ID) map[string]any {
	t.Helper()
	text := ask[[]byte](t, db, `
		SELECT to_jsonb(j) - '{id, created_at, run_at}'::text[]
		    || jsonb_build_object('payload', encode(payload, 'escape'), 'due_in', run_at - created_at)
		FROM outbox.jobs AS j
		WHERE id = $1`, id)
	var row map[string]any
	if err := json.Unmarshal(text, &row); err != nil {
		t.Fatal(err)
	}
	return row
}

// wantRow returns what stored returns for a job with default options, and what differs.
func wantRow(differences map[string]any) map[string]any {
	row := map[string]any{
		"tenant_id": "00000000-0000-0000-0000-000000000001", "queue": "default", "kind": "greet", "status": "pending",
		"priority": 0., "attempt": 0., "max_attempts": 25., "epoch": 0., "lost_leases": 0., "due_in": "00:00:00",
		"max_active": nil, "slot": nil, "ordered": nil, "line_position": nil, "on_death": nil, "park_after": nil, "on_lapse": nil,
		"payload": `{"name":"ada"}`, "content_type": "application/json", "key": nil, "headers": nil, "timeout": nil, "backoff": nil,
		"lease_owner": nil, "lease_expires_at": nil, "started_at": nil, "last_error_code": nil, "last_error_message": nil,
		"deadline": nil, "cancel_requested_at": nil,
		"unavailable_since": nil, "failed_at": nil, "error_fingerprint": nil,
		"watched": nil, "streamed": nil, "parent_id": nil,
	}
	for column, value := range differences {
		row[column] = value
	}
	return row
}

// poison makes the database refuse jobs of kind "poison", late: like a disk that
// is full in the middle of a statement.
func poison(t *testing.T, db DB) {
	t.Helper()
	exec(t, db, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'poisoned'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON outbox.jobs FOR EACH ROW WHEN (NEW.kind = 'poison') EXECUTE FUNCTION refuse()`)
}

var poisoned = Raw{KindName: "poison", Payload: []byte("1")}

// untouched fails the test when SQL is sent.
type untouched struct {
	DB
	t *testing.T
}

func (u untouched) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	u.t.Errorf("sent %s", sql)
	return pgconn.CommandTag{}, nil
}

func (u untouched) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	u.t.Errorf("sent %s", sql)
	return nil, errors.New("sent")
}

func (u untouched) Begin(context.Context) (pgx.Tx, error) {
	u.t.Error("began a transaction")
	return nil, errors.New("sent")
}

// mistakes takes a joined error apart.
func mistakes(err error) []InvalidError {
	switch err := err.(type) {
	case nil:
		return nil
	case *InvalidError:
		return []InvalidError{*err}
	case interface{ Unwrap() []error }:
		var all []InvalidError
		for _, e := range err.Unwrap() {
			all = append(all, mistakes(e)...)
		}
		return all
	default:
		return mistakes(errors.Unwrap(err))
	}
}

// sqlState returns the SQLSTATE of an error of Postgres, "" for another.
func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}
