package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/posthaste-dev/posthaste/internal/mutants"
)

// entry is a line of the record: the result of one check of a mutant.
type entry struct {
	Mutant  string    `json:"mutant"`
	Check   string    `json:"check"`
	Says    string    `json:"says"`
	Caught  bool      `json:"caught"`
	Why     string    `json:"why,omitempty"` // why it does not count as caught
	Seconds float64   `json:"seconds"`
	Commit  string    `json:"commit"`
	At      time.Time `json:"at"`
}

// record is a file to which every verdict is appended as soon as it is known, so that an interrupted run can be
// continued. The last line about a check counts.
type record struct {
	file *os.File
	last map[string]entry
}

func keyOf(mutant string, c mutants.Check) string { return mutant + "\n" + c.Name() + "\n" + c.Says }

// openRecord opens the record and reads it, if there is one.
func openRecord(path string) (*record, error) {
	r := &record{last: map[string]entry{}}
	if path == "" {
		return r, nil
	}
	var err error
	if r.file, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return nil, err
	}
	whole := int64(0)
	for lines := bufio.NewReader(r.file); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF { // an incomplete last line is from an interrupted run
			return r, r.file.Truncate(whole)
		}
		var e entry
		if err == nil {
			err = json.Unmarshal(line, &e)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		whole += int64(len(line))
		r.last[e.Mutant+"\n"+e.Check+"\n"+e.Says] = e
	}
}

// caught reports whether the record says that the check catches the mutant.
func (r *record) caught(m mutants.Mutant, c mutants.Check) bool {
	return r.last[keyOf(m.Name, c)].Caught
}

// missing returns the mutants with checks that have not caught them yet, by the record. Each has only those checks.
func (r *record) missing(all []mutants.Mutant) (left []mutants.Mutant) {
	for _, m := range all {
		var checks []mutants.Check
		for _, c := range m.Checks {
			if !r.caught(m, c) {
				checks = append(checks, c)
			}
		}
		if m.Checks = checks; len(checks) > 0 {
			left = append(left, m)
		}
	}
	return left
}

// add records the verdicts on a mutant.
func (r *record) add(m mutants.Mutant, verdicts []verdict, commit string) error {
	for _, v := range verdicts {
		e := entry{Mutant: m.Name, Check: v.check.Name(), Says: v.check.Says, Caught: v.err == nil, Seconds: v.took.Seconds(), Commit: commit, At: time.Now().UTC().Truncate(time.Second)}
		if v.err != nil {
			e.Why = v.err.Error()
		}
		r.last[keyOf(m.Name, v.check)] = e
		if r.file == nil {
			continue
		}
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if _, err := r.file.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}
