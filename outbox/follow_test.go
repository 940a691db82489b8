package outbox

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// What their kind says of an idempotency key, a bound of a key or the tenant is for producers.
func TestFollowUpsOfAnyKindCanBeAdded(t *testing.T) {
	t.Parallel()
	job := &Claimed{ID: NewID(), Tenant: tenant}
	for _, kind := range []defaulting{
		{Options{Tenant: NewID(), IdempotencyKey: "i"}}, {Options{Key: KeyRules{Name: "k", MaxQueued: 1, WhenFull: ReplaceOldest}}},
	} {
		if _, err := job.Then(kind, Options{}); err != nil {
			t.Error(err)
		}
	}
}

type defaulting struct{ defaults Options }

func (defaulting) Kind() string              { return "defaulting" }
func (d defaulting) DefaultOptions() Options { return d.defaults }

// Behind a connection pooler pgx guesses the types of parameters.
func TestEveryExecModeStoresTheSameFollowUps(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			pgtest.Empty(t, db)
			pool := modePool(t, db, mode)
			id, err := Enqueue(t.Context(), db, greet{"ada"}, Options{Tenant: tenant, Headers: map[string]string{"a": `"\u0000' NULL`}})
			if err != nil {
				t.Fatal(err)
			}
			job := lease(t, db, id)
			job.Tenant, job.RawHeaders = tenant, ask[[]byte](t, db, `SELECT headers::text FROM outbox.jobs`)
			payload := Raw{KindName: "raw", Payload: []byte("\x00\xff\\{\"'\n"), ContentType: "application/x-protobuf"}
			odd, err := job.Then(payload, Options{Queue: "mail", Priority: -5, MaxAttempts: 3, Key: KeyRules{Name: `a "key", {\with} 'é'`}, Timeout: 1e9, Backoff: Backoff{0, 1e9}, Delay: 1e9, watched: isWatched})
			if err != nil {
				t.Fatal(err)
			}
			line, err := job.Then(greet{"eve"}, Options{
				Headers: map[string]string{}, Hold: true, Deadline: time.Date(2999, 1, 2, 3, 4, 5, 0, time.UTC),
				Key: KeyRules{Name: "k", Ordered: true, Sequence: 7, OnDeath: ParkKey, ParkAfter: time.Hour, OnLapse: BlockLapsed},
			})
			if err != nil {
				t.Fatal(err)
			}
			limited, err := job.Then(greet{"joe"}, Options{Headers: map[string]string{}, Key: KeyRules{Name: "k", MaxActive: 3, OnLapse: FailStale}})
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
				"payload": "\\000\\377\\\\{\"'\n", "content_type": "application/x-protobuf", "key": `a "key", {\with} 'é'`, "timeout": "00:00:01", "backoff": []any{"00:00:00", "00:00:01"},
				"due_in": "00:00:01", "headers": map[string]any{"a": `"\u0000' NULL`}, "watched": true,
			})
			if diff := cmp.Diff(want, stored(t, db, odd)); diff != "" {
				t.Errorf("with every option (-want +got):\n%s", diff)
			}
			want = wantRow(map[string]any{
				"tenant_id": tenant.String(), "parent_id": id.String(), "payload": `{"name":"eve"}`, "status": "created", "deadline": "2999-01-02T03:04:05+00:00",
				"key": "k", "ordered": true, "line_position": 7., "on_death": "park", "park_after": "01:00:00", "on_lapse": "block",
			})
			if diff := cmp.Diff(want, stored(t, db, line)); diff != "" {
				t.Errorf("of a line (-want +got):\n%s", diff)
			}
			want = wantRow(map[string]any{
				"tenant_id": tenant.String(), "parent_id": id.String(), "payload": `{"name":"joe"}`, "key": "k", "max_active": 3., "on_lapse": "fail-stale",
			})
			if diff := cmp.Diff(want, stored(t, db, limited)); diff != "" {
				t.Errorf("of a limited key (-want +got):\n%s", diff)
			}
			want = wantRow(map[string]any{"tenant_id": tenant.String(), "parent_id": id.String(), "payload": `{"name":"bob"}`})
			if diff := cmp.Diff(want, stored(t, db, plain)); diff != "" {
				t.Errorf("with none (-want +got):\n%s", diff)
			}
		})
	}
}
