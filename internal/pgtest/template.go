package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/migrations"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
)

// templateLock is the advisory lock, in the maintenance database, under which one of the processes that share a server
// makes the template.
const templateLock = 0x706f7374 // "post"

// migration describes a template: the files that name it, and a function that runs them.
type migration struct {
	files    fs.FS
	up       func(context.Context, *pgxpool.Pool) error
	encoding string // "" is the server's, UTF-8
}

var product = migration{files: migrations.FS, up: up}

// up migrates, and drops the last of the days that are created ahead: their tables are a quarter of the files that each
// clone copies. The tables that are left are those that a reaper creates.
func up(ctx context.Context, db *pgxpool.Pool) error {
	if err := migrate.Up(ctx, db); err != nil {
		return err
	}
	_, err := db.Exec(ctx, `DO $$
		DECLARE day regclass;
		BEGIN
			FOR day IN
				SELECT inhrelid FROM pg_inherits WHERE inhparent IN ('outbox.history'::regclass, 'outbox.events'::regclass)
				AND inhrelid::regclass::text > inhparent::regclass || to_char(now() AT TIME ZONE 'UTC' + interval '7 days', '_YYYYMMDD')
			LOOP
				EXECUTE 'DROP TABLE ' || day;
			END LOOP;
		END $$`)
	return err
}

// templates records, by server and encoding, that the product's template is known to exist.
var templates sync.Map

// ensureTemplate returns the name of the database that tests are cloned from, and makes it if necessary.
func ensureTemplate(ctx context.Context, server, encoding string) (string, error) {
	key := [2]string{server, encoding}
	if name, known := templates.Load(key); known {
		return name.(string), nil
	}
	m := product
	m.encoding = encoding
	name, err := m.template(ctx, server)
	if err != nil {
		return "", err
	}
	templates.Store(key, name)
	return name, nil
}

// template makes the template unless it exists. A database of this name that is marked as a template is completely
// migrated, because the mark is set last; one without the mark is left from a crash.
func (m migration) template(ctx context.Context, server string) (string, error) {
	name, err := m.name()
	if err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // and with it the lock
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", templateLock); err != nil {
		return "", err
	}
	var finished bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)", name).Scan(
		&finished)
	if err != nil || finished {
		return name, err
	}
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
		return "", err
	}
	create := "CREATE DATABASE " + name + " TEMPLATE template0"
	if m.encoding != "" {
		create += " ENCODING " + m.encoding + " LOCALE 'C'"
	}
	if _, err := conn.Exec(ctx, create); err != nil {
		return "", err
	}
	url, err := pgdev.WithDatabase(server, name)
	if err != nil {
		return "", err
	}
	if err := m.migrate(ctx, url); err != nil {
		return "", err
	}
	// A database cannot be cloned while there are connections to it.
	_, err = conn.Exec(ctx, "ALTER DATABASE "+name+" IS_TEMPLATE true ALLOW_CONNECTIONS false")
	return name, err
}

func (m migration) migrate(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := m.up(ctx, pool); err != nil {
		return err
	}
	return settle(ctx, pool)
}

// settle reduces the work of copying the database, and of the sessions of the copy. It rewrites the catalogs, which
// removes the dead rows of the migrations. The next session to start then writes what it has read of the catalogs to
// pg_internal.init, which is copied with the rest. The product's tables stay as the migrations make them, without
// statistics: plans are those of a new database.
func settle(ctx context.Context, pool *pgxpool.Pool) error {
	var catalogs string
	err := pool.QueryRow(ctx, `SELECT string_agg(oid::regclass::text, ', ') FROM pg_class
		WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND NOT relisshared`).Scan(&catalogs)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "VACUUM (FULL, FREEZE) "+catalogs); err != nil {
		return err
	}
	pool.Reset()
	return pool.Ping(ctx)
}

// name returns a name that depends on the files' names and contents, and on the encoding.
func (m migration) name() (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, m.encoding)
	err := fs.WalkDir(m.files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".sql") {
			return err
		}
		content, err := fs.ReadFile(m.files, path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(content), content)
		return err
	})
	return "outbox_" + hex.EncodeToString(sum.Sum(nil)[:8]), err
}
