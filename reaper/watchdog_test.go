package reaper

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
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

	if err := r.watchdog.terminate(t.Context(), time.Hour, time.Hour); err != nil {
		t.Fatal(err)
	}
	if !connected(t, db, "shop-listener") || value(t, r.metrics.terminated) != 0 {
		t.Fatal("a listener was terminated before its time")
	}
	r.watchdog.suspects = nil
	if err := r.watchdog.terminate(t.Context(), 0, time.Hour); err != nil {
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
		if err := r.watchdog.terminate(t.Context(), time.Hour, time.Hour); err != nil {
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

// A worker that vanishes leaves a transaction that has its job's row locked. Nobody could have the job for as long as
// the server does not notice.
func TestATransactionOfAWorkerThatIsGoneIsEnded(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		r, db := newRig(t, Config{})
		for name, state := range map[string]struct {
			lapsed  time.Duration // ago
			beside  time.Duration // from now, an extension beside the row; 0: none
			session string
			ended   bool
		}{
			"gone":       {lapsed: time.Hour, ended: true},
			"completing": {lapsed: time.Hour, ended: true, session: `DELETE FROM outbox.jobs WHERE lease_owner = $1`},
			"at a step":  {lapsed: time.Hour, ended: true, session: "savepoint"},
			"extended":   {lapsed: time.Hour, beside: time.Minute},
			"gone late":  {lapsed: time.Hour, beside: -time.Hour, ended: true},
			"at work":    {lapsed: -time.Hour},
		} {
			t.Run(fmt.Sprintf("%s of %s", name, tenant), func(t *testing.T) {
				conn := holding(t, db, tenant, name, state.lapsed, state.session)
				if state.beside != 0 {
					exec(t, db, `INSERT INTO outbox.lease_extensions (job_id, epoch, expires_at)
						SELECT id, epoch, now() + $2::interval FROM outbox.jobs WHERE lease_owner = $1`, name, state.beside)
				}
				if err := r.watchdog.terminate(t.Context(), time.Hour, time.Minute); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Exec(t.Context(), `SELECT`); err != nil {
					t.Fatalf("a session that was idle for a moment was ended: %v", err)
				}
				if err := r.watchdog.terminate(t.Context(), time.Hour, 0); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Exec(t.Context(), `SELECT`); (err != nil) != state.ended {
					t.Fatalf("its session then says %v, want it ended: %t", err, state.ended)
				}
				status := func() string {
					expirePass(t, r)
					return query[string](t, db, `SELECT status FROM outbox.jobs WHERE kind = $1`, name)
				}
				if state.ended {
					await(t, "the job is given to others", func() bool { return status() == "retrying" })
				} else if got := status(); got != "running" {
					t.Errorf("the job is %s then, and its owner lives", got)
				}
			})
		}
	}
}

// holding returns a session that has the row of the owner's job locked in a transaction.
func holding(t *testing.T, db *pgxpool.Pool, tenant outbox.ID, owner string, lapsed time.Duration, how string) *pgx.Conn {
	t.Helper()
	exec(t, db, `
		INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, epoch, attempt, run_at, started_at, lease_owner, lease_expires_at)
		VALUES (gen_random_uuid(), $1, $2, '{}', 'running', 1, 1, now() - interval '1 minute', now(), $2, now() - $3::interval)`,
		mustUUID(tenant), owner, lapsed)
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	lock := `SELECT FROM outbox.jobs WHERE lease_owner = $1 FOR UPDATE`
	statements := []string{"BEGIN"}
	switch how {
	case "":
	case "savepoint":
		statements = append(statements, "SAVEPOINT step")
	default:
		lock = how
	}
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(t.Context(), lock, owner); err != nil {
		t.Fatal(err)
	}
	return conn
}
