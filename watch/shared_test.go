package watch_test

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// What is open is read once for all who look at the same: of root and of a tenant, by queue and by kind.
func TestLinesAreSharedByThoseWhoMaySeeThem(t *testing.T) {
	t.Parallel()
	r := &rig{T: t, db: pgtest.New(t), of: outbox.NewID()}
	r.exec(`INSERT INTO outbox.measured (at, since, complete) SELECT m, m - interval '1 min', true FROM generate_series(date_trunc('minute', now()) - interval '9 min', now(), '1 min') AS m`)
	r.exec(`INSERT INTO outbox.measures (at, tenant_id, queue, kind, waiting, running, dead_letters, enqueued, succeeded, unsuccessful, failed, waits)
		SELECT at, t, 'mail', 'k', n, 0, 0, 0, 0, 0, 0, '{}' FROM outbox.measured, (VALUES ($1::uuid, 3), ($2::uuid, 4)) AS p (t, n)`, outbox.RootTenant, r.of)
	lines := watch.NewLines(operator.New(pgtest.Login(t, r.db, "outbox_api")))
	look := func(tenant outbox.ID, byKind bool) watch.Drawn {
		t.Helper()
		d, err := lines.Look(t.Context(), tenant, byKind, time.Hour, 2*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for tenant, want := range map[outbox.ID]int64{{}: 7, outbox.RootTenant: 3, r.of: 4, outbox.NewID(): 0} {
		for byKind, name := range map[bool]string{false: "mail", true: "k"} {
			d := look(tenant, byKind)
			if want == 0 && len(d.Open) > 0 || want > 0 && (len(d.Open[name]) == 0 || d.Open[name][0].Open != want) || len(d.Measured) == 0 {
				t.Errorf("by kind: %t: a tenant is shown %+v, want %d of %s", byKind, d, want, name)
			}
			if again := look(tenant, byKind); !again.Until.Equal(d.Until) {
				t.Errorf("read at %s and again at %s, want it read once", d.Until, again.Until)
			}
		}
	}
}
