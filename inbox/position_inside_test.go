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
	for first := int64(0); first < 20*batch; first += batch {
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			for i := max(0, first-batch); i < first+batch; i++ { // those before are repeats
				if isNew, err := p.Advance(t.Context(), tx, i); err != nil || isNew != (i >= first) {
					t.Errorf("to %d: isNew = %t, %v", i, isNew, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.pending) > 2*batch {
			t.Fatalf("at %d it remembers %d positions: %d", first, len(p.pending), p.pending)
		}
	}
	for i := range int64(20 * batch) { // all of it again
		if isNew, err := p.Advance(t.Context(), db, i); err != nil || isNew {
			t.Errorf("to %d again: isNew = %t, %v", i, isNew, err)
		}
	}
	if len(p.pending) > batch {
		t.Errorf("after repeats it remembers %d positions: %d", len(p.pending), p.pending)
	}
}
