package integration

import (
	"cmp"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/programtest"
	"github.com/posthaste-dev/posthaste/internal/verify"
)

// Every row of the scorecard passes at tier P. `posthaste-proof verify ROW --seed N` repeats one that does not. Rows
// that measure times run the shipped binary. Of the others, the seed selects a fifth that runs a binary with the race
// detector, which takes several times as much processor time; the stories always run that one. A row that was too slow
// is tried a second time with the same seed, with the machine to itself, and the result of the first try is logged: the
// machine may have stalled for a moment. A row that breaks an invariant, such as one that loses a job, gets no second
// try, and `make verify` gives none to any row.
//
// Rows that need the machine to themselves run first, one after the other; then the others, some at a time. If a slow
// machine has not enough time for all (.ci/run sets the deadline in POSTHASTE_SCORECARD_UNTIL), the seed decides which
// rows run, for leastTime at least, and the others are skipped by name.
func TestScorecard(t *testing.T) {
	s := &scorecard{seed: uint64(time.Now().UnixNano()) % (1 << 32), until: deadline(t)}
	began := time.Now()
	rows, err := verify.Find(verify.TierP)
	if err != nil {
		t.Fatal(err)
	}
	rows = slices.DeleteFunc(rows, func(row verify.Row) bool { return row.Test != "" })
	if !s.until.IsZero() {
		rand.New(rand.NewPCG(s.seed, 0)).Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	}
	slices.SortStableFunc(rows, func(a, b verify.Row) int { return cmp.Compare(rank(a), rank(b)) })
	s.choosePrograms(rows)
	next := make(chan verify.Row)
	var running sync.WaitGroup
	for range atOnce {
		running.Go(func() {
			for row := range next {
				t.Run(row.Name, func(t *testing.T) { s.run(t, row) })
			}
		})
	}
	for _, row := range rows {
		if row.Alone {
			t.Run(row.Name, func(t *testing.T) { s.run(t, row) })
		} else {
			next <- row
		}
	}
	close(next)
	running.Wait()
	t.Logf("%d of %d rows have run, in %s, with seed %d", s.done.Load(), len(rows), time.Since(began).Round(time.Second), s.seed)
	if s.done.Load() == 0 {
		t.Error("no row has run")
	}
}

// atOnce is how many rows run at a time on two cores: they wait for leases and outages more than they compute.
const atOnce = 4

// busyRows start first: those that compute most, A13, which takes longest, and E2, which compares two of its own
// measurements and must make both while these rows compute. waitingRows, which mostly wait, start last.
var (
	busyRows    = []string{"A3b", "A13", "A2", "A5", "E2", "A1", "A7", "A3", "D10", "B10", "A4", "B4b", "E4"}
	waitingRows = []string{"C6", "C4", "B11"}
)

// rank returns a row's place in the order.
func rank(row verify.Row) int {
	if row.Alone {
		return -len(busyRows) - 1
	}
	if i := slices.Index(busyRows, row.Name); i >= 0 {
		return i - len(busyRows)
	}
	return 1 + slices.Index(waitingRows, row.Name)
}

// scorecard is a run of all rows.
type scorecard struct {
	seed    uint64
	until   time.Time    // when no more rows start; zero means never
	machine sync.RWMutex // held exclusively by a second try
	program map[string]string
	done    atomic.Int32 // rows that were not skipped
}

// Of the rows that do not measure times, one in oneRaced runs the program with the race detector.
const oneRaced = 5

// choosePrograms chooses the program of each row.
func (s *scorecard) choosePrograms(rows []verify.Row) {
	s.program = map[string]string{}
	untimed := s.seed % oneRaced
	for _, row := range rows {
		s.program[row.Name] = programs.proof
		if row.Timed {
			continue
		}
		if untimed++; untimed%oneRaced == 0 {
			s.program[row.Name] = programs.worker
		}
	}
}

func (s *scorecard) run(t *testing.T, row verify.Row) {
	if !s.until.IsZero() && time.Until(s.until) < rowTakes {
		t.Skip("left out: the other rows have taken the time that there is")
	}
	first, second := filepath.Join(t.ArtifactDir(), "first"), filepath.Join(t.ArtifactDir(), "second")
	s.machine.RLock()
	out, err := s.runRow(t, row, first)
	s.machine.RUnlock()
	if err != nil && !breaksInvariant(t, first) {
		t.Logf("the first try:\n%s", out)
		s.machine.Lock()
		out, err = s.runRow(t, row, second)
		s.machine.Unlock()
	}
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	if _, reason, skipped := strings.Cut(out, "     skipped, "); skipped {
		if strings.Contains(reason, "is not installed") {
			programtest.Missing(t, strings.TrimSpace(reason))
		}
		t.Skip(strings.TrimSpace(reason))
	}
	s.done.Add(1)
}

// breaksInvariant reports whether the record of a failed run shows more than slowness: something was lost, or done
// twice, or out of order. What must be equal to a number is an invariant; what has a bound is a time, a rate, or a
// number of faults that there was too little time for.
func breaksInvariant(t *testing.T, dir string) bool {
	records, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range records {
		text, err := os.ReadFile(path)
		var record verify.Record
		if err := cmp.Or(err, json.Unmarshal(text, &record)); err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(record.Violated(), func(e verify.Expectation) bool { return e.Op == "=" }) {
			return true
		}
	}
	return false
}

const (
	rowTakes  = 45 * time.Second // more than most rows take on a slow machine
	leastTime = 80 * time.Second // for the scorecard, even if the deadline has passed
)

// deadline returns when the scorecard must end; zero means never.
func deadline(t *testing.T) time.Time {
	text := os.Getenv("POSTHASTE_SCORECARD_UNTIL")
	if text == "" {
		return time.Time{}
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("POSTHASTE_SCORECARD_UNTIL: %v", err)
	}
	at, least := time.Unix(seconds, 0), time.Now().Add(leastTime)
	if at.Before(least) {
		return least
	}
	return at
}

func (s *scorecard) runRow(t *testing.T, row verify.Row, dir string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program[row.Name], "verify", row.Name, "--seed", strconv.FormatUint(s.seed, 10), "--out", dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its child processes
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	return string(out), err
}
