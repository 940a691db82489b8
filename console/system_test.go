package console_test

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/posthaste-dev/posthaste/migrations"
)

// System says what is installed, and how large it is, as far as it is whole.
func TestSystemSaysWhatIsInstalled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	server := r.read(`SHOW server_version`)
	r.get("system").is(200).has("PostgreSQL "+server, "migration "+strconv.FormatInt(migrations.Latest(), 10), runtime.Version(),
		"outbox.history", "outbox.attempts", "outbox.audit", r.read(`SELECT current_database()`), r.read(`SELECT count(*)::text FROM pg_inherits WHERE inhparent = 'outbox.history'::regclass`))
	r.exec(`ALTER TABLE outbox.schema_version RENAME TO forgotten`)
	newRigOn(t, r.db).get("system").is(200).has("schema", "This program").hasNot("PostgreSQL "+server, "outbox.history")
}
