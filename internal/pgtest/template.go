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

// templateLock is the advisory lock under which one process of all that share
// a server makes the template, in the maintenance database.
const templateLock = 0x706f7374 // "post"

// migration is what a template holds: files to name it by, and how to run them.
type migration struct {
	files    fs.FS
	up       func(context.Context, *pgxpool.Pool) error
	encoding string // "" is the server's, UTF-8
}

var product = migration{files: migrations.FS, up: up}

// up migrates, and drops the last days that are made ahead: their tables are a quarter of the files that each clone
// copies. A reaper finds as many as it makes.
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

// templates remembers, by server and encoding, that the product's template is known to be there.
var templates sync.Map

// ensureTemplate returns the name of the database that tests are cloned from,
// made now if need be.
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

// template makes the template unless it is there. That a database of this name
// is marked as template proves that migrating it went through, because the mark
// is set last; one without the mark is the rest of a crash.
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
	// Nobody can be cloned while somebody is connected.
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

// settle leaves less to do for each copy of the database and to the sessions of the copy. The catalogs are written
// anew, which takes away what migrating has left in them; and the next session to begin writes down what it has read
// of them (pg_internal.init), which is copied with the rest. The product's tables stay as the migrations make them,
// without statistics: plans are those of a new database.
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

// name is made of the files' names and contents, and of the encoding.
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
