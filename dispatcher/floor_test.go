package dispatcher_test

import (
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// A program with a dispatcher that is too old for the schema claims nothing, and reports it.
func TestADispatcherThatIsTooOldClaimsNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Exec(t.Context(), `SELECT outbox.enqueue('probe'); INSERT INTO outbox.schema_files VALUES ('floor/0.9.0', sha256(''), 1000)`); err != nil {
		t.Fatal(err)
	}
	d, err := dispatcher.New(db, handle(nil), quiet(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "which needs release 0.9.0 or newer") {
		t.Errorf("Run: %v, want a sentence that names the release", err)
	}
	var attempts int
	if err := db.QueryRow(t.Context(), `SELECT attempt FROM outbox.jobs`).Scan(&attempts); err != nil || attempts != 0 {
		t.Errorf("the job has %d attempts, %v; want none", attempts, err)
	}
}
