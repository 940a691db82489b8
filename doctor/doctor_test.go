package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

type work1 struct{}

func (work1) Kind() string { return "nobody.does" }

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func examine(t *testing.T, target Target) []Finding {
	t.Helper()
	findings, err := Examine(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

// pinned returns a pool as the command has: its sessions are not set as others are.
func pinned(t *testing.T, db *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	config := db.Config()
	pgsession.Pin(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Of the servers of tests, which do without fsync, everything else is in order.
func TestAHealthyInstallation(t *testing.T) {
	t.Parallel()
	questions := map[string]bool{}
	for _, f := range examine(t, Target{Pool: pgtest.New(t)}) {
		questions[f.Question] = true
		server := f.Question == "server" && strings.HasPrefix(f.What, "fsync is off")
		elsewhere := f.Question == "vacuum" // tests of others run beside this one
		if f.Severity != OK && !server && !elsewhere {
			t.Errorf("found %+v", f)
		}
		if f.Severity != OK && f.Do == "" {
			t.Errorf("%+v does not say what to do", f)
		}
	}
	if len(questions) != 8 {
		t.Errorf("asked %v, want eight questions", questions)
	}
}

// Each fault is found, for what it is.
func TestWhatIsWrongIsFound(t *testing.T) {
	t.Parallel()
	type fault struct {
		cause    string
		question string
		severity Severity
		want     string
	}
	rows, schema := map[string]fault{}, map[string]fault{}
	for name, f := range map[string]fault{
		"no schema":          {`DROP SCHEMA outbox CASCADE`, "schema", Problem, "the schema outbox is missing"},
		"half a schema":      {`DELETE FROM outbox.schema_version WHERE version_id = (SELECT max(version_id) FROM outbox.schema_version)`, "schema", Problem, "it lacks this build's 00019_sessions.sql"},
		"too old a build":    {`INSERT INTO outbox.schema_files VALUES ('floor/0.9.0', sha256(''), 1000)`, "schema", Problem, "the schema is too new for this build"},
		"edited schema":      {`UPDATE outbox.schema_files SET checksum = sha256('') WHERE name = '00001_tables.sql'`, "schema", Problem, "another text of 00001_tables.sql"},
		"no partitions":      {`DO $$ DECLARE d text; BEGIN FOR d IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'outbox.history'::regclass LOOP EXECUTE 'DROP TABLE ' || d; END LOOP; END $$`, "tables", Problem, "partitions for 0 days ahead"},
		"no tomorrow":        {`DO $$ BEGIN EXECUTE 'DROP TABLE outbox.history_' || to_char((now() + interval '1 day') AT TIME ZONE 'UTC', 'YYYYMMDD'); END $$`, "tables", Problem, "partitions for 0 days ahead"},
		"a long history":     {`DO $$ BEGIN FOR n IN 1 .. 440 LOOP EXECUTE format('CREATE TABLE outbox.history_old_%s PARTITION OF outbox.history FOR VALUES FROM (%L) TO (%L)', n, date '2020-01-01' + n, date '2020-01-02' + n); END LOOP; END $$`, "tables", Warning, "set max_locks_per_transaction to 7"},
		"no days for events": {`DO $$ DECLARE d text; BEGIN FOR d IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'outbox.events'::regclass LOOP EXECUTE 'DROP TABLE ' || d; END LOOP; END $$`, "tables", Problem, "partitions for 0 days ahead"},
		"a sink behind":      {`CREATE TABLE outbox.events_old PARTITION OF outbox.events FOR VALUES FROM ('2026-01-01') TO ('2026-01-02'); INSERT INTO outbox.events (at, id, tenant_id, topic, content_type, payload) VALUES ('2026-01-01 12:00', gen_random_uuid(), gen_random_uuid(), 't', 'c', ''); INSERT INTO outbox.sinks (sink) VALUES ('nats')`, "events", Problem, "sink nats has not published events since 2026-01-01"},
		"no trimming":        {`INSERT INTO outbox.chores VALUES ('trim', now() - interval '60 hours'); UPDATE outbox.schema_files SET applied_at = now() - interval '90 days'`, "tables", Warning, "has not all been removed since 20"},
		"never trimmed":      {`UPDATE outbox.schema_files SET applied_at = now() - interval '60 hours'`, "tables", Warning, "has not all been removed since the schema was made"},
		"a lapsed lease":     {`INSERT INTO outbox.jobs (id, kind, payload, status, attempt, epoch, lease_owner, lease_expires_at, started_at) VALUES (outbox.uuid_v7(), 'k', '{}', 'running', 1, 1, 'w', now() - interval '1 minute', now())`, "jobs", Problem, "1 lease lapsed"},
		"a dead letter":      {`INSERT INTO outbox.jobs (id, kind, payload, status) VALUES (outbox.uuid_v7(), 'k', '{}', 'dead')`, "jobs", Warning, "1 dead letter to"},
		"a late job":         {`INSERT INTO outbox.jobs (id, kind, payload, run_at) VALUES (outbox.uuid_v7(), 'k', '{}', now() - interval '1 hour')`, "jobs", Warning, "the oldest due job waits since"},
		"a paused queue":     {`INSERT INTO outbox.queues (queue, paused_at) VALUES ('mail', now())`, "jobs", Warning, "paused: mail"},
		"no handler":         {`INSERT INTO outbox.jobs (id, kind, payload) VALUES (outbox.uuid_v7(), 'nobody.does', '{}')`, "workers", Problem, "1 job of kind nobody.does in queue default"},
		"a lost worker":      {`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, seen_at) VALUES ('w', 'v', '{default}', '{1}', '{k}', true, now() - interval '5 minutes')`, "workers", Warning, "dispatcher w was last seen"},
		"a deaf worker":      {`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, started_at) VALUES ('w', 'v', '{default}', '{1}', '{k}', false, now() - interval '1 minute')`, "workers", Warning, "1 of 1 dispatchers are not listening"},
		"an odd encoding":    {`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET client_encoding = LATIN1', current_database()); END $$`, "schema", Warning, "client_encoding is set for the database"},
		"no row security":    {`ALTER TABLE outbox.jobs DISABLE ROW LEVEL SECURITY`, "schema", Warning, "row-level security is off"},
		"it takes no row":    {`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`, "server", Problem, "takes no writes"},
		"commits are not":    {`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`, "server", Problem, "synchronous_commit is off"},
		"events, no sink":    {`INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload) VALUES (outbox.uuid_v7(), outbox.uuid_v7(), 't', 'text/plain', '')`, "events", Warning, "no sink"},
		"a paused sink":      {`INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload, at) VALUES (outbox.uuid_v7(), outbox.uuid_v7(), 't', 'text/plain', '', now() - interval '2 minutes'); INSERT INTO outbox.sinks (sink, owner, lease_expires_at, away_since, away_code, away_message, paused_at) VALUES ('s', 'o', now() + interval '5 minutes', NULL, NULL, NULL, now())`, "sinks", Warning, "sink s is paused since"},
		"a sink away":        {`INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload, at) VALUES (outbox.uuid_v7(), outbox.uuid_v7(), 't', 'text/plain', '', now() - interval '2 minutes'); INSERT INTO outbox.sinks (sink, owner, lease_expires_at, away_since, away_code, away_message, paused_at) VALUES ('s', 'o', now() + interval '5 minutes', now(), 'relay_unavailable', 'refused', NULL)`, "sinks", Problem, "sink s stands still since"},
		"a destination away": {`INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload, at) VALUES (outbox.uuid_v7(), outbox.uuid_v7(), 't', 'text/plain', '', now() - interval '2 minutes'); INSERT INTO outbox.sinks (sink, owner, lease_expires_at, away_since, away_code, away_message, paused_at) VALUES ('s', 'o', now() + interval '5 minutes', now(), 'relay_full', 'no room', NULL)`, "sinks", Problem, "sink s publishes nothing to a destination since"},
		"too many are held":  {`INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload, at) VALUES (outbox.uuid_v7(), outbox.uuid_v7(), 't', 'text/plain', '', now() - interval '2 minutes'); INSERT INTO outbox.sinks (sink, owner, lease_expires_at, away_since, away_code, away_message, paused_at) VALUES ('s', 'o', now() + interval '5 minutes', now(), 'relay_stuck', 'key "k"', NULL)`, "sinks", Problem, "(relay_stuck): key \"k\": replay or dismiss what it has refused, first of the key"},
		"too many wait":      {`INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload, at) VALUES (outbox.uuid_v7(), outbox.uuid_v7(), 't', 'text/plain', '', now() - interval '2 minutes'); INSERT INTO outbox.sinks (sink, owner, lease_expires_at, away_since, away_code, away_message, paused_at) VALUES ('s', 'o', now() + interval '5 minutes', now(), 'relay_waiting', '50000 messages', NULL)`, "sinks", Problem, "because too many messages wait for a destination"},
		"nobody's sink":      {`INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload, at) VALUES (outbox.uuid_v7(), outbox.uuid_v7(), 't', 'text/plain', '', now() - interval '2 minutes'); INSERT INTO outbox.sinks (sink, owner, lease_expires_at, away_since, away_code, away_message, paused_at) VALUES ('s', NULL, NULL, now() - interval '2 minutes', 'relay_full', 'no room', NULL)`, "sinks", Problem, "nobody publishes to sink s"},
		"a bridge away":      {`INSERT INTO outbox.inbox_positions (consumer, source, partition, position, lease_expires_at, away_since, away_message) VALUES ('-bridge', 'b', 0, 7, now() + interval '5 minutes', now() - interval '2 minutes', 'no room')`, "bridges", Problem, "bridge b has stored nothing since"},
		"nobody's bridge":    {`INSERT INTO outbox.inbox_positions (consumer, source, partition, position, moved_at) VALUES ('-bridge', 'b', 0, 7, now())`, "bridges", Warning, "nobody fetches the messages of bridge b"},
		"a full queue":       {`INSERT INTO outbox.inbox_positions (consumer, source, partition, position, lease_expires_at, away_since, away_message) VALUES ('-bridge', 'b', 0, 7, now() + interval '5 minutes', now() - interval '2 minutes', 'bridge waits for its queue: 9 jobs of queue q wait, and MaxQueued is 9')`, "bridges", Warning, "MaxQueued is 9"},
		"an unused bridge":   {`INSERT INTO outbox.inbox_positions (consumer, source, partition, position) VALUES ('-bridge', 'b', 0, 0)`, "bridges", Warning, "bridge b, which has never stored any"},
		"a refused message":  {`INSERT INTO outbox.sinks (sink) VALUES ('s'); INSERT INTO outbox.held_messages VALUES ('s', outbox.uuid_v7(), outbox.uuid_v7(), 'k', 7)`, "sinks", Warning, "sink s has refused messages: 1 job of 1 key"},
		"a late sink":        {`INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload, at) VALUES (outbox.uuid_v7(), outbox.uuid_v7(), 't', 'text/plain', '', now() - interval '2 minutes'); INSERT INTO outbox.sinks (sink, owner, lease_expires_at, away_since, away_code, away_message, paused_at) VALUES ('s', 'o', now() + interval '5 minutes', NULL, NULL, NULL, NULL)`, "sinks", Warning, "sink s is 1 position behind"},
	} {
		of := schema
		if strings.HasPrefix(f.cause, "INSERT") && !strings.Contains(f.cause, "schema_files") {
			of = rows
		}
		of[name] = f
	}
	find := func(t *testing.T, db *pgxpool.Pool, want fault) {
		exec(t, db, want.cause)
		db.Reset()
		findings := examine(t, Target{Pool: pinned(t, db)})
		for _, f := range findings {
			if strings.Contains(f.Do, "delete") {
				t.Errorf("the remedy %q has a row deleted by hand", f.Do)
			}
		}
		for _, f := range findings {
			if f.Question == want.question && f.Severity == want.severity && f.Do != "" &&
				strings.Contains(f.What+": "+f.Do, want.want) {
				return
			}
		}
		t.Errorf("found %+v, want a %s about %s: %s", findings, want.severity, want.question, want.want)
	}
	for name, f := range schema {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			find(t, pgtest.New(t), f)
		})
	}
	t.Run("rows", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		for name, f := range rows {
			t.Run(name, func(t *testing.T) {
				pgtest.Empty(t, db)
				find(t, db, f)
			})
		}
	})
}

// What a bridge says of a full queue is only known by its words.
func TestABridgesWordsAreKnown(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../bridge/move.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(source), `"`+queueFull+`"`) {
		t.Errorf("package bridge does not say %q", queueFull)
	}
}

// A kind that a dispatcher has a handler for, in the queue, is nobody's business.
func TestAHandledKindIsNotFound(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing) VALUES ('w', 'v', '{default}', '{1}', '{nobody.does}', true)`)
	if _, err := outbox.Enqueue(t.Context(), db, work1{}, outbox.Options{}); err != nil {
		t.Fatal(err)
	}
	// Nor are the messages of a sink that stands still, whose dispatcher has gone: that is the sink's finding.
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload, run_at) VALUES (outbox.uuid_v7(), 'relay:s', '{}', now() - interval '1 hour')`)
	for _, f := range examine(t, Target{Pool: db}) {
		if (f.Question == "workers" || f.Question == "jobs") && f.Severity != OK {
			t.Errorf("found %+v", f)
		}
	}
	for _, f := range examine(t, Target{Pool: db, Except: []string{"workers"}}) {
		if f.Question == "workers" {
			t.Errorf("asked though it is excepted: %+v", f)
		}
	}
}

// How long something has lasted goes by the server's clock.
func TestTimesAreTheServers(t *testing.T) {
	t.Parallel()
	behind := &examination{ahead: -time.Hour}
	if waits := behind.since(time.Now().Add(-time.Hour)); waits > time.Minute {
		t.Errorf("what has just begun lasts for %s by a clock that is an hour ahead of the server's", waits)
	}
}

// A proxy that swallows what the server says unasked is what a pooler in
// transaction mode is to LISTEN.
func TestWakeUpsThatDoNotArriveAreFound(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := db.Config().ConnConfig.Copy()
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return deaf{conn}, err
	}
	findings := examine(t, Target{Pool: db, Listen: config})
	for _, f := range findings {
		if f.Question == "wake-ups" && f.Severity == Problem && strings.Contains(f.What, "did not arrive") {
			return
		}
	}
	t.Errorf("found %+v, want that no NOTIFY arrives", findings)
}

// Listeners connect to the primary only, even if their connection string names other servers. If they cannot, the
// finding names the setting.
func TestAListenerThatCannotConnectIsFound(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, change := range map[string]func(*pgx.ConnConfig){
		"a wrong port":        func(c *pgx.ConnConfig) { c.Port, c.Fallbacks = 1, nil },
		"a read-only session": func(c *pgx.ConnConfig) { c.RuntimeParams["default_transaction_read_only"] = "on" },
	} {
		config := db.Config().ConnConfig.Copy()
		change(config)
		findings := examine(t, Target{Pool: db, Listen: config})
		if !slices.ContainsFunc(findings, func(f Finding) bool {
			return f.Question == "wake-ups" && f.Severity == Problem && strings.Contains(f.What, "connect to listen") &&
				strings.Contains(f.Do, "OUTBOX_LISTEN_URL")
		}) {
			t.Errorf("%s: found %+v, want that OUTBOX_LISTEN_URL is to blame", name, findings)
		}
	}
}

// A process that is stopped, or whose network is gone, reads nothing more.
func TestAListenerThatDoesNotReadIsFound(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := db.Config().ConnConfig.Copy()
	config.RuntimeParams["application_name"] = "shop-listener"
	ear, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = ear.Close(ctx)
	})
	if _, err := ear.Exec(t.Context(), `LISTEN flood`); err != nil {
		t.Fatal(err)
	}
	for waits, deadline := false, time.Now().Add(time.Minute); !waits; {
		exec(t, db, `SELECT pg_notify('flood', i || repeat('x', 7900)) FROM generate_series(1, 500) AS i`)
		if err := db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND datname = current_database())`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("the server never waits for the listener")
		}
	}
	findings := examine(t, Target{Pool: db})
	for _, f := range findings {
		if f.Question == "wake-ups" && f.Severity == Warning && strings.Contains(f.What, "does not read") && strings.Contains(f.What, "shop-listener") && f.Do != "" {
			return
		}
	}
	t.Errorf("found %+v, want the listener that does not read", findings)
}

// deaf is a connection on which notifications are swallowed. Postgres sends each
// in a packet of its own to a session that is idle.
type deaf struct{ net.Conn }

func (d deaf) Read(b []byte) (int, error) {
	for {
		n, err := d.Conn.Read(b)
		if err != nil || n == 0 || b[0] != 'A' {
			return n, err
		}
	}
}

func TestAPoolerWithoutPreparedStatementsIsNamed(t *testing.T) {
	for code, named := range map[string]bool{"26000": true, "42P05": true, "42501": false} {
		got := remedy(fmt.Errorf("ask: %w", &pgconn.PgError{Code: code}))
		if strings.Contains(got, "default_query_exec_mode=exec") != named {
			t.Errorf("%s: %s", code, got)
		}
	}
}

// What the encoding costs is reported before a job meets it.
func TestAnEncodingThatLacksCharactersIsFound(t *testing.T) {
	t.Parallel()
	for encoding, want := range map[string]string{"LATIN1": "are refused, and errors are stored with these escaped", "SQL_ASCII": "is not converted"} {
		found := slices.ContainsFunc(examine(t, Target{Pool: pgtest.NewEncoded(t, encoding)}), func(f Finding) bool {
			return f.Question == "schema" && f.Severity == Warning && strings.Contains(f.What, "the database's encoding is "+encoding) && strings.Contains(f.What, want) && strings.Contains(f.Do, "UTF8")
		})
		if !found {
			t.Errorf("nothing is said of %s", encoding)
		}
	}
}

// Unique indexes of keys and messages are in the order of the database's collation, which an update of the system may
// change.
func TestACollationOfAnotherVersionIsFound(t *testing.T) {
	t.Parallel()
	admin := pgtest.New(t)
	name := admin.Config().ConnConfig.Database + "_icu"
	exec(t, admin, `CREATE DATABASE `+name+` TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en' LOCALE 'C'`)
	config := admin.Config()
	config.ConnConfig.Database = name
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		db.Close()
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	found := func() bool {
		return slices.ContainsFunc(examine(t, Target{Pool: db}), func(f Finding) bool {
			return f.Question == "server" && f.Severity == Problem && strings.Contains(f.What, "collation is of version") &&
				strings.Contains(f.Do, "REINDEX DATABASE") && strings.Contains(f.Do, "ALTER DATABASE "+name+" REFRESH COLLATION VERSION")
		})
	}
	if found() {
		t.Error("a collation of the server's version is found")
	}
	exec(t, admin, `UPDATE pg_database SET datcollversion = '1' WHERE datname = '`+name+`'`)
	if !found() {
		t.Error("a collation of another version is not found")
	}
	exec(t, db, `ALTER DATABASE `+name+` REFRESH COLLATION VERSION`)
	if found() {
		t.Error("it is found after what is to do was done")
	}
}

// A dispatcher shows itself before its listener is connected: that is no finding until it
// has said so again.
func TestADispatcherThatJustStartedIsNotDeaf(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing) VALUES ('w', 'v', '{default}', '{1}', '{k}', false)`)
	for _, f := range examine(t, Target{Pool: db}) {
		if f.Question == "workers" && f.Severity != OK {
			t.Errorf("found %+v", f)
		}
	}
}

// Of sessions of other roles a login without pg_read_all_stats is shown little: they are not left out because of it.
func TestALoginThatIsNotShownOthersSaysSo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	snapshot, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snapshot.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := snapshot.Exec(t.Context(), `SELECT FROM outbox.jobs`); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `CREATE TABLE public.burnt (i integer)`)
	exec(t, db, `DO $$ BEGIN FOR i IN 1..100100 LOOP BEGIN INSERT INTO public.burnt VALUES (i); EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$`)
	warned, held := false, false
	findings := examine(t, Target{Pool: pgtest.Login(t, db, "outbox_worker")})
	for _, f := range findings {
		if f.Question == "vacuum" && f.Severity == Warning {
			warned = warned || strings.HasPrefix(f.Do, "GRANT pg_read_all_stats TO login_")
			held = held || strings.Contains(f.What, fmt.Sprintf("pid %d,", snapshot.Conn().PgConn().PID()))
		}
	}
	if !warned || !held {
		t.Errorf("warned of what the login is not shown: %t, found the held snapshot: %t, in %+v", warned, held, findings)
	}
}

// A login whose commits are not durable is found by any other, if it may store jobs; without that it does not matter.
func TestALoginThatIsNotDurableIsFound(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	login := pgtest.Login(t, db, "pg_monitor").Config().ConnConfig.User
	found := func() bool {
		return slices.ContainsFunc(examine(t, Target{Pool: db}), func(f Finding) bool {
			return f.Question == "server" && f.Severity == Problem && strings.Contains(f.What, "synchronous_commit is off for role "+login+":")
		})
	}
	exec(t, db, `ALTER ROLE `+login+` SET synchronous_commit = off`)
	if found() {
		t.Error("a login that may not store jobs is found")
	}
	exec(t, db, `GRANT INSERT (id, kind, payload) ON outbox.jobs TO `+login)
	t.Cleanup(func() { // or the role cannot be dropped
		if _, err := db.Exec(context.Background(), `REVOKE ALL ON outbox.jobs FROM `+login); err != nil {
			t.Error(err)
		}
	})
	if !found() {
		t.Error("a login that may store jobs is not found")
	}
	exec(t, db, `DO $$ BEGIN EXECUTE format('ALTER ROLE `+login+` IN DATABASE %I SET synchronous_commit = on', current_database()); END $$`)
	if found() {
		t.Error("a login is found that is durable in this database")
	}
}

// With HistoryAhead 1, or from midnight on with 2, there is only tomorrow until the reaper's next look.
func TestOneDayAheadIsEnough(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `DO $$ DECLARE d text; BEGIN
		FOR d IN SELECT inhrelid::regclass FROM pg_inherits
			WHERE inhparent IN ('outbox.history'::regclass, 'outbox.events'::regclass)
			  AND right(inhrelid::regclass::text, 8) > to_char((now() + interval '1 day') AT TIME ZONE 'UTC', 'YYYYMMDD')
		LOOP EXECUTE 'DROP TABLE ' || d; END LOOP; END $$`)
	for _, f := range examine(t, Target{Pool: db}) {
		if f.Question == "tables" && (f.Severity != OK || !strings.Contains(f.What, "partitions for 1 day ahead")) {
			t.Errorf("found %+v", f)
		}
	}
}

// The setting of a login says nothing of those of others.
func TestALoginWithItsOwnSettingDoesNotVouchForOthers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	asks, stores := pgtest.Login(t, db, "outbox_reader"), pgtest.Login(t, db, "outbox_producer")
	name := stores.Config().ConnConfig.User
	found := func() bool {
		return slices.ContainsFunc(examine(t, Target{Pool: asks}), func(f Finding) bool {
			return f.Question == "server" && f.Severity == Warning && strings.Contains(f.What, "hides the server's") && strings.Contains(f.What, "role "+name)
		})
	}
	if found() {
		t.Error("warned of a login without a setting of its own")
	}
	exec(t, db, `ALTER ROLE `+asks.Config().ConnConfig.User+` SET synchronous_commit = on`)
	asks.Reset()
	if !found() {
		t.Error("not warned of a login with a setting of its own")
	}
	exec(t, db, `ALTER ROLE `+name+` SET synchronous_commit = on`)
	if found() {
		t.Error("warned of a role that has a setting, too")
	}
}

func TestARoleThatMayNotReadIsPointedToOneThatMay(t *testing.T) {
	t.Parallel()
	if got := remedy(&pgconn.PgError{Code: pgsession.InsufficientPrivilege}); !strings.Contains(got, "outbox_reader") {
		t.Errorf("it says %q, want a role", got)
	}
}

// A server that is not supported gets that one finding; one that is newer than those of the tests is asked everything.
func TestAnUnsupportedServerIsNamed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `CREATE SCHEMA other`)
	exec(t, db, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = other, pg_catalog', current_database()); END $$`)
	for version, want := range map[string]string{
		"CockroachDB CCL v24.1.0":                                  "not PostgreSQL, but CockroachDB",
		"PostgreSQL 14.13 (Debian 14.13-1) on x86_64-pc-linux-gnu": "the server is PostgreSQL 14, and the oldest that is supported is 15",
		"PostgreSQL 99.1 on x86_64-pc-linux-gnu":                   "the server is PostgreSQL 99, and this build was tested on 15 to 18",
	} {
		exec(t, db, `CREATE OR REPLACE FUNCTION other.version() RETURNS text LANGUAGE sql AS $$ SELECT '`+version+`' $$`)
		db.Reset()
		findings := examine(t, Target{Pool: db})
		severity, alone := Problem, true
		if strings.Contains(version, "99") {
			severity, alone = Warning, false
		}
		if f := findings[0]; (len(findings) == 1) != alone || f.Severity != severity || !strings.Contains(f.What, want) {
			t.Errorf("of %s it found %+v, want first %q, and nothing else: %t", version, findings, want, alone)
		}
	}
}
