package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// Behind a connection pooler pgx is often configured not to prepare statements;
// it then guesses the types of parameters.
func TestEveryExecModeStoresTheSame(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			producer := NewProducer(modePool(t, db, mode), NotifyCoalesced)
			headers := map[string]string{"é": `"\u0000\' {},NULL`, "odd": "\u2028<\x01"}
			full := Options{
				Queue: "mail", Priority: -5, MaxAttempts: 3, Tenant: tenant, Key: KeyRules{Name: `a "key", {\with} 'é'`}, Headers: headers,
				Timeout: 90 * time.Minute, Delay: 26*time.Hour + time.Microsecond,
				Deadline: time.Date(2999, 1, 2, 3, 4, 5, 678_000, time.UTC),
				Backoff:  Backoff{time.Second, 2 * time.Hour}, Streamed: true,
			}
			once, due, keyed := full, full, Options{Headers: headers, IdempotencyKey: "k", Hold: true}
			once.IdempotencyKey, once.Hold = "k", true
			due.Delay, due.RunAt = 0, time.Now().Add(time.Hour)
			payload := Raw{KindName: "raw", Payload: []byte("\x00\xff\\{\"'\n"), ContentType: "application/x-protobuf"}
			few := []Request{{payload, full}, {greet{"ada"}, Options{}}, {payload, once}, {payload, keyed}, {payload, Options{Key: KeyRules{Name: "NULL"}}}, {payload, Options{Hold: true, Delay: time.Second}}}
			all := []Request{{payload, due}, {greet{"ada"}, Options{RunAt: due.RunAt}}}
			for len(all) < copyFrom {
				all = append(all, Request{payload, Options{RunAt: due.RunAt, Headers: headers}})
			}

			for name, requests := range map[string][]Request{"by INSERT": few, "by COPY": all} {
				exec(t, db, `TRUNCATE outbox.jobs, outbox.idempotency_keys`)
				var got, want []map[string]any
				err := producer.InTx(t.Context(), func(tx pgx.Tx) error {
					ids, err := EnqueueMany(t.Context(), tx, requests)
					for i, id := range ids {
						if compared(i, len(ids)) {
							got = append(got, storedWithin(t, tx, id))
						}
					}
					return err
				})
				if err != nil {
					t.Errorf("EnqueueMany %s: %v", name, err)
					continue
				}
				exec(t, db, `TRUNCATE outbox.jobs, outbox.idempotency_keys`)
				for i, r := range requests {
					if !compared(i, len(requests)) {
						continue
					}
					id, err := Enqueue(t.Context(), producer.pool, r.Args, r.Options)
					if err != nil {
						t.Fatal(err)
					}
					if again, err := Enqueue(t.Context(), producer.pool, r.Args, r.Options); err != nil || (again == id) != (r.Options.IdempotencyKey != "") {
						t.Errorf("enqueued again: %s after %s, %v", again, id, err)
					}
					want = append(want, storedWithin(t, db, id))
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("rows (-by Enqueue +%s):\n%s", name, diff)
				}
				wantFirst := wantRow(map[string]any{
					"queue": "mail", "priority": -5., "max_attempts": 3., "tenant_id": tenant.String(), "key": full.Key.Name,
					"deadline": "2999-01-02T03:04:05.000678+00:00", "backoff": []any{"00:00:01", "02:00:00"},
					"timeout": "01:30:00", "due_in": want[0]["due_in"], "kind": "raw", "streamed": 1.,
					"headers":      map[string]any{"é": headers["é"], "odd": headers["odd"]},
					"content_type": payload.ContentType, "payload": `\000\377\\{"'` + "\n",
				})
				if diff := cmp.Diff(wantFirst, want[0]); diff != "" {
					t.Errorf("row (-want +got):\n%s", diff)
				}
				if name == "by INSERT" && want[0]["due_in"] != "1 day 02:00:00.000001" {
					t.Errorf("due in %s", want[0]["due_in"])
				}
			}
			if err := producer.Flush(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// compared leaves out most of the many jobs that are like the one before.
func compared(i, all int) bool { return i < 20 || i == all-1 }

// storedWithin returns what stored returns, with due_in only where a delay is stored: a RunAt is not the same time
// after each insert.
func storedWithin(t *testing.T, db DB, id ID) map[string]any {
	t.Helper()
	row := stored(t, db, id)
	if due := row["due_in"].(string); due != "00:00:00" && due < "02" {
		row["due_in"] = "about an hour"
	}
	return row
}

func modePool(t *testing.T, db *pgxpool.Pool, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	config := db.Config()
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
