package inbox_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/inbox"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations"
)

func TestDDLIsWhatTheMigrationMakes(t *testing.T) {
	var up string
	for _, part := range []struct{ file, statement string }{
		{"00001_tables.sql", "CREATE TABLE outbox.inbox "},
		{"00002_indexes.sql", "CREATE INDEX inbox_received_at_idx "},
		{"00003_events.sql", "CREATE TABLE outbox.inbox_positions "},
	} {
		file, err := migrations.FS.ReadFile(part.file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(file), part.statement)
		statement, _, _ := strings.Cut(rest, ";")
		if !found {
			t.Fatalf("%s has no %s", part.file, part.statement)
		}
		up += part.statement + statement + ";\n"
	}

	ddl := strings.ReplaceAll(inbox.DDL, "IF NOT EXISTS ", "")
	schema, ddl, _ := strings.Cut(ddl, "END $$;\n")
	if !strings.Contains(schema, "CREATE SCHEMA outbox;") {
		t.Error("DDL does not begin with the schema, which the other database does not have")
	}
	if diff := cmp.Diff(words(up), words(ddl)); diff != "" {
		t.Errorf("DDL differs from the migrations (-migration +DDL):\n%s", diff)
	}
}

var comment = regexp.MustCompile(`--.*`)

func words(sql string) []string { return strings.Fields(comment.ReplaceAllString(sql, "")) }

// The schema may belong to somebody else, who lets a service create its tables there.
func TestDDLNeedsNoRightToMakeASchemaThatExists(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	service := pgtest.Login(t, db, "pg_monitor")
	role := service.Config().ConnConfig.User
	if _, err := db.Exec(t.Context(), `CREATE SCHEMA outbox; GRANT USAGE, CREATE ON SCHEMA outbox TO `+role); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // or the role cannot be dropped
		if _, err := db.Exec(context.Background(), `DROP SCHEMA outbox CASCADE`); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if _, err := service.Exec(t.Context(), inbox.DDL); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOnceWorksInADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	if _, err := inbox.Once(t.Context(), db, "mailer", "1"); err == nil || !strings.Contains(err.Error(), "inbox.DDL") {
		t.Errorf("error without the table = %v, want one that names inbox.DDL", err)
	}
	for range 2 { // the second time it changes nothing
		if _, err := db.Exec(t.Context(), inbox.DDL); err != nil {
			t.Fatal(err)
		}
	}
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		first, err := inbox.Once(t.Context(), tx, "mailer", "1")
		if !first {
			t.Errorf("first = %t, want true", first)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
