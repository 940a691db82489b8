package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The database and the API give the same reasons, with what shows them and what helps.
func TestJobsWhy(t *testing.T) {
	t.Parallel()
	_, direct, through := ways(t)
	ok(t, direct, "queues", "pause", "mail")
	ok(t, direct, "queues", "limit", "mail", "--rate", "10/1m")
	id := strings.TrimSpace(ok(t, direct, "enqueue", "mail.send", "--queue", "mail", "--hold"))

	text := ok(t, direct, "jobs", "why", id)
	for _, want := range []string{"It was enqueued held", "$ posthaste jobs release " + id, "When that is gone:", "Queue mail has been paused since", "$ posthaste queues resume mail", "none has been seen recently"} {
		if !strings.Contains(text, want) {
			t.Errorf("got %s, want %q in it", text, want)
		}
	}
	if diff := cmp.Diff(text, ok(t, through, "jobs", "why", id)); diff != "" {
		t.Errorf("through the API (-direct +through):\n%s", diff)
	}
	whole := ok(t, direct, "jobs", "why", id, "-o", "json")
	if diff := cmp.Diff(values(t, whole), values(t, ok(t, through, "jobs", "why", id, "-o", "json"))); diff != "" || !strings.Contains(whole, `"by":`) {
		t.Errorf("through the API, of %s (-direct +through):\n%s", whole, diff)
	}
}
