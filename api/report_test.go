package api_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// report stores what a handler has reported of a running job.
func (r *rig) report(id string) {
	r.t.Helper()
	for _, statement := range []string{
		`INSERT INTO outbox.progress (job_id, epoch, revision, current, total, message, reported_at) VALUES ($1, 1, 1, 3, 10, 'page 3', now())`,
		`INSERT INTO outbox.job_logs (job_id, slot, epoch, line, logged_at, level, message)
		 SELECT $1::uuid, n, 1 + n / 2, n % 2, now(), 'INFO', 'line ' || n FROM generate_series(0, 3) AS n`,
		`INSERT INTO outbox.job_steps (job_id, name, epoch, took, result) VALUES ($1, 'charge', 1, '2 seconds', '{"secret":"p4yl0ad"}')`,
	} {
		if _, err := r.db.Exec(r.t.Context(), statement, id); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestWhatAJobReportsIsShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.reach(outbox.Running)
	var p api.Progress
	if r.get("/jobs/"+id+"/progress").want(200, &p); p.Current != 0 || !p.ReportedAt.IsZero() {
		t.Errorf("before the first report: %+v", p)
	}
	r.report(id)
	if r.get("/jobs/"+id+"/progress").want(200, &p); p.ID != id || p.Status != "running" || p.Current != 3 || p.Total != 10 || p.Message != "page 3" || p.ReportedAt.IsZero() {
		t.Errorf("progress = %+v", p)
	}
	var logs struct {
		Lines []api.LogLine
		Next  string
	}
	r.get("/jobs/"+id+"/logs").want(200, &logs)
	if len(logs.Lines) != 4 || logs.Lines[0].Message != "line 0" || logs.Lines[0].Line != 1 || logs.Lines[3].Level != "INFO" {
		t.Fatalf("logs = %+v", logs)
	}
	end := logs.Next
	r.get("/jobs/"+id+"/logs?cursor="+url.QueryEscape(end)).want(200, &logs)
	if len(logs.Lines) != 0 || logs.Next != end {
		t.Errorf("after the end: %+v, want nothing and the same cursor", logs)
	}
	if _, err := r.db.Exec(t.Context(), `INSERT INTO outbox.job_logs (job_id, slot, epoch, line, logged_at, level, message) VALUES ($1, 4, 2, 2, now(), 'WARN', 'more')`, id); err != nil {
		t.Fatal(err)
	}
	r.get("/jobs/"+id+"/logs?cursor="+url.QueryEscape(end)).want(200, &logs)
	if len(logs.Lines) != 1 || logs.Lines[0].Message != "more" || logs.Next == end {
		t.Errorf("after one more line: %+v", logs)
	}
	for _, target := range []string{"/progress", "/logs"} {
		body := r.get("/jobs/"+id+target).want(200, nil).Body.String()
		for _, word := range hidden {
			if strings.Contains(strings.ToLower(body), word) {
				t.Errorf("GET %s shows a client %q: %s", target, word, body)
			}
		}
	}
	for _, after := range []string{"abc", strings.Repeat("x", 65), "AQAAAAAAAAAA"} {
		if p := r.get("/jobs/"+id+"/logs?cursor="+after).problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Parameter != "cursor" {
			t.Errorf("after %q: errors = %+v", after, p.Errors)
		}
	}
}

func TestResultsOfStepsAreForThoseWhoSeePayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.reach(outbox.Running)
	r.report(id)
	var steps struct{ Steps []api.Step }
	r.as("operator-a").get("/jobs/"+id+"/steps").want(200, &steps)
	if len(steps.Steps) != 1 || steps.Steps[0].Name != "charge" || steps.Steps[0].TookSeconds != 2 || string(steps.Steps[0].Result) != `{"secret":"p4yl0ad"}` {
		t.Errorf("steps = %+v", steps.Steps)
	}
	if body := r.as("no-payload.read").get("/jobs/"+id+"/steps").want(200, nil).Body.String(); strings.Contains(body, "p4yl0ad") || !strings.Contains(body, "charge") {
		t.Errorf("without payload.read: %s", body)
	}
}
