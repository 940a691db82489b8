package dispatcher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Each success triggers its hook, including one that the handler's own transaction makes, and the hook is retried like
// any job.
func TestOnResultRunsForEverySuccess(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mux := new(dispatcher.Mux)
	dispatcher.HandleResult(mux, func(ctx context.Context, job *outbox.Job[returning[int]]) (int, error) {
		if job.Args.N == 0 {
			return 0, dispatcher.Discard(errBoom) // no success
		}
		if job.Args.N == 1 {
			return 0, pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return outbox.CompleteWith(ctx, tx, job, 10) })
		}
		return 10 * job.Args.N, nil
	})
	type call struct {
		Ended  dispatcher.Ended[returning[int]]
		Result int
	}
	calls := make(chan call, 10)
	dispatcher.OnResult(mux, func(_ context.Context, job *outbox.Job[dispatcher.Ended[returning[int]]], result int) error {
		if job.Attempt == 1 {
			return dispatcher.RetryAfter(0, errBoom)
		}
		calls <- call{job.Args, result}
		return nil
	})
	ids := enqueueProbes(t, db, 3, outbox.Options{Priority: 3})
	// NOTIFY announces the hook that a handler's own transaction stores, and nothing listens here.
	start(t, db, mux, dispatcher.Config{PollInterval: 100 * time.Millisecond, FallbackPollInterval: 100 * time.Millisecond})
	await(t, db, "two hooks are done", `SELECT count(*) = 2 FROM outbox.history WHERE kind = 'probe:on_success' AND priority = 3 AND parent_id IS NOT NULL`)
	got := map[outbox.ID]call{}
	for range 2 {
		c := receive(t, calls, "a hook")
		c.Ended.Result = nil // compared as Result
		got[c.Ended.ID] = c
	}
	want := map[outbox.ID]call{}
	for n, id := range ids {
		if n > 0 {
			want[id] = call{dispatcher.Ended[returning[int]]{
				ID: id, Kind: "probe", Queue: "default", Status: outbox.Succeeded, Attempt: 1, Epoch: 1, Args: returning[int]{probe: probe{n}},
			}, 10 * n}
		}
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(returning[int]{})); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

func TestOnSuccessKnowsTheArgs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mux := handle(func(context.Context, *outbox.Job[probe]) error { return nil })
	ended := make(chan dispatcher.Ended[probe], 1)
	dispatcher.OnSuccess(mux, func(_ context.Context, job *outbox.Job[dispatcher.Ended[probe]]) error {
		if len(job.Headers()) != 0 {
			t.Errorf("headers of the hook = %v, want none: no schedule enqueued it", job.Headers())
		}
		ended <- job.Args
		return nil
	})
	id := enqueue(t, db, probe{5}, outbox.Options{Headers: map[string]string{"schedule": "s", "scheduled_for": "2026-06-01T12:00:00Z"}})
	start(t, db, mux, quiet(nil))
	if got := receive(t, ended, "the hook"); got.ID != id || got.Args.N != 5 || got.Result != nil {
		t.Errorf("the hook was told of %+v", got)
	}
	awaitSucceeded(t, db, 2)
}

// The worker triggers the hook of a job that it makes a dead letter, and so does the reaper, which has no handlers.
func TestOnDeathRunsForEveryDeath(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const text = `{"n": "not a number: \u0000"}`
	binary := bytes.Repeat([]byte{0, 0xff, '\\', '"'}, 50)
	poisoned := enqueue(t, db, probe{1}, outbox.Options{MaxAttempts: 1, Headers: map[string]string{"trace": "t1", "schedule": "s", "scheduled_for": "2026-06-01T12:00:00Z"}})
	failed := enqueue(t, db, probe{2}, outbox.Options{})
	exhausted := enqueue(t, db, probe{3}, outbox.Options{MaxAttempts: 2})
	undecodable := enqueue(t, db, outbox.Raw{KindName: "probe", Payload: []byte(text)}, outbox.Options{})
	protobuf := enqueue(t, db, outbox.Raw{KindName: "probe", Payload: binary, ContentType: "application/protobuf"}, outbox.Options{})
	enqueue(t, db, probe{4}, outbox.Options{}) // succeeds

	mux := handle(func(_ context.Context, job *outbox.Job[probe]) error {
		switch job.Args.N {
		case 1:
			t.Error("a job that was given to another worker ran")
			return nil
		case 2:
			return dispatcher.Discard(errBoom)
		case 3:
			return dispatcher.RetryAfter(0, errBoom)
		}
		return nil
	})
	calls := make(chan *outbox.Job[dispatcher.Ended[probe]], 10)
	dispatcher.OnDeath(mux, func(_ context.Context, job *outbox.Job[dispatcher.Ended[probe]]) error {
		calls <- job
		return nil
	})
	// A worker claims the first and dies.
	exec(t, db, `UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, lease_owner = 'doomed', started_at = now() + interval '1 hour',
		lease_expires_at = now() - interval '1 second' WHERE id = $1`, poisoned)
	wake := make(chan struct{}, 1)
	start(t, db, mux, quiet(wake))
	await(t, db, "the hook is registered", `SELECT EXISTS (SELECT FROM outbox.death_hooks WHERE kind = 'probe' AND hook_kind = 'probe:on_death')`)
	if lapsed, err := expireLapsed(t.Context(), db); err != nil || len(lapsed) != 1 || lapsed[0].Status != "dead" {
		t.Fatalf("expired %+v, %v; want the job, dead", lapsed, err)
	}
	wake <- struct{}{}

	want := map[outbox.ID]dispatcher.Ended[probe]{
		poisoned:    {Status: outbox.Dead, Attempt: 1, Epoch: 2, ErrorCode: "lease_lost", Args: probe{1}},
		failed:      {Status: outbox.Failed, Attempt: 1, Epoch: 2, ErrorCode: "error", ErrorMessage: "boom", Args: probe{2}},
		exhausted:   {Status: outbox.Dead, Attempt: 2, Epoch: 4, ErrorCode: "error", ErrorMessage: "boom", Args: probe{3}},
		undecodable: {Status: outbox.Failed, Attempt: 1, Epoch: 2, ErrorCode: "undecodable_payload", Payload: []byte(text)},
		protobuf:    {Status: outbox.Failed, Attempt: 1, Epoch: 2, ErrorCode: "undecodable_payload", Payload: binary},
	}
	got := map[outbox.ID]dispatcher.Ended[probe]{}
	for range want {
		job := receive(t, calls, "a hook")
		if job.Args.Kind != "probe" || job.Args.Queue != "default" || job.Kind != "probe:on_death" {
			t.Errorf("the hook was told of %+v", job.Args)
		}
		if job.Args.ID == poisoned && !maps.Equal(job.Headers(), map[string]string{"trace": "t1"}) {
			t.Errorf("headers of the hook = %v, want those of the job, without its tick", job.Headers())
		}
		heard := job.Args
		id := heard.ID
		heard.ID, heard.Kind, heard.Queue = outbox.ID{}, "", ""
		if heard.ErrorCode != "error" {
			heard.ErrorMessage = ""
		}
		got[id] = heard
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
	await(t, db, "the hooks are settled", `SELECT count(*) = 5 FROM outbox.history WHERE kind = 'probe:on_death' AND parent_id IS NOT NULL`)
	if n := len(calls); n != 0 {
		t.Errorf("further hooks = %d, want none", n)
	}
}

// Each death of a job triggers its hook: an operator's retry does not use it up.
func TestAJobThatDiesTwiceSetsItsHookOffTwice(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mux := handle(func(context.Context, *outbox.Job[probe]) error { return dispatcher.Discard(errBoom) })
	epochs := make(chan int64, 2)
	dispatcher.OnDeath(mux, func(_ context.Context, job *outbox.Job[dispatcher.Ended[probe]]) error {
		epochs <- job.Args.Epoch
		return nil
	})
	enqueue(t, db, probe{}, outbox.Options{})
	wake := make(chan struct{}, 1)
	start(t, db, mux, quiet(wake))
	first := receive(t, epochs, "the first hook")
	exec(t, db, `UPDATE outbox.jobs SET status = 'pending', epoch = epoch + 1, attempt = 0 WHERE status = 'failed'`)
	wake <- struct{}{}
	if second := receive(t, epochs, "the second hook"); second <= first {
		t.Errorf("epochs of the two deaths = %d, %d: they cannot be told apart", first, second)
	}
}

// The move into the dead letters and the job of the hook are one change: here the hook's job cannot be stored, so the
// job is not dead either.
func TestADeathWithoutItsHookIsNone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `
		INSERT INTO outbox.death_hooks (kind, hook_kind, registered_by) VALUES ('probe', 'probe:on_death', 'test');
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no hook'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON outbox.jobs FOR EACH ROW WHEN (NEW.kind = 'probe:on_death') EXECUTE FUNCTION refuse()`)
	enqueue(t, db, probe{}, outbox.Options{MaxAttempts: 1})
	l := claim(t, db, "worker")
	if _, err := settleAs(outbox.Dead)(t.Context(), db, l); err == nil || !strings.Contains(err.Error(), "no hook") {
		t.Errorf("the settlement = %v, want it refused", err)
	}
	exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 second', started_at = now() + interval '1 hour'`)
	if _, err := expireLapsed(t.Context(), db); err == nil || !strings.Contains(err.Error(), "no hook") {
		t.Errorf("the reaper = %v, want it refused", err)
	}
	wantState(t, db, l.id, "running attempt=1 epoch=1 lost=0 error=")
	exec(t, db, `DROP TRIGGER refuse ON outbox.jobs`)
	l.startedAt = ask[time.Time](t, db, `SELECT started_at FROM outbox.jobs WHERE id = $1`, l.id)
	if ok, err := settleAs(outbox.Dead)(t.Context(), db, l); !ok || err != nil {
		t.Errorf("the settlement = %v, %v", ok, err)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE kind = 'probe:on_death' AND parent_id = $1`, l.id); n != 1 {
		t.Errorf("jobs of the hook = %d, want 1", n)
	}
}

// Only psql stores payloads of this size. One does not delay the reaper.
func TestAHookDoesNotGetAHugePayload(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `INSERT INTO outbox.death_hooks (kind, hook_kind, registered_by) VALUES ('probe', 'probe:on_death', 'test')`)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload) VALUES (outbox.uuid_v7(), 'probe', convert_to('"' || repeat('A', 17 << 20) || '"', 'UTF8'))`)
	if ok, err := settleAs(outbox.Dead)(t.Context(), db, claim(t, db, "worker")); !ok || err != nil {
		t.Fatalf("the settlement = %v, %v", ok, err)
	}
	var heard dispatcher.Ended[string]
	if err := json.Unmarshal(ask[[]byte](t, db, `SELECT payload FROM outbox.jobs WHERE kind = 'probe:on_death'`), &heard); err != nil {
		t.Fatal(err)
	}
	if heard.Status != outbox.Dead || heard.Args != "" || len(heard.Payload) > 10 {
		t.Errorf("the hook is told of %s, args of %d bytes, payload of %d, want neither", heard.Status, len(heard.Args), len(heard.Payload))
	}
}

func TestAHookWithoutItsHandlerIsAMistake(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mux := new(dispatcher.Mux)
	dispatcher.OnDeath(mux, func(context.Context, *outbox.Job[dispatcher.Ended[probe]]) error { return nil })
	dispatcher.OnSuccess(mux, func(context.Context, *outbox.Job[dispatcher.Ended[next]]) error { return nil })
	_, err := dispatcher.New(db, mux, dispatcher.Config{})
	for _, want := range []string{`OnDeath is for kind "probe", which has no handler`, `OnSuccess is for kind "next", which has no handler`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want it to say %q", err, want)
		}
	}
	if diff := cmp.Diff([]string{"OnSuccess", "OnDeath"}, fieldsOf(err)); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	defer func() {
		if recover() == nil {
			t.Error("a second hook was taken")
		}
	}()
	dispatcher.OnDeath(mux, func(context.Context, *outbox.Job[dispatcher.Ended[probe]]) error { return nil })
}

// Nothing is claimed before the hooks are registered, however long that takes.
func TestHooksAreRegisteredBeforeTheFirstClaim(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `ALTER TABLE outbox.death_hooks RENAME TO away`)
	id := enqueue(t, db, probe{}, outbox.Options{})
	mux := handle(func(context.Context, *outbox.Job[probe]) error { return dispatcher.Discard(errBoom) })
	done := make(chan struct{}, 1)
	dispatcher.OnDeath(mux, func(context.Context, *outbox.Job[dispatcher.Ended[probe]]) error { done <- struct{}{}; return nil })
	d := start(t, db, mux, quiet(nil))
	awaitThat(t, "the registration fails", func() bool { return strings.Contains(d.log.String(), "death hooks not registered") })
	if err := d.Ready(); err == nil {
		t.Error("the dispatcher is ready without its hooks")
	}
	wantState(t, db, id, "pending attempt=0 epoch=0 lost=0 error=")
	exec(t, db, `ALTER TABLE outbox.away RENAME TO death_hooks`)
	receive(t, done, "the hook")
	await(t, db, "the hook is settled", `SELECT EXISTS (SELECT FROM outbox.history WHERE kind = 'probe:on_death')`)

	// A stop does not wait for the database.
	exec(t, db, `ALTER TABLE outbox.death_hooks RENAME TO away`)
	waiting := start(t, db, mux, quiet(nil))
	awaitThat(t, "the registration fails", func() bool { return strings.Contains(waiting.log.String(), "death hooks not registered") })
	waiting.stop(t)
}
