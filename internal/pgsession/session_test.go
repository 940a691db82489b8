package pgsession

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

// leftAlone lists the settings of a session that change what clients send, get or leave behind, by the manual's
// chapters on client connections and compatibility, and that we do not set, with the reason.
var leftAlone = map[string]string{
	"client_min_messages":                 "how much is said",
	"search_path":                         "our statements name their schema, and triggers of users may need theirs",
	"default_table_access_method":         "where and how things are stored",
	"default_tablespace":                  "where and how things are stored",
	"default_toast_compression":           "where and how things are stored",
	"temp_tablespaces":                    "where and how things are stored",
	"default_transaction_read_only":       "who sets it wants no writes; such a server is left",
	"transaction_deferrable":              "of the transaction that runs",
	"transaction_isolation":               "of the transaction that runs; the default is set",
	"transaction_read_only":               "of the transaction that runs",
	"session_replication_role":            "needs a superuser; doctor finds it",
	"statement_timeout":                   "set in pools that work by themselves; elsewhere an administrator's bound holds",
	"lock_timeout":                        "set in pools that work by themselves; elsewhere an administrator's bound holds",
	"transaction_timeout":                 "set in pools that work by themselves; elsewhere an administrator's bound holds",
	"idle_in_transaction_session_timeout": "set in pools that work by themselves; elsewhere an administrator's bound holds",
	"check_function_bodies":               "of CREATE FUNCTION, for migrations",
	"createrole_self_grant":               "of CREATE ROLE; secure() grants nothing by it",
	"event_triggers":                      "needs a superuser",
	"gin_pending_list_limit":              "speed",
	"gin_fuzzy_search_limit":              "there is no GIN index",
	"icu_validation_level":                "of CREATE COLLATION",
	"restrict_nonsystem_relation_kind":    "refuses, and changes no meaning",
	"vacuum_cost_delay":                   "speed",
	"xmlbinary":                           "we use no XML",
	"xmloption":                           "we use no XML",
	"lc_messages":                         "needs a superuser; nothing reads messages",
	"lc_monetary":                         "we use no money",
	"lc_numeric":                          "no number is formatted by the locale",
	"lc_time":                             "no time is formatted by the locale",
	"default_text_search_config":          "we search no text",
	"timezone_abbreviations":              "no time is read that has one",
	"allow_alter_system":                  "no setting of a session",
	"backslash_quote":                     "of literals with backslashes: there are none",
	"escape_string_warning":               "how much is said",
	"lo_compat_privileges":                "we use no large objects",
	"synchronize_seqscans":                "the order of rows that nobody ordered",
	"wal_sender_timeout":                  "of replication",
	"extension_control_path":              "no setting of ours",
	"recursive_worktable_factor":          "speed",
}

// Each setting of this server is either pinned, or left alone for a reason. A new version's new setting needs a
// decision.
func TestEverySettingIsDecidedOn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	rows, _ := db.Query(t.Context(), `
		SELECT name FROM pg_settings
		WHERE context = 'user' AND name NOT LIKE '%.%'
		  AND (category LIKE 'Client Connection Defaults / Statement Behavior'
		    OR category LIKE 'Client Connection Defaults / Locale and Formatting'
		    OR category LIKE 'Version and Platform Compatibility%'
		    OR category LIKE 'Error Handling'
		    OR name LIKE '%timeout')`)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) < 20 {
		t.Fatalf("settings %v, %v", names, err)
	}
	for _, name := range names {
		_, left := leftAlone[strings.ToLower(name)]
		if _, pinned := everySetting()[strings.ToLower(name)]; !pinned && !left && !strings.HasPrefix(name, "vacuum_") && !strings.HasPrefix(name, "tcp_") {
			t.Errorf("%s is neither pinned nor left alone for a reason", name)
		}
	}
}

func everySetting() map[string]string {
	all := maps.Clone(atStart)
	maps.Copy(all, afterwards)
	return all
}

// odd returns a database on which each pinned setting has another value.
func odd(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := pgtest.New(t)
	for name, value := range map[string]string{
		"client_encoding": "LATIN1", "datestyle": "German", "timezone": "Asia/Jakarta", "standard_conforming_strings": "off",
		"intervalstyle": "sql_standard", "bytea_output": "escape", "extra_float_digits": "-5", "array_nulls": "off", "transform_null_equals": "on",
		"quote_all_identifiers": "on", "row_security": "off", "exit_on_error": "on", "default_transaction_isolation": "serializable",
		"default_transaction_deferrable": "on", "idle_session_timeout": "1h", "idle_in_transaction_session_timeout": "1h", "lock_timeout": "1h",
		"statement_timeout": "1h", "jit": "on", "enable_seqscan": "on",
	} {
		var database string
		if err := db.QueryRow(t.Context(), `SELECT current_database()`).Scan(&database); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(t.Context(), fmt.Sprintf(`ALTER DATABASE %s SET %s = '%s'`, database, name, value)); err != nil {
			if refused := State(err); refused == "22023" || refused == "42704" {
				continue // this version knows no such value or setting
			}
			t.Fatal(err)
		}
	}
	db.Reset()
	return db
}

func setting(t *testing.T, pool *pgxpool.Pool, name string) string {
	t.Helper()
	var value string
	if err := pool.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

func judge(t *testing.T, pool *pgxpool.Pool, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if name == "transaction_timeout" {
			continue // 15 and 16 have none
		}
		if strings.HasPrefix(name, "tcp_") && strings.HasPrefix(pool.Config().ConnConfig.Host, "/") {
			continue // a socket in the file system has none
		}
		if got := setting(t, pool, name); got != want[name] {
			t.Errorf("%s = %s, want %s", name, got, want[name])
		}
	}
}

func pinned(t *testing.T, db *pgxpool.Pool, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config := db.Config()
	if change != nil {
		change(config)
	}
	Pin(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func open(t *testing.T, db *pgxpool.Pool, c Config) *pgxpool.Pool {
	t.Helper()
	pool, err := Open(t.Context(), db, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestASessionDoesNotDependOnTheDatabase(t *testing.T) {
	t.Parallel()
	db := odd(t)
	// The settings of the connection string do not matter either, and names are case-insensitive.
	pool := pinned(t, db, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["TimeZone"] = "Asia/Shanghai"
		c.ConnConfig.RuntimeParams["options"] = "-c DateStyle=SQL -c bytea_output=escape"
	})
	judge(t, pool, everySetting())
	if got := setting(t, pool, "statement_timeout"); got != "1h" {
		t.Errorf("statement_timeout = %s: that is for the administrator to say", got)
	}

	want := everySetting()
	maps.Copy(want, inOwnPools)
	maps.Copy(want, byIndex)
	want["statement_timeout"], want["work_mem"] = "7s", "5MB"
	judge(t, open(t, db, Config{Conns: 1, Timeout: 7 * time.Second, ByIndex: true, Settings: map[string]string{"work_mem": "5MB"}}), want)
}

// A transaction whose client has vanished keeps its locks until the server notices, such as the lock of a job's row.
// With the kernel's settings that takes two hours.
func TestAClientThatVanishesIsNoticed(t *testing.T) {
	t.Parallel()
	db, err := pgxpool.New(t.Context(), pgtest.URL(t)) // by TCP: a socket in the file system ends with its client
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	for name, pool := range map[string]*pgxpool.Pool{"for people": pinned(t, db, nil), "of our own": open(t, db, Config{Conns: 1})} {
		var patience time.Duration
		err := pool.QueryRow(t.Context(), `
			SELECT make_interval(secs => current_setting('tcp_keepalives_idle')::int
				+ current_setting('tcp_keepalives_interval')::int * current_setting('tcp_keepalives_count')::int)`).Scan(&patience)
		if err != nil {
			t.Fatal(err)
		}
		if patience == 0 || patience > 15*time.Second {
			t.Errorf("a session %s is kept for %v after its client has vanished, want no longer than a lease", name, patience)
		}
		// A client that reads slowly has not vanished.
		if got := setting(t, pool, "tcp_user_timeout"); got != "0" {
			t.Errorf("tcp_user_timeout of a session %s = %s", name, got)
		}
	}
}

// Behind a pooler that shares sessions, a setting would affect other clients. Such a pooler reports an invented process
// id of up to 32 bits instead of the backend's, and so does this one.
func TestNothingIsSetInASharedSession(t *testing.T) {
	t.Parallel()
	pool := pinned(t, odd(t), func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return renamed{conn}, err
		}
	})
	judge(t, pool, atStart)
	judge(t, pool, map[string]string{"bytea_output": "escape", "default_transaction_isolation": "serializable", "row_security": "off"})
}

// renamed is a connection on which the server reports a process id that no backend can have.
type renamed struct{ net.Conn }

func (r renamed) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if at := bytes.Index(b[:n], []byte("K\x00\x00\x00\x0c")); at >= 0 && at+5 < n {
		b[at+5] |= 0x80
	}
	return n, err
}

// The user's own hooks still run, and first.
func TestHooksOfTheUserStay(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var connects, afters, prepares atomic.Int64
	pool := pinned(t, db, func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
			connects.Add(1)
			conn.RuntimeParams["client_encoding"] = "LATIN1"
			return nil
		}
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			afters.Add(1)
			_, err := conn.Exec(ctx, `SET application_name = 'of the user'; SET bytea_output = escape`)
			return err
		}
		//lint:ignore SA1019 a user's pool may have the older hook
		c.BeforeAcquire = func(context.Context, *pgx.Conn) bool { prepares.Add(1); return true }
	})
	judge(t, pool, map[string]string{"application_name": "of the user", "bytea_output": "hex", "client_encoding": "UTF8"})
	if connects.Load() != 1 || afters.Load() != 1 || prepares.Load() != 3 {
		t.Errorf("hooks ran %d, %d and %d times, want 1, 1 and 3", connects.Load(), afters.Load(), prepares.Load())
	}
}

// The settings of a database or role must not cost durability.
func TestDurabilityIsNotTakenAway(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"off": "on", "local": "local", "remote_apply": "remote_apply"} {
		db := pgtest.New(t)
		if _, err := db.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = `+given+`', current_database()); END $$`); err != nil {
			t.Fatal(err)
		}
		db.Reset()
		pools := map[string]*pgxpool.Pool{
			"of our own": open(t, db, Config{Conns: 1}), "for people": pinned(t, db, nil),
			"by its URL": pinned(t, db, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = given }),
		}
		for name, pool := range pools {
			if got := setting(t, pool, "synchronous_commit"); got != want {
				t.Errorf("synchronous_commit of a pool %s = %s where it was %s, want %s", name, got, given, want)
			}
		}
	}
}

// A pool whose connections met a database that accepted no writes writes again a second after the database accepts
// them.
func TestAPoolLeavesSessionsThatTakeNoWrites(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pinned(t, db, nil)
	set := func(sql string) {
		t.Helper()
		if _, err := db.Exec(t.Context(), `SET default_transaction_read_only = off`); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I `+sql+`', current_database()); END $$`); err != nil {
			t.Fatal(err)
		}
	}
	write := func() error {
		_, err := pool.Exec(t.Context(), `INSERT INTO outbox.queues (queue) VALUES ('q') ON CONFLICT DO NOTHING`)
		return err
	}
	set("SET default_transaction_read_only = on")
	for range 5 {
		if err := write(); State(err) != ReadOnly {
			t.Fatalf("write to a database that takes no writes: %v", err)
		}
	}
	if made := pool.Stat().NewConnsCount(); made != 1 {
		t.Errorf("%d connections for 5 statements: one for each", made)
	}
	set("RESET default_transaction_read_only")
	time.Sleep(readOnlyLife + 100*time.Millisecond)
	if err := write(); err != nil {
		t.Errorf("a second later: %v", err)
	}
}

func TestStatesAreDistinguished(t *testing.T) {
	t.Parallel()
	pg := func(code, constraint string) error {
		return fmt.Errorf("claim: %w", &pgconn.PgError{Code: code, ConstraintName: constraint})
	}
	goesOn := func(code string) error {
		return &pgconn.PgError{Code: code, Severity: "ERREUR", SeverityUnlocalized: "ERROR", Where: "PL/pgSQL function f()"}
	}
	db := pgtest.New(t)
	_, noPartition := db.Exec(t.Context(), `CREATE TABLE outbox.days (day date) PARTITION BY LIST (day); INSERT INTO outbox.days VALUES (now())`)
	_, noneOfAnothers := db.Exec(t.Context(), `CREATE TEMP TABLE days (day date) PARTITION BY LIST (day); INSERT INTO days VALUES (now())`)
	ourOwn := &pgconn.PgError{Code: "42P01", SeverityUnlocalized: "ERROR"}
	_, raised := db.Exec(t.Context(), `DO $$ BEGIN RAISE EXCEPTION 'poisoned' USING ERRCODE = 'check_violation'; END $$`)
	if State(noPartition) != "23514" || State(raised) != "23514" {
		t.Fatalf("got %v and %v, want SQLSTATE 23514 of both", noPartition, raised)
	}
	// There is no place in the NOTIFY queue.
	full := &pgconn.PgError{Code: "54000", SeverityUnlocalized: "ERROR", Routine: "PreCommit_Notify"}
	_, large := db.Exec(t.Context(), `CREATE TEMP TABLE wide (body text PRIMARY KEY); INSERT INTO wide SELECT string_agg(gen_random_uuid()::text, '') FROM generate_series(1, 500)`)
	if State(large) != full.Code {
		t.Fatalf("got %v, want SQLSTATE 54000 of a row that is too large for its index", large)
	}
	var connecting []error
	for _, code := range []string{"22003", "22023", "23514", "28P01", "42501", "53300", "54000", "55P03", "57014"} {
		connecting = append(connecting, fmt.Errorf("settle: %w", &sessionError{pg(code, "c")}))
	}
	bad := db.Config().ConnConfig
	bad.RuntimeParams["work_mem"] = "plenty"
	_, err := pgx.ConnectConfig(t.Context(), bad)
	if State(err) != "22023" {
		t.Fatalf("connect with a setting that is wrong: %v, want SQLSTATE 22023", err)
	}
	connecting = append(connecting, fmt.Errorf("settle: %w", err))
	for name, c := range map[string]struct {
		judge    func(error) bool
		yes, not []error
	}{
		"RefusesTheRow":  {RefusesTheRow, []error{pg("22P05", ""), pg("23514", "c"), pg("P0001", ""), pg("55P03", ""), pg("57014", ""), pg("40P01", "")}, []error{errors.New("cut"), pg("25006", ""), pg("42501", ""), pg("57P01", ""), pg("40001", ""), pg("53300", ""), full}},
		"IsRefusal":      {IsRefusal, []error{pg("23514", "c"), raised, pg("22008", ""), pg("P0001", ""), large}, []error{errors.New("cut"), noPartition, pg("55P03", ""), pg("57014", ""), pg("40P01", ""), pg("53300", ""), full}},
		"MayBeRefusal":   {MayBeRefusal, []error{pg("P0001", ""), raised, goesOn("42P01"), goesOn("42501"), goesOn("08001"), goesOn("58030"), goesOn("XX000")}, []error{ourOwn, goesOn("53100"), goesOn("53200"), errors.New("cut"), noPartition, goesOn("55P03"), goesOn("57014"), goesOn("40P01"), goesOn("40001"), goesOn("25006"), &pgconn.PgError{Code: "XX000", Severity: "FATAL"}, &pgconn.PgError{Code: "57P01", Severity: "FATAL"}, full}},
		"IsLockedOut":    {IsLockedOut, []error{pg("55P03", ""), pg("57014", ""), pg("40P01", "")}, []error{errors.New("cut"), pg("55006", "")}},
		"IsGone":         {IsGone, []error{errors.New("cut"), pg("57P01", ""), pg("08006", ""), pg("25006", "")}, []error{pg("57014", ""), pg("23505", "")}},
		"IsUnacceptable": {IsUnacceptable, []error{pg("22021", ""), pg("23514", "c"), large}, []error{errors.New("cut"), noPartition, pg("P0001", ""), pg("55P03", ""), full}},
		"IsForbidden":    {IsForbidden, []error{pg("42501", ""), pg("42P01", ""), pg("3F000", "")}, []error{errors.New("cut"), pg("42P05", ""), pg("57P01", "")}},
		"IsLoginRefused": {IsLoginRefused, []error{pg("28P01", ""), pg("3D000", ""), &sessionError{pg("42501", "")}}, []error{errors.New("cut"), pg("42501", ""), pg("57P03", ""), &sessionError{pg("53300", "")}}},
		"IsNoPartition":  {IsNoPartition, []error{noPartition}, []error{noneOfAnothers, pg("23514", "c"), raised, errors.New("cut")}},
		"IsAway":         {IsAway, []error{pg("25006", ""), pg("42P01", ""), pg("40001", ""), pg("57P03", ""), &pgconn.ConnectError{}, io.ErrUnexpectedEOF, io.EOF}, []error{errors.New("odd"), pg("23505", ""), pg("42501", "")}},
		"ChangedNothing": {ChangedNothing, []error{pg("40001", ""), pg("53300", ""), pg("25006", ""), &sessionError{pg("57P03", "")}, &pgconn.ConnectError{}, pgx.ErrTxCommitRollback, pgx.ErrTxClosed}, []error{errors.New("cut"), pg("57P01", ""), pg("08006", ""), pg("58030", ""), pg("XX000", ""), pg("XX001", "")}},
		// The server's answer while we connect is not about a statement.
		"IsUnreachable":  {IsUnreachable, connecting, []error{errors.New("cut"), pg("57P01", "")}},
		"IsGone, IsAway": {func(err error) bool { return IsGone(err) && IsAway(err) }, connecting, nil},
		"a refusal": {func(err error) bool {
			return RefusesTheRow(err) || IsForbidden(err) || IsUnacceptable(err) || IsLockedOut(err)
		}, nil, connecting},
	} {
		for _, err := range c.yes {
			if !c.judge(err) {
				t.Errorf("%s(%v) = false", name, err)
			}
		}
		for _, err := range c.not {
			if c.judge(err) {
				t.Errorf("%s(%v) = true", name, err)
			}
		}
	}
	if got := State(errors.New("cut")); got != "" {
		t.Errorf("the state of no answer = %q", got)
	}
}

func TestWhatIsRefusedIsTakenApart(t *testing.T) {
	t.Parallel()
	refusal, cut := &pgconn.PgError{Code: "P0001"}, errors.New("cut")
	missing := &pgconn.PgError{Code: "42P01", Severity: "ERREUR", SeverityUnlocalized: "ERROR", Where: "PL/pgSQL function f()"}
	for name, c := range map[string]struct {
		rows, refused, done string
		statements          int
		err                 error
	}{
		"a trigger's table is missing": {rows: "abcTefgh", refused: "T", done: "abcefgh", statements: 11},
		"the only trigger's is":        {rows: "T", refused: "T", statements: 2},
		"our table is missing":         {rows: "abcMefgh", statements: 2, err: missing},
		"it goes missing":              {rows: "abXcefgM", refused: "X", done: "abc", statements: 8, err: missing},
		"nothing is refused":           {rows: "abcdefgh", done: "abcdefgh", statements: 1},
		"one is":                       {rows: "abcXefgh", refused: "X", done: "abcefgh", statements: 7},
		"the only one is":              {rows: "X", refused: "X", statements: 1},
		"all are":                      {rows: "XXX", refused: "XXX", statements: 5},
		"it is cut off":                {rows: "abXd!fgh", refused: "X", done: "abd", statements: 7, err: cut},
	} {
		var done, refused strings.Builder
		statements := 0
		err := Apart([]byte(c.rows), func(part []byte) error {
			statements++
			switch {
			case bytes.ContainsRune(part, 'X'):
				return refusal
			case bytes.ContainsRune(part, '!'):
				return cut
			case bytes.ContainsRune(part, 'T'), len(part) == 0 && strings.Contains(c.rows, "M"), bytes.ContainsRune(part, 'M'):
				return missing
			}
			done.Write(part)
			return nil
		}, func(row byte, err error) {
			if err != error(refusal) && row != 'T' {
				t.Errorf("%s: %c is refused because of %v", name, row, err)
			}
			refused.WriteByte(row)
		})
		if done.String() != c.done || refused.String() != c.refused || statements != c.statements || err != c.err {
			t.Errorf("%s: done %q, refused %q, %d statements, %v; want %+v", name, &done, &refused, statements, err, c)
		}
	}
}
