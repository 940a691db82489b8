package api_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// An act by filter comes to every job that it means, and to none twice, although those
// that it has acted on still meet the filter; and not to what is enqueued meanwhile.
func TestAnActByFilterComesToAllOfThem(t *testing.T) {
	t.Parallel()
	const n = 2300
	r := newRig(t).as("operator-a")
	requests := make([]outbox.Request, n)
	for i := range requests {
		requests[i] = outbox.Request{Args: outbox.Raw{KindName: "mail", Payload: []byte("{}")}, Options: outbox.Options{Queue: "q", Delay: time.Hour, Tenant: tenantA}}
	}
	if _, err := outbox.EnqueueMany(t.Context(), r.db, requests); err != nil {
		t.Fatal(err)
	}
	const filter = `"filter":{"queue":"q","status":["pending"]}`
	for _, dryRun := range []string{"true", "false"} {
		seen := map[string]bool{}
		var sizes []int
		for cursor := ""; len(sizes) < 100; { // a slow machine comes to fewer in a request's time
			var part api.BulkResult
			r.post("/jobs/retry", fmt.Sprintf(`{%s,"dryRun":%s,"reason":"now","cursor":%q}`, filter, dryRun, cursor)).want(200, &part)
			for _, job := range part.Jobs {
				if seen[job.ID] || job.Code != "" {
					t.Fatalf("%+v comes twice, or is refused", job)
				}
				seen[job.ID] = true
			}
			if sizes = append(sizes, part.Done); part.More != (part.Next != "") {
				t.Errorf("more = %t, next = %q", part.More, part.Next)
			}
			r.enqueue(`{"kind":"mail","queue":"q"}`) // is not meant
			if cursor = part.Next; cursor == "" {
				break
			}
		}
		if want := n; dryRun == "true" && len(seen) != want || slices.Max(sizes) > 1000 {
			t.Errorf("with dryRun %s requests came to %v jobs, want %d together, and no more than 1000 each", dryRun, sizes, want)
		}
	}
	var waiting, acts int
	if err := r.db.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE run_at > now()), (SELECT count(*) FROM outbox.audit WHERE act = 'job.retry' AND reason = 'now') FROM outbox.jobs`).Scan(&waiting, &acts); err != nil {
		t.Fatal(err)
	}
	if waiting != 0 || acts < n {
		t.Errorf("%d still wait for their hour, and %d acts are in the audit, want 0 and at least %d", waiting, acts, n)
	}
	for body, pointer := range map[string]string{
		`{` + filter + `,"cursor":"x"}`:                                   "#/cursor",
		`{"ids":["` + outbox.NewID().String() + `"],"cursor":"AQGTWm8O"}`: "#/cursor",
		`{` + filter + `,"while":["dead"]}`:                               "#/while",
		`{` + filter + `,"epochs":[1]}`:                                   "#/epochs",
		`{"ids":["` + outbox.NewID().String() + `"],"epochs":[1,2]}`:      "#/epochs",
		`{"filter":{"queue":"mail","kind":""}}`:                           "#/filter/kind",
		`{"filter":{"queue":"mail","status":[]}}`:                         "#/filter/status",
	} {
		if p := r.post("/jobs/retry", body).problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v, want a fault at %s", body, p.Errors, pointer)
		}
	}
}

// A job that a transaction has locked is waited for, but not at the cost of the others.
func TestAnActOnManySurvivesALockedJob(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.Timeout = 12 * time.Second }) // four for the job, two for the others
	var ids []string
	for range 3 {
		ids = append(ids, r.enqueue(`{"kind":"mail"}`))
	}
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, ids[1]); err != nil {
		t.Fatal(err)
	}
	want := api.BulkResult{Done: 2, Refused: 1, Jobs: []api.Outcome{{ID: ids[0]}, {ID: ids[1], Code: "timeout"}, {ID: ids[2]}}}
	var got api.BulkResult
	r.post("/jobs/cancel", `{"ids":["`+strings.Join(ids, `","`)+`"]}`).want(200, &got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cancel (-want +got):\n%s", diff)
	}
}

// A dead letter that was found, and ran and died again before its turn, is another one: nobody has asked to repeat it.
func TestAnActByFilterIsOnTheAttemptsThatWereFound(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	moved, first := r.reach(outbox.Dead), r.reach(outbox.Dead) // newest first
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }() // in case of a failure
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, first); err != nil {
		t.Fatal(err)
	}
	answer := make(chan response)
	go func() { answer <- r.post("/jobs/retry", `{"filter":{"kind":"mail"}}`) }()
	r.waitFor(1, "acts that wait for the first job", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	// Somebody replays the other, and its attempt fails as before.
	if _, err := r.db.Exec(t.Context(), `UPDATE outbox.jobs SET epoch = epoch + 2 WHERE id = $1`, moved); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := api.BulkResult{Done: 1, Refused: 1, Jobs: []api.Outcome{{ID: first}, {ID: moved, Code: "job_status_conflict"}}}
	var got api.BulkResult
	(<-answer).want(200, &got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("retry (-want +got):\n%s", diff)
	}
}

// When there is no time for the rest, the answer says what was done, and what to ask
// for next.
func TestAnActOnManyThatTakesLongTellsHowFarItCame(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.Timeout = 3 * time.Second })
	var ids, others []string
	for range 6 {
		ids, others = append(ids, r.enqueue(`{"kind":"mail"}`)), append(others, r.enqueue(`{"kind":"post"}`))
	}
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }() // in case of a failure
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.jobs FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var byID, byFilter api.BulkResult
	r.post("/jobs/cancel", `{"ids":["`+strings.Join(others, `","`)+`"]}`).want(200, &byID)
	r.post("/jobs/cancel", `{"filter":{"kind":"mail"}}`).want(200, &byFilter)
	for _, got := range []api.BulkResult{byID, byFilter} {
		if got.Done != 0 || got.Refused == 0 || got.Refused == len(ids) || len(got.Jobs) != got.Refused || !got.More {
			t.Errorf("with all of them locked: %+v, want some of them given up, and more to come", got)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	var rest api.BulkResult
	r.post("/jobs/cancel", `{"filter":{"kind":"mail"},"cursor":"`+byFilter.Next+`"}`).want(200, &rest)
	slices.Reverse(ids) // newest first
	var got []string
	for _, job := range append(byFilter.Jobs, rest.Jobs...) {
		got = append(got, job.ID)
	}
	if diff := cmp.Diff(ids, got); diff != "" || rest.More || rest.Done+len(byFilter.Jobs) != len(ids) {
		t.Errorf("both answers together, of which the second is %+v (-want +got):\n%s", rest, diff)
	}
}

// A dry run refuses what the act would, by the database's clock.
func TestADryRunKnowsOfDeadlines(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	late, fine, waits := r.reach(outbox.Dead), r.reach(outbox.Dead), r.reach(outbox.Pending)
	if _, err := r.db.Exec(t.Context(), `UPDATE outbox.jobs SET deadline = CASE WHEN id = $2 THEN now() + interval '1 hour' ELSE created_at END WHERE id = ANY ($1)`, []string{late, fine, waits}, fine); err != nil {
		t.Fatal(err)
	}
	want := api.BulkResult{Done: 1, Refused: 2, Jobs: []api.Outcome{{ID: waits, Code: "job_status_conflict"}, {ID: fine}, {ID: late, Code: "job_status_conflict"}}}
	for _, which := range []string{`"filter":{"kind":"mail","status":["dead","pending"]}`, fmt.Sprintf(`"ids":["%s","%s","%s"]`, waits, fine, late)} {
		var got api.BulkResult
		r.post("/jobs/retry", `{`+which+`,"dryRun":true}`).want(200, &got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("a dry run with %s (-want +got):\n%s", which, diff)
		}
	}
	for _, act := range []struct {
		name string
		done int
	}{{"dismiss", 2}, {"cancel", 1}} { // a deadline does not keep anybody from these
		var got api.BulkResult
		r.post("/jobs/"+act.name, `{"filter":{"kind":"mail"},"dryRun":true}`).want(200, &got)
		if got.Done != act.done || got.Refused != 0 {
			t.Errorf("a dry run of %s: %+v, want %d done", act.name, got, act.done)
		}
	}
	var got api.BulkResult
	r.post("/jobs/retry", `{"filter":{"kind":"mail","status":["dead","pending"]}}`).want(200, &got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the act itself (-want +got):\n%s", diff)
	}
}

// The zero time is how a program says that it has none: as a bound it would widen what
// is meant.
func TestTheZeroTimeBoundsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	id := r.reach(outbox.Dead)
	for _, route := range []string{"/jobs/retry", "/jobs/dismiss", "/jobs/cancel", "/jobs/release", "/dead-letters/replay", "/dead-letters/dismiss"} {
		bounds := []string{"createdSince", "createdUntil"}
		if strings.HasPrefix(route, "/dead") {
			bounds = append(bounds, "failedSince", "failedUntil")
		}
		for _, bound := range bounds {
			for _, zero := range []string{"0001-01-01T00:00:00Z", "0001-01-01T01:00:00+01:00"} {
				p := r.post(route, `{"filter":{"kind":"mail","`+bound+`":"`+zero+`"}}`).problem(422, "invalid_input")
				if len(p.Errors) != 1 || p.Errors[0].Pointer != "#/filter/"+bound {
					t.Errorf("%s %s: %+v, want a fault there", route, bound, p.Errors)
				}
			}
		}
	}
	if status := r.getJob(id).Status; status != "dead" {
		t.Errorf("the job is %s", status)
	}
}

// What a script sends whose variable is not set is not taken as if it were left out: that would widen what is meant, or
// drop a part of a change.
func TestAnEmptyConditionIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	const text, list, zero = `""`, `[]`, `"0001-01-01T00:00:00Z"`
	const since = `"since":"2020-01-01T00:00:00Z"`
	ofJobs := map[string]string{"kind": text, "queue": text, "key": text, "status": list, "createdSince": zero, "createdUntil": zero}
	ofLetters := map[string]string{"errorCode": text, "errorFingerprint": text, "failedSince": zero, "failedUntil": zero}
	maps.Copy(ofLetters, ofJobs)
	for _, c := range []struct {
		routes []string
		body   string // with %s for the members that are tried
		within string
		member map[string]string
	}{
		{[]string{"/operations", "/operations/preview"}, `{"act":"cancel","jobs":{"tenant":"` + tenantA.String() + `",%s}}`, "#/jobs/", ofJobs},
		{[]string{"/operations", "/operations/preview"}, `{"act":"cancel","jobs":{"kind":"mail",%s}}`, "#/jobs/", map[string]string{"asOf": text}},
		{[]string{"/operations", "/operations/preview"}, `{"act":"replay","filter":{"tenant":"` + tenantA.String() + `",%s}}`, "#/filter/", ofLetters},
		{[]string{"/operations", "/operations/preview"}, `{"act":"edit","jobs":{"kind":"mail"},"edit":{"priority":1,%s}}`, "#/edit/", map[string]string{"queue": text, "runAt": zero}},
		{[]string{"/dead-letters/replay", "/dead-letters/dismiss"}, `{"filter":{"tenant":"` + tenantA.String() + `",%s}}`, "#/filter/", ofLetters},
		{[]string{"/jobs/cancel", "/jobs/release", "/jobs/retry", "/jobs/dismiss"}, `{"filter":{"tenant":"` + tenantA.String() + `",%s}}`, "#/filter/", ofJobs},
		{[]string{"/jobs/cancel", "/jobs/release", "/jobs/retry", "/jobs/dismiss"}, `{"ids":["` + tenantA.String() + `"],%s}`, "#/", map[string]string{"while": list}},
		{[]string{"/jobs/replay"}, `{"kind":"mail",` + since + `,%s}`, "#/", map[string]string{"key": text, "until": zero}},
		{[]string{"/jobs/replay"}, `{"kind":"mail",%s}`, "#/", map[string]string{"since": zero}},
		{[]string{"/sinks/orders/replays"}, `{` + since + `,%s}`, "#/", map[string]string{"key": text, "topics": list, "until": zero}},
		{[]string{"/sinks/orders/replays"}, `{%s}`, "#/", map[string]string{"since": zero}},
	} {
		for _, route := range c.routes {
			var all, want []string
			for _, member := range slices.Sorted(maps.Keys(c.member)) {
				one := `"` + member + `":` + c.member[member]
				p := r.as("root").post(route, fmt.Sprintf(c.body, one)).problem(422, "invalid_input")
				if len(p.Errors) != 1 || p.Errors[0].Pointer != c.within+member {
					t.Errorf("%s with %s: %+v, want a fault at %s", route, one, p.Errors, c.within+member)
				}
				all, want = append(all, one), append(want, c.within+member)
			}
			var got []string
			for _, fault := range r.as("root").post(route, fmt.Sprintf(c.body, strings.Join(all, ","))).problem(422, "invalid_input").Errors {
				got = append(got, fault.Pointer)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s with all of them is refused for (-want +got):\n%s", route, diff)
			}
		}
	}
}

// An empty tenant would be any in an act on many, and the root tenant in one on what is named.
func TestAnActOfAnEmptyTenantIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	for route, body := range map[string]string{
		"/jobs/replay":            `{"kind":"mail","since":"2020-01-01T00:00:00Z"}`,
		"/sinks/orders/replays":   `{"since":"2020-01-01T00:00:00Z","dryRun":true}`,
		"/keys/default/k/unblock": "", "/schedules/s/delete": "", "/schedules/s/run": "",
	} {
		p := r.as("root").post(route+"?tenant=", body).problem(422, "invalid_input")
		if len(p.Errors) != 1 || p.Errors[0].Parameter != "tenant" {
			t.Errorf("%s: %+v, want a fault of the parameter", route, p.Errors)
		}
	}
	r.as("root").get("/jobs?tenant=").want(200, nil) // a list changes nothing
}

func TestActsOnOneJobTakeAReason(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	held, dead, waits, other := r.enqueue(`{"kind":"mail","hold":true}`), r.reach(outbox.Dead), r.reach(outbox.Pending), r.reach(outbox.Dead)
	for act, id := range map[string]string{"release": held, "retry": dead, "cancel": waits, "dismiss": other} {
		r.post("/jobs/"+id+"/"+act+"?reason=it+is+"+act, "").want(200, nil)
		var acts struct{ Acts []api.Act }
		r.get("/audit?job_id="+id).want(200, &acts)
		if len(acts.Acts) != 1 || acts.Acts[0].Reason != "it is "+act {
			t.Errorf("audit of %s = %+v, want its reason", act, acts.Acts)
		}
		p := r.post("/jobs/"+id+"/"+act+"?reason="+strings.Repeat("x", 2001), "").problem(422, "invalid_input")
		if len(p.Errors) != 1 || p.Errors[0].Parameter != "reason" {
			t.Errorf("a long reason: %+v", p.Errors)
		}
	}
}

// What a job is to be released from is its being held: no other status is meant.
func TestReleaseKeepsToTheStatuses(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	id := r.enqueue(`{"kind":"mail","hold":true}`)
	for _, dry := range []string{"true", "false"} {
		var got api.BulkResult
		r.post("/jobs/release", `{"ids":["`+id+`"],"while":["pending"],"dryRun":`+dry+`}`).want(200, &got)
		if got.Done != 0 || got.Refused != 1 || got.Jobs[0].Code != "job_status_conflict" {
			t.Errorf("dry run %s: %+v, want it refused", dry, got)
		}
	}
	var got api.BulkResult
	if r.post("/jobs/release", `{"ids":["`+id+`"],"while":["created"]}`).want(200, &got); got.Done != 1 {
		t.Errorf("%+v, want it released", got)
	}
}

// A dead letter is run again and dies once more, after somebody has seen it: what they decided was about another error.
func TestAnActIsOnTheJobsInTheirEpochs(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	same, other := r.enqueue(`{"kind":"mail","hold":true}`), r.enqueue(`{"kind":"mail","hold":true}`)
	if _, err := r.db.Exec(t.Context(), `UPDATE outbox.jobs SET epoch = epoch + 2 WHERE id = $1`, other); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []string{"true", "false"} {
		var got api.BulkResult
		r.post("/jobs/release", `{"ids":["`+other+`","`+same+`"],"epochs":[0,0],"dryRun":`+dry+`}`).want(200, &got)
		if got.Done != 1 || got.Jobs[0].Code != "job_status_conflict" || got.Jobs[1].Code != "" {
			t.Errorf("dry run %s: %+v, want the first refused", dry, got)
		}
	}
	var got api.BulkResult
	if r.post("/jobs/release", `{"ids":["`+other+`"],"epochs":[2]}`).want(200, &got); got.Done != 1 {
		t.Errorf("%+v, want it released", got)
	}
}
