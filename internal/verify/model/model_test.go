package model_test

import (
	"context"
	"flag"
	"os"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/verify/model"
)

func TestMain(m *testing.M) {
	// Some resets cost as much as a hundred operations, so play long runs.
	if err := flag.Set("rapid.steps", "300"); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}

// wantOps returns how many operations to play: usual, or the number in POSTHASTE_MODEL_OPS. CONTRIBUTING.md says when
// to set it.
func wantOps(t *testing.T, usual int) int {
	n, err := strconv.Atoi(os.Getenv("POSTHASTE_MODEL_OPS"))
	if err != nil {
		if os.Getenv("POSTHASTE_MODEL_OPS") != "" {
			t.Fatal(err)
		}
		n = usual
	}
	return n
}

// onlyOurs returns a database to which only the test writes, without noise from autovacuum.
func onlyOurs(t *testing.T) *pgxpool.Pool {
	db := pgtest.New(t)
	if _, err := db.Exec(t.Context(), `ALTER TABLE outbox.jobs SET (autovacuum_enabled = off)`); err != nil {
		t.Fatal(err)
	}
	return db
}

// drawn lets rapid choose, and shrink the choices of a failure.
type drawn struct{ *rapid.T }

func (d drawn) Below(n int, label string) int { return rapid.IntRange(0, n-1).Draw(d.T, label) }

// The database and a model in memory agree after each of 8,000 operations: of producers, workers (also those that lost
// their lease and do not know it), the reaper and operators, with time passing.
func TestModel(t *testing.T) {
	t.Parallel()
	want := wantOps(t, 8_000)
	for half := range 2 { // each on a database of its own
		t.Run(strconv.Itoa(half+1), func(t *testing.T) {
			t.Parallel()
			m := model.New(onlyOurs(t))
			for m.Ops() < (want+1)/2 {
				rapid.Check(t, func(t *rapid.T) {
					if m.Ops() < (want+1)/2 {
						play(t, m)
					}
				})
			}
			t.Logf("%d operations, each compared with the whole database", m.Ops())
		})
	}
}

// machine is what play plays with.
type machine interface {
	Reset(context.Context) error
	Operations() map[string]model.Operation
}

func play(t *rapid.T, m machine) {
	if err := m.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	actions := map[string]func(*rapid.T){}
	for name, do := range m.Operations() {
		actions[name] = func(t *rapid.T) {
			done, err := do(t.Context(), drawn{t})
			if err != nil {
				t.Fatal(err)
			}
			if !done {
				t.SkipNow()
			}
		}
	}
	t.Repeat(actions)
}

// The same, as a command runs it.
func TestRun(t *testing.T) {
	t.Parallel()
	if n, err := model.Run(t.Context(), onlyOurs(t), 1, 200); err != nil || n != 200 {
		t.Errorf("operations done = %d, %v; want 200", n, err)
	}
}
