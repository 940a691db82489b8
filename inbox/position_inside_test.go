package inbox

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// A consumer that runs for years remembers the positions of one transaction.
func TestAPositionForgetsWhatIsCommitted(t *testing.T) {
	t.Parallel()
	const batch = 10
	db := pgtest.New(t)
	p, err := Seek(t.Context(), db, Partition{Consumer: "ledger", Source: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	for start := int64(0); start < 20*batch; start += batch {
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			for i := max(0, start-batch); i < start+batch; i++ { // those before are repeats
				if first, err := p.Advance(t.Context(), tx, i); err != nil || first != (i >= start) {
					t.Errorf("to %d: first = %t, %v", i, first, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.pending) > 2*batch {
			t.Fatalf("at %d it remembers %d positions: %d", start, len(p.pending), p.pending)
		}
	}
	for i := range int64(20 * batch) { // all of it again
		if first, err := p.Advance(t.Context(), db, i); err != nil || first {
			t.Errorf("to %d again: first = %t, %v", i, first, err)
		}
	}
	if len(p.pending) > batch {
		t.Errorf("after repeats it remembers %d positions: %d", len(p.pending), p.pending)
	}
}
