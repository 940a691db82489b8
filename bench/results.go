package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// record is a line of the results: the environment of the run, a trial of settings, or one measurement of one system.
type record struct {
	Environment *environment       `json:"environment,omitempty"`
	Trial       string             `json:"trial,omitempty"`
	Round       int                `json:"round,omitempty"`
	Measurement string             `json:"measurement,omitempty"`
	System      string             `json:"system,omitempty"`
	Flags       []string           `json:"flags,omitempty"`
	Figures     map[string]float64 `json:"figures,omitempty"`
}

func createResults(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.Create(path)
}

// results holds all lines of a run.
type results struct {
	environment
	records []record
}

func readResults(path string) (*results, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r := &results{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var line record
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if line.Environment != nil {
			r.environment = *line.Environment
		}
		r.records = append(r.records, line)
	}
	return r, lines.Err()
}

// sample holds the results of all rounds for one figure of one system.
type sample struct {
	system           string
	median, min, max float64
}

// samples returns the samples of every system that was measured, ours first.
func (r *results) samples(measurement, figure string) (all []sample) {
	for _, system := range []string{ours, river, graphile, watermillSQL, floor} {
		var values []float64
		for _, line := range r.records {
			if value, ok := line.Figures[figure]; ok && line.Measurement == measurement && line.System == system {
				values = append(values, value)
			}
		}
		if len(values) > 0 {
			slices.Sort(values)
			all = append(all, sample{system, median(values), values[0], values[len(values)-1]})
		}
	}
	return all
}

// compared returns the samples of a question's figure, which may have another name in the results of the peers.
func (r *results) compared(measurement string, f figure) []sample {
	all := r.samples(measurement, f.name)
	if f.peers == "" || len(all) == 0 {
		return all
	}
	others := slices.DeleteFunc(r.samples(measurement, f.peers), func(s sample) bool { return s.system == ours })
	return append(all, others...)
}

// median returns the median of sorted values.
func median(values []float64) float64 {
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// of returns a system's sample, and whether it was measured.
func of(samples []sample, system string) (sample, bool) {
	i := slices.IndexFunc(samples, func(s sample) bool { return s.system == system })
	if i < 0 {
		return sample{}, false
	}
	return samples[i], true
}

// flags returns the settings with which a measurement of a system was made.
func (r *results) flags(measurement, system string) []string {
	i := slices.IndexFunc(r.records, func(l record) bool { return l.Measurement == measurement && l.System == system })
	if i < 0 {
		return nil
	}
	return r.records[i].Flags
}

func (r *results) rounds() (most int) {
	for _, line := range r.records {
		most = max(most, line.Round)
	}
	return cmp.Or(most, 1)
}
