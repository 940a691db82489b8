package model

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	runLength  = 300 // operations between two resets
	trailShown = 40  // of the operations before a mismatch
)

// Run plays n operations chosen from seed. It returns how many it did, and an error for the first mismatch, at which it
// stops. The same seed makes the same choices. Run deletes every job of the database.
func Run(ctx context.Context, db *pgxpool.Pool, seed uint64, n int) (int, error) {
	m := New(db)
	operations := m.Operations()
	names := slices.Sorted(maps.Keys(operations))
	d := &seeded{rand: rand.New(rand.NewPCG(seed, 0))}
	for m.ops < n {
		if err := m.Reset(ctx); err != nil {
			return m.ops, err
		}
		d.trail = nil
		for end := min(m.ops+runLength, n); m.ops < end; {
			name := names[d.rand.IntN(len(names))]
			d.trail = append(d.trail, name+":")
			done, err := operations[name](ctx, d)
			if err != nil {
				return m.ops, fmt.Errorf("seed %d, %w; before it (of %d choices):\n%s", seed, err, len(d.trail), d)
			}
			if !done {
				d.trail = append(d.trail, "not possible")
			}
		}
	}
	return m.ops, nil
}

// seeded draws from a generator and remembers what it drew.
type seeded struct {
	rand  *rand.Rand
	trail []string
}

func (s *seeded) Below(n int, label string) int {
	drawn := s.rand.IntN(n)
	s.trail = append(s.trail, fmt.Sprintf("%s %d", label, drawn))
	return drawn
}

func (s *seeded) String() string {
	var lines []string
	for _, entry := range s.trail {
		if strings.HasSuffix(entry, ":") || len(lines) == 0 {
			lines = append(lines, entry)
		} else {
			lines[len(lines)-1] += " " + entry
		}
	}
	return strings.Join(lines[max(0, len(lines)-trailShown):], "\n")
}
