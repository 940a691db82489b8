package main

import (
	"context"
	"fmt"
	"os"
	"slices"
)

// trial says how to find the best of several settings.
type trial struct {
	workload    string
	args, quick []string
	figure      string
	less        bool // whether less is better
}

var trials = map[string]trial{
	throughput: {"burndown", []string{"--jobs", "60000"}, []string{"--jobs", "5000"}, "jobs_per_s", false},
	bulk:       {"bulk", []string{"--jobs", "200000"}, []string{"--jobs", "20000"}, "bulk_enqueue_per_s", false},
	relaying:   {"relay", []string{"--events", "100000"}, []string{"--events", "10000"}, "events_per_s", false},
	lowLatency: {
		"latency",
		[]string{"--jobs", "300", "--every", "10ms"},
		[]string{"--jobs", "50", "--every", "10ms"},
		"p50_ms", true,
	},
}

// tune chooses each system's settings for the profiles that the measurements use.
func (s *series) tune(ctx context.Context, chosen []measurement) error {
	s.chosen = map[string][]string{}
	for _, system := range s.systems {
		for profile, candidates := range system.settings {
			wanted := slices.ContainsFunc(chosen, func(m measurement) bool {
				return m.profile == profile && slices.Contains(m.systems, system.name)
			})
			if !wanted {
				continue
			}
			best, err := s.best(ctx, system, profile, candidates)
			if err != nil {
				return fmt.Errorf("settings of %s: %w", system.name, err)
			}
			s.chosen[system.name+"/"+profile] = best
		}
	}
	return nil
}

func (s *series) best(ctx context.Context, system *system, profile string,
	candidates [][]string,
) (best []string, err error) {
	if len(candidates) == 1 {
		return candidates[0], nil
	}
	t := trials[profile]
	args := t.args
	if s.quick {
		args = t.quick
	}
	var leading float64
	for _, flags := range candidates {
		fmt.Fprintf(os.Stderr, "settings %s of %s: %v\n", profile, system.name, flags)
		figures, err := s.figures(ctx, system, t.workload, slices.Concat(flags, args))
		if err != nil {
			return nil, err
		}
		value := figures[t.figure]
		if err := s.record(record{
			Trial: profile, System: system.name, Flags: flags,
			Figures: map[string]float64{t.figure: value},
		}); err != nil {
			return nil, err
		}
		if best == nil || (value < leading) == t.less {
			best, leading = flags, value
		}
	}
	return best, nil
}
