package pgdev

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestCreateDatabase(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Fast: true})
	const name = `an "odd" name`
	url, drop, err := CreateDatabase(t.Context(), s.URL(), name)
	if err != nil {
		t.Fatal(err)
	}
	if got := query(t, url, "SELECT current_database()"); got != name {
		t.Errorf("current_database = %q, want %q", got, name)
	}
	if _, _, err := CreateDatabase(t.Context(), s.URL(), name); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("second CreateDatabase = %v, want that it exists", err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if err := drop(t.Context()); err == nil {
		t.Error("a database in use was dropped")
	}
	conn.Close(t.Context())
	if err := drop(t.Context()); err != nil {
		t.Error(err)
	}
	if connects(url) {
		t.Error("the database is there after drop")
	}
}

func TestWithDatabase(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ dsn, want string }{
		"a URL":                        {"postgres://u:p@h:1/a?sslmode=disable", "postgres://u:p@h:1/b?sslmode=disable"},
		"a URL without database":       {"postgresql://h", "postgresql://h/b"},
		"a URL with a database option": {"postgres:///?host=%2Ftmp&dbname=a", "postgres:///b?host=%2Ftmp"},
		"keywords":                     {"host=h dbname=a", "host=h dbname=a dbname='b'"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := WithDatabase(test.dsn, "b")
			if err != nil || got != test.want {
				t.Errorf("WithDatabase(%q) = %q, %v, want %q", test.dsn, got, err, test.want)
			}
			config, err := pgx.ParseConfig(got)
			if err != nil || config.Database != "b" {
				t.Errorf("pgx reads %q as database %q, %v, want b", got, config.Database, err)
			}
		})
	}
	if _, err := WithDatabase("postgres://user:secret@h:port/", "b"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error = %v, want one that keeps the password", err)
	}
}
