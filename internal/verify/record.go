package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// Record is the result of a run: one JSON file, enough to judge the run and to repeat it.
type Record struct {
	Row      string `json:"row"`
	Tier     Tier   `json:"tier"`
	Seed     uint64 `json:"seed"`
	Passed   bool   `json:"passed"`
	Skipped  string `json:"skipped,omitempty"` // why the fault cannot be injected here; then Passed is false
	Error    string `json:"error,omitempty"`   // why the run could not be finished
	Fault    string `json:"fault"`
	Workload string `json:"workload"`
	Pass     string `json:"pass"`
	Command  string `json:"command"` // repeats it

	Commit  string    `json:"commit"`
	Started time.Time `json:"started"`
	Took    float64   `json:"took_s"`
	Machine Machine   `json:"machine"`
	Server  Server    `json:"server"`

	Expectations []Expectation  `json:"expectations"`
	Figures      []Figure       `json:"figures,omitempty"`
	Counts       map[string]int `json:"counts"`
	Faults       []fault.Done   `json:"faults"`
	FaultCounts  map[string]int `json:"fault_counts"`
}

// Machine describes the machine of a run.
type Machine struct {
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	Cores int    `json:"cores"`
	Go    string `json:"go"`
	Race  bool   `json:"race_detector"`
}

// Server describes the Postgres server of a run, with the settings that decide what a crash can lose.
type Server struct {
	Version           string `json:"postgresql"`
	Fsync             string `json:"fsync"`
	SynchronousCommit string `json:"synchronous_commit"`
	FullPageWrites    string `json:"full_page_writes"`
}

// Expectation is one check of a run.
type Expectation struct {
	What     string   `json:"what"`
	Got      float64  `json:"got"`
	Op       string   `json:"op"` // "=", "<=" or ">="
	Want     float64  `json:"want"`
	OK       bool     `json:"ok"`
	Examples []string `json:"examples,omitempty"` // violations
}

func (e Expectation) String() string {
	s := fmt.Sprintf("%s: %s, want %s %s", e.What, number(e.Got), e.Op, number(e.Want))
	for _, example := range e.Examples {
		s += "\n    " + example
	}
	return s
}

// Figure is a measured number.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Violated returns the expectations that did not hold.
func (r *Record) Violated() (violated []Expectation) {
	for _, e := range r.Expectations {
		if !e.OK {
			violated = append(violated, e)
		}
	}
	return violated
}

// Write writes the record to a folder, in a file named after its row and seed: runs with the same seed on several
// servers, or of several tiers, need a folder each.
func (r *Record) Write(folder string) (path string, err error) {
	path = filepath.Join(folder, fmt.Sprintf("%s-%d.json", r.Row, r.Seed))
	content, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(content, '\n'), 0o644)
	}
	return path, err
}

// ReadRecords reads every record in a folder and its subfolders.
func ReadRecords(folder string) (records []*Record, err error) {
	var paths []string
	err = filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".json" {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, path := range paths {
		content, err := os.ReadFile(path)
		r := &Record{}
		if err == nil {
			err = json.Unmarshal(content, r)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", path, err))
		}
		records = append(records, r)
	}
	return records, errors.Join(errs...)
}

func newRecord(row Row, o Options) *Record {
	command := fmt.Sprintf("posthaste-proof verify %s --tier %s --seed %d", row.Name, o.Tier, o.Seed)
	if o.Previous != "" {
		command = fmt.Sprintf("make upgrade-test SEED=%d", o.Seed)
	}
	if o.Pooler {
		command += " --pooler"
	}
	return &Record{
		Row: row.Name, Tier: o.Tier, Seed: o.Seed, Fault: row.Fault, Workload: row.Workload, Pass: row.Pass,
		Command: command, Commit: commit(), Started: time.Now().UTC(), Counts: map[string]int{},
		FaultCounts: map[string]int{},
		Machine: Machine{
			OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version(),
			Race: raceDetector(),
		},
	}
}

// commit returns the commit from which the binary was built, or that of the working copy in which it runs.
func commit() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		revision, modified := "", ""
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				modified = "+changes"
			}
		}
		if revision != "" {
			return revision + modified
		}
	}
	out, err := exec.Command("git", "describe", "--always", "--abbrev=40", "--dirty=+changes", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// short returns a commit by its first 12 digits, and says whether the working copy had changes beside it.
func short(commit string) string {
	digits, changes, changed := strings.Cut(commit, "+")
	if len(digits) > 12 {
		digits = digits[:12]
	}
	if changed {
		return digits + "+" + changes
	}
	return digits
}

func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "-race" {
			return s.Value == "true"
		}
	}
	return false
}

// number formats a number: exactly if it is whole, else with three digits, and without an exponent if it is large.
func number(v float64) string {
	if v == float64(int64(v)) || math.Abs(v) >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
