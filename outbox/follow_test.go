package outbox

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// Behind a connection pooler pgx guesses the types of parameters.
func TestEveryExecModeStoresTheSameFollowUps(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			pool := modePool(t, db, mode)
			id, err := Enqueue(t.Context(), db, greet{"ada"}, Options{Tenant: tenant, Headers: map[string]string{"a": `"\u0000' NULL`}})
			if err != nil {
				t.Fatal(err)
			}
			job := lease(t, db, id)
			job.Tenant, job.RawHeaders = tenant, ask[[]byte](t, db, `SELECT headers::text FROM outbox.jobs`)
			payload := Raw{KindName: "raw", Payload: []byte("\x00\xff\\{\"'\n"), ContentType: "application/x-protobuf"}
			odd, err := job.Then(payload, Options{Queue: "mail", Priority: -5, MaxAttempts: 3, Key: `a "key", {\with} 'é'`, Timeout: 1e9, Delay: 1e9, Watched: true})
			if err != nil {
				t.Fatal(err)
			}
			plain, err := job.Then(greet{"bob"}, Options{Headers: map[string]string{}})
			if err != nil {
				t.Fatal(err)
			}
			if err := job.Complete(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			want := wantRow(map[string]any{
				"tenant_id": tenant.String(), "parent_id": id.String(), "queue": "mail", "kind": "raw", "priority": -5., "max_attempts": 3.,
				"payload": "\\000\\377\\\\{\"'\n", "content_type": "application/x-protobuf", "key": `a "key", {\with} 'é'`, "timeout": "00:00:01",
				"due_in": "00:00:01", "headers": map[string]any{"a": `"\u0000' NULL`}, "watched": true,
			})
			if diff := cmp.Diff(want, stored(t, db, odd)); diff != "" {
				t.Errorf("with every option (-want +got):\n%s", diff)
			}
			want = wantRow(map[string]any{"tenant_id": tenant.String(), "parent_id": id.String(), "payload": `{"name":"bob"}`})
			if diff := cmp.Diff(want, stored(t, db, plain)); diff != "" {
				t.Errorf("with none (-want +got):\n%s", diff)
			}
		})
	}
}
