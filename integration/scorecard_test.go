package integration

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify"
)

// Every row of the scorecard passes at tier P. `posthaste-proof verify ROW --seed N`
// repeats one that does not. Rows about times run the binary as it is shipped, the
// others one with the race detector. A row has a second try with the same seed, with
// the machine for itself, and the first one's verdict is logged: a machine that stood
// still for a moment is no fault of ours. `make verify` gives none.
//
// Where a machine is so slow that there is not enough time for all (UNTIL, which
// .ci/run says), the seed decides which rows have their turn, and the others are
// skipped, each by its name.
func TestScorecard(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) % (1 << 32)
	scorecard, err := verify.Find(verify.TierP)
	if err != nil {
		t.Fatal(err)
	}
	until := deadline(t)
	if !until.IsZero() {
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(scorecard), func(i, j int) { scorecard[i], scorecard[j] = scorecard[j], scorecard[i] })
	}
	places := make(chan struct{}, 3) // rows wait more than they work
	var machine sync.RWMutex         // held by tests that need all of it
	for _, row := range scorecard {
		if row.Test != "" {
			continue
		}
		t.Run(row.Name, func(t *testing.T) {
			if !row.Alone { // those that wait here begin when the others are through
				t.Parallel()
				places <- struct{}{}
				defer func() { <-places }()
			}
			if !until.IsZero() && time.Until(until) < rowTakes {
				t.Skip("left out: the other rows have taken the time that there is")
			}
			machine.RLock()
			out, err := runRow(t, row, seed)
			machine.RUnlock()
			if err != nil {
				t.Logf("the first try:\n%s", out)
				machine.Lock()
				out, err = runRow(t, row, seed)
				machine.Unlock()
			}
			t.Logf("%s", out)
			if err != nil {
				t.Error(err)
			}
			if _, reason, skipped := strings.Cut(out, "     skipped, "); skipped {
				t.Skip(strings.TrimSpace(reason))
			}
		})
	}
}

// rowTakes is more than most rows take on a slow machine.
const rowTakes = 45 * time.Second

// deadline is when the scorecard has to be through; zero is never.
func deadline(t *testing.T) time.Time {
	text := os.Getenv("POSTHASTE_SCORECARD_UNTIL")
	if text == "" {
		return time.Time{}
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("POSTHASTE_SCORECARD_UNTIL: %v", err)
	}
	return time.Unix(seconds, 0)
}

func runRow(t *testing.T, row verify.Row, seed uint64) (string, error) {
	program := programs.worker
	if row.Timed {
		program = programs.proof
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "verify", row.Name, "--seed", strconv.FormatUint(seed, 10), "--out", t.ArtifactDir())
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it takes its children along
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	return string(out), err
}
