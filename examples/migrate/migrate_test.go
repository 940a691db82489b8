package migrate_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// run runs a script until it has nothing left to do, and returns how much it moved.
func run(t *testing.T, db *pgxpool.Pool, script string) (moved int) {
	t.Helper()
	sql, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	for {
		var n int
		if err := db.QueryRow(t.Context(), string(sql)).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return moved
		}
		moved += n
	}
}

// refused returns what the page's query about a table lists: names of jobs with which the script would stop.
func refused(t *testing.T, db *pgxpool.Pool, table string) (names []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/migrate/to-posthaste.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("<!-- run by examples/migrate/migrate_test.go -->\n```sql\n((?s:.*?))```").FindAllSubmatch(page, -1) {
		if !strings.Contains(string(m[1]), "FROM "+table) {
			continue
		}
		rows, err := db.Query(t.Context(), string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			values, err := rows.Values()
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, values[0].(string))
		}
		if rows.Err() != nil {
			t.Fatal(rows.Err())
		}
		return names
	}
	t.Fatalf("docs/migrate/to-posthaste.md has no query about %s", table)
	return nil
}

// wantRefused fails unless the script stops because of a job of this name, and the page's query lists that alone.
func wantRefused(t *testing.T, db *pgxpool.Pool, script, table string, name string) {
	t.Helper()
	if names := refused(t, db, table); !slices.Equal(names, []string{name}) {
		t.Errorf("the query of the page lists %q, want %q", names, name)
	}
	sql, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), string(sql)); err == nil || !strings.Contains(err.Error(), "22023") {
		t.Errorf("the script with such a name: %v, want SQLSTATE 22023", err)
	}
}

// none fails for each row that the query returns, as text.
func none(t *testing.T, db *pgxpool.Pool, what, query string) {
	t.Helper()
	rows, err := db.Query(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		t.Errorf("%s: %v %v", what, values, err)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
}

func do(t *testing.T, db *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%v: %s", err, sql)
		}
	}
}

// River 0.51: the columns of river_job that its migrations 1 to 6 make. The tests of folder river have those migrations
// make them, and River's workers take jobs meanwhile; these are more jobs, and names that stop the script.
func TestRiver(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	do(t, db, `
		CREATE TYPE river_job_state AS ENUM ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled')`, `
		CREATE TABLE river_job (
			id bigserial PRIMARY KEY, state river_job_state NOT NULL DEFAULT 'available', attempt smallint NOT NULL DEFAULT 0,
			max_attempts smallint NOT NULL, attempted_at timestamptz, created_at timestamptz NOT NULL DEFAULT now(), finalized_at timestamptz,
			scheduled_at timestamptz NOT NULL DEFAULT now(), priority smallint NOT NULL DEFAULT 1, args jsonb NOT NULL, attempted_by text[],
			errors jsonb[], kind text NOT NULL, metadata jsonb NOT NULL DEFAULT '{}', queue text NOT NULL DEFAULT 'default',
			tags varchar(255)[] NOT NULL DEFAULT '{}', unique_key bytea, unique_states bit(8))`, `
		INSERT INTO river_job (state, attempt, max_attempts, scheduled_at, priority, args, kind, queue, finalized_at)
		SELECT state, CASE WHEN state = 'retryable' THEN i % 25 ELSE 0 END, 25, date_trunc('second', now()) + i * interval '1 second', 1 + i % 4,
			jsonb_build_object('n', i), 'kind' || i % 3, CASE i % 2 WHEN 0 THEN 'default' ELSE 'mail' END,
			CASE WHEN state IN ('completed', 'discarded', 'cancelled') THEN now() END
		FROM generate_series(1, 500) AS i, unnest(enum_range(NULL::river_job_state)) AS state`, `
		INSERT INTO river_job (state, max_attempts, args, kind, metadata) -- two tasks of a workflow of River Pro
		VALUES ('pending', 25, '{}', 'kind0', '{"workflow_id": "w"}'), ('available', 25, '{}', 'kind0', '{"workflow_id": "w"}')`,
		`INSERT INTO river_job (max_attempts, args, kind) VALUES (25, to_jsonb(repeat('x', 4194304 - 2)), 'fits')`)
	do(t, db, `INSERT INTO river_job (max_attempts, args, kind) VALUES (25, to_jsonb(repeat('x', 4194304 - 1)), 'large')`)
	wantRefused(t, db, "river.sql", "river_job", "large")
	do(t, db, `DELETE FROM river_job WHERE kind IN ('large', 'fits')`, `INSERT INTO river_job (max_attempts, args, kind) VALUES (25, '{}', 'send mail')`)
	wantRefused(t, db, "river.sql", "river_job", "send mail")
	do(t, db, `DELETE FROM river_job WHERE kind = 'send mail'`, `CREATE TABLE before AS TABLE river_job`)
	if moved := run(t, db, "river.sql"); moved != 4*500 {
		t.Errorf("%d jobs were moved, want those that waited: %d", moved, 4*500)
	}
	none(t, db, "a job that waited and is not the same here", `
		SELECT before.id, before.state::text FROM before
		LEFT JOIN outbox.jobs AS job ON job.headers ->> 'river-id' = before.id::text
		WHERE before.state IN ('available', 'scheduled', 'retryable', 'pending') AND before.metadata = '{}' AND (job.kind, convert_from(job.payload, 'UTF8')::jsonb, job.queue,
			job.priority::integer, job.run_at, job.max_attempts::integer, job.status::text)
			IS DISTINCT FROM (before.kind, before.args, before.queue, 1 - before.priority, before.scheduled_at, greatest(before.max_attempts - before.attempt, 1),
				CASE before.state WHEN 'pending' THEN 'created' ELSE 'pending' END)
		LIMIT 5`)
	none(t, db, "a job that ran, had ended or is a workflow's, and is not left alone", `
		SELECT before.id FROM before LEFT JOIN river_job USING (id)
		WHERE (river_job.id IS NULL) = (before.state NOT IN ('available', 'scheduled', 'retryable', 'pending') OR before.metadata <> '{}') LIMIT 5`)
}

// graphile-worker 0.16 to 0.18, which have the same tables.
func TestGraphileWorker(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	do(t, db, `CREATE SCHEMA graphile_worker`,
		`CREATE TABLE graphile_worker._private_tasks (id int PRIMARY KEY, identifier text NOT NULL)`,
		`CREATE TABLE graphile_worker._private_job_queues (id int PRIMARY KEY, queue_name text NOT NULL)`, `
		CREATE TABLE graphile_worker._private_jobs (
			id bigserial PRIMARY KEY, job_queue_id int, task_id int NOT NULL, payload json NOT NULL DEFAULT '{}', priority smallint NOT NULL DEFAULT 0,
			run_at timestamptz NOT NULL DEFAULT now(), attempts smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL DEFAULT 25, last_error text,
			created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now(), key text, locked_at timestamptz, locked_by text,
			revision int NOT NULL DEFAULT 0, flags jsonb, is_available boolean GENERATED ALWAYS AS (locked_at IS NULL AND attempts < max_attempts) STORED)`,
		`INSERT INTO graphile_worker._private_tasks VALUES (1, 'mail'), (2, 'bill')`,
		`INSERT INTO graphile_worker._private_job_queues VALUES (1, 'acme')`, `
		INSERT INTO graphile_worker._private_jobs (job_queue_id, task_id, payload, priority, run_at, attempts, locked_at)
		SELECT CASE i % 3 WHEN 0 THEN 1 END, 1 + i % 2, json_build_object('n', i), i % 7, date_trunc('second', now()) + i * interval '1 second', i % 26,
			CASE i % 5 WHEN 0 THEN now() END
		FROM generate_series(1, 2600) AS i`,
		`INSERT INTO graphile_worker._private_tasks VALUES (3, 'send mail'), (4, 'large'), (5, 'long')`,
		`INSERT INTO graphile_worker._private_job_queues VALUES (2, repeat('q', 513))`)
	for _, of := range []struct{ task, job string }{
		{"send mail", `INSERT INTO graphile_worker._private_jobs (task_id) VALUES (3)`},
		{"large", `INSERT INTO graphile_worker._private_jobs (task_id, payload) VALUES (4, to_json(repeat('x', 4194304 - 1)))`},
		{"long", `INSERT INTO graphile_worker._private_jobs (task_id, job_queue_id) VALUES (5, 2)`},
	} {
		do(t, db, of.job)
		wantRefused(t, db, "graphile_worker.sql", "graphile_worker._private_jobs", of.task)
		do(t, db, `DELETE FROM graphile_worker._private_jobs WHERE task_id > 2`)
	}
	do(t, db, `CREATE TABLE before AS TABLE graphile_worker._private_jobs`)
	if moved := run(t, db, "graphile_worker.sql"); moved != 2000 { // neither locked nor out of attempts
		t.Errorf("%d jobs were moved", moved)
	}
	none(t, db, "a job that waited and is not the same here", `
		SELECT before.id FROM before
		LEFT JOIN outbox.jobs AS job ON job.headers ->> 'graphile-id' = before.id::text
		WHERE before.is_available AND (job.kind, convert_from(job.payload, 'UTF8')::jsonb, job.key, job.priority::integer, job.run_at, job.max_attempts::integer)
			IS DISTINCT FROM (CASE before.task_id WHEN 1 THEN 'mail' ELSE 'bill' END, before.payload::jsonb, CASE before.job_queue_id WHEN 1 THEN 'acme' END,
				-before.priority, before.run_at, 25 - before.attempts)
		LIMIT 5`)
	none(t, db, "a job that was locked or dead and is not left alone", `
		SELECT before.id FROM before LEFT JOIN graphile_worker._private_jobs AS rest USING (id) WHERE (rest.id IS NULL) <> before.is_available LIMIT 5`)
}

// A home-made outbox, whose publisher deletes what it has published.
func TestOutboxTable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	do(t, db, `
		CREATE TABLE outbox_table (
			id uuid PRIMARY KEY, seq bigserial, topic text NOT NULL, key text NOT NULL, payload jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now())`, `
		INSERT INTO outbox_table (id, topic, key, payload) -- in one transaction: created_at orders nothing
		SELECT gen_random_uuid(), CASE i % 2 WHEN 0 THEN 'order.paid' ELSE 'order.shipped' END, 'order-' || i % 10, jsonb_build_object('n', i)
		FROM generate_series(1, 11000) AS i`,
		`CREATE TABLE before AS TABLE outbox_table`)
	if moved := run(t, db, "outbox_table.sql"); moved != 11000 {
		t.Errorf("%d rows were moved", moved)
	}
	none(t, db, "an event that is not the same", `
		SELECT before.id FROM before LEFT JOIN outbox.events AS event USING (id)
		WHERE (event.topic, event.key, convert_from(event.payload, 'UTF8')::jsonb)
			IS DISTINCT FROM (before.topic, before.key, before.payload) LIMIT 5`)
	none(t, db, "an event that another of its key has overtaken", `
		SELECT id FROM (
			SELECT id, key, (convert_from(payload, 'UTF8')::jsonb ->> 'n')::int AS n,
				lag((convert_from(payload, 'UTF8')::jsonb ->> 'n')::int) OVER (PARTITION BY key ORDER BY position) AS previous
			FROM outbox.events) AS e
		WHERE previous > n LIMIT 5`)
	none(t, db, "a row that is left", `SELECT id FROM outbox_table LIMIT 1`)
}

// orders is a topic; n counts its events.
type orders struct {
	N int `json:"n"`
}

func (orders) Topic() string { return "order.paid" }

// broker takes messages from both systems, in the order of effects.seq.
type broker struct{ db *pgxpool.Pool }

func (b broker) take(ctx context.Context, system, id, key string, body []byte) error {
	_, err := b.db.Exec(ctx, `INSERT INTO effects (system, id, key, n) VALUES ($1, $2, $3, ($4::jsonb ->> 'n')::int)`, system, id, key, string(body))
	return err
}

// Publish implements [relay.Sink].
func (b broker) Publish(ctx context.Context, batch []relay.Message) []error {
	outcomes := make([]error, len(batch))
	for i, m := range batch {
		if outcomes[i] = b.take(ctx, "posthaste", m.ID, m.Key, m.Body); outcomes[i] != nil {
			for i++; i < len(batch); i++ {
				outcomes[i] = relay.ErrNotTried
			}
			break
		}
	}
	return outcomes
}

func (broker) Probe(context.Context) error                              { return nil }
func (broker) Check(context.Context, []string) ([]relay.Finding, error) { return nil, nil }
func (broker) Close() error                                             { return nil }

// publishOld does what a home-made publisher does until ctx ends: it publishes the first row, and deletes it. It ends
// between two rows.
func publishOld(ctx context.Context, b broker) error {
	for ctx.Err() == nil {
		err := pgx.BeginFunc(context.WithoutCancel(ctx), b.db, func(tx pgx.Tx) error {
			var id, key, body string
			err := tx.QueryRow(context.Background(), `
				DELETE FROM outbox_table WHERE id = (SELECT id FROM outbox_table ORDER BY seq LIMIT 1 FOR UPDATE)
				RETURNING id::text, key, payload::text`).Scan(&id, &key, &body)
			if errors.Is(err, pgx.ErrNoRows) {
				time.Sleep(time.Millisecond)
				return nil
			} else if err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond) // the broker's answer
			return b.take(context.Background(), "home-made", id, key, []byte(body))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Both publishers run at once: the relay, before there is anything for it, and the home-made one while the producer
// writes rows. It is stopped in the middle of them, the script moves the rest, and the producer is switched: each event
// is published once, and those of a key in their order, across the switch, too.
func TestBothPublishAndEachEventTakesEffectOnce(t *testing.T) {
	t.Parallel()
	const before, after, keys = 600, 300, 10
	b := broker{pgtest.New(t)}
	do(t, b.db, `
		CREATE TABLE outbox_table (
			id uuid PRIMARY KEY DEFAULT gen_random_uuid(), seq bigserial, topic text NOT NULL, key text NOT NULL, payload jsonb NOT NULL)`, `
		CREATE TABLE effects (seq bigserial, system text NOT NULL, id text NOT NULL, key text NOT NULL, n int NOT NULL)`)
	r, err := relay.New(b.db, relay.Config{PollInterval: 10 * time.Millisecond, Sinks: []relay.SinkConfig{{
		Name: "broker", Sink: b, Routes: []relay.Route{{Topics: []string{"order.*"}, CloudEvents: relay.CloudEventsOff}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer background(t, r.Run)()
	stop := background(t, func(ctx context.Context) error { return publishOld(ctx, b) })
	keyOf := func(n int) string { return "order-" + strconv.Itoa(n%keys) }
	for n := range before {
		do(t, b.db, `INSERT INTO outbox_table (topic, key, payload) VALUES ('order.paid', '`+keyOf(n)+`', jsonb_build_object('n', `+strconv.Itoa(n)+`))`)
	}
	stop()
	if moved := run(t, b.db, "outbox_table.sql"); moved == 0 || moved == before {
		t.Errorf("%d rows were moved, want some of %d", moved, before)
	}
	for n := before; n < before+after; n++ {
		if _, err := outbox.Publish(t.Context(), b.db, orders{n}, outbox.EventOptions{Key: keyOf(n)}); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var n int
		if err := b.db.QueryRow(t.Context(), `SELECT count(*) FROM effects`).Scan(&n); err != nil || time.Now().After(deadline) {
			t.Fatalf("%d events were published, want %d (%v)", n, before+after, err)
		} else if n >= before+after {
			break
		}
	}
	none(t, b.db, "an event that was not published once", `
		SELECT n, count(effects.n) FROM generate_series(0, 899) AS n LEFT JOIN effects USING (n) GROUP BY n HAVING count(effects.n) <> 1 LIMIT 5`)
	none(t, b.db, "an event that another of its key has overtaken", `
		SELECT key, n FROM (SELECT key, n, lag(n) OVER (PARTITION BY key ORDER BY seq) AS previous FROM effects) AS e WHERE previous > n LIMIT 5`)
	none(t, b.db, "a system that published nothing of the rows", `
		SELECT system FROM unnest(ARRAY['home-made', 'posthaste']) AS system
		WHERE NOT EXISTS (SELECT FROM effects WHERE effects.system = system.system AND n < 600)`)
}

// background runs f until it is stopped, which waits for its end.
func background(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
