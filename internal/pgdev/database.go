package pgdev

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// CreateDatabase creates a new, empty database on the server of dsn and returns its URL. It fails if the name is taken:
// it never touches existing data. drop removes the database again, and fails while a client is connected to it.
func CreateDatabase(ctx context.Context, dsn, name string) (dbURL string, drop func(context.Context) error, err error) {
	quoted := pgx.Identifier{name}.Sanitize()
	if err := exec1(ctx, dsn, "CREATE DATABASE "+quoted+" TEMPLATE template0"); err != nil {
		return "", nil, fmt.Errorf("create database %s: %w", name, err)
	}
	drop = func(ctx context.Context) error {
		if err := exec1(ctx, dsn, "DROP DATABASE IF EXISTS "+quoted); err != nil {
			return fmt.Errorf("drop database %s: %w", name, err)
		}
		return nil
	}
	dbURL, err = WithDatabase(dsn, name)
	return dbURL, drop, err
}

// exec1 runs one statement on a connection of its own.
func exec1(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}

// WithDatabase returns dsn, a URL or a keyword/value string, with another database.
func WithDatabase(dsn, name string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(name)
		return fmt.Sprintf("%s dbname='%s'", dsn, quoted), nil // the last one counts
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", fmt.Errorf("parse database URL: %w", redacted(err))
	}
	u.Path, u.RawPath = "/"+name, ""
	if q := u.Query(); q.Has("dbname") || q.Has("database") {
		q.Del("dbname")
		q.Del("database")
		u.RawQuery = q.Encode()
	}
	return u.String(), nil
}

// redacted returns the reason of a parse error without the URL, which may contain a password.
func redacted(err error) error {
	if parse, ok := err.(*url.Error); ok {
		return parse.Err
	}
	return err
}
