package dispatcher_test

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A job with events may be anything that a job without events may be, and other jobs do not suffer from it.
func TestLargeStreamedJobs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if ask[int](t, db, `SELECT count(*)::int FROM pg_inherits WHERE inhparent = 'outbox.events'::regclass`) == 0 {
		if _, err := db.Exec(t.Context(), `CREATE TABLE outbox.events_all PARTITION OF outbox.events DEFAULT`); err != nil {
			t.Fatal(err)
		}
	}
	large := make([]byte, 4<<20)
	_, _ = rand.Read(large)
	var mux dispatcher.Mux
	mux.HandleRaw("result", func(_ context.Context, job *outbox.Claimed) error { job.Result = large; return nil })
	mux.HandleRaw("plain", func(context.Context, *outbox.Claimed) error { return nil })
	for _, streamed := range []bool{false, true} {
		if _, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: "plain", Payload: large, ContentType: "application/octet-stream"}, outbox.Options{Streamed: streamed}); err != nil {
			t.Errorf("a large payload, streamed %t: %v", streamed, err)
		}
	}
	enqueue(t, db, outbox.Raw{KindName: "result", Payload: []byte(`{}`)}, outbox.Options{Streamed: true})
	for range 20 {
		enqueue(t, db, outbox.Raw{KindName: "plain", Payload: []byte(`{}`)}, outbox.Options{})
	}
	d := start(t, db, &mux, quiet(nil))
	await(t, db, "all have succeeded", `SELECT NOT EXISTS (SELECT FROM outbox.jobs)`)
	d.stop(t)
	for _, field := range []string{"payload_bytes", "result_bytes"} {
		question := `SELECT count(*)::int FROM outbox.events WHERE (convert_from(payload, 'UTF8')::json ->> '` + field + `')::int = 4194304`
		if n := ask[int](t, db, question); n != 1 {
			t.Errorf("%d events have %s, want 1", n, field)
		}
	}
}
