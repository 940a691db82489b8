package operator_test

import (
	"testing"
)

// A dispatcher that has been silent for 149 seconds is present, and one that has been for 151 seconds is missing.
func TestADispatcherIsMissingAfterTwoReports(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, started_at, seen_at)
		SELECT 'w' || seconds, 'v1', '{default}', '{1}', '{}', true, now() - interval '1 hour', clock_timestamp() - seconds * interval '1 s' FROM unnest(ARRAY[149, 151]) AS seconds`); err != nil {
		t.Fatal(err)
	}
	workers, err := o.Workers(t.Context())
	if err != nil || len(workers) != 2 {
		t.Fatalf("%d workers, %v", len(workers), err)
	}
	for _, w := range workers {
		if w.Missing != (w.Name == "w151") {
			t.Errorf("%s is missing: %t", w.Name, w.Missing)
		}
	}
}
