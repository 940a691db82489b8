package api_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestDeadLettersAreRetriedAndDismissed(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	var j api.Job
	id := r.reach(outbox.Dead)
	r.post("/jobs/"+id+"/retry", "").want(200, &j)
	if j.ID != id || j.Status != "pending" || j.Internals.Attempt != 0 {
		t.Errorf("after a retry it is %+v", j)
	}
	r.post("/jobs/"+id+"/dismiss", "").problem(409, "job_status_conflict")
	id = r.reach(outbox.Failed)
	r.post("/jobs/"+id+"/dismiss", "").want(200, &j)
	if j.Status != "dismissed" || j.FinishedAt.IsZero() {
		t.Errorf("after a dismissal it is %+v", j)
	}
	r.post("/jobs/"+id+"/retry", "").problem(409, "job_status_conflict")
}

func TestManyJobsAreActedOnAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	failed, dead, done, absent := r.reach(outbox.Failed), r.reach(outbox.Dead), r.reach(outbox.Succeeded), outbox.NewID().String()
	ids := fmt.Sprintf(`"ids":["%s","%s","%s","%s"]`, failed, dead, done, absent)
	want := api.BulkResult{Done: 2, Refused: 2, Jobs: []api.Outcome{
		{ID: failed}, {ID: dead}, {ID: done, Code: "job_status_conflict"}, {ID: absent, Code: "job_not_found"},
	}}
	for _, dryRun := range []string{"true", "false"} {
		var got api.BulkResult
		r.post("/jobs/retry", `{`+ids+`,"dryRun":`+dryRun+`}`).want(200, &got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("retry with dryRun %s (-want +got):\n%s", dryRun, diff)
		}
		if status := r.getJob(dead).Status; (status == "dead") != (dryRun == "true") {
			t.Errorf("after dryRun %s the job is %s", dryRun, status)
		}
	}

	dead = r.reach(outbox.Dead)
	other := r.as("operator-b").reach(outbox.Dead)
	var got api.BulkResult
	r.post("/jobs/dismiss", `{"filter":{"kind":"mail"}}`).want(200, &got)
	if diff := cmp.Diff(api.BulkResult{Done: 1, Jobs: []api.Outcome{{ID: dead}}}, got); diff != "" {
		t.Errorf("dismiss by filter (-want +got):\n%s", diff)
	}
	if status := r.as("operator-b").getJob(other).Status; status != "dead" {
		t.Errorf("another tenant's dead letter is %s", status)
	}
	for _, body := range []string{`{}`, `{"filter":{}}`, `{"filter":{"status":[]}}`, `{"ids":[]}`, `{"ids":["x"]}`, `{"ids":["` + dead + `"],"filter":{"kind":"mail"}}`, `{"filter":{"status":["open"]}}`} {
		r.post("/jobs/dismiss", body).problem(422, "invalid_input")
	}
}

// A process counts when it starts, so that the first request does not wait.
func TestTheFirstCountIsMadeAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.CountAtOnce = true })
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var counted bool
		if err := r.db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1 AND query LIKE '%name: CountOpenJobs%' AND state = 'idle')`,
			r.pool.Config().ConnConfig.User).Scan(&counted); err != nil {
			t.Fatal(err)
		}
		if counted {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was counted before somebody asked")
		}
	}
	r.enqueue(`{"kind":"mail"}`)
	var stats api.Stats
	r.as("root").get("/stats").want(200, &stats)
	if stats.Open != 0 {
		t.Errorf("stats = %+v, want the count from before", stats)
	}
}

func TestQueuesArePausedAndCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.reach(outbox.Dead)
	r.enqueue(`{"kind":"mail","queue":"post/eu"}`)
	r.as("client-b").enqueue(`{"kind":"mail","queue":"post/eu"}`)
	root := r.as("root")
	var paused struct {
		Queue  string
		Paused bool
	}
	root.post("/queues/post%2Feu/pause", "").want(200, &paused)
	if paused.Queue != "post/eu" || !paused.Paused {
		t.Errorf("pause = %+v", paused)
	}
	for token, waiting := range map[string]int64{"root": 2, "operator-a": 1} {
		var list struct{ Queues []api.Queue }
		r.as(token).get("/queues").want(200, &list)
		if len(list.Queues) != 2 || list.Queues[0].Jobs["dead"] != 1 || list.Queues[1].PausedSince.IsZero() || list.Queues[1].Jobs["pending"] != waiting {
			t.Errorf("queues of %s = %+v", token, list.Queues)
		}
		var stats api.Stats
		r.as(token).get("/stats").want(200, &stats)
		if stats.Open != 1+waiting || stats.DeadLetters != 1 || stats.Paused != 1 || stats.Jobs["pending"] != waiting || stats.AsOf.IsZero() {
			t.Errorf("stats of %s = %+v", token, stats)
		}
	}
	root.post("/queues/post%2Feu/resume", "").want(200, nil)
	var list struct{ Queues []api.Queue }
	root.get("/queues").want(200, &list)
	if len(list.Queues) != 2 || !list.Queues[1].PausedSince.IsZero() {
		t.Errorf("resumed queues = %+v", list.Queues)
	}
	if p := root.post("/queues/no%20spaces/pause", "").problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Parameter != "queue" || !strings.Contains(p.Errors[0].Detail, `"no spaces"`) {
		t.Errorf("a name that no job can have: %+v", p)
	}
	// A job that was stored by hand may be in such a queue.
	if _, err := r.db.Exec(t.Context(), `INSERT INTO outbox.jobs (id, kind, queue, payload) VALUES (outbox.uuid_v7(), 'mail', 'no spaces', '{}')`); err != nil {
		t.Fatal(err)
	}
	root.post("/queues/no%20spaces/pause", "").want(200, &paused)
	if paused.Queue != "no spaces" || !paused.Paused {
		t.Errorf("pause = %+v", paused)
	}
}

func TestQueuesAreLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	root := r.as("root")
	for _, step := range []struct {
		body string
		max  int
		rate *api.Rate
	}{
		{`{"maxRunning":3}`, 3, nil},
		{`{"rate":{"starts":100,"intervalSeconds":0.5}}`, 3, &api.Rate{Starts: 100, IntervalSeconds: 0.5}},
		{`{"maxRunning":0}`, 0, &api.Rate{Starts: 100, IntervalSeconds: 0.5}},
		{`{"rate":{"starts":0},"maxRunning":7}`, 7, nil},
	} {
		var now struct {
			Queue      string
			MaxRunning int
			Rate       *api.Rate
		}
		root.post("/queues/post%2Feu/limits", step.body).want(200, &now)
		var list struct{ Queues []api.Queue }
		r.as("operator-a").get("/queues").want(200, &list)
		if len(list.Queues) != 1 || list.Queues[0].Queue != "post/eu" || now.Queue != "post/eu" {
			t.Fatalf("%s: limits = %+v, queues = %+v", step.body, now, list.Queues)
		}
		for where, q := range map[string]api.Queue{"answer": {MaxRunning: now.MaxRunning, Rate: now.Rate}, "list": list.Queues[0]} {
			if q.MaxRunning != step.max || !reflect.DeepEqual(q.Rate, step.rate) {
				t.Errorf("%s: the %s has %d and %v, want %d and %v", step.body, where, q.MaxRunning, q.Rate, step.max, step.rate)
			}
		}
	}
	for body, pointer := range map[string]string{
		`{}`: "#", `{"maxRunning":-1}`: "#/maxRunning", `{"maxRunning":10001}`: "#/maxRunning", `{"maxRunning":null}`: "#", `{"rate":null}`: "#",
		`{"rate":{"starts":1}}`: "#/rate/intervalSeconds", `{"rate":{"starts":1,"intervalSeconds":0.001}}`: "#/rate/intervalSeconds",
		`{"rate":{"starts":0,"intervalSeconds":1}}`: "#/rate/starts", `{"rate":{"intervalSeconds":1}}`: "#/rate",
	} {
		if p := root.post("/queues/q/limits", body).problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v, want a fault at %s", body, p.Errors, pointer)
		}
	}
	r.as("operator-a").post("/queues/q/limits", `{"maxRunning":1}`).problem(403, "forbidden")
	root.post("/queues/no%20spaces/limits", `{"maxRunning":1}`).problem(422, "invalid_input")
}

// A list has its end; what is summed up has none.
func TestStatsCountAllQueues(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.db.Exec(t.Context(), `INSERT INTO outbox.jobs (id, kind, payload, queue)
		SELECT gen_random_uuid(), 'mail', '1', 'q' || n FROM generate_series(1, 1500) AS n`); err != nil {
		t.Fatal(err)
	}
	var stats api.Stats
	r.as("root").get("/stats").want(200, &stats)
	if stats.Open != 1500 || stats.Jobs["pending"] != 1500 {
		t.Errorf("stats = %+v, want 1500 open and pending", stats)
	}
}
