package access_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/changefeed"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// What GET /changes reads, as the role that it connects as: the second wall holds when
// the statement asks for nobody's in particular.
func TestChangesOfATenantAreThoseOfItsTransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := login(t, db, "outbox_api", "")
	var from changefeed.Position
	everybody := access.Principal{AllTenants: true}
	if err := access.InTx(t.Context(), pool, everybody, func(tx pgx.Tx) (err error) {
		from, err = changefeed.Now(t.Context(), tx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ours, theirs := populate(t, db), populate(t, db)
	for name, tt := range map[string]struct {
		who  access.Principal
		want map[outbox.ID]bool
	}{
		"a tenant":    {access.Principal{Tenant: ours.id}, map[outbox.ID]bool{ours.id: true}},
		"another":     {access.Principal{Tenant: theirs.id}, map[outbox.ID]bool{theirs.id: true}},
		"nobody":      {access.Principal{Tenant: outbox.NewID()}, nil},
		"all of them": {everybody, map[outbox.ID]bool{ours.id: true, theirs.id: true}},
	} {
		var found []changefeed.Change
		if err := access.InTx(t.Context(), pool, tt.who, func(tx pgx.Tx) (err error) {
			found, _, _, err = changefeed.List(t.Context(), tx, outbox.ID{}, from, 100)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		for _, c := range found {
			if !tt.want[c.Tenant] {
				t.Errorf("%s is told of %s of %s", name, c.ID, c.Tenant)
			}
		}
		if len(found) != 3*len(tt.want) {
			t.Errorf("%s is told of %d jobs, want %d", name, len(found), 3*len(tt.want))
		}
	}
}
