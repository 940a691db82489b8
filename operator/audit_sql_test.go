package operator_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// What the functions of the schema do on their own is recorded like what an operator does
// through them: once, and with the same words.
func TestActsOfTheSQLFunctionsAreRecorded(t *testing.T) {
	t.Parallel()
	type act struct {
		Act, Queue, Target, Was, Became, Reason, RequestID string
		Job                                                int // of the jobs below
	}
	recorded := func(t *testing.T, o *operator.Operator, jobs []outbox.ID, actor string) (acts []act) {
		for _, e := range slices.Backward(audit(t, o, operator.AuditFilter{})) {
			if e.Tenant != outbox.RootTenant || !strings.HasPrefix(e.Actor, actor) && e.Actor != "eve" {
				t.Errorf("%s is %q's, of tenant %s", e.Act, e.Actor, e.Tenant)
			}
			acts = append(acts, act{e.Act, e.Queue, e.Target, string(e.Before), string(e.After), e.Reason, e.RequestID, slices.Index(jobs, e.JobID)})
		}
		if found, err := o.VerifyAudit(t.Context(), operator.AuditHead{}); err != nil || found.Broken > 0 || found.Acts != int64(len(acts)) {
			t.Errorf("the chain: %+v, %v", found, err)
		}
		return acts
	}
	for _, name := range []string{"an operator", "SQL"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, db := newRig(t)
			held := enqueue(t, db, "mail", outbox.Options{Hold: true})
			waiting := enqueue(t, db, "mail", outbox.Options{Queue: "post"})
			running, _ := reach(t, db, outbox.Running)
			closed, _ := reach(t, db, outbox.Succeeded)
			parkedFor := outbox.NewID()
			exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key, park_at, parked_at, parked_for)
				VALUES ($1, 'default', 'k', '2027-01-31 09:00:00.5+02', '2027-01-31 10:00+02', $2)`, outbox.RootTenant, parkedFor)
			actor := "ada"
			var errs []error
			if name == "SQL" {
				login, err := pgtest.Login(t, db, "outbox_api").Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer login.Release()
				actor = login.Conn().Config().User + "@"
				do := func(sql string, args ...any) {
					_, err := login.Exec(t.Context(), sql, args...)
					errs = append(errs, err)
				}
				do(`SELECT set_config('app.tenant_id', $1, false)`, outbox.RootTenant.String())
				for _, id := range []outbox.ID{held, held, closed} { // the second changes nothing
					do(`SELECT outbox.release($1)`, id)
				}
				do(`SELECT outbox.cancel($1, 'eve', 'req-1', 'it is late')`, waiting)
				for _, id := range []outbox.ID{waiting, running, running, closed, outbox.NewID()} {
					do(`SELECT outbox.cancel($1)`, id)
				}
				do(`SELECT outbox.unblock_key($1, 'default', 'k')`, outbox.RootTenant)
				do(`SELECT outbox.unblock_key($1, 'default', 'nobody knows it')`, outbox.RootTenant)
			} else {
				ada := o.As(operator.Actor{Name: "ada"})
				late := o.As(operator.Actor{Name: "ada", RequestID: "req-1"}).Because("it is late")
				ctx := context.WithoutCancel(t.Context())
				errs = append(errs, ada.Release(ctx, held))
				_, _ = ada.Release(ctx, held), ada.Release(ctx, closed)
				_, err := late.Cancel(ctx, waiting)
				errs = append(errs, err)
				for _, id := range []outbox.ID{waiting, running, running, closed, outbox.NewID()} {
					_, _ = ada.Cancel(ctx, id)
				}
				_, err = ada.Unblock(ctx, operator.KeyName{Key: "k"})
				errs = append(errs, err)
				_, _ = ada.Unblock(ctx, operator.KeyName{Key: "nobody knows it"})
			}
			for _, err := range errs {
				if err != nil {
					t.Fatal(err)
				}
			}
			want := []act{
				{"job.release", "default", "", `{"status": "created"}`, `{"status": "pending"}`, "", "", 0},
				{"job.cancel", "post", "", `{"status": "pending"}`, `{"status": "cancelled"}`, "it is late", "req-1", 1},
				{"job.cancel", "default", "", `{"status": "running"}`, `{"status": "running", "cancel_requested": true}`, "", "", 2},
				{"job.cancel", "default", "", `{"status": "running", "cancel_requested": true}`, `{"status": "running", "cancel_requested": true}`, "", "", 2},
				{
					"key.unblock", "default", "k", `{"park_at": "2027-01-31T07:00:00.500000Z", "parked_at": "2027-01-31T08:00:00.000000Z", "parked_for": "` + parkedFor.String() + `"}`,
					`{"retried": 0, "parked_at": null}`, "", "", -1,
				},
			}
			if diff := cmp.Diff(want, recorded(t, o, []outbox.ID{held, waiting, running}, actor)); diff != "" {
				t.Errorf("audit (-want +got):\n%s", diff)
			}
		})
	}
}
