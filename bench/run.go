package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/posthaste-dev/posthaste/internal/bench"
)

// series is one run of the whole comparison.
type series struct {
	options
	url     string
	systems []*system
	chosen  map[string][]string // flags, by system and profile

	mu  sync.Mutex
	out *os.File
}

// record writes one line of the results.
func (s *series) record(r record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return json.NewEncoder(s.out).Encode(r)
}

// rounds measures all systems alternately. Each round begins with another system, so that no system always has the
// warmest, or the most worn, server. A failed measurement is missing from the results, and does not stop the others.
func (s *series) rounds(ctx context.Context, chosen []measurement) (failed error) {
	rounds := s.options.rounds
	if s.quick {
		rounds = 1
	}
	for round := 1; round <= rounds; round++ {
		for _, m := range chosen {
			if m.once && round > 1 {
				continue
			}
			var group errgroup.Group
			if !m.together {
				group.SetLimit(1)
			}
			for _, system := range s.turn(round, m.systems) {
				group.Go(func() error { return s.measure(ctx, round, m, system) })
			}
			if err := group.Wait(); err != nil {
				fmt.Fprintln(os.Stderr, "FAILED:", err)
				failed = errors.Join(failed, err)
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return failed
}

// turn returns the systems that take part, in this round's order.
func (s *series) turn(round int, names []string) []*system {
	var present []*system
	for _, name := range names {
		if i := slices.IndexFunc(s.systems, func(s *system) bool { return s.name == name }); i >= 0 {
			present = append(present, s.systems[i])
		}
	}
	first := (round - 1) % len(present) // ours is always present
	return slices.Concat(present[first:], present[:first])
}

func (s *series) measure(ctx context.Context, round int, m measurement, system *system) error {
	flags := s.chosen[system.name+"/"+m.profile]
	args := m.args
	if s.quick {
		args = m.quick
	}
	fmt.Fprintf(os.Stderr, "round %d  %-14s %s\n", round, m.name, system.name)
	figures, err := s.figures(ctx, system, m.workload, slices.Concat(flags, args))
	if err != nil {
		return fmt.Errorf("%s of %s: %w", m.name, system.name, err)
	}
	return s.record(record{Round: round, Measurement: m.name, System: system.name, Flags: flags, Figures: figures})
}

// figures runs one workload of one system.
func (s *series) figures(ctx context.Context, system *system, workload string,
	flags []string,
) (map[string]float64, error) {
	if workload == "idle" && system.worker != nil {
		return s.idle(ctx, system, flags)
	}
	args := slices.Concat(system.command[1:], []string{"--database-url", s.url}, flags, []string{workload})
	cmd := exec.CommandContext(ctx, system.command[0], args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(flags, " "), err)
	}
	return parseFigures(out)
}

// parseFigures returns the numbers of a JSON object.
func parseFigures(line []byte) (map[string]float64, error) {
	var all map[string]any
	if err := json.Unmarshal(bytes.TrimSpace(line), &all); err != nil {
		return nil, err
	}
	figures := map[string]float64{}
	for name, value := range all {
		if number, ok := value.(float64); ok && name != "cores" {
			figures[name] = number
		}
	}
	return figures, nil
}

// idle measures a worker that is not written in Go, with the code of package bench.
func (s *series) idle(ctx context.Context, system *system, flags []string) (map[string]float64, error) {
	o := bench.Options{DatabaseURL: s.url, System: func(string, *pgxpool.Pool) bench.System { return bystander{} }}
	set := flag.NewFlagSet("idle", flag.ContinueOnError)
	set.DurationVar(&o.Duration, "duration", 0, "")
	if err := set.Parse(flags); err != nil {
		return nil, err
	}
	o.Worker = func(ctx context.Context, databaseURL, ledger string) (func() error, error) {
		child := exec.CommandContext(ctx, system.worker[0], append(slices.Clone(system.worker[1:]), databaseURL,
			ledger)...)
		child.Stderr = os.Stderr
		if err := child.Start(); err != nil {
			return nil, err
		}
		return func() error { _ = child.Process.Kill(); _ = child.Wait(); return nil }, nil
	}
	result, err := bench.Run(ctx, "idle", o)
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}
	return parseFigures(line)
}

// bystander is a system whose worker migrates the database itself.
type bystander struct{ bench.System }

func (bystander) Migrate(context.Context) error { return nil }
