package reaper

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// BenchmarkSampleDepth measures one sample with a million open jobs of 20 kinds in 5 queues, due and of tomorrow. Of
// those of tomorrow none counts as due.
func BenchmarkSampleDepth(b *testing.B) {
	for name, of := range map[string]struct {
		runAt string
		due   int64
	}{"due": {"now()", 1_000_000}, "tomorrow": {"now() + interval '1 day'", 0}} {
		b.Run(name, func(b *testing.B) {
			db := pgtest.New(b)
			exec(b, db, `
				INSERT INTO outbox.jobs (id, queue, kind, payload, run_at)
				SELECT gen_random_uuid(), 'queue-' || n % 5, 'kind-' || n % 20, repeat('x', 100)::bytea, `+of.runAt+` FROM generate_series(1, 1000000) AS n`)
			exec(b, db, `VACUUM ANALYZE outbox.jobs`)
			q := sqlgen.New(db)
			for b.Loop() {
				rows, err := q.SampleDepth(b.Context(), pgvalue.Interval(time.Minute), 100)
				if err != nil || len(rows) != 25 {
					b.Fatalf("%d rows, want 20 kinds and 5 queues, %v", len(rows), err)
				}
				due := map[string]int64{}
				for _, row := range rows {
					due[row.What] += row.Due
				}
				if due["queue"] != of.due {
					b.Fatalf("%d jobs are due in the queues, want %d", due["queue"], of.due)
				}
			}
		})
	}
}
