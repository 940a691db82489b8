package access_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

var happened = outbox.Raw{KindName: "happened", Payload: []byte(`{}`)}

// waysToPublish returns every way in which a service publishes events of a tenant, by its description. Each of them
// returns how many events it publishes.
func waysToPublish(t *testing.T, tenant outbox.ID) map[string]func(*pgxpool.Pool) (int, error) {
	ctx, opts := t.Context(), outbox.EventOptions{Tenant: tenant}
	many := func(n int, db outbox.DB) (int, error) {
		list := make([]outbox.PublishRequest, n)
		for i := range list {
			list[i] = outbox.PublishRequest{Event: happened, Options: outbox.EventOptions{Tenant: tenant, Key: "k", Serial: i == 0}}
		}
		_, err := outbox.PublishMany(ctx, db, list)
		return n, err
	}
	return map[string]func(*pgxpool.Pool) (int, error){
		"Publish": func(db *pgxpool.Pool) (int, error) {
			_, err := outbox.Publish(ctx, db, happened, opts)
			return 1, err
		},
		"Publish in a transaction that the producer commits": func(db *pgxpool.Pool) (int, error) {
			producer := outbox.NewProducer(db, outbox.NotifyCoalesced)
			err := producer.InTx(ctx, func(tx pgx.Tx) error {
				_, err := outbox.Publish(ctx, tx, happened, opts)
				return err
			})
			if flushed := producer.Flush(ctx); err == nil {
				err = flushed
			}
			return 1, err
		},
		"Publish with Serial": func(db *pgxpool.Pool) (int, error) {
			_, err := outbox.Publish(ctx, db, happened, outbox.EventOptions{Tenant: tenant, Key: "k", Serial: true})
			return 1, err
		},
		"PublishMany":                           func(db *pgxpool.Pool) (int, error) { return many(3, db) },
		"PublishMany of as many as COPY is for": func(db *pgxpool.Pool) (int, error) { return many(2000, db) },
		"database/sql": func(db *pgxpool.Pool) (int, error) {
			handle := stdlib.OpenDBFromPool(db)
			defer func(handle *sql.DB) { _ = handle.Close() }(handle)
			_, err := outbox.Publish(ctx, outbox.FromSQL(handle), happened, opts)
			return 1, err
		},
		"SQL": func(db *pgxpool.Pool) (int, error) {
			_, err := db.Exec(ctx, `SELECT outbox.publish('happened', '{}', 'k', tenant_id => $1, serial => true)`, tenant)
			return 1, err
		},
	}
}

// A role is tied to a tenant by app.tenant_id; the worker's is not.
func TestWhoPublishesForWhom(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ours, theirs := outbox.NewID(), outbox.NewID()
	stored := func() int { return ask[int](t, db, `SELECT count(*) FROM outbox.events`) }
	for role, forOthers := range map[string]bool{"outbox_producer": false, "outbox_api": false, "outbox_worker": true} {
		pool := login(t, db, role, ours.String())
		for of, may := range map[outbox.ID]bool{ours: true, theirs: forOthers} {
			for way, publish := range waysToPublish(t, of) {
				before := stored()
				n, err := publish(pool)
				switch published := stored() - before; {
				case may && (err != nil || published != n):
					t.Errorf("%s, %s: published %d events, %v; want %d", role, way, published, err, n)
				case !may && (sqlstate(err) != "42501" || published != 0):
					t.Errorf("%s, %s for another tenant: published %d events, %v; want it refused", role, way, published, err)
				}
			}
		}
	}
	nobody := login(t, db, "outbox_producer", "")
	if _, err := outbox.Publish(t.Context(), nobody, happened, outbox.EventOptions{}); sqlstate(err) != "42501" {
		t.Errorf("without a tenant: %v, want it refused", err)
	}
	wantForbidden(t, login(t, db, "outbox_reader", "*"), `SELECT outbox.publish('happened', '{}')`)
}

// The log is only ever added to, and where in it an event goes is for the database to say.
func TestNobodyRewritesTheLog(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ours, theirs := outbox.NewID(), outbox.NewID()
	for _, tenant := range []outbox.ID{ours, theirs, theirs} {
		if _, err := outbox.Publish(t.Context(), db, happened, outbox.EventOptions{Tenant: tenant}); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('nats')`)
	today := ask[string](t, db, `SELECT tableoid::regclass::text FROM outbox.events LIMIT 1`)
	const insert = `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload, `
	for role, sees := range map[string]int{"outbox_producer": -1, "outbox_api": 1, "outbox_reader": 1, "outbox_worker": 3} {
		pool := login(t, db, role, ours.String())
		forbidden := []string{
			`UPDATE outbox.events SET payload = ''`, `DELETE FROM outbox.events`, `TRUNCATE outbox.events`,
			insert + `position) VALUES (gen_random_uuid(), '` + ours.String() + `', 't', 'c', '', 7)`,
			insert + `at) VALUES (gen_random_uuid(), '` + ours.String() + `', 't', 'c', '', now())`,
			`SELECT count(*) FROM ` + today, `DROP TABLE ` + today, `SELECT setval('outbox.events_position_seq', 1)`,
		}
		if sees < 0 {
			forbidden = append(forbidden, `SELECT count(*) FROM outbox.events`, `SELECT count(*) FROM outbox.sinks`)
		} else if n := ask[int](t, pool, `SELECT count(*) FROM outbox.events`); n != sees {
			t.Errorf("%s sees %d events, want %d", role, n, sees)
		}
		for _, sql := range forbidden {
			wantForbidden(t, pool, sql)
		}
	}
	// Sinks concern all tenants.
	for role, want := range map[string]int{"outbox_api": 0, "outbox_reader": 0, "outbox_worker": 1} {
		if n := ask[int](t, login(t, db, role, ours.String()), `SELECT count(*) FROM outbox.sinks`); n != want {
			t.Errorf("%s of a tenant sees %d sinks, want %d", role, n, want)
		}
	}
	operators := login(t, db, "outbox_api", "*")
	exec(t, operators, `UPDATE outbox.sinks SET paused_at = now()`)
	if n := ask[int](t, db, `SELECT count(paused_at) FROM outbox.sinks`); n != 1 {
		t.Error("operators cannot pause a sink")
	}
}
