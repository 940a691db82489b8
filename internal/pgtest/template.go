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
	files fs.FS
	up    func(context.Context, *pgxpool.Pool) error
}

var product = migration{files: migrations.FS, up: migrate.Up}

// templates remembers, by server, that the product's template is known to be there.
var templates sync.Map

// ensureTemplate returns the name of the database that tests are cloned from,
// made now if need be.
func ensureTemplate(ctx context.Context, server string) (string, error) {
	if name, known := templates.Load(server); known {
		return name.(string), nil
	}
	name, err := product.template(ctx, server)
	if err != nil {
		return "", err
	}
	templates.Store(server, name)
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
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)", name).Scan(&finished)
	if err != nil || finished {
		return name, err
	}
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
		return "", err
	}
	url, _, err := pgdev.CreateDatabase(ctx, server, name)
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
	return m.up(ctx, pool)
}

// name is made of the files' names and contents.
func (m migration) name() (string, error) {
	sum := sha256.New()
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
