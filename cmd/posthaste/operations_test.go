package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/operator"
)

// An act that is detached is an operation, which is listed, stopped and resumed by the database and through the API
// alike.
func TestOperations(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for range 2 {
		ok(t, direct, "enqueue", "mail")
	}
	bury(t, db, "mail")
	var ids []string
	for _, way := range []env{direct, through} {
		ids = append(ids, strings.TrimSpace(ok(t, way, "dlq", "replay", "--all", "--rate", "0.5", "--reason", "again", "--detach", "--yes")))
	}
	list := ok(t, direct, "operations", "list", "-o", "json")
	if diff := cmp.Diff(values(t, list), values(t, ok(t, through, "operations", "list", "-o", "json"))); diff != "" || strings.Count(list, `"matched": 2`) != 2 || !strings.Contains(list, `"reason": "again"`) {
		t.Errorf("through the API, of %s (-direct +through):\n%s", list, diff)
	}
	for i, way := range []env{direct, through} {
		if out := ok(t, way, "operations", "stop", ids[1-i], "--reason", "too fast"); !strings.Contains(out, "stopped") {
			t.Errorf("stopped: %s", out)
		}
		if out := ok(t, way, "operations", "resume", ids[1-i]); !strings.Contains(out, "running") {
			t.Errorf("resumed: %s", out)
		}
	}
	o := operator.New(db)
	for range 2 { // a step each
		if _, err := o.StepOperation(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, way := range []env{direct, through} {
		if out := ok(t, way, "operations", "show", ids[0], "-o", "json"); !strings.Contains(out, `"done": 1`) {
			t.Errorf("after a step: %s", out)
		}
	}
}
