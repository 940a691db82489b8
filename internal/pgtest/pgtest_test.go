package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestEveryTestHasItsOwnMigratedDatabase(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			db := New(t)
			var before int
			if err := db.QueryRow(t.Context(), "SELECT count(*) FROM outbox.jobs").Scan(&before); err != nil || before != 0 {
				t.Fatalf("jobs in a new database = %d, %v, want 0", before, err)
			}
			if _, err := db.Exec(t.Context(), "CREATE TABLE mine (); SELECT pg_advisory_lock(1)"); err != nil {
				t.Errorf("something is shared with another test: %v", err)
			}
		})
	}
}

func TestNewEmptyIsEmpty(t *testing.T) {
	t.Parallel()
	var migrated bool
	if err := NewEmpty(t).QueryRow(t.Context(), "SELECT to_regnamespace('outbox') IS NOT NULL").Scan(&migrated); err != nil || migrated {
		t.Errorf("schema outbox exists = %t, %v, want none", migrated, err)
	}
}

// A clone equals a migrated database, except for days that no test needs.
func TestACloneHasTheDaysOfAReaperAndNoStatistics(t *testing.T) {
	t.Parallel()
	var days int
	var untouched bool
	if err := New(t).QueryRow(t.Context(), `
		SELECT count(*), (SELECT bool_and(reltuples = -1) FROM pg_class WHERE relname IN ('jobs', 'history', 'events') AND relkind = 'r')
		FROM pg_inherits WHERE inhparent IN ('outbox.history'::regclass, 'outbox.events'::regclass)`).Scan(&days, &untouched); err != nil {
		t.Fatal(err)
	}
	if days != 2*(1+1+7) || !untouched {
		t.Errorf("%d partitions, want those from yesterday for seven days; no statistics: %t, want true", days, untouched)
	}
}

// A pool's connections use the Unix socket; the pool's connection string uses TCP.
func TestAPoolTakesTheSocket(t *testing.T) {
	t.Parallel()
	db := New(t)
	if os.Getenv(serverVariable) != "" && os.Getenv(socketVariable) == "" {
		t.Skip("the server was started by somebody else: where its socket is, is not known")
	}
	for bySocket, connect := range map[bool]func() (*pgx.Conn, error){
		true:  func() (*pgx.Conn, error) { return pgx.ConnectConfig(t.Context(), db.Config().ConnConfig) },
		false: func() (*pgx.Conn, error) { return pgx.Connect(t.Context(), db.Config().ConnString()) },
	} {
		conn, err := connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		var got bool
		if err := conn.QueryRow(t.Context(), `SELECT inet_server_addr() IS NULL`).Scan(&got); err != nil || got != bySocket {
			t.Errorf("by the socket: %t, %v, want %t", got, err, bySocket)
		}
	}
}

func TestTheTemplateIsMadeOnce(t *testing.T) {
	t.Parallel()
	var migrated atomic.Int32
	m := migration{
		files: fstest.MapFS{"1.sql": {Data: fmt.Append(nil, "once ", os.Getpid())}},
		up: func(ctx context.Context, db *pgxpool.Pool) error {
			migrated.Add(1)
			_, err := db.Exec(ctx, "CREATE TABLE made AS SELECT 1 FROM pg_sleep(0.2)")
			return err
		},
	}
	server := serverURL(t)
	name := templateAtOnce(t, m, server, 5)
	if got := migrated.Load(); got != 1 {
		t.Errorf("it was migrated %d times, want once", got)
	}
	open(t, newClone(t, name).url) // a template without connections can be cloned
	dropTemplate(t, server, name)
}

// A process that dies while it migrates leaves a database without the mark.
func TestAHalfMigratedTemplateIsMadeAnew(t *testing.T) {
	t.Parallel()
	failure := errors.New("killed")
	m := migration{files: fstest.MapFS{"1.sql": {Data: fmt.Append(nil, "half ", os.Getpid())}}}
	m.up = func(ctx context.Context, db *pgxpool.Pool) error {
		_, err := db.Exec(ctx, "CREATE TABLE made ()")
		return errors.Join(err, failure)
	}
	server := serverURL(t)
	if _, err := m.template(t.Context(), server); !errors.Is(err, failure) {
		t.Fatalf("template = %v, want %v", err, failure)
	}
	m.up = func(ctx context.Context, db *pgxpool.Pool) error {
		_, err := db.Exec(ctx, "CREATE TABLE made ()") // fails if the first is still there
		return err
	}
	dropTemplate(t, server, templateAtOnce(t, m, server, 1))
}

func TestTheTemplateIsNamedByContents(t *testing.T) {
	t.Parallel()
	name := func(files fstest.MapFS) string {
		name, err := migration{files: files}.name()
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	base := name(fstest.MapFS{"1.sql": {Data: []byte("a")}, "2.sql": {Data: []byte("b")}})
	for what, files := range map[string]fstest.MapFS{
		"an edit":   {"1.sql": {Data: []byte("a")}, "2.sql": {Data: []byte("c")}},
		"a rename":  {"1.sql": {Data: []byte("a")}, "3.sql": {Data: []byte("b")}},
		"one less":  {"1.sql": {Data: []byte("a")}},
		"one moved": {"1.sql": {Data: []byte("ab")}, "2.sql": {}},
	} {
		if name(files) == base {
			t.Errorf("%s leaves the name as it was", what)
		}
	}
	if same := name(fstest.MapFS{"1.sql": {Data: []byte("a")}, "2.sql": {Data: []byte("b")}, "doc.md": {}}); same != base {
		t.Error("what is no migration changes the name")
	}
}

func templateAtOnce(t *testing.T, m migration, server string, n int) string {
	t.Helper()
	names := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var err error
			if names[i], err = m.template(t.Context(), server); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return names[0]
}

func dropTemplate(t *testing.T, server, name string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, sql := range []string{"ALTER DATABASE " + name + " IS_TEMPLATE false", "DROP DATABASE " + name} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkNew measures the cost of a test that does nothing: its database is created, used once, checked and dropped.
func BenchmarkNew(b *testing.B) {
	template(b, "")
	for b.Loop() {
		db, end := Example()
		if _, err := db.Exec(b.Context(), "SELECT FROM outbox.jobs"); err != nil {
			b.Fatal(err)
		}
		end()
	}
}
