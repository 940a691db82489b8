package api_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ofOperators are tokens that act, of a tenant and of all tenants; the jobs of the latter are the root tenant's.
var ofOperators = []string{"operator-a", "root"}

// sent returns how many of the statements were of a name.
func sent(all []string, name string) (n int) {
	for _, sql := range all {
		if strings.Contains(sql, "-- name: "+name+" ") {
			n++
		}
	}
	return n
}

func TestFractionsOfSecondsAreTakenToTheMicrosecond(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, token := range ofOperators {
		op := r.as(token)
		for i, n := range []string{"8.2", "0.1", "1.000001", "4.35"} {
			op.post("/schedules", fmt.Sprintf(`{"name":"s%d","kind":"mail","everySeconds":8.2,"deadlineSeconds":%s,"timeoutSeconds":%s}`, i, n, n)).want(200, nil)
			var job api.Accepted
			op.post("/jobs", fmt.Sprintf(`{"kind":"mail","timeoutSeconds":%s}`, n)).want(202, &job)
			if got := fmt.Sprint(op.getJob(job.ID).Internals.TimeoutSeconds); got != n {
				t.Errorf("%s: a timeout of %s s is stored as %s", token, n, got)
			}
		}
	}
}

// Neither the result of a job that has none nor its attempts cost a look at its payload, which may be large.
func TestResultsAndAttemptsAreReadWithoutPayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := &statements{}
	r.handler = r.traced(log)
	for _, token := range ofOperators {
		op := r.as(token)
		var open api.Accepted
		op.post("/jobs", `{"kind":"mail"}`).want(202, &open)
		closed := outbox.NewID()
		r.exec(`INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type, result)
			SELECT $1, tenant_id, run_at, created_at, 1, 'succeeded', 'running', 1, max_attempts, 0, priority, queue, kind, payload, content_type, convert_to('{"n":' || repeat('7', $3) || '}', 'UTF8') FROM outbox.jobs WHERE id = $2`, closed, open.ID, 20_000)
		log.take()
		op.get("/jobs/"+open.ID+"/result").problem(409, "job_not_finished")
		op.get("/jobs/"+open.ID+"/attempts").want(200, nil)
		var result api.Result
		op.get("/jobs/"+closed.String()+"/result").want(200, &result)
		if len(result.Result) != 20_006 {
			t.Errorf("%s: the result has %d bytes", token, len(result.Result))
		}
		if all := log.take(); sent(all, "FindJob") != 0 || sent(all, "FindResult") != 2 || sent(all, "ListAttempts") != 1 {
			t.Errorf("%s: sent %q", token, all)
		}
	}
	for _, path := range []string{"/result", "/attempts"} { // of another tenant
		var job api.Accepted
		r.as("root").post("/jobs", `{"kind":"mail"}`).want(202, &job)
		r.as("operator-a").get("/jobs/"+job.ID+path).problem(404, "job_not_found")
	}
}

// However many ask, the dead letters are grouped once, until somebody acts; so are the marks of all tenants read.
func TestGroupsAndMarksAreShared(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i, token := range []string{"operator-a", "root", "operator-a", "root", "root"} {
		r.kill(r.as(token).enqueue(fmt.Sprintf(`{"kind":"mail","queue":"q%d"}`, i)))
	}
	log := &statements{}
	r.handler = r.traced(log)
	for token, jobs := range map[string]int64{"operator-a": 2, "root": 5} {
		op := r.as(token)
		log.take()
		for range 3 {
			var out struct{ Groups []api.DeadLetterGroup }
			op.get("/dead-letters/groups").want(200, &out)
			if sum := total(out.Groups); sum != jobs {
				t.Errorf("%s sees %d dead letters in groups, want %d", token, sum, jobs)
			}
		}
		if n := sent(log.take(), "GroupDeadLetters"); n != 1 {
			t.Errorf("%s: the dead letters were grouped %d times, want once", token, n)
		}
	}
	r.as("root").post("/jobs/cancel", `{"ids":["`+outbox.NewID().String()+`"]}`).want(200, nil)
	r.as("root").get("/dead-letters/groups").want(200, nil)
	if n := sent(log.take(), "GroupDeadLetters"); n != 1 {
		t.Errorf("after an act they were grouped %d times, want once", n)
	}
	for range 2 {
		r.as("root").get("/series").want(200, nil)
	}
	if n := sent(log.take(), "ListMarks"); n != 1 {
		t.Errorf("the marks of all tenants were read %d times, want once", n)
	}
}

func total(groups []api.DeadLetterGroup) (jobs int64) {
	for _, g := range groups {
		jobs += g.Jobs
	}
	return jobs
}

// A request whose token could not be looked up in time has done nothing, and says so.
func TestARequestThatWasNotBegunHasDoneNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) {
		c.Timeout = 50 * time.Millisecond
		c.Authenticator = asked(func(ctx context.Context, _ string) (access.Principal, error) {
			<-ctx.Done()
			return access.Principal{}, ctx.Err()
		})
	})
	for _, answer := range []response{r.post("/jobs", `{"kind":"mail"}`), r.get("/jobs")} {
		p := answer.problem(503, "unavailable")
		if p.Outcome != "none" || answer.Header().Get("Retry-After") == "" {
			t.Errorf("the answer is %+v, Retry-After %q", p, answer.Header().Get("Retry-After"))
		}
	}
}

// Each mistake is named where the request has it.
func TestFaultsAreNamedWhereTheRequestHasThem(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, token := range ofOperators {
		op := r.as(token)
		for place, answer := range map[api.Fault]response{
			{Pointer: "#/filter/idPrefix"}: op.post("/jobs/cancel", `{"filter":{"idPrefix":"x"}}`),
			{Pointer: "#/filter/parent"}:   op.post("/jobs/cancel", `{"filter":{"parent":"{01976f0e-7a5c-7d3e-8f4b-0123456789ab}"}}`),
			{Parameter: "id_prefix"}:       op.get("/jobs?id_prefix=x"),
			{Pointer: "#/ratePerSecond"}:   op.post("/operations", `{"act":"dismiss","filter":{"kind":"mail"},"ratePerSecond":1}`),
		} {
			p := answer.problem(422, "invalid_input")
			if len(p.Errors) != 1 || p.Errors[0].Pointer != place.Pointer || p.Errors[0].Parameter != place.Parameter {
				t.Errorf("%s: %+v, want %+v", token, p.Errors, place)
			}
		}
	}
}
