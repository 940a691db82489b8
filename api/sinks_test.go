package api_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// event stores one of the tenant.
func (r *rig) event(topic string, tenant outbox.ID) string {
	r.t.Helper()
	id, err := outbox.Publish(r.t.Context(), r.db, outbox.Raw{KindName: topic, Payload: []byte(`{}`)}, outbox.EventOptions{Tenant: tenant})
	if err != nil {
		r.t.Fatal(err)
	}
	return id.String()
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func TestSinksAreListedAndActedOn(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("root")
	var list struct{ Sinks []api.Sink }
	if r.get("/sinks").want(200, &list); list.Sinks == nil || len(list.Sinks) != 0 {
		t.Errorf("sinks = %+v, want an empty list", list.Sinks)
	}
	first, second := r.event("order.paid", tenantA), r.event("order.paid", outbox.RootTenant)
	r.exec(`INSERT INTO outbox.sinks (sink, owner, lease_expires_at, published, away_since, away_code, away_message)
		VALUES ('orders', 'host-1', now() + interval '5 minutes', 7, now(), 'relay_full', 'no space'), ('lake', NULL, NULL, 0, NULL, NULL, NULL)`)
	r.get("/sinks").want(200, &list)
	want := []api.Sink{
		{Sink: "lake", State: "waiting", Lag: 2},
		{Sink: "orders", State: "away", Owner: "host-1", Published: 7, Lag: 2, Away: &api.Away{Code: "relay_full", Message: "no space"}},
	}
	if diff := cmp.Diff(want, list.Sinks, cmpopts.IgnoreTypes(time.Time{})); diff != "" {
		t.Errorf("sinks (-want +got):\n%s", diff)
	}
	if s := list.Sinks[1]; s.OldestAt.IsZero() || s.Away.Since.IsZero() || !s.PausedSince.IsZero() {
		t.Errorf("its times are %+v", s)
	}

	after := func(act, body string) (sink api.Sink) {
		t.Helper()
		r.post("/sinks/orders/"+act, body).want(200, &sink)
		return sink
	}
	if sink := after("pause?reason=a+test", ""); sink.State != "paused" || sink.PausedSince.IsZero() {
		t.Errorf("after a pause it is %+v", sink)
	}
	if sink := after("resume", ""); sink.State != "away" || !sink.PausedSince.IsZero() {
		t.Errorf("after a resume it is %+v", sink)
	}
	if sink := after("skip", `{"event":"`+first+`","reason":"poison"}`); sink.Lag != 1 || sink.Owner != "" {
		t.Errorf("after a skip it is %+v, want another owner to go on behind it", sink)
	}
	r.post("/sinks/orders/skip", `{"event":"`+first+`"}`).problem(409, "event_not_waiting")
	r.post("/sinks/orders/skip", `{"event":"x"}`).problem(422, "invalid_input")
	for _, act := range []string{"pause", "resume"} {
		r.post("/sinks/none/"+act, "").problem(404, "sink_not_found")
	}
	r.post("/sinks/none/skip", `{"event":"`+second+`"}`).problem(404, "sink_not_found")
	r.get("/sinks/none").problem(404, "sink_not_found")
	long := strings.Repeat("n", 128) // as long as a relay takes one
	r.exec(`INSERT INTO outbox.sinks (sink) VALUES ($1)`, long)
	r.get("/sinks/"+long).want(200, nil)

	var audit struct{ Acts []api.Act }
	r.get("/audit").want(200, &audit)
	var acts []string
	for _, a := range audit.Acts {
		acts = append(acts, a.Actor+" "+a.Act+" "+a.Target+" "+a.Reason)
	}
	if diff := cmp.Diff([]string{"root sink.skip orders poison", "root sink.resume orders ", "root sink.pause orders a test"}, acts); diff != "" {
		t.Errorf("the audit (-want +got):\n%s", diff)
	}
}

// A sink publishes the events of all tenants: how far it is, and whom it is kept by, tells
// a tenant about the others, and a pause concerns them all.
func TestSinksConcernAllTenants(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	own := r.event("order.paid", tenantA)
	for _, ask := range []func(string) response{
		func(string) response { return r.as("operator-a").get("/sinks") },
		func(sink string) response { return r.as("operator-a").get("/sinks/" + sink) },
		func(sink string) response { return r.as("operator-a").post("/sinks/"+sink+"/pause", "") },
		func(sink string) response { return r.as("operator-a").post("/sinks/"+sink+"/resume", "") },
		func(sink string) response {
			return r.as("operator-a").post("/sinks/"+sink+"/skip", `{"event":"`+own+`"}`)
		},
	} {
		for _, sink := range []string{"orders", "none"} {
			ask(sink).problem(403, "forbidden")
		}
	}
	var sink api.Sink
	if r.as("root").get("/sinks/orders").want(200, &sink); sink.State != "waiting" || sink.Lag != 1 {
		t.Errorf("it became %+v", sink)
	}
}

// A tenant's replay is of its own events, and it sees its own replays; of all events, and all
// replays, for tokens of all tenants.
func TestReplaysAreOfTheTokensTenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.sinks (sink, remembers) VALUES ('orders', '1 hour')`)
	for _, tenant := range []outbox.ID{tenantA, tenantB, tenantB} {
		r.event("order.paid", tenant)
	}
	start := func(token, more, query string) (a api.ReplayAnswer) {
		t.Helper()
		status := 202
		if strings.Contains(more, "dryRun") {
			status = 200 // nothing has begun
		}
		r.as(token).post("/sinks/orders/replays"+query, `{"since":"2020-01-01T00:00:00Z"`+more+`}`).want(status, &a)
		return a
	}
	if a := start("root", `,"dryRun":true,"ratePerSecond":0.5`, ""); a.Events != 3 || a.Dropped != 3 || a.RememberSeconds != 3600 || a.TakesSeconds != 6 || a.Replay != nil || a.OldestAt.IsZero() {
		t.Errorf("a dry run of all tenants: %+v", a)
	}
	ofA := start("operator-a", `,"topics":["order.*"],"reason":"lost"`, "").Replay
	ofAll := start("root", `,"again":true`, "").Replay
	ofB := start("root", "", "?tenant="+tenantB.String()).Replay
	if ofA.Events != 1 || ofA.Tenant != tenantA.String() || ofA.State != "running" || ofA.Reason != "lost" || ofA.Actor != "operator-a" || ofAll.Events != 3 || ofAll.Tenant != "" || ofB.Events != 2 {
		t.Errorf("replays are %+v, %+v and %+v", ofA, ofAll, ofB)
	}
	for token, want := range map[string][]string{"operator-a": {ofA.ID}, "operator-b": {ofB.ID}, "root": {ofB.ID, ofAll.ID, ofA.ID}} {
		var list struct{ Replays []api.Replay }
		r.as(token).get("/sinks/orders/replays").want(200, &list)
		var got []string
		for _, one := range list.Replays {
			got = append(got, one.ID)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s sees (-want +got):\n%s", token, diff)
		}
	}
	r.as("operator-a").post("/sinks/orders/replays?tenant="+tenantB.String(), `{"since":"2020-01-01T00:00:00Z"}`).problem(403, "forbidden")
	r.as("operator-a").post("/sinks/orders/replays", `{"since":"2020-01-01T00:00:00Z","stopLive":true}`).problem(403, "forbidden")
	for _, id := range []string{ofB.ID, ofAll.ID} {
		r.as("operator-a").post("/sinks/orders/replays/"+id+"/stop", "").problem(404, "replay_not_found")
	}
	var stopped api.Replay
	if r.as("operator-a").post("/sinks/orders/replays/"+ofA.ID+"/stop?reason=enough", "").want(200, &stopped); stopped.State != "stopped" || stopped.EndedAt.IsZero() {
		t.Errorf("after a stop it is %+v", stopped)
	}
	r.as("root").post("/sinks/orders/replays/"+ofAll.ID+"/stop", "").want(200, nil)
	r.as("root").post("/sinks/lake/replays", `{"since":"2020-01-01T00:00:00Z"}`).problem(404, "sink_not_found")
	r.as("root").post("/sinks/lake/replays", `{"since":"2020-01-01T00:00:00Z","dryRun":true}`).problem(404, "sink_not_found")
	r.as("root").post("/sinks/lake/replays", `{"since":"2020-01-01T00:00:00Z","topics":["nothing"],"dryRun":true}`).problem(404, "sink_not_found")
	r.as("root").get("/sinks/lake/replays").problem(404, "sink_not_found")
	// Which sinks there are is not for tenants.
	r.as("operator-a").get("/sinks/lake/replays").want(200, nil)
	none := r.as("operator-a").post("/sinks/orders/replays", `{"since":"2020-01-01T00:00:00Z","topics":["nothing"]}`).problem(409, "nothing_to_replay")
	lake := r.as("operator-a").post("/sinks/lake/replays", `{"since":"2020-01-01T00:00:00Z"}`).problem(409, "nothing_to_replay")
	if none.Detail != lake.Detail {
		t.Errorf("a tenant reads %q where nothing is meant, and %q where there is no such sink", none.Detail, lake.Detail)
	}
	const dry = `{"since":"2020-01-01T00:00:00Z","until":"2100-01-01T00:00:00Z","dryRun":true}`
	owners := newOwnersRig(t) // no row security hides the sink from it
	owners.exec(`INSERT INTO outbox.sinks (sink, remembers) VALUES ('orders', '1 hour')`)
	owners.event("order.paid", tenantA)
	for login, r := range map[string]*rig{"outbox_api": r, "the owner": owners} {
		var there, absent api.ReplayAnswer
		r.as("operator-a").post("/sinks/orders/replays", dry).want(200, &there)
		r.as("operator-a").post("/sinks/lake/replays", dry).want(200, &absent)
		if diff := cmp.Diff(there, absent); diff != "" {
			t.Errorf("as %s, a tenant's dry run tells whether there is a sink (-there +absent):\n%s", login, diff)
		}
	}
	r.as("root").post("/sinks/orders/replays", `{"since":"2020-01-01T00:00:00Z","topics":["nothing"]}`).problem(409, "nothing_to_replay")
	p := r.as("root").post("/sinks/orders/replays", `{"since":"2020-01-01T00:00:00Z","topics":["a*b"]}`).problem(422, "invalid_input")
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "#/topics" {
		t.Errorf("errors = %+v, want one of topics", p.Errors)
	}
}

// Why a replay or an operation does not go on names addresses and tables: that is for tokens of all tenants.
func TestWhyThingsFailIsNotForTenants(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	r.event("order.paid", tenantA)
	r.as("operator-a").post("/sinks/orders/replays", `{"since":"2020-01-01T00:00:00Z"}`).want(202, nil)
	var op api.Operation
	r.as("operator-a").post("/operations", `{"act":"cancel","jobs":{"kind":"mail"}}`).want(202, &op)
	const why = "relay_unavailable: dial tcp 10.0.0.7:4222: refused"
	r.exec(`UPDATE outbox.replays SET failure = '` + why + `'`)
	r.exec(`UPDATE outbox.operations SET failure = '` + why + `'`)
	for token, sees := range map[string]bool{"operator-a": false, "root": true} {
		var replays struct{ Replays []api.Replay }
		var list struct{ Operations []api.Operation }
		r.as(token).get("/sinks/orders/replays").want(200, &replays)
		r.as(token).get("/operations").want(200, &list)
		r.as(token).get("/operations/"+op.ID).want(200, &op)
		for _, said := range []string{replays.Replays[0].WaitsFor, list.Operations[0].Failure, op.Failure} {
			if said == "" || (said == why) != sees || strings.Contains(said, "10.0.0.7") != sees {
				t.Errorf("%s reads %q", token, said)
			}
		}
	}
	r.as("operator-a").post("/operations/"+op.ID+"/stop", "").want(200, &op)
	var stopped api.Replay
	var replays struct{ Replays []api.Replay }
	r.as("operator-a").get("/sinks/orders/replays").want(200, &replays)
	r.as("operator-a").post("/sinks/orders/replays/"+replays.Replays[0].ID+"/stop", "").want(200, &stopped)
	for _, said := range []string{op.Failure, stopped.WaitsFor} {
		if strings.Contains(said, "10.0.0.7") {
			t.Errorf("a stop answers %q", said)
		}
	}
}

// A tenant's token enqueues its own jobs again, one of all tenants those of all or of one.
func TestJobsAreEnqueuedAgainOfTheTokensTenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, tenant := range []outbox.ID{tenantA, tenantB, tenantB} {
		r.exec(`INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type)
			VALUES (gen_random_uuid(), $1, now(), now(), 1, 'succeeded', 'running', 1, 25, 0, 0, 'q', 'order.announce', '{}', 'application/json')`, tenant)
	}
	replay := func(token, query, more string) (a api.HistoryReplay) {
		t.Helper()
		r.as(token).post("/jobs/replay"+query, `{"kind":"order.announce","since":"2020-01-01T00:00:00Z"`+more+`}`).want(200, &a)
		return a
	}
	if a := replay("root", "", `,"dryRun":true,"ratePerSecond":0.5`); a.Jobs != 3 || a.Bytes != 6 || a.TakesSeconds != 6 || a.Replay != "" || a.OldestAt.IsZero() {
		t.Errorf("a dry run of all tenants: %+v", a)
	}
	if a := replay("operator-a", "", `,"reason":"lost"`); a.Jobs != 1 || a.Replay == "" {
		t.Errorf("of the tenant: %+v", a)
	}
	if a := replay("root", "?tenant="+tenantB.String(), ""); a.Jobs != 2 {
		t.Errorf("of another: %+v", a)
	}
	var n int
	if err := r.db.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE tenant_id = $1) * 10 + count(*) FROM outbox.jobs`, tenantA).Scan(&n); err != nil || n != 13 {
		t.Errorf("%d jobs, %v; want one of the tenant and three together", n, err)
	}
	var audit struct{ Acts []api.Act }
	if r.as("operator-a").get("/audit").want(200, &audit); len(audit.Acts) != 1 || audit.Acts[0].Act != "history.replay" || audit.Acts[0].Reason != "lost" {
		t.Errorf("the audit has %+v", audit.Acts)
	}
	r.as("operator-a").post("/jobs/replay?tenant="+tenantB.String(), `{"kind":"k","since":"2020-01-01T00:00:00Z"}`).problem(403, "forbidden")
	r.as("operator-a").post("/jobs/replay", `{"kind":"k","since":"2020-01-01T00:00:00Z"}`).problem(409, "nothing_to_replay")
	r.as("operator-a").post("/jobs/replay", `{"kind":"relay:orders","since":"2020-01-01T00:00:00Z"}`).problem(422, "invalid_input")
}

// runningReplay stores a replay of the tenant to the sink orders, and returns its id.
func (r *rig) runningReplay(tenant outbox.ID) string {
	id := outbox.NewID().String()
	r.exec(`INSERT INTO outbox.replays (id, sink, tenant_id, topics, key, since, until, position, last_position, per_second, again, events, actor, reason)
		VALUES ($1, 'orders', $2, '{}', '', 'epoch', now(), 0, 1, 0, false, 1, 'somebody', '')`, id, tenant)
	return id
}

// runningOperation stores the tenant's one operation, which no process works on, unless it is there already, and
// returns its id.
func (r *rig) runningOperation(tenant outbox.ID) string {
	id := tenant
	id[0] ^= 0x55
	r.exec(`INSERT INTO outbox.operations (id, tenant_id, act, filter, per_second, matched, actor, reason, request_id)
		VALUES ($1, $2, 'replay', '{"kind":"none"}', 0, 1, 'somebody', '', '') ON CONFLICT DO NOTHING`, id, tenant)
	return id.String()
}

func TestHeldMessagesAreListed(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("root")
	r.get("/sinks/none/held").want(404, nil)
	r.exec(`INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	var page struct {
		Messages []api.HeldMessage
		Next     string
	}
	if r.get("/sinks/orders/held").want(200, &page); page.Messages == nil || len(page.Messages) != 0 {
		t.Errorf("messages = %+v, want an empty list", page.Messages)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	events := []outbox.ID{outbox.NewID(), outbox.NewID(), outbox.NewID()}
	for i, tenant := range []outbox.ID{tenantA, outbox.RootTenant, tenantA} {
		about, err := json.Marshal(engine.HeldEvent{ID: events[i].String(), Topic: "order.paid", Position: int64(10 + i), At: at})
		if err != nil {
			t.Fatal(err)
		}
		r.exec(`WITH job AS (
			INSERT INTO outbox.jobs (id, tenant_id, kind, queue, payload, key, headers)
			VALUES ($1, $2, 'relay:orders', 'relay:orders', '{}', 'k', jsonb_build_object('posthaste-event', $3::text))
			RETURNING id)
			INSERT INTO outbox.held_messages (sink, job_id, tenant_id, key, position) SELECT 'orders', id, $2, 'k', $4 FROM job`,
			outbox.NewID(), tenant, string(about), 10+i)
	}
	var got []string
	for next := ""; ; {
		page.Next = ""
		r.get("/sinks/orders/held?limit=2&cursor="+next).want(200, &page)
		for _, m := range page.Messages {
			if m.Topic != "order.paid" || !m.At.Equal(at) || m.Job.Kind != "relay:orders" || m.Job.Key != "k" {
				t.Errorf("message %+v", m)
			}
			got = append(got, fmt.Sprint(m.Position, " ", m.Event))
		}
		if next = page.Next; next == "" {
			break
		}
	}
	want := []string{fmt.Sprint(10, " ", events[0]), fmt.Sprint(11, " ", events[1]), fmt.Sprint(12, " ", events[2])}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	r.get("/sinks/orders/held?cursor=x").want(422, nil)
	r.as("operator-a").get("/sinks/orders/held").want(403, nil)
}

func TestBridgesAreListed(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("root")
	var list struct{ Bridges []api.Bridge }
	if r.get("/bridges").want(200, &list); list.Bridges == nil || len(list.Bridges) != 0 {
		t.Errorf("bridges = %+v, want an empty list", list.Bridges)
	}
	r.exec(`INSERT INTO outbox.inbox_positions (consumer, source, partition, position, lease_expires_at, lag, away_since, away_message)
		VALUES ('-bridge', 'paid', 0, 7, now() + interval '5 minutes', 3, now(), 'no such stream'), ('-bridge', 'new', 0, -1, now(), 5, now(), 'gone'),
			('-bridge', 'sent', 0, 1, now() + interval '5 minutes', NULL, NULL, NULL), ('billing', 'orders', 0, 9, NULL, NULL, NULL, NULL)`)
	r.get("/bridges").want(200, &list)
	want := []api.Bridge{
		{Bridge: "new", State: "waiting"}, {Bridge: "paid", State: "away", Stored: 7, Lag: new(int64(3)), AwayReason: "no such stream"}, {Bridge: "sent", State: "fetching", Stored: 1},
	}
	if diff := cmp.Diff(want, list.Bridges, cmpopts.IgnoreTypes(time.Time{})); diff != "" {
		t.Errorf("bridges (-want +got):\n%s", diff)
	}
	if len(list.Bridges) == 3 && (!list.Bridges[0].MovedAt.IsZero() || list.Bridges[1].MovedAt.IsZero() || list.Bridges[1].AwaySince.IsZero()) {
		t.Errorf("times of one that never moved, and of one that did: %v, %v", list.Bridges[0].MovedAt, list.Bridges[1].MovedAt)
	}
	r.as("operator-a").get("/bridges").problem(403, "forbidden")
}
