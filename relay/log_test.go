package relay

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// A page has so many bytes of headers, too, however the database stores them.
func TestAPageIsCutByItsHeaders(t *testing.T) {
	t.Parallel()
	const rows, each = 20, 2_000_000
	for name, stores := range map[string]string{
		"pglz": "SET COMPRESSION pglz", "lz4": "SET COMPRESSION lz4", "as they are": "SET STORAGE EXTERNAL", "none": "DROP NOT NULL",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			for _, sql := range []string{
				`ALTER TABLE outbox.events DROP CONSTRAINT events_headers`, // what there was before it stays
				`ALTER TABLE outbox.events ALTER headers ` + stores,
			} {
				if _, err := db.Exec(t.Context(), sql); err != nil {
					if strings.Contains(err.Error(), "lz4") {
						t.Skip(err) // the server is built without it
					}
					t.Fatal(err)
				}
			}
			if _, err := db.Exec(t.Context(), `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload, headers)
				SELECT gen_random_uuid(), gen_random_uuid(), 't', 'text/plain', '', CASE WHEN $3 THEN jsonb_build_object('h', repeat('x', $1)) END FROM generate_series(1, $2)`, each, rows, name != "none"); err != nil {
				t.Fatal(err)
			}
			l := logReader{pool: db}
			if err := db.QueryRow(t.Context(), `SELECT outbox.timeline()`).Scan(&l.timeline); err != nil {
				t.Fatal(err)
			}
			got := 0
			for c, more := (cursor{}), true; more; {
				read, err := l.read(t.Context(), c, maxBatch, false)
				if err != nil {
					t.Fatal(err)
				}
				switch n, most := len(read.events), maxPageBytes/each+1; {
				case name == "none" && n != rows:
					t.Errorf("a page has %d events without headers, want %d", n, rows)
				case name != "none" && n > most:
					t.Errorf("a page has %d events with headers of 2 MB, want %d at most", n, most)
				}
				got += len(read.events)
				c, more = read.after, read.full
			}
			if got != rows {
				t.Errorf("%d events were read until there were no more, want %d", got, rows)
			}
		})
	}
}

// Headers of some hundred bytes make no page smaller, however the database stores them.
func TestSmallHeadersFillAPage(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"pglz", "lz4"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			if _, err := db.Exec(t.Context(), `ALTER TABLE outbox.events ALTER headers SET COMPRESSION `+how); err != nil {
				if strings.Contains(err.Error(), "lz4") {
					t.Skip(err) // the server is built without it
				}
				t.Fatal(err)
			}
			if _, err := db.Exec(t.Context(), `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload, headers)
				SELECT gen_random_uuid(), gen_random_uuid(), 't', 'text/plain', '', jsonb_build_object('h', repeat((SELECT string_agg(md5(i || ' ' || n), '') FROM generate_series(1, 12) AS n), 6))
				FROM generate_series(1, $1) AS i`, maxBatch); err != nil {
				t.Fatal(err)
			}
			var compressed int
			if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.events
				WHERE pg_column_compression(headers) IS NOT NULL AND pg_column_size(headers) < 1000`).Scan(&compressed); err != nil || compressed != maxBatch {
				t.Fatalf("%d headers are compressed, want %d: %v", compressed, maxBatch, err)
			}
			l := logReader{pool: db}
			if err := db.QueryRow(t.Context(), `SELECT outbox.timeline()`).Scan(&l.timeline); err != nil {
				t.Fatal(err)
			}
			read, err := l.read(t.Context(), cursor{}, maxBatch, false)
			if err != nil || len(read.events) != maxBatch {
				t.Errorf("a page has %d events, want %d: %v", len(read.events), maxBatch, err)
			}
		})
	}
}

// A look that fails after it has found events leaves nothing that other sinks would find, and find, and find.
func TestALookThatFailsLateHasNoEvents(t *testing.T) {
	t.Parallel()
	config := pgtest.New(t).Config().Copy()
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `CREATE SCHEMA broken;
			CREATE FUNCTION broken.pg_current_snapshot() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
			SET search_path = broken, pg_catalog`)
		return err
	}
	config.MaxConns = 1
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	l := logReader{pool: db, shared: &shared{}}
	if err := db.QueryRow(t.Context(), `WITH stored AS (
			INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload) VALUES (gen_random_uuid(), gen_random_uuid(), 't', 'text/plain', ''))
		SELECT outbox.timeline()`).Scan(&l.timeline); err != nil {
		t.Fatal(err)
	}
	found, _, _, err := l.newer(t.Context(), cursor{holes: []hole{{low: 1, high: 1}}}, maxBatch, false)
	if err == nil || len(found) > 0 || len(l.shared.looks) > 0 {
		t.Errorf("%d events, %d looks that others find, and %v; want an error alone", len(found), len(l.shared.looks), err)
	}
}
