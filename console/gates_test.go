package console_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/console"
)

// gates is what each page and form takes, as it was decided: a row of the table that takes less than it should is a
// difference here, whatever the table says of itself.
var gates = map[string]string{
	"GET ":                  "",
	"GET me":                "",
	"GET job-dismiss":       "admin.mutate",
	"POST job-dismiss":      "admin.mutate",
	"GET job-release":       "admin.mutate",
	"POST job-release":      "admin.mutate",
	"GET job-retry":         "admin.mutate",
	"POST job-retry":        "admin.mutate",
	"GET key-unblock":       "admin.mutate",
	"POST key-unblock":      "admin.mutate",
	"GET letters-dismiss":   "admin.mutate",
	"POST letters-dismiss":  "admin.mutate",
	"GET letters-replay":    "admin.mutate",
	"POST letters-replay":   "admin.mutate",
	"GET operation-resume":  "admin.mutate",
	"POST operation-resume": "admin.mutate",
	"GET operation-stop":    "admin.mutate",
	"POST operation-stop":   "admin.mutate",
	"GET schedule-delete":   "admin.mutate",
	"POST schedule-delete":  "admin.mutate",
	"GET schedule-pause":    "admin.mutate",
	"POST schedule-pause":   "admin.mutate",
	"GET schedule-resume":   "admin.mutate",
	"POST schedule-resume":  "admin.mutate",
	"GET schedule-run":      "admin.mutate",
	"POST schedule-run":     "admin.mutate",
	"GET queue-limits":      "admin.mutate of all tenants",
	"POST queue-limits":     "admin.mutate of all tenants",
	"GET queue-pause":       "admin.mutate of all tenants",
	"POST queue-pause":      "admin.mutate of all tenants",
	"GET queue-resume":      "admin.mutate of all tenants",
	"POST queue-resume":     "admin.mutate of all tenants",
	"GET sink-pause":        "admin.mutate of all tenants",
	"POST sink-pause":       "admin.mutate of all tenants",
	"GET sink-resume":       "admin.mutate of all tenants",
	"POST sink-resume":      "admin.mutate of all tenants",
	"GET job-edit":          "admin.mutate payload.read",
	"POST job-edit":         "admin.mutate payload.read",
	"POST job-edit-do":      "admin.mutate payload.read",
	"GET jobs-edit":         "admin.read admin.mutate",
	"POST jobs-edit":        "admin.read admin.mutate",
	"GET jobs-release":      "admin.read admin.mutate",
	"POST jobs-release":     "admin.read admin.mutate",
	"GET jobs-retry":        "admin.read admin.mutate",
	"POST jobs-retry":       "admin.read admin.mutate",
	"GET selected-dismiss":  "admin.read admin.mutate",
	"POST selected-dismiss": "admin.read admin.mutate",
	"GET selected-release":  "admin.read admin.mutate",
	"POST selected-release": "admin.read admin.mutate",
	"GET selected-retry":    "admin.read admin.mutate",
	"POST selected-retry":   "admin.read admin.mutate",
	"GET undo":              "admin.read admin.mutate",
	"POST undo":             "admin.read admin.mutate",
	"GET jobs-cancel":       "admin.read admin.mutate jobs.cancel",
	"POST jobs-cancel":      "admin.read admin.mutate jobs.cancel",
	"GET selected-cancel":   "admin.read jobs.cancel",
	"POST selected-cancel":  "admin.read jobs.cancel",
	"GET callback":          "anyone",
	"GET login":             "anyone",
	"POST login":            "anyone",
	"POST logout":           "anyone",
	"GET provider":          "anyone",
	"GET robots.txt":        "anyone",
	"POST settings":         "anyone",
	"GET job-cancel":        "jobs.cancel",
	"POST job-cancel":       "jobs.cancel",
	"GET find":              "jobs.read",
	"GET job":               "jobs.read",
	"GET jobs":              "jobs.read",
	"GET jobs-export":       "jobs.read",
	"GET result":            "jobs.read",
	"GET rows":              "jobs.read",
	"GET view-delete":       "jobs.read",
	"POST view-delete":      "jobs.read",
	"GET view-save":         "jobs.read",
	"POST view-save":        "jobs.read",
	"GET audit":             "jobs.read admin.read",
	"GET audit-export":      "jobs.read admin.read",
	"GET key":               "jobs.read admin.read",
	"GET keys":              "jobs.read admin.read",
	"GET kind":              "jobs.read admin.read",
	"GET kinds":             "jobs.read admin.read",
	"GET letters":           "jobs.read admin.read",
	"GET letters-export":    "jobs.read admin.read",
	"GET operation":         "jobs.read admin.read",
	"GET operations":        "jobs.read admin.read",
	"GET problems":          "jobs.read admin.read",
	"GET queue":             "jobs.read admin.read",
	"GET queues":            "jobs.read admin.read",
	"GET schedule":          "jobs.read admin.read",
	"GET schedules":         "jobs.read admin.read",
	"GET audit-verify":      "jobs.read admin.read of all tenants",
	"GET now":               "jobs.read admin.read of all tenants",
	"GET sink":              "jobs.read admin.read of all tenants",
	"GET sinks":             "jobs.read admin.read of all tenants",
	"GET system":            "jobs.read admin.read of all tenants",
	"GET workers":           "jobs.read admin.read of all tenants",
	"GET events":            "jobs.read admin.stream",
	"GET live":              "jobs.read admin.stream",
	"GET payload":           "jobs.read payload.read",
}

func TestTheTableIsWhatWasDecided(t *testing.T) {
	t.Parallel()
	known := 0
	for _, row := range console.Table() {
		var takes []string
		for _, c := range row.Needs {
			takes = append(takes, string(c))
		}
		got := strings.Join(takes, " ")
		if row.Anyone {
			got = "anyone"
		}
		if row.Everything {
			got += " of all tenants"
		}
		want, ok := gates[row.Method+" "+row.Path]
		if known++; !ok || got != want {
			t.Errorf("%s /%s takes %q, want %q", row.Method, row.Path, got, want)
		}
	}
	if known != len(gates) {
		t.Errorf("the table has %d rows, want %d", known, len(gates))
	}
}

// sameAs is the route of the API that does the same as an act here, and what it takes beyond the route's capability.
var sameAs = map[string][]string{
	"job-retry": {"/jobs/{id}/retry"}, "job-cancel": {"/jobs/{id}/cancel"}, "job-release": {"/jobs/{id}/release"}, "job-dismiss": {"/jobs/{id}/dismiss"},
	"job-edit-do":    {"/dead-letters/{id}/replay", "payload.read"},
	"selected-retry": {"/jobs/retry"}, "selected-cancel": {"/jobs/cancel"}, "selected-release": {"/jobs/release"}, "selected-dismiss": {"/jobs/dismiss"},
	"letters-replay": {"/operations"}, "letters-dismiss": {"/operations"},
	"jobs-cancel": {"/operations", "jobs.cancel"}, "jobs-release": {"/operations"}, "jobs-retry": {"/operations"}, "jobs-edit": {"/operations"},
	"operation-stop": {"/operations/{operation}/stop"}, "operation-resume": {"/operations/{operation}/resume"},
	"key-unblock":    {"/keys/{queue}/{key}/unblock"},
	"schedule-pause": {"/schedules/{name}/pause"}, "schedule-resume": {"/schedules/{name}/resume"}, "schedule-run": {"/schedules/{name}/run"},
	"schedule-delete": {"/schedules/{name}/delete"},
	"sink-pause":      {"/sinks/{sink}/pause"}, "sink-resume": {"/sinks/{sink}/resume"},
	"queue-pause": {"/queues/{queue}/pause"}, "queue-resume": {"/queues/{queue}/resume"}, "queue-limits": {"/queues/{queue}/limits"},
}

// Nobody can do here what the API would refuse to the same token.
func TestActsTakeWhatTheAPITakes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../api/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var api struct {
		Paths map[string]struct{ Post struct{ Description string } }
	}
	if err := json.Unmarshal(text, &api); err != nil {
		t.Fatal(err)
	}
	capability, compared := regexp.MustCompile("capability `([a-z.]+)`"), 0
	for _, row := range console.Table() {
		same, ok := sameAs[row.Path]
		if !ok || row.Method != "POST" {
			continue
		}
		compared++
		says := api.Paths[same[0]].Post.Description
		found := capability.FindStringSubmatch(says)
		if found == nil {
			t.Errorf("%s is not in the API: %q", same[0], says)
			continue
		}
		for _, c := range append(same[1:], found[1]) {
			if !slices.Contains(row.Needs, access.Capability(c)) {
				t.Errorf("%s takes %v, and the API's %s also %s", row.Path, row.Needs, same[0], c)
			}
		}
		if strings.Contains(says, "of all tenants") && !row.Everything {
			t.Errorf("%s does not take a login of all tenants, as the API's %s does", row.Path, same[0])
		}
	}
	if compared != len(sameAs) {
		t.Errorf("%d acts were compared, want %d", compared, len(sameAs))
	}
}
