package console_test

import (
	"strings"
	"testing"

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
	"GET jobs-cancel":       "admin.read jobs.cancel",
	"POST jobs-cancel":      "admin.read jobs.cancel",
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
