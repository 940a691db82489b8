package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// has is what a tenant has in these tests: a job in each status, a schedule, a key
// with a line of jobs, and used idempotency keys; all with its own words in it, so
// that they are found where they must not be.
type has struct {
	names
	jobs map[outbox.Status]string
	own  []string // its words
}

// give makes them for the tenant of a token.
func (r *rig) give(token string, tenant outbox.ID) has {
	r.t.Helper()
	word := "own-" + token
	h := has{jobs: map[outbox.Status]string{}, own: []string{word, tenant.String()}}
	r.as(token).post("/jobs", `{"kind":"mail","idempotencyKey":"`+word+`"}`).want(202, nil)
	for _, status := range []outbox.Status{outbox.Pending, outbox.Running, outbox.Retrying, outbox.Failed, outbox.Dead, outbox.Succeeded} {
		h.jobs[status] = r.as(token).reach(status)
	}
	store := func(opts outbox.Options) string {
		opts.Tenant = tenant
		id, err := outbox.Enqueue(r.t.Context(), r.db, outbox.Raw{KindName: "mail", Payload: []byte(`{"word":"` + word + `"}`)}, opts)
		if err != nil {
			r.t.Fatal(err)
		}
		return id.String()
	}
	h.jobs[outbox.Created] = store(outbox.Options{Hold: true})
	r.as(token).parked(word)
	for range 2 {
		store(outbox.Options{Key: outbox.KeyRules{Name: word, Ordered: true}})
	}
	if _, err := r.db.Exec(r.t.Context(), `INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at, set_by)
		VALUES ($1, $2, '1 hour', 'mail', '{}', now() + interval '1 hour', 'ada') ON CONFLICT DO NOTHING`, tenant, word); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.db.Exec(r.t.Context(), `INSERT INTO outbox.sinks (sink) VALUES ('orders') ON CONFLICT DO NOTHING`); err != nil {
		r.t.Fatal(err)
	}
	h.names = names{id: h.jobs[outbox.Dead], kind: "mail", queue: engine.DefaultQueue, key: word, schedule: word, sink: "orders", extra: map[string]any{
		"maxRunning": 1000, "rate": map[string]any{"starts": 1000, "intervalSeconds": 1}, "event": r.event(word, tenant),
		"since": "2020-01-01T00:00:00Z", "replay": r.runningReplay(tenant), "operation": r.runningOperation(tenant), "everySeconds": 7200,
	}}
	h.own = append(h.own, slices.Collect(maps.Values(h.jobs))...)
	return h
}

// of returns the names with the tenant's job of a status.
func (h has) of(status outbox.Status) names {
	n := h.names
	n.id = h.jobs[status]
	return n
}

// G1: every route × who asks × every thing of another tenant that can be named. What
// another has is nowhere in an answer, is changed by nothing, and cannot be told
// from what nobody has.
func TestG1NoRouteReachesAnotherTenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	theirs := r.give("operator-b", tenantB)
	r.give("operator-a", tenantA)
	before := r.state(tenantB)
	requests := 0
	for _, route := range table(t) {
		ask := func(token string, n names, query, body string) {
			t.Helper()
			requests++
			target := n.target(route) + query
			answer := r.as(token).ask(route, target, body)
			text := headerText(answer) + answer.Body.String()
			for _, word := range theirs.own {
				if strings.Contains(text, word) && !strings.Contains(target+body, word) {
					t.Errorf("%s %s %s as %s shows %s of another tenant: %s", route.method, target, body, token, word, text)
				}
			}
			if token != "operator-a" && token != "client-a" && answer.Code < 400 {
				t.Errorf("%s %s as %q: %d, want it refused", route.method, target, token, answer.Code)
			}
		}
		for status := range theirs.jobs {
			n := theirs.of(status)
			for _, body := range n.bodies(route) {
				ask("operator-a", n, "", body)
				if !strings.Contains(route.path, "{id}") && !strings.Contains(body, n.id) {
					break
				}
			}
			if !strings.Contains(route.path, "{id}") && route.body == nil {
				break
			}
		}
		n := theirs.names
		n.extra = map[string]any{"idempotencyKey": theirs.key, "tenant": tenantB.String(), "tenantId": tenantB.String()}
		for _, body := range n.bodies(route) {
			for _, token := range []string{"operator-a", "client-a"} {
				ask(token, n, "", body)
			}
		}
		for _, query := range n.queries(route)[1:] {
			ask("operator-a", n, query, "")
		}
		for _, token := range []string{"", "expired", "powerless", "homeless", "no-" + string(route.needs)} {
			ask(token, n, "", n.bodies(route)[0])
		}
	}
	if diff := cmp.Diff(before, r.state(tenantB)); diff != "" {
		t.Errorf("another tenant's rows changed (-before +after):\n%s", diff)
	}
	t.Logf("%d requests", requests)
}

// learned returns what a client can learn from an answer, with the names in it made alike.
func learned(answer response, n names) string {
	text := fmt.Sprint(answer.Code) + headerText(answer) + answer.Body.String()
	return strings.NewReplacer(n.id, "ID", n.key, "KEY", n.schedule, "NAME", fmt.Sprint(n.of("replay")), "REPLAY").Replace(text)
}

// G1, the second half: byte for byte, and statement for statement, which is what
// takes time.
func TestG1AnothersAnswersAndCostsAsNobodys(t *testing.T) {
	t.Parallel()
	var log statements
	r := newRig(t, func(c *api.Config) {})
	theirs := r.give("operator-b", tenantB)
	r.handler = r.traced(&log)
	nobodys := names{id: outbox.NewID().String(), kind: theirs.kind, queue: theirs.queue, key: "nobodys---" + "b", schedule: "nobodys---" + "b", sink: "orders", extra: maps.Clone(theirs.extra)}
	nobodys.extra["event"], nobodys.extra["replay"] = outbox.NewID().String(), outbox.NewID().String()
	for _, route := range table(t) {
		if !strings.ContainsAny(strings.ReplaceAll(route.path, "{queue}", ""), "{") || route.streams {
			continue
		}
		for status := range theirs.jobs {
			n := theirs.of(status)
			for i, body := range n.bodies(route) {
				log.take()
				absent := learned(r.as("operator-a").ask(route, nobodys.target(route), nobodys.bodies(route)[i]), nobodys)
				cost := log.take()
				foreign := learned(r.as("operator-a").ask(route, n.target(route), body), n)
				if absent != foreign {
					t.Errorf("%s of a foreign thing, %s:\n%s\nof none:\n%s", route, status, foreign, absent)
				}
				if diff := cmp.Diff(cost, log.take()); diff != "" {
					t.Errorf("%s of a foreign thing, %s, sends other statements (-absent +foreign):\n%s", route, status, diff)
				}
			}
			if !strings.Contains(route.path, "{id}") {
				break
			}
		}
	}
}

// statements are those that a pool sends.
type statements struct {
	mu   sync.Mutex
	sent []string
}

func (s *statements) note(sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, sql)
}

// take returns what was sent since the last call.
func (s *statements) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.sent = nil
	return sent
}

// traced returns the API on a pool whose statements are noted.
func (r *rig) traced(log *statements, change ...func(*api.Config)) http.Handler {
	r.t.Helper()
	config := pgtest.Login(r.t, r.db, "outbox_api").Config()
	config.ConnConfig.Tracer = tracer{log}
	pool, err := pgxpool.NewWithConfig(r.t.Context(), config)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(pool.Close)
	of := api.Config{Pool: pool, Producer: outbox.NewProducer(pool, outbox.NotifyOff), Authenticator: tokens()}
	for _, c := range change {
		c(&of)
	}
	handler, err := api.New(of)
	if err != nil {
		r.t.Fatal(err)
	}
	return handler
}

// G2: no route without a capability that exists, none that the matrix above does
// not have, and nothing served that is no route.
func TestG2EveryRouteDeclaresWhatItTakes(t *testing.T) {
	t.Parallel()
	for _, route := range table(t) {
		if !slices.Contains(access.Capabilities(), route.needs) {
			t.Errorf("%s takes the capability %q, which is none", route, route.needs)
		}
		if route.everything && route.needs != access.AdminMutate && route.needs != access.AdminRead && route.needs != access.AdminStream {
			t.Errorf("%s concerns all tenants and takes no more than %s", route, route.needs)
		}
		n := names{id: outbox.NewID().String(), kind: "k", queue: "q", key: "k", schedule: "s", sink: "orders"}
		if target := n.target(route); strings.ContainsAny(target, "{}") || target == "" {
			t.Errorf("%s has a parameter that the tests cannot fill: %s", route, target)
		}
		if bodies := n.bodies(route); route.contentType != "" && (len(bodies) == 0 || bodies[0] == "") {
			t.Errorf("%s has a body that the tests cannot make", route)
		}
	}
}

// forbidden are members that a request must not be able to set, in the ways in
// which a client might write them.
var forbidden = []string{
	"tenant", "tenantId", "tenant_id", "Tenant", "TENANT_ID", "id", "status", "Status", "epoch", "attempt", "attempts", "leaseOwner", "lease_owner",
	"leaseExpiresAt", "worker", "createdAt", "created_at", "startedAt", "finishedAt", "lostLeases", "result", "actor", "Actor", "capabilities", "admin", "__proto__",
}

// G10: a member that is not in the description is refused by its place and changes
// nothing, at the top and in what is nested.
func TestG10NoRouteTakesAMemberTooMany(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ours := r.give("operator-a", tenantA)
	before := r.state(outbox.ID{})
	tried := 0
	for _, route := range table(t) {
		if route.body == nil {
			continue
		}
		for _, name := range forbidden {
			if route.body.Properties[name] != nil {
				continue // a member of that route by right, such as ids
			}
			object := ours.object(route.body, append([]string{}, route.body.Required...))
			object[name] = ours.id
			refuseMember(t, r, route, ours.names, object, "#/"+name)
			tried++
			for inner, property := range route.body.Properties {
				if property.is("object") && len(property.Properties) > 0 && property.Properties[name] == nil {
					object := ours.object(route.body, append([]string{inner}, route.body.Required...))
					object[inner].(map[string]any)[name] = ours.id
					refuseMember(t, r, route, ours.names, object, "#/"+inner+"/"+name)
				}
			}
		}
	}
	if diff := cmp.Diff(before, r.state(outbox.ID{})); diff != "" {
		t.Errorf("something changed (-before +after):\n%s", diff)
	}
	if tried == 0 {
		t.Error("no route has a body: this looks at the wrong place")
	}
}

func refuseMember(t *testing.T, r *rig, route one, n names, object map[string]any, place string) {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	answer := r.as("root").ask(route, n.target(route), string(text))
	var p api.Problem
	if err := json.Unmarshal(answer.Body.Bytes(), &p); err != nil || answer.Code != 400 || len(p.Errors) == 0 || p.Errors[0].Pointer != place {
		t.Errorf("%s %s: %d %s, want a 400 at %s", route, text, answer.Code, answer.Body, place)
	}
}

// G10, types: whatever stands where a value of another type is wanted gets a 4xx,
// never a 5xx, and then nothing has changed.
func TestG10NoRouteTakesAValueOfAnotherType(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ours := r.give("operator-a", tenantA)
	wrong := []any{"x", -1, 1.5, 1e300, true, []any{}, []any{[]any{nil}}, map[string]any{}, map[string]any{"$gt": ""}, nil, strings.Repeat("x", 1<<16)}
	for _, route := range table(t) {
		if route.body == nil {
			continue
		}
		for name := range route.body.Properties {
			before, taken := r.state(outbox.ID{}), false
			for _, value := range wrong {
				object := ours.object(route.body, append([]string{}, route.body.Required...))
				object[name] = value
				text, err := json.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				answer := r.as("root").ask(route, ours.target(route), string(text))
				taken = taken || answer.Code < 400
				if answer.Code >= 500 {
					t.Errorf("%s %.200s: %d %s", route, text, answer.Code, answer.Body)
				}
			}
			if taken {
				continue // some value is of a type that it takes
			}
			if diff := cmp.Diff(before, r.state(outbox.ID{})); diff != "" {
				t.Errorf("%s refused every %s and changed (-before +after):\n%s", route, name, diff)
			}
		}
	}
}

// recorded is a row of the audit.
type recorded struct {
	Actor, Act string
	Was, Been  bool // what was before, and what came of it
	Request    string
}

func (r *rig) audited(request string) []recorded {
	r.t.Helper()
	rows, _ := r.db.Query(r.t.Context(), `SELECT actor, act, before IS NOT NULL, after IS NOT NULL, request_id FROM outbox.audit WHERE request_id = $1`, request)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[recorded])
	if err != nil {
		r.t.Fatal(err)
	}
	return found
}

// G12: whatever a route changes for somebody who operates is in the audit, with who
// did it, how it was before and after, and the request's id; and every such route is seen to
// change something. An edit of what they left there is found.
func TestG12EveryActLeavesItsRowInTheAudit(t *testing.T) {
	t.Parallel()
	r := newOwnersRig(t).as("root") // which can carry out every route
	n := 0
	for _, route := range table(t) {
		if !route.changes() || route.needs == access.JobsEnqueue || route.path == "/operations/preview" {
			continue
		}
		t.Run(route.String(), func(t *testing.T) {
			r := *r
			r.t = t
			tenant := outbox.NewID()
			seen := false
			r.pauseAll(false)
			// What is resumed must have been paused before; some acts are one tenant's, some of all tenants.
			for round := range 4 {
				r.handler = r.withToken("actor", access.Principal{Name: "actor", Tenant: tenant, AllTenants: round < 2, Capabilities: can(allCapabilities...)})
				ours := r.as("actor").give("actor", tenant)
				before := r.state(outbox.ID{})
				for _, status := range []outbox.Status{outbox.Dead, outbox.Failed, outbox.Created, outbox.Pending, outbox.Retrying, outbox.Running, outbox.Succeeded} {
					for _, body := range ours.of(status).bodies(route) {
						if status != outbox.Dead && !strings.Contains(ours.of(status).target(route)+body, ours.jobs[status]) {
							continue // it does not speak of the job
						}
						n++
						request := fmt.Sprintf("request-%d", n)
						answer := r.as("actor").ask(route, ours.of(status).target(route), body, "X-Request-Id", request)
						after := r.state(outbox.ID{})
						changed := cmp.Diff(before, after)
						before = after
						rows := r.audited(request)
						seen = seen || len(rows) > 0
						if changed != "" && len(rows) == 0 {
							t.Errorf("%s: %d %s: it changed something, and there is no row in the audit (-before +after):\n%s", body, answer.Code, answer.Body, changed)
						}
						for _, row := range rows {
							// Deleting a schedule leaves nothing. Creating one, and running one, makes what was not.
							isNew := row.Act == "schedule.run" || row.Act == "schedule.create"
							if row.Actor != "actor" || row.Act == "" || !row.Been && row.Act != "schedule.delete" || !row.Was && !isNew {
								t.Errorf("%s: the audit says %+v, want who did what, and how it was before and after", body, row)
							}
						}
					}
				}
				if seen {
					break
				}
				r.pauseAll(round%2 == 0)
			}
			if !seen {
				t.Error("nothing that this test tried left a row in the audit: if it has no way to make the route do something, teach it in give")
			}
		})
	}
	if n == 0 {
		t.Error("no route acts: this looks at the wrong place")
	}
	wantEditsFound(t, r)
}

// wantEditsFound edits one act after the other as nobody but a superuser can, and
// checks that each edit is found.
func wantEditsFound(t *testing.T, r *rig) {
	t.Helper()
	o := operator.New(r.db)
	whole, err := o.VerifyAudit(t.Context(), operator.AuditHead{})
	if err != nil || whole.Broken != 0 || whole.Acts < 20 {
		t.Fatalf("the audit is not whole: %+v, %v", whole, err)
	}
	for i, link := range []int64{1, whole.Acts / 2, whole.Acts} {
		if _, err := r.db.Exec(t.Context(), `UPDATE outbox.audit SET actor = 'somebody else' WHERE id = (SELECT audit_id FROM outbox.audit_chain WHERE seq = $1)`, link); err != nil {
			t.Fatal(err)
		}
		found, err := o.VerifyAudit(t.Context(), whole.Head)
		if err != nil || len(found.Breaks) != i+1 || found.Breaks[i].Seq != link {
			t.Errorf("the act of link %d was edited: %+v, %v; want it found", link, found, err)
		}
	}
}

// withToken returns the API with one token more.
func (r *rig) withToken(token string, who access.Principal) http.Handler {
	r.t.Helper()
	known := tokens()
	known[token] = who
	handler, err := api.New(api.Config{Pool: r.pool, Producer: outbox.NewProducer(r.pool, outbox.NotifyOff), Authenticator: known})
	if err != nil {
		r.t.Fatal(err)
	}
	return handler
}

// pauseAll pauses whatever can be paused, or lets it go on.
func (r *rig) pauseAll(pause bool) {
	r.t.Helper()
	for _, sql := range []string{
		`INSERT INTO outbox.queues (queue, paused_at) VALUES ('default', CASE WHEN $1 THEN now() END) ON CONFLICT (queue) DO UPDATE SET paused_at = excluded.paused_at`,
		`UPDATE outbox.schedules SET paused_at = CASE WHEN $1 THEN now() END`,
		`UPDATE outbox.operations SET stopped_at = CASE WHEN $1 THEN now() END`,
	} {
		if _, err := r.db.Exec(r.t.Context(), sql, pause); err != nil {
			r.t.Fatal(err)
		}
	}
}

// oddities are strings that break what is written carelessly.
var oddities = []string{
	"\x00", "\u0000", "\ufeff", "\u202e\u2066", "'; DROP TABLE outbox.jobs; --", `"\`, "%00", "../../etc/passwd", "\r\nX-Evil: 1", "{}", "[]", "null", "NaN", "-0", "1e400",
	"9223372036854775808", "-9223372036854775809", "294276-12-31T23:59:59Z", "0000-00-00", strings.Repeat("a", 9000), strings.Repeat("ü", 2000), "𝒳\u0301", " ", "$1", "\\u0000",
	strings.Repeat("[", 3000), "\x7f", "\xff\xfe", "00000000-0000-0000-0000-000000000000", "01976F0E-7A5C-7D3E-8F4B-0123456789AB",
}

// H2: odd text in every place of every route gets a 4xx or is taken as it is; never
// a 5xx. The places take turns with the oddities: each place gets a quarter of
// them, each oddity every kind of place.
func TestH2OddInputIsRefusedOrTakenAsItIs(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("root")
	ours := r.give("operator-a", tenantA)
	turn := 0
	at := func(route one, target, body func(odd string) string) {
		t.Helper()
		turn++
		for i := turn % 4; i < len(oddities); i += 4 {
			answer := r.ask(route, target(oddities[i]), body(oddities[i]))
			if answer.Code >= 500 {
				t.Errorf("%s with %.80q: %d %s", route, oddities[i], answer.Code, answer.Body)
			}
		}
	}
	usual := func(route one) func(string) string { return func(string) string { return ours.target(route) } }
	for _, route := range table(t) {
		if strings.Contains(route.path, "{") {
			at(route, func(odd string) string { return names{odd, odd, odd, odd, odd, odd, nil}.target(route) }, func(string) string { return ours.bodies(route)[0] })
		}
		for _, name := range route.query {
			at(route, func(odd string) string { return ours.target(route) + "?" + name + "=" + escape(odd) }, func(string) string { return "" })
		}
		if route.body == nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(route.body.Properties)) {
			at(route, usual(route), func(odd string) string {
				object := ours.object(route.body, append([]string{}, route.body.Required...))
				object[name] = odd
				text, _ := json.Marshal(object) // of strings
				return string(text)
			})
			// As JSON, which it mostly is not.
			at(route, usual(route), func(odd string) string { return `{"` + name + `":` + odd + `}` })
		}
	}
}

func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "%%%02x", s[i])
	}
	return b.String()
}

// What a stored oddity is, when it is read again.
func TestH2WhatIsTakenComesBackAsItWas(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	for _, odd := range oddities {
		odd = strings.ToValidUTF8(odd, "?") // JSON cannot say anything else
		text, err := json.Marshal(map[string]any{"kind": "mail", "payload": map[string]any{"odd": odd}, "key": odd})
		if err != nil {
			t.Fatal(err)
		}
		answer := r.post("/jobs", string(text))
		if answer.Code >= 400 && answer.Code < 500 {
			continue
		}
		var a api.Accepted
		answer.want(http.StatusAccepted, &a)
		job := r.getJob(a.ID)
		var payload struct{ Odd string }
		if err := json.Unmarshal(job.JSON, &payload); err != nil || payload.Odd != odd {
			t.Errorf("%.80q came back as %.80q, %v", odd, payload.Odd, err)
		}
		if job.Key != odd {
			t.Errorf("the key %.80q came back as %.80q", odd, job.Key)
		}
	}
}

// H4: eighty times as many clients as there is room for, all at once: each gets its
// answer, a 202 or a 429 that says when to ask again; what got a 202 is stored, and
// nothing else is.
func TestH4AnOverloadGets429sAndNoTimeouts(t *testing.T) {
	t.Parallel()
	const clients, each = 80, 2
	r := newRig(t, func(c *api.Config) { c.MaxInFlight, c.MaxQueued, c.Timeout = 1, 1, time.Minute })
	var mu sync.Mutex
	answers := map[string]int{}
	var asking sync.WaitGroup
	for range clients {
		asking.Go(func() {
			for range each {
				answer := r.post("/jobs", `{"kind":"mail"}`)
				what := fmt.Sprint(answer.Code, " ", answer.Header().Get("Retry-After"))
				mu.Lock()
				answers[what]++
				mu.Unlock()
			}
		})
	}
	asking.Wait()
	var stored int
	if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if taken, refused := answers["202 "], answers["429 1"]; taken+refused != clients*each || taken == 0 || refused == 0 || stored != taken {
		t.Errorf("answers = %v and %d jobs stored, want %d of 202 and 429 with Retry-After, and as many jobs as 202s", answers, stored, clients*each)
	}
}

// G4: a token of our own, changed in every way that is short of guessing it, and
// what only looks like a bearer; none gets in, none takes much memory, and the
// token itself is good all the while. (JWTs: access, and cmd/posthaste through the
// real process.)
func TestG4NoChangedTokenGetsIn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	owner := access.NewTokens(r.db, access.TokensConfig{})
	create := func() (string, access.TokenInfo) {
		token, info, err := owner.Create(t.Context(), access.Grant{Name: "shop", Tenant: tenantA, Capabilities: []access.Capability{access.JobsRead}, CreatedBy: "ada"})
		if err != nil {
			t.Fatal(err)
		}
		return token.Reveal(), info
	}
	good, _ := create()
	other, _ := create()
	revoked, info := create()
	if _, err := owner.Revoke(t.Context(), info.ID, "ada"); err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Login(t, r.db, "outbox_api")
	judge := access.Combine(access.NewTokens(pool, access.TokensConfig{}), nil)
	handler, err := api.New(api.Config{Pool: pool, Producer: outbox.NewProducer(pool, outbox.NotifyOff), Authenticator: judge})
	if err != nil {
		t.Fatal(err)
	}
	r.handler = handler

	bad := map[string]string{
		"revoked": revoked, "another's secret": good[:19] + other[19:], "another's id": other[:19] + good[19:], "in capitals": strings.ToUpper(good), "twice": good + good,
		"a space before": " " + good, "a space after": good + " ", "a tab": "\t" + good, "quoted": `"` + good + `"`, "a comma more": good + "," + good, "a NUL": good + "\x00",
		"without its prefix": good[3:], "another prefix": "gh" + good[2:], "percent": strings.Replace(good, "_", "%5f", 1), "SQL": "ph_' OR ''='_" + good[20:], "a dot": "a.b", "dots": "..",
		"JWT of nothing": "eyJhbGciOiJub25lIn0.e30.", "8 KiB and one": "ph_" + strings.Repeat("a", 8<<10), "a million dots": strings.Repeat(".", 1<<20), "a megabyte": strings.Repeat("x", 1<<20),
		"Unicode": strings.Replace(good, "p", "\uff50", 1), "a long s": good + "\u017f", "empty": "", "the scheme alone": "Bearer",
	}
	for i := range good {
		bad[fmt.Sprintf("cut to %d bytes", i)] = good[:i]
		changed := []byte(good)
		changed[i] ^= 1
		bad[fmt.Sprintf("byte %d changed", i)] = string(changed)
	}
	if len(bad) < 60 {
		t.Fatalf("%d bearers, want 60 and more", len(bad))
	}
	for name, bearer := range bad {
		if _, err := judge.Authenticate(t.Context(), bearer); !errors.Is(err, access.ErrUnauthenticated) {
			t.Errorf("%s: %v, want it refused", name, err)
		}
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/jobs", nil)
		req.Header.Set("Authorization", "Bearer "+bearer)
		r.send(req).problem(http.StatusUnauthorized, "unauthenticated")
		if n := allocated(1<<20, func() { handler.ServeHTTP(httptest.NewRecorder(), req) }); n > 1<<20 {
			t.Errorf("%s: it took %d bytes to refuse, want 1 MiB at most", name, n)
		}
	}
	r.as(good).get("/jobs").want(http.StatusOK, nil)
}

// allocated returns how many bytes do allocates at most: the least that the whole process allocated meanwhile, with
// other tests in it, of several times. It stops as soon as that is little enough.
func allocated(enough uint64, do func()) uint64 {
	least := uint64(math.MaxUint64)
	for range 50 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		if least = min(least, after.TotalAlloc-before.TotalAlloc); least <= enough {
			break
		}
	}
	return least
}
