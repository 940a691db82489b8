package reaper

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// listen opens a listener that never reads what it is sent.
func listen(t *testing.T, db *pgxpool.Pool, name, channel string) *pgx.Conn {
	t.Helper()
	config := db.Config().ConnConfig
	config.RuntimeParams["application_name"] = name
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	})
	if _, err := conn.Exec(t.Context(), "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	return conn
}

func connected(t *testing.T, db *pgxpool.Pool, name string) bool {
	t.Helper()
	return query[bool](t, db, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database())`, name)
}

// flood notifies until the server waits for the listeners to read.
func flood(t *testing.T, db *pgxpool.Pool, waiting int) {
	t.Helper()
	await(t, "the server waits for the listeners", func() bool {
		exec(t, db, `SELECT pg_notify(channel, i || repeat('x', 7900)) FROM generate_series(1, 500) AS i, unnest(ARRAY['outbox_flood', 'flood']) AS channel`)
		return query[int](t, db, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND datname = current_database()`) == waiting
	})
}

func TestAListenerThatStoppedReadingIsTerminated(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	listen(t, db, "shop-listener", "outbox_flood")
	listen(t, db, "somebody else", "outbox_flood")
	listen(t, db, "their-listener", "flood")
	flood(t, db, 3)
	if !query[bool](t, db, `SELECT bool_or(backend_xmin IS NOT NULL) FROM pg_stat_activity WHERE application_name = 'shop-listener' AND datname = current_database()`) {
		t.Log("it holds no snapshot")
	}

	if err := r.watchdog.terminateWedged(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if !connected(t, db, "shop-listener") || value(t, r.metrics.terminated) != 0 {
		t.Fatal("a listener was terminated before its time")
	}
	r.watchdog.suspects = nil
	if err := r.watchdog.terminateWedged(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	await(t, "the listener is gone", func() bool { return !connected(t, db, "shop-listener") })
	if !connected(t, db, "somebody else") || !connected(t, db, "their-listener") {
		t.Error("a session that is none of ours was terminated")
	}
	if got := value(t, r.metrics.terminated); got != 1 {
		t.Errorf("listeners terminated = %v, want 1", got)
	}
}

// Outside of a transaction nothing tells since when the server has been waiting:
// being found again and again does.
func TestAListenerFoundWaitingForLongIsTerminated(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	listen(t, db, "shop-listener", "outbox_flood")
	flood(t, db, 1)
	look := func() {
		t.Helper()
		if err := r.watchdog.terminateWedged(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	look()
	look()
	if !connected(t, db, "shop-listener") {
		t.Fatal("a listener was terminated before its time")
	}
	if len(r.watchdog.suspects) == 0 {
		t.Fatal("the listener is not suspected")
	}
	for i := range r.watchdog.suspects {
		r.watchdog.suspects[i].seen = time.Now().Add(-time.Hour)
	}
	look()
	await(t, "the listener is gone", func() bool { return !connected(t, db, "shop-listener") })
}
